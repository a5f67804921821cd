"""What a pass did, said once at its end."""

from __future__ import annotations

import logging
import sys
from typing import Self

from scrapy import Spider, signals
from scrapy.crawler import Crawler

from crawler.items import SEEN, Outcome
from crawler.session import Session

logger = logging.getLogger(__name__)
# Why a pass left what was due: counts by name, in words.
LEFT = {
    "over_cap": "as the plan's cap is reached",
    "closed": "as the wrapper's windows are closed at this hour",
}

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
        line = sentence(self.session.spider, counts)
        if not self.session.sums_up:
            line = part_of_a_pass(self.session)
        # On a terminal the log is quiet, and the line stands below the live display.
        if sys.stderr.isatty() and self.crawler.settings["LOG_LEVEL"] != "INFO":
            print(line, file=sys.stderr)
        else:
            logger.info("%s", line)


def figures(session: Session) -> dict[str, float]:
    """The counts of a pass.

    accuracy: wanted pages of all pages fetched (the paper's equation 1)
    left_out: links that became no targets, as there are caps for sites without end
    due:      still due at the end (a limit, a host's cap)
    posts, edited_posts, missed_posts: of feeds; the last is an estimate
    missed_visits: that plans asked for since the visits before, and that nobody made
    over_cap, closed: of these, left as the plan's cap was reached, or the wrapper's hours were over
    saved:    requests less than fetching every target
    """
    counts = session.counts
    visits = counts["visits"]
    wanted = sum(counts[outcome] for outcome in SEEN)
    return {
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
        "accuracy": wanted / visits if visits else 1.0,
    }


def sentence(spider: str, counts: dict[str, float]) -> str:
    """The counts in one line."""
    targets = counts["targets"]
    saved = f"{counts['saved'] / targets:.0%}" if targets else "0%"
    return (
        f"{spider}: {counts['fetched']:.0f} fetched: {counts['new']:.0f} new, "
        f"{counts['changed']:.0f} changed, {counts['unchanged']:.0f} unchanged, "
        f"{counts['not_modified']:.0f} not modified (304), {counts['gone']:.0f} gone, "
        f"{counts['error']:.0f} errors, {counts['blocked']:.0f} blocked; "
        f"{counts['discovered']:.0f} discovered, {counts['unlisted']:.0f} unlisted; "
        f"accuracy {counts['accuracy']:.2%}; "
        f"{counts['saved']:.0f} requests saved of {targets:.0f} ({saved})"
        + _of_posts(counts)
        + (f"; {counts['left_out']:.0f} links left out" if counts["left_out"] else "")
        + (f"; {counts['missed_visits']:.0f} visits missed" if counts["missed_visits"] else "")
        + (f"; {counts['due']:.0f} still due" if counts["due"] else "")
        + "".join(f", {why}" for name, why in LEFT.items() if counts[name])
    )


def part_of_a_pass(session: Session) -> str:
    """What this worker did, in one line; the last one to end says what all have done."""
    others = "worker is" if session.others == 1 else "workers are"
    return (
        f"{session.spider}: {session.counts['visits']} fetched by this worker, "
        f"{session.visits_of_all} by all; {session.others} other {others} still at work"
    )


def _of_posts(counts: dict[str, float]) -> str:
    """What feeds brought; nothing where there are none."""
    if not any(counts[name.replace(" ", "_")] for name in POSTS):
        return ""
    return (
        f"; {counts['posts']:.0f} new posts, {counts['edited_posts']:.0f} edited, "
        f"about {counts['missed_posts']:.0f} missed"
    )
