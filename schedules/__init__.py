"""Plan visits: turn the history of targets into the times of their next visits.

The package works on arrays only. `history` holds what visits observed, `population` describes the
targets, as a whole or in shards that several processes plan together, `terms` the budget and the
caps of a plan, and `schedule` and `calendar` its result. `estimation` estimates how often and when
targets change, `allocation` divides the budget among them, and `cost` and `placement` choose hours
of the week. `feeds` does the same for feeds. `dispatch` decides which due targets go first under
overload, and `evaluation` simulates and scores policies.

Nothing here imports Freshet, Scrapy or the database. Loops over targets are compiled with Numba
(see `compiled`); `on_compiling` reports each one that is compiled, which takes up to several
seconds. This module and `intervals` import neither NumPy nor Numba, because every crawl imports
them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

_listeners: list[Callable[[], None]] = []


@contextmanager
def on_compiling(listener: Callable[[], None]) -> Iterator[None]:
    """Call `listener` before each kernel is compiled, in the thread that waits for it."""
    _listeners.append(listener)
    try:
        yield
    finally:
        _listeners.remove(listener)


def announce() -> None:
    """Notify all listeners that another kernel has to be compiled."""
    for listener in tuple(_listeners):
        listener()
