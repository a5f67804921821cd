"""The database of the web app: opened by the first request, and again after an outage."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from crawler.config import Config
from crawler.errors import StorageError, Unreachable
from crawler.storage.client import Store, raising_unreachable

# Time after a failure in which requests fail immediately, instead of waiting for the server.
PAUSE_SECONDS = 2.0
PING_SECONDS = 2.0


class WebDatabase:
    """Opens the store when it is first needed, and checks it after each failure.

    While the database is unavailable, one request at a time tries it again; the others fail
    immediately.
    """

    def __init__(self, config: Config) -> None:
        self.config = config
        self._store: Store | None = None
        self._problem: StorageError | None = None
        self._retry_at = 0.0
        self._opening = asyncio.Lock()

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[Store]:
        """Open the store during a block; raises StorageError, also for outages inside the block."""
        store = await self._working_store()
        try:
            with raising_unreachable():
                yield store
        except Unreachable as error:
            self._failed(error)
            raise

    async def problem(self) -> str | None:
        """Return why the database cannot be used now, in one line; None if it answers."""
        try:
            store = await self._working_store()
        except StorageError as error:
            return str(error)
        return await store.problem(PING_SECONDS)

    async def close(self) -> None:
        """Close the connections."""
        if self._store is not None:
            await self._store.close()
            self._store = None

    async def _working_store(self) -> Store:
        if self._store is not None and self._problem is None:
            return self._store
        if self._problem is not None and (
            self._opening.locked() or time.monotonic() < self._retry_at
        ):
            # A copy: raising the same error again would extend its traceback.
            raise type(self._problem)(*self._problem.args)
        async with self._opening:
            if self._store is not None and self._problem is None:
                return self._store
            try:
                if self._store is None:
                    self._store = await Store.open(self.config)
                else:
                    await self._store.revive()
                    if reason := await self._store.problem(PING_SECONDS):
                        raise Unreachable(reason)
            except StorageError as error:
                self._failed(error)
                raise
            self._problem = None
            return self._store

    def _failed(self, error: StorageError) -> None:
        self._problem = error
        self._retry_at = time.monotonic() + PAUSE_SECONDS
