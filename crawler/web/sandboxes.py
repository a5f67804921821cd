"""Work of the app in subprocesses: explanations and comparisons.

Explanations of targets and differences of versions run in forks, at most two of a kind at a time.
Explanations need much memory and time, and Numba is never imported in the app. Comparisons of posts
run in a subprocess that has loaded the compiled code.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections import OrderedDict
from datetime import datetime
from functools import partial

from fastapi import FastAPI
from pydantic import TypeAdapter

from crawler.config import Config
from crawler.errors import ConfigError, FreshetError
from crawler.planning.explanation import Explanation
from crawler.reports import version_diff
from crawler.reports.duplicates import Comparison
from crawler.reports.jobs import MODULE, PairOrder
from crawler.storage.client import Document, server_uri
from crawler.storage.dedup.labels import Label
from crawler.storage.store import opened
from crawler.utils.job_process import JobProcess
from crawler.utils.process import end_tasks
from crawler.utils.sandbox import LimitExceeded, Sandbox
from crawler.utils.time import Clock

logger = logging.getLogger(__name__)
# Limits of one explanation.
MAX_SECONDS, MAX_MB = 30, 4096
# Targets of the site to read. Reading 100,000 histories takes the server about two seconds.
MAX_READ = 20_000
# Requests to the server that started the work go first.
NICENESS = 10
# An explanation takes seconds, so that it is kept for readers that come back to the page.
KEPT_SECONDS, MAX_KEPT = 600.0, 100
# Time that a request waits for an explanation; the work goes on after it.
PATIENCE_SECONDS = 0.2
# Explanations being made, most of them waiting for a subprocess.
MAX_PENDING = 20
# Time after the last comparison for which its subprocess, which takes about 185 MB, is kept.
IDLE_SECONDS = 600.0
MAX_COMPARISON_SECONDS = 60.0
COMPARISON, LABEL = TypeAdapter(Comparison), TypeAdapter(Label)


class Subprocesses:
    """The sandboxes of an app, and the explanations that it made recently.

    patience_seconds: time that `explained` waits
    pending:          explanations being made
    """

    def __init__(self, patience_seconds: float = PATIENCE_SECONDS) -> None:
        self.comparing = Sandbox(version_diff.MAX_SECONDS, version_diff.MAX_MB)
        self._explaining = Sandbox(MAX_SECONDS, MAX_MB)
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
            made = await explained(config, target, self._explaining)
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


async def explained(config: Config, key: str, sandbox: Sandbox) -> Explanation:
    """Return state, estimates and plan of a target, by its `_id`.

    Raises ConfigError if the target does not exist, or if its site is too large.
    """
    # The subprocess must not start or stop an embedded server.
    uri = await asyncio.to_thread(server_uri, config)
    work = partial(_explain, config.model_copy(update={"mongo_uri": uri}), key)
    try:
        return await sandbox.run(work)
    except LimitExceeded as problem:
        raise ConfigError(
            f"the estimate {problem}. Run scrapy explain in a terminal, which has no limit"
        ) from None


def _explain(config: Config, key: str) -> Explanation:
    from crawler.planning.explain import explain_target
    from crawler.storage.target_settings import find

    async def explain() -> Explanation:
        async with opened(config) as db:
            if (target := await find(db, key)) is None:
                raise ConfigError("target not found. It was deleted meanwhile")
            now = Clock(config.clock_offset_hours).now()
            return await explain_target(db, config, target, now, lambda _: None, MAX_READ)

    os.nice(NICENESS)
    return asyncio.run(explain())


class DuplicateJobs:
    """Compares and labels posts, one pair at a time."""

    def __init__(self, config: Config) -> None:
        self.jobs = JobProcess(MODULE, IDLE_SECONDS)
        self._config = config.model_dump(mode="json")

    async def compare(self, posts: tuple[str, str]) -> Comparison:
        """Return two posts side by side, by URLs or ids; raises ConfigError."""
        order = PairOrder(kind="compare", config=self._config, posts=posts)
        return COMPARISON.validate_python(await self._run(order))

    async def label(self, posts: tuple[str, str], now: datetime, *, same: bool, by: str) -> Label:
        """Label two posts by their ids; raises ConfigError, and Busy during a rebuild."""
        order = PairOrder(kind="label", config=self._config, posts=posts, now=now, same=same, by=by)
        return LABEL.validate_python(await self._run(order))

    async def _run(self, order: PairOrder) -> object:
        try:
            return await self.jobs.run(order.model_dump_json(), MAX_COMPARISON_SECONDS)
        except TimeoutError:
            raise ConfigError(
                f"comparing these posts takes more than {MAX_COMPARISON_SECONDS:g} s"
            ) from None
