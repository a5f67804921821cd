"""The summary at the end of a crawl: what was fetched, what is left due and why, in one line."""

from __future__ import annotations

import logging
import sys
from typing import Self

from scrapy import Spider, signals
from scrapy.crawler import Crawler

from crawler.frontier.session import Session
from crawler.items import SEEN, Outcome
from crawler.utils.terminal import print_line
from crawler.utils.text import count, moment

logger = logging.getLogger(__name__)
# Fewer fetched pages than these say nothing of a site definition's accuracy.
MIN_FETCHED = 20
MAX_SHOWN_HOSTS = 3
# Counts of what a run left due, by the reason.
LEFT = ("over_cap", "closed", "over_limit")
ALL_NOW = "to fetch them all now, add -a full=1"
# Counts of feeds, as the session names them.
POSTS = ("posts", "edited posts", "missed posts")


class Summary:
    """Prints the summary on a terminal, logs it elsewhere, and puts it into Scrapy's stats."""

    def __init__(self, crawler: Crawler) -> None:
        self.crawler = crawler
        self.session = Session.of(crawler)

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        """The summary of a crawl."""
        summary = cls(crawler)
        crawler.signals.connect(summary.show, signals.spider_closed)
        return summary

    async def show(self, spider: Spider) -> None:
        """Print it once the session has ended; nothing after a run that failed."""
        await self.session.ended.wait()
        if self.session.error is not None:
            return
        counts = figures(self.session)
        for name, value in counts.items():
            self.crawler.stats.set_value(f"freshet/{name}", value)
        if self.session.sums_up:
            line = sentence(self.session, counts)
        else:
            # Of a shared run the last worker to end reports what all have done.
            others = self.session.others
            line = (
                f"{self.session.spider}: {self.session.counts['visits']} fetched by this worker, "
                f"{self.session.visits_of_all} by all; {others} other "
                f"{'worker is' if others == 1 else 'workers are'} still running"
            )
        # On a terminal the log is quiet, and the line is below the live display.
        if sys.stderr.isatty() and self.crawler.settings["LOG_LEVEL"] != "INFO":
            print_line(line, error=True)
        else:
            logger.info("%s", line)


def figures(session: Session) -> dict[str, float]:
    """The counts of a run.

    accuracy: of all fetched, those that could be read and were wanted (the paper's equation 1);
              left out where fewer than MIN_FETCHED were fetched
    left_out: links that became no targets, as there are caps for sites without end
    due:      still due at the end (a limit, a host's cap)
    posts, edited_posts, missed_posts: of feeds; the last is an estimate
    missed_visits: that plans asked for since the visits before, and that nobody made
    over_cap, closed, over_limit: of these, left as the plan's cap or the user's limit was reached,
              or the site definition's hours were over
    saved:    requests less than fetching every target
    """
    counts = session.counts
    visits = counts["visits"]
    result: dict[str, float] = {
        "fetched": visits,
        **{str(outcome): counts[outcome] for outcome in Outcome},
        "discovered": counts["discovered"],
        "left_out": counts["left out"],
        "unlisted": counts["unlisted"],
        "targets": session.targets_at_end,
        "due": counts["due"],
        "missed_visits": counts["missed visits"],
        **{name: counts[name] for name in LEFT},
        **{name.replace(" ", "_"): counts[name] for name in POSTS},
        "saved": max(0, session.targets_at_end - visits - counts["due"]),
    }
    if visits >= MIN_FETCHED:
        result["accuracy"] = sum(counts[outcome] for outcome in SEEN) / visits
    return result


def sentence(session: Session, counts: dict[str, float]) -> str:
    """Return what a run did and what it left, in one line; where it fetched nothing, why."""
    fetched, due = counts["fetched"], counts["due"]
    why = _why_left(session, counts) if due else []
    reasons = f", as {' and '.join(why)}" if why else ""
    parts: list[str] = []
    if fetched:
        parts.append(_outcomes(counts))
    elif due:
        are = "target is" if due == 1 else "targets are"
        parts.append(f"nothing fetched: {due:.0f} {are} due{reasons}")
    elif session.left is None or not session.left.outlook.targets:
        parts.append("nothing fetched: there are no targets, or all are gone (scrapy targets)")
    else:
        parts += ["nothing fetched: nothing was due", *_not_due(session)]
    new, edited, missed = (counts[name.replace(" ", "_")] for name in POSTS)
    if new or edited or missed:
        parts.append(f"{new:.0f} new posts, {edited:.0f} edited, about {missed:.0f} missed")
    if counts["left_out"]:
        parts.append(f"{counts['left_out']:.0f} links left out by the caps named in the warnings")
    if counts["missed_visits"]:
        parts.append(f"{counts['missed_visits']:.0f} visits missed")
    if fetched:
        parts += _not_due(session)
    if fetched and due:
        parts.append(f"{due:.0f} still due{reasons}")
    if session.is_full and session.allowance.caps:
        parts.append(f"full run: the plan's cap of {session.allowance.caps} was ignored")
    return f"{session.spider}: {'; '.join(parts)}"


def _outcomes(counts: dict[str, float]) -> str:
    fetched = counts["fetched"]
    line = (
        f"{fetched:.0f} fetched: {counts['new']:.0f} new, "
        f"{counts['changed']:.0f} changed, {counts['unchanged']:.0f} unchanged, "
        f"{counts['not_modified']:.0f} not modified (304), {counts['gone']:.0f} gone, "
        f"{counts['error']:.0f} errors, {counts['blocked']:.0f} blocked; "
        f"{counts['discovered']:.0f} discovered, {counts['unlisted']:.0f} unlisted"
    )
    if (accuracy := counts.get("accuracy")) is None:
        return line
    read = sum(counts[outcome] for outcome in SEEN)
    readable = f"{read:.0f} of the {fetched:.0f} fetched could be read"
    unread = "" if accuracy == 1 else "; the others failed, were blocked or are gone"
    return f"{line}; accuracy {accuracy:.2%} ({readable}{unread})"


def _not_due(session: Session) -> list[str]:
    """What was not due, until when, and how to have it all the same."""
    left, now = session.left, session.clock.now()
    if left is None:
        return []
    outlook, parts = left.outlook, []
    if outlook.repeated:
        parts.append(f"{outlook.repeated:,} that failed are due at the next run")
    if outlook.waiting and outlook.next_visit is not None:
        first = moment(outlook.next_visit, now)
        parts.append(
            f"{outlook.waiting:,} of {count(outlook.targets, 'target')} not due, the first of "
            f"them at {first}; {ALL_NOW}"
        )
    if outlook.failed and outlook.failed_until is not None:
        first = moment(outlook.failed_until, now)
        parts.append(f"{outlook.failed:,} of these failed before, the first is due at {first}")
    return parts


def _why_left(session: Session, counts: dict[str, float]) -> list[str]:
    """Why a run left what was due, each with its way out."""
    now, why = session.clock.now(), []
    if counts["over_cap"]:
        why.append(session.allowance.reached)
    if counts["closed"]:
        opens = moment(session.wrapper.opens_at(now), now)
        why.append(f"the site definition's windows or blackout close it until {opens}")
    if counts["over_limit"]:
        limit = getattr(getattr(session.crawler.spider, "arguments", None), "limit", None)
        given = "-a limit" if limit is None else f"-a limit={limit}"
        why.append(f"{given} is reached (the next run goes on, or leave it out)")
    held = list(session.left.held.items()) if session.left else []
    for host, until in held[:MAX_SHOWN_HOSTS]:
        why.append(f"{host} asked for a pause until {moment(until, now)}")
    if len(held) > MAX_SHOWN_HOSTS:
        why.append(f"{count(len(held) - MAX_SHOWN_HOSTS, 'more host')} asked for that")
    cap = session.limits.cap
    if session.frontier.is_shared:
        # What other workers asked for is not known here.
        is_capped = not why and session.reason == "finished"
    else:
        is_capped = any(requests >= cap for requests in session.limits.asked.values())
    if cap and is_capped:
        why.append(
            f"a host gets {count(cap, 'request')} in one run at most "
            "(host_requests in the site definition, or FRESHET_HOST_REQUESTS)"
        )
    if session.reason not in ("", "finished"):
        # Scrapy's own setting, if one ended the run.
        name = session.reason.upper()
        value = session.crawler.settings.get(name)
        reason = session.reason if value is None else f"{name}={value}"
        why.append(f"the run was ended early ({reason})")
    return why or ["their hosts could not be asked (see the log)"]
