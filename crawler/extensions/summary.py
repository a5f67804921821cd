"""The closing line of a run: what it did, what it left, and the next step."""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping
from typing import Self

from scrapy import Spider, signals
from scrapy.crawler import Crawler

from crawler.items import SEEN, Outcome
from crawler.session import Session
from crawler.utils.terminal import print_line
from crawler.utils.text import count, moment

logger = logging.getLogger(__name__)
# Fewer fetched pages than these say nothing of a site definition's accuracy.
MIN_FETCHED = 20
# Hosts that a line names at most.
SHOWN = 3
# Counts of what a run left due, by the reason.
LEFT = ("over_cap", "closed", "over_limit")
ALL_NOW = "to fetch them all now, add -a full=1"

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
        crawler.signals.connect(summary.say, signals.spider_closed)
        return summary

    async def say(self, spider: Spider) -> None:
        """Say it once the session has ended; nothing after a pass that failed."""
        await self.session.ended.wait()
        if self.session.error is not None:
            return
        counts = figures(self.session)
        for name, value in counts.items():
            self.crawler.stats.set_value(f"freshet/{name}", value)
        line = sentence(self.session, counts)
        if not self.session.sums_up:
            line = part_of_a_pass(self.session)
        # On a terminal the log is quiet, and the line stands below the live display.
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
    found: dict[str, float] = {
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
        found["accuracy"] = _read(counts) / visits
    return found


def sentence(session: Session, counts: dict[str, float]) -> str:
    """What a run did and what it left, in one line; where it fetched nothing, why."""
    did = _nothing(session, counts) if not counts["fetched"] else _outcomes(counts)
    parts = [f"{session.spider}: {did}", *_of_posts(counts)]
    if counts["left_out"]:
        parts.append(f"{counts['left_out']:.0f} links left out by the caps named in the warnings")
    if counts["missed_visits"]:
        parts.append(f"{counts['missed_visits']:.0f} visits missed")
    if counts["fetched"]:
        parts += _not_due(session)
    if counts["fetched"] and counts["due"]:
        parts.append(f"{counts['due']:.0f} still due{_as(_why_left(session, counts))}")
    if session.is_full and session.allowance.caps:
        parts.append(f"full run: the plan's cap of {session.allowance.caps} was ignored")
    return "; ".join(parts)


def _outcomes(counts: dict[str, float]) -> str:
    """What was fetched and found."""
    line = (
        f"{counts['fetched']:.0f} fetched: {counts['new']:.0f} new, "
        f"{counts['changed']:.0f} changed, {counts['unchanged']:.0f} unchanged, "
        f"{counts['not_modified']:.0f} not modified (304), {counts['gone']:.0f} gone, "
        f"{counts['error']:.0f} errors, {counts['blocked']:.0f} blocked; "
        f"{counts['discovered']:.0f} discovered, {counts['unlisted']:.0f} unlisted"
    )
    if (accuracy := counts.get("accuracy")) is None:
        return line
    readable = f"{_read(counts):.0f} of the {counts['fetched']:.0f} fetched could be read"
    others = "" if accuracy == 1 else "; the others failed, were blocked or are gone"
    return f"{line}; accuracy {accuracy:.2%} ({readable}{others})"


def _read(counts: Mapping[str, float]) -> float:
    return sum(counts[outcome] for outcome in SEEN)


def _nothing(session: Session, counts: dict[str, float]) -> str:
    """Why nothing was fetched, and what to do."""
    if due := counts["due"]:
        are = "target is" if due == 1 else "targets are"
        return f"nothing fetched: {due:.0f} {are} due{_as(_why_left(session, counts))}"
    left = session.left
    if left is None or not left.outlook.targets:
        return "nothing fetched: there are no targets, or all are gone (scrapy targets)"
    parts = _not_due(session)
    return "; ".join(["nothing fetched: nothing was due", *parts])


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
    for host, until in held[:SHOWN]:
        why.append(f"{host} asked to be left alone until {moment(until, now)}")
    if len(held) > SHOWN:
        why.append(f"{count(len(held) - SHOWN, 'more host')} asked for that")
    if _is_host_capped(session, why):
        why.append(
            f"a host gets {count(session.limits.cap, 'request')} in one run at most "
            "(host_requests in the site definition, or FRESHET_HOST_REQUESTS)"
        )
    if session.reason not in ("", "finished"):
        why.append(f"the run was ended early ({_ended(session)})")
    return why or ["their hosts could not be asked (see the log)"]


def _is_host_capped(session: Session, why: list[str]) -> bool:
    """Whether a host had all its requests; what other workers asked for is not known here."""
    cap = session.limits.cap
    if not cap or session.worker is None:
        return bool(cap) and any(asked >= cap for asked in session.limits.asked.values())
    return not why and session.reason == "finished"


def _ended(session: Session) -> str:
    """Why Scrapy ended a run early: its own setting, if one did."""
    name = session.reason.upper()
    value = session.crawler.settings.get(name)
    return session.reason if value is None else f"{name}={value}"


def _as(why: list[str]) -> str:
    return f", as {' and '.join(why)}" if why else ""


def part_of_a_pass(session: Session) -> str:
    """What this worker did, in one line; the last one to end says what all have done."""
    others = "worker is" if session.others == 1 else "workers are"
    return (
        f"{session.spider}: {session.counts['visits']} fetched by this worker, "
        f"{session.visits_of_all} by all; {session.others} other {others} still at work"
    )


def _of_posts(counts: dict[str, float]) -> list[str]:
    """What feeds brought; nothing where there are none."""
    if not any(counts[name.replace(" ", "_")] for name in POSTS):
        return []
    return [
        f"{counts['posts']:.0f} new posts, {counts['edited_posts']:.0f} edited, "
        f"about {counts['missed_posts']:.0f} missed"
    ]
