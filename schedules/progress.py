"""Who is told that a kernel has to be compiled before it runs, which takes up to seconds each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

_listeners: list[Callable[[], None]] = []


@contextmanager
def on_compiling(listener: Callable[[], None]) -> Iterator[None]:
    """Call `listener` before each kernel that has to be compiled, in the thread that waits."""
    _listeners.append(listener)
    try:
        yield
    finally:
        _listeners.remove(listener)


def announce() -> None:
    """Tell all listeners that one more kernel has to be compiled."""
    for listener in tuple(_listeners):
        listener()
