"""A word on what takes long, where somebody watches."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console

from crawler.config import Config


@contextmanager
def working(config: Config, what: str) -> Iterator[Callable[[str], None]]:
    """A live line on a terminal, and how to change what it says; nothing elsewhere."""
    if not (config.progress and sys.stderr.isatty()):
        yield lambda what: None
        return
    with Console(stderr=True, highlight=False).status(what) as status:
        yield status.update
