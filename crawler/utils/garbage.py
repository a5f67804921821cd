"""When Python's garbage collector runs: seldom while libraries are loaded, as usual afterwards.

Loading makes no garbage to speak of, but Python looks for some after every 700 new objects, and
through everything that is loaded again and again: a fifth of the time of a short command.
"""

from __future__ import annotations

import gc

# What Python sets at its start.
USUAL = gc.get_threshold()
# New objects before a collection while libraries are loaded, and collections before an older
# generation is included. It stays on: not every command of Scrapy calls `collect_again`.
LOADING = (50_000, 2, 2)


def spare_loading() -> None:
    """Run the collector seldom until `collect_again` is called."""
    gc.set_threshold(*LOADING)


def collect_again() -> None:
    """Run the collector as usual from now on, and keep what is loaded out of its way."""
    # Without a collection before it: that would look at all of it once more.
    gc.freeze()
    gc.set_threshold(*USUAL)
