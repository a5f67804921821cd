"""What a simulation plays on: feeds with a span of time, from a trace or from the own past."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from crawler.errors import ConfigError
from crawler.replanning.population import Gathered, keys_of_texts
from crawler.simulation.moments import Moments, span_of
from crawler.simulation.past import are_feeds
from crawler.storage.histories import Watched
from crawler.traces.feeds import FeedTrace
from crawler.traces.files import iso
from crawler.traces.visits import whole_seconds
from schedules.feedplans import Feeds
from schedules.history import Ints, Times
from schedules.world import Span

# In longer times millions of feeds cannot be counted to the millisecond.
LONGEST_HOURS = 100 * 366 * 24


@dataclass(frozen=True, slots=True)
class Stage:
    """n feeds with names, their posts in the order of time, and when.

    unlisted:   posts that were left out, as their feed is not listed
    windowless: feeds that were left out, as their window is not known
    """

    feeds: Feeds
    names: Sequence[str]
    posts: Times
    span: Span
    unlisted: int
    windowless: int

    @property
    def known(self) -> Times:
        """What every policy knows: the posts up to the split."""
        at = self.posts.at
        before = at <= self.span.split
        feed = np.repeat(np.arange(len(self.feeds)), np.diff(self.posts.first))
        counts = np.bincount(feed[before], minlength=len(self.feeds))
        return Times(np.concatenate(([0], np.cumsum(counts))), at[before])


def stage_of_trace(trace: FeedTrace, moments: Moments) -> Stage:
    """The feeds of a trace. Without moments: the bounds of what is known."""
    if not len(trace.posts.at):
        raise ConfigError("no feed that is listed with a window has any post")
    feeds = Feeds(keys_of_texts(list(trace.ids)), trace.window, trace.weight)
    span = _whole(span_of((trace.posts.at,), moments))
    return Stage(feeds, trace.ids, trace.posts, span, trace.unlisted, trace.windowless)


def stage_of_past(gathered: Gathered, moments: Moments) -> Stage:
    """The feeds of a database, and the posts that visits found.

    A post appeared when it says so, if that lies between the two visits, else when it was found.
    """
    watched, are = gathered.watched, are_feeds(gathered.watched)
    rows = np.flatnonzero(are & (watched.window > 0))
    if not len(rows):
        raise ConfigError("no feed has been read yet (scrapy crawl reads them)")
    past = watched.histories.of(rows)
    span = _whole(span_of((past.since, past.until), moments))
    names = [watched.ids[row] for row in rows.tolist()]
    weight = gathered.population.weight[rows]
    feeds = Feeds(keys_of_texts(names), watched.window[rows], weight)
    windowless = int(np.count_nonzero(are)) - len(rows)
    return Stage(feeds, names, _posts(watched, rows), span, 0, windowless)


def _posts(watched: Watched, rows: Ints) -> Times:
    """When the posts of some targets appeared, in the order of time."""
    after, by, said = watched.histories.after, watched.histories.by, watched.said
    inside = (said >= after) & (said <= by)
    found = replace(watched.histories, by=np.where(inside, said, by)).of(rows)
    feed = np.repeat(np.arange(len(rows)), np.diff(found.first))
    return Times(found.first, found.by[np.lexsort((found.by, feed))])


def _whole(span: Span) -> Span:
    """The span in whole seconds, which a file of visits can tell."""
    whole = Span(*whole_seconds(np.array(span)).tolist())
    if not whole.start < whole.split < whole.stop:
        raise ConfigError("--from, --split and --to have to be a second apart or more")
    if whole.stop - whole.start > LONGEST_HOURS:
        raise ConfigError(
            f"from {iso(whole.start)} to {iso(whole.stop)} are more than 100 years (--from, --to)"
        )
    return whole
