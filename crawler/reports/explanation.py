"""`explain` for servers: in a subprocess, because the planner needs much memory and time.

The event loop of the server goes on meanwhile, and Numba is never imported in it.
"""

from __future__ import annotations

import asyncio
import os
from functools import partial
from typing import TYPE_CHECKING

from crawler.config import Config
from crawler.errors import ConfigError
from crawler.storage.client import server_uri
from crawler.storage.store import opened
from crawler.utils.sandbox import LimitExceeded, Sandbox
from crawler.utils.time import Clock

if TYPE_CHECKING:
    from crawler.planning.explanation import Explanation

# Limits of one explanation.
MAX_SECONDS, MAX_MB = 30, 4096
# Targets of the site to read. Reading 100,000 histories takes the server about two seconds.
MAX_READ = 20_000
# Requests to the server that started the work go first.
NICENESS = 10


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
