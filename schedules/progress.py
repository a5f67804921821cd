"""Notify listeners that a kernel has to be compiled, which takes up to several seconds."""

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
