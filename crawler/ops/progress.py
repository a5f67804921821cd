"""Live status lines on a terminal, with log lines above them."""

from __future__ import annotations

import io
import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.text import Text

from crawler.config import Config
from crawler.utils.terminal import SafeConsole
from schedules.progress import on_compiling

COMPILING = "{what}: compiling the planner's kernels, once per machine: {count}"


@contextmanager
def working(config: Config, what: str) -> Iterator[Callable[[str], None]]:
    """Show a live status line; yield a function that changes its text.

    Shows nothing unless stderr is a terminal.
    """
    if not (config.progress and sys.stderr.isatty()):
        yield lambda what: None
        return
    console = SafeConsole(stderr=True)
    shown, count = what, 0

    def say(what: str) -> None:
        nonlocal shown
        shown = what
        status.update(Text(what))

    def compile_one() -> None:
        nonlocal count
        count += 1
        status.update(Text(COMPILING.format(what=shown, count=count)))

    with logs_above(console), console.status(Text(what)) as status, on_compiling(compile_one):
        yield say


@contextmanager
def logs_above(console: Console) -> Iterator[None]:
    """Print log lines above the console's live display instead of in the middle of it.

    Handlers keep the stream that they were created with, so rich's redirection of sys.stderr does
    not affect them.
    """
    moved = [
        (handler, handler.stream)
        for handler in logging.root.handlers
        if isinstance(handler, logging.StreamHandler) and handler.stream is sys.stderr
    ]
    for handler, _ in moved:
        handler.setStream(_Above(console))
    try:
        yield
    finally:
        for handler, stream in moved:
            handler.setStream(stream)


class _Above(io.TextIOBase):
    """A stream that prints above the live display of a console."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def write(self, text: str) -> int:
        """Print text unwrapped: a long line that the terminal wraps can be copied as one line."""
        if text:
            self._console.print(Text(text.removesuffix("\n")), soft_wrap=True)
        return len(text)
