"""Work of the app in subprocesses, at most two of a kind at a time."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict

from fastapi import FastAPI

from crawler.config import Config
from crawler.errors import ConfigError, FreshetError
from crawler.planning.explanation import Explanation
from crawler.reports import explanation, version_diff
from crawler.storage.client import Document
from crawler.utils.process import end_tasks
from crawler.utils.sandbox import Sandbox

logger = logging.getLogger(__name__)
# An explanation takes seconds, so that it is kept for readers that come back to the page.
KEPT_SECONDS, MAX_KEPT = 600.0, 100
# Time that a request waits for an explanation; the work goes on after it.
PATIENCE_SECONDS = 0.2
# Explanations being made, most of them waiting for a subprocess.
MAX_PENDING = 20


class Subprocesses:
    """The sandboxes of an app, and the explanations that it made recently.

    patience_seconds: time that `explained` waits
    pending:          explanations being made
    """

    def __init__(self, patience_seconds: float = PATIENCE_SECONDS) -> None:
        self.comparing = Sandbox(version_diff.MAX_SECONDS, version_diff.MAX_MB)
        self._explaining = Sandbox(explanation.MAX_SECONDS, explanation.MAX_MB)
        self._patience_seconds = patience_seconds
        self._kept: OrderedDict[tuple[str, ...], tuple[float, Explanation | FreshetError]]
        self._kept = OrderedDict()
        self.pending: dict[tuple[str, ...], asyncio.Task[None]] = {}

    @classmethod
    def of(cls, app: FastAPI) -> Subprocesses:
        """Return those of an app."""
        if not hasattr(app.state, "subprocesses"):
            app.state.subprocesses = cls()
        made: Subprocesses = app.state.subprocesses
        return made

    async def explained(self, config: Config, target: Document) -> Explanation | None:
        """Return the explanation of a target, at most KEPT_SECONDS old and after its last write.

        Returns None while the explanation is being made: ask again a second later. Raises
        ConfigError if the site of the target is too large.
        """
        names = ("_id", "fence", "next_visit", "limits", "muted_at")
        state = [str(target.get(name)) for name in names]
        key = (*state, str((target.get("plan") or {}).get("id")))
        if (made := self._fresh(key)) is None:
            if key not in self.pending and len(self.pending) < MAX_PENDING:
                work = self._explain(key, config, target["_id"])
                self.pending[key] = asyncio.create_task(work)
            if (task := self.pending.get(key)) is not None:
                # The task goes on if the request is cancelled or has no more time.
                await asyncio.wait({task}, timeout=self._patience_seconds)
            made = self._fresh(key)
        if isinstance(made, FreshetError):
            raise type(made)(*made.args)
        return made

    async def close(self) -> None:
        """Cancel explanations that are being made."""
        await end_tasks(*self.pending.values())

    def _fresh(self, key: tuple[str, ...]) -> Explanation | FreshetError | None:
        at, made = self._kept.get(key, (0.0, None))
        return made if time.monotonic() - at < KEPT_SECONDS else None

    async def _explain(self, key: tuple[str, ...], config: Config, target: str) -> None:
        made: Explanation | FreshetError
        try:
            made = await explanation.explained(config, target, self._explaining)
        except FreshetError as error:
            made = error
        except Exception:
            # Nobody may be waiting for the task.
            logger.exception("Target not explained: %s", target)
            made = ConfigError("the explanation failed. The log of scrapy web has the details")
        finally:
            del self.pending[key]
        self._kept[key] = time.monotonic(), made
        while len(self._kept) > MAX_KEPT:
            self._kept.popitem(last=False)
