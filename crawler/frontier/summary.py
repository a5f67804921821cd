"""The one-line summary at the end of a crawl: what was visited, what is still due and why."""

from __future__ import annotations

import logging
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Self

from scrapy import Spider, signals
from scrapy.crawler import Crawler

from crawler.frontier.lifecycle import EndState
from crawler.frontier.run import Run
from crawler.frontier.session import Session
from crawler.items import SEEN, Outcome
from crawler.storage.targets import RemainingTargets
from crawler.utils.terminal import print_line
from crawler.utils.text import count, moment

logger = logging.getLogger(__name__)
# With fewer visits, the accuracy of a site definition is not computed.
MIN_VISITS = 20
MAX_SHOWN_HOSTS = 3
# Counts of targets that the run left due, by reason.
LEFT = ("over_cap", "closed", "over_limit")
ALL_NOW = "to fetch them all now, add -a full=1"
PAUSE = "a host is paused if it sends Retry-After or refuses several requests in a row"
# Counts of feeds, as the session names them.
POSTS = ("posts", "edited posts", "missed posts")
# Counts of URLs that were pushed to Redis.
PUSHED = ("pushed", "pushed refused")


class Summary:
    """Prints the summary on a terminal, logs it elsewhere, and puts it into Scrapy's stats.

    It is the last line of a run: Scrapy's stats would bury it.
    """

    def __init__(self, crawler: Crawler) -> None:
        self.crawler = crawler
        self.session = Session.of(crawler)
        self._line, self._level = "", logging.INFO

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        """Create the extension."""
        summary = cls(crawler)
        crawler.signals.connect(summary.sum_up, signals.spider_closed)
        crawler.signals.connect(summary.show, signals.engine_stopped)
        return summary

    def show(self) -> None:
        """Print the summary; print nothing if the run failed."""
        # On a terminal the default log level hides INFO, so print below the live display.
        if self._line and sys.stderr.isatty() and self.crawler.settings["LOG_LEVEL"] != "INFO":
            print_line(self._line, error=True)
        elif self._line:
            logger.log(self._level, "%s", self._line)

    async def sum_up(self, spider: Spider) -> None:
        """Put the figures into the stats after the session has ended."""
        await self.session.ended.wait()
        run, state = self.session.run, self.session.run.state
        if state.error is not None:
            return
        counts = figures(state.counts)
        for name, value in counts.items():
            self.crawler.stats.set_value(f"freshet/{name}", value)
        if state.tally.sums_up:
            self._line = sentence(run, counts, is_shared=self.session.frontier.is_shared)
            end = state.end_state
            if not counts["visits"] and end is not None and end.paused_hosts:
                # Cron's log has only warnings. Without this one, a site that refuses all requests
                # would look like a site with nothing due.
                self._level = logging.WARNING
        else:
            # In a shared run, the last worker to end prints the summary of all workers.
            others, own = state.tally.others, state.counts["visits"]
            self._line = (
                f"{run.spider}: {own:.0f} visited by this worker, "
                f"{state.tally.visits_of_all} by all; {others} other "
                f"{'worker is' if others == 1 else 'workers are'} still running"
            )


def figures(counts: Mapping[str, float]) -> dict[str, float]:
    """Return the counts of a run under the names of Scrapy's stats.

    counts: of a run that has ended; missing ones are 0

    accuracy: share of the visits that could read a wanted page (equation 1 of the paper); missing
              with fewer than MIN_VISITS visits
    left_out: links that did not become targets because of a cap
    due:      targets still due at the end, for example because of a limit or a host's cap
    posts, edited_posts, missed_posts: of feeds; the last is an estimate
    pushed, pushed_refused: URLs pushed to Redis that became due, and that were refused
    missed_visits: planned visits that were not made
    second_requests: requests for pages in addition to their visits, to find random text
    over_cap, closed, over_limit: targets of `due`, by reason: a cap of the plan or the site, the
              site's visiting hours, the user's limit
    saved:    requests saved compared with fetching every target
    """
    counts = Counter(counts)
    visits = counts["visits"]
    result: dict[str, float] = {
        "visits": visits,
        **{str(outcome): counts[outcome] for outcome in Outcome},
        "discovered": counts["discovered"],
        "left_out": counts["left out"],
        "unlisted": counts["unlisted"],
        "targets": counts["targets"],
        "due": counts["due"],
        "missed_visits": counts["missed visits"],
        "second_requests": counts["second requests"],
        **{name: counts[name] for name in LEFT},
        **{name.replace(" ", "_"): counts[name] for name in (*POSTS, *PUSHED)},
        "saved": max(0, counts["targets"] - visits - counts["due"]),
    }
    if visits >= MIN_VISITS:
        result["accuracy"] = sum(counts[outcome] for outcome in SEEN) / visits
    return result


def sentence(run: Run, counts: dict[str, float], *, is_shared: bool) -> str:
    """Return the summary of a run in one line; if nothing was visited, with the reasons."""
    state, visits, due = run.state, counts["visits"], counts["due"]
    why = _why_left(run, counts, is_shared=is_shared) if due else []
    reasons = f" because {' and '.join(why)}" if why else ""
    parts: list[str] = []
    if visits:
        parts.append(_outcomes(counts))
    elif due:
        are = "target is" if due == 1 else "targets are"
        parts.append(f"nothing visited: {due:.0f} {are} still due{reasons}")
        parts += _about_pauses(state.end_state)
    elif state.end_state is None or not state.end_state.remaining.targets:
        parts.append(
            "nothing visited: no targets, or all are gone (scrapy targets --urls lists them; "
            f"{ALL_NOW})"
        )
    else:
        remaining = _not_due(state.end_state.remaining, run.clock.now())
        parts += ["nothing visited: nothing was due", *remaining]
    parts += _other_counts(counts)
    if visits and state.end_state is not None:
        parts += _not_due(state.end_state.remaining, run.clock.now())
    if visits and due:
        parts.append(f"{due:.0f} still due{reasons}")
    if run.allowance.ignored:
        parts.append(f"full run: the plan's cap of {run.allowance.ignored} was ignored")
    return f"{run.spider}: {'; '.join(parts)}"


def _other_counts(counts: dict[str, float]) -> Iterator[str]:
    """Yield what a run counted beside its visits."""
    new, edited, missed = (counts[name.replace(" ", "_")] for name in POSTS)
    if new or edited or missed:
        yield f"{count(new, 'new post')}, {edited:,.0f} edited, about {missed:,.0f} missed"
    if (pushed := counts["pushed"]) or counts["pushed_refused"]:
        refused = f", {counts['pushed_refused']:,.0f} refused (see the warnings)"
        made_due = f"{count(pushed, 'pushed URL')} made due"
        yield made_due + (refused if counts["pushed_refused"] else "")
    if counts["left_out"]:
        links = count(counts["left_out"], "link")
        yield f"{links} skipped because of caps (see the warnings)"
    if counts["missed_visits"]:
        yield f"{count(counts['missed_visits'], 'planned visit')} missed"


def _outcomes(counts: dict[str, float]) -> str:
    visits = counts["visits"]
    shells = f", {counts['shell']:.0f} need JavaScript" if counts["shell"] else ""
    line = (
        f"{visits:.0f} visited: {counts['new']:.0f} new, "
        f"{counts['changed']:.0f} changed, {counts['unchanged']:.0f} unchanged, "
        f"{counts['not_modified']:.0f} not modified (304), {counts['gone']:.0f} gone, "
        f"{count(counts['error'], 'error')}, {counts['blocked']:.0f} blocked{shells}; "
        f"{counts['discovered']:.0f} discovered, {counts['unlisted']:.0f} unlisted"
    )
    if counts["second_requests"]:
        line += f"; {count(counts['second_requests'], 'second request')} to find random text"
    if (accuracy := counts.get("accuracy")) is None:
        return line
    read = sum(counts[outcome] for outcome in SEEN)
    readable = f"{read:.0f} of the {visits:.0f} could be read"
    unread = "" if accuracy == 1 else "; the others failed, were blocked or are gone"
    return f"{line}; accuracy {accuracy:.2%} ({readable}{unread})"


def _not_due(remaining: RemainingTargets, now: datetime) -> list[str]:
    """Return how many targets are not due, when the next ones are, and how to fetch them now."""
    parts: list[str] = []
    if remaining.repeated:
        parts.append(f"{remaining.repeated:,} failed and will be retried in the next run")
    if remaining.waiting and remaining.next_visit is not None:
        first = moment(remaining.next_visit, now)
        parts.append(
            f"{remaining.waiting:,} of {count(remaining.targets, 'target')} not due until {first} "
            f"at the earliest; {ALL_NOW}"
        )
    if remaining.failed and remaining.failed_until is not None:
        first = moment(remaining.failed_until, now)
        parts.append(f"{remaining.failed:,} of these failed before and are retried from {first}")
    return parts


def _about_pauses(end: EndState | None) -> list[str]:
    """Return what a pause is, and what to do, if hosts of due targets are paused."""
    if end is None or not end.paused_hosts:
        return []
    parts = [f"{PAUSE}; the first run after the pause continues"]
    if end.never_read:
        parts.append("the exit code is 1 because no page of this site has been read so far")
    return parts


def _why_left(run: Run, counts: dict[str, float], *, is_shared: bool) -> list[str]:
    """Return the reasons why targets are still due, each with what to do about it."""
    state, now, why = run.state, run.clock.now(), []
    if counts["over_cap"]:
        why.append(run.allowance.reached)
    if counts["closed"]:
        opens = moment(run.wrapper.opens_at(now), now)
        why.append(f"visiting_hours or blackout of the site allow no visits until {opens}")
    if counts["over_limit"]:
        limit = getattr(getattr(run.crawler.spider, "arguments", None), "limit", None)
        given = "-a limit" if limit is None else f"-a limit={limit}"
        why.append(f"{given} was reached (run again to continue, or omit the limit)")
    paused_hosts = list(state.end_state.paused_hosts.items()) if state.end_state else []
    for host, until in paused_hosts[:MAX_SHOWN_HOSTS]:
        why.append(f"{host} is paused until {moment(until, now)}")
    if len(paused_hosts) > MAX_SHOWN_HOSTS:
        why.append(f"{count(len(paused_hosts) - MAX_SHOWN_HOSTS, 'more host')} paused")
    cap = run.limits.cap
    if is_shared:
        # The number of other workers' requests is unknown, so infer the cap from the other reasons.
        is_capped = not why and state.reason == "finished"
    else:
        is_capped = any(sent >= cap for sent in run.limits.requests.values())
    if cap and is_capped:
        why.append(
            f"a host gets at most {count(cap, 'request')} in a run "
            "(host_requests in the site definition, or FRESHET_HOST_REQUESTS)"
        )
    if state.reason == "shutdown":
        why.append("the run was stopped")
    elif state.reason not in ("", "finished"):
        # The reason of CLOSESPIDER_* settings is the name of the setting in lower case.
        name = state.reason.upper()
        value = run.crawler.settings.get(name)
        reason = state.reason if value is None else f"{name}={value}"
        why.append(f"the run ended early ({reason})")
    return why or ["their hosts were unavailable (see the log)"]
