"""Work of the app in subprocesses, at most two of a kind at a time."""

from __future__ import annotations

import time
from collections import OrderedDict
from typing import Any

from fastapi import FastAPI

from crawler.config import Config
from crawler.planning.explanation import Explanation
from crawler.reports import explanation, version_diff
from crawler.storage.client import Document
from crawler.utils.sandbox import Sandbox

# An explanation takes seconds, so that it is kept for readers that come back to the page.
KEPT_SECONDS, MAX_KEPT = 600.0, 100


class Subprocesses:
    """The sandboxes of an app, and the explanations that it made recently."""

    def __init__(self) -> None:
        self.comparing = Sandbox(version_diff.MAX_SECONDS, version_diff.MAX_MB)
        self._explaining = Sandbox(explanation.MAX_SECONDS, explanation.MAX_MB)
        self._kept: OrderedDict[tuple[Any, ...], tuple[float, Explanation]] = OrderedDict()

    @classmethod
    def of(cls, app: FastAPI) -> Subprocesses:
        """Return those of an app."""
        if not hasattr(app.state, "subprocesses"):
            app.state.subprocesses = cls()
        made: Subprocesses = app.state.subprocesses
        return made

    async def explained(self, config: Config, target: Document) -> Explanation:
        """Return the explanation of a target, at most KEPT_SECONDS old and after its last write.

        Raises ConfigError if its site is too large.
        """
        names = ("_id", "fence", "next_visit", "limits", "muted_at")
        state = [str(target.get(name)) for name in names]
        key = (*state, str((target.get("plan") or {}).get("id")))
        if (kept := self._kept.get(key)) and time.monotonic() - kept[0] < KEPT_SECONDS:
            return kept[1]
        made = await explanation.explained(config, target["_id"], self._explaining)
        self._kept[key] = time.monotonic(), made
        while len(self._kept) > MAX_KEPT:
            self._kept.popitem(last=False)
        return made
