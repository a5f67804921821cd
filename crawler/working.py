"""A word on what takes long, where somebody watches."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console

from crawler.config import Config
from schedules.compiling import on_compiling

COMPILING = "{what}: compiling the planner's kernels, once per machine: {count}"


@contextmanager
def working(config: Config, what: str) -> Iterator[Callable[[str], None]]:
    """A live line on a terminal, and how to change what it says; nothing elsewhere."""
    if not (config.progress and sys.stderr.isatty()):
        yield lambda what: None
        return
    shown, count = what, 0

    def say(what: str) -> None:
        nonlocal shown
        shown = what
        status.update(what)

    def compile_one() -> None:
        nonlocal count
        count += 1
        status.update(COMPILING.format(what=shown, count=count))

    with Console(stderr=True, highlight=False).status(what) as status, on_compiling(compile_one):
        yield say
