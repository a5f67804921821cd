"""A live line on a terminal: how far the pass is."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from typing import Self

from scrapy import signals
from scrapy.crawler import Crawler
from scrapy.exceptions import NotConfigured
from scrapy.utils.asyncio import create_looping_call

from crawler.items import Outcome
from crawler.session import Session
from crawler.utils.terminal import SafeConsole
from crawler.working import logs_above

UPDATE_SECONDS = 0.5


class Progress:
    """Shows visits against what is known to be due; silent where there is no terminal."""

    def __init__(self, crawler: Crawler) -> None:
        self.session = Session.of(crawler)
        if not (self.session.config.progress and sys.stderr.isatty()):
            raise NotConfigured
        from rich.progress import BarColumn, SpinnerColumn, TextColumn, TimeElapsedColumn
        from rich.progress import Progress as Bar

        self.console = SafeConsole(stderr=True)
        self.bar = Bar(
            SpinnerColumn(),
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TextColumn("{task.completed:.0f}/{task.total:.0f} {task.fields[note]}", markup=False),
            TimeElapsedColumn(),
            console=self.console,
            transient=True,
        )
        self.task = self.bar.add_task(self.session.spider, total=1, note="")
        self._shown = ExitStack()
        self.loop = create_looping_call(self.update)
        crawler.signals.connect(self.open, signals.engine_started)
        crawler.signals.connect(self.close, signals.spider_closed)

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        """The display of a crawl; NotConfigured where it would not be seen."""
        return cls(crawler)

    def open(self) -> None:
        """Show it, with what is logged from now on above it."""
        self._shown.enter_context(logs_above(self.console))
        self._shown.enter_context(self.bar)
        self.loop.start(UPDATE_SECONDS)

    def close(self) -> None:
        """Take it away."""
        if self.loop.running:
            self.loop.stop()
        self._shown.close()

    def update(self) -> None:
        """Bring it up to date."""
        counts = self.session.counts
        known = max(self.session.due_at_start + self.session.discovered, counts["visits"], 1)
        note = f"{counts[Outcome.NEW]} new, {counts[Outcome.CHANGED]} changed"
        self.bar.update(self.task, total=known, completed=counts["visits"], note=note)
