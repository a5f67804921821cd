"""What the actions of `scrapy duplicates` share."""

from __future__ import annotations

import argparse
import asyncio
import signal
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, TypeVar

from crawler.storage.client import Document
from crawler.utils.terminal import printable

Result = TypeVar("Result")
COMMAND = "duplicates"
STOPPED = 130


def positive(text: str) -> int:
    """A number from 1 on; for argparse."""
    if not text.isascii() or not text.isdigit() or not int(text):
        raise argparse.ArgumentTypeError(f"{text!r} is no number such as 100")
    return int(text)


def ended(work: Coroutine[Any, Any, Result]) -> Result | None:
    """The result of some work; None where Ctrl-C or SIGTERM has ended it, in order."""

    async def there() -> Result:
        task = asyncio.current_task()
        if task is not None:
            # Only the main thread of a Unix process has signals.
            with suppress(NotImplementedError, RuntimeError, ValueError):
                asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
        return await work

    try:
        return asyncio.run(there())
    except (KeyboardInterrupt, asyncio.CancelledError):
        return None


def title_of(post: Document) -> str:
    """A post's title, fit for a terminal; empty where it has none."""
    title = post.get("title")
    return "" if title is None else printable(str(title))


def place_of(post: Document) -> str:
    """Where a post is: its URL, else its id."""
    return printable(str(post.get("url") or post["id"]))


def copies(n: int) -> str:
    """So many copies."""
    return f"{n:,} {'copy' if n == 1 else 'copies'}"
