"""Processes that claim near-duplicates of each other concurrently."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
from datetime import timedelta
from multiprocessing.synchronize import Barrier
from random import Random

from crawler.dedup.posts import Candidate
from crawler.storage.dedup import claims
from tests.integration.claiming import NOW, candidate, edited, index, text

GROUPS, PROCESSES, BATCH = 120, 4, 10
WORDS = 200
# Starts processes from one that has loaded this module and what it imports.
SERVER = multiprocessing.get_context("forkserver")
SERVER.set_forkserver_preload([__name__])


def key_of(turn: int, group: int, process: int) -> str:
    """Return the key of a process's post in a group of near-duplicates."""
    return f"{turn}:{group}:{process}"


def group_of(turn: int, process: int) -> list[Candidate]:
    """Return the posts of one process, one per group, in the same order of groups for all."""
    random = Random(turn * 100 + process)
    posts = []
    for group in range(GROUPS):
        words = text(turn * GROUPS + group, WORDS)
        created = NOW - timedelta(minutes=random.randrange(100_000))
        variant = edited(words, 1, seed=process)
        posts.append(candidate(key_of(turn, group, process), variant, created))
    return posts


class Claimers:
    """Processes that claim their posts in rounds; all start each round together."""

    def __init__(self, uri: str, turns: int) -> None:
        # The barrier's semaphores must live as long as the processes.
        self._barrier = SERVER.Barrier(PROCESSES)
        self.processes = [
            SERVER.Process(
                target=_work, args=(dict(os.environ), uri, turns, process, self._barrier)
            )
            for process in range(PROCESSES)
        ]
        for process in self.processes:
            process.start()

    def kill(self, process: int) -> None:
        """Send SIGKILL to one process."""
        self.processes[process].kill()

    @property
    def running(self) -> bool:
        """Return true while all processes are running."""
        return all(process.is_alive() for process in self.processes)

    def codes(self) -> list[int | None]:
        """Wait for all processes and return their exit codes."""
        for process in self.processes:
            process.join(300)
        return [process.exitcode for process in self.processes]


def _work(env: dict[str, str], uri: str, turns: int, process: int, barrier: Barrier) -> None:
    # The server has the environment of the test that used it first.
    os.environ.clear()
    os.environ.update(env)
    asyncio.run(_claim(uri, turns, process, barrier))


async def _claim(uri: str, turns: int, process: int, barrier: Barrier) -> None:
    async with index(uri) as (_, registry):
        for turn in range(turns):
            posts = group_of(turn, process)
            barrier.wait(60)
            for start in range(0, GROUPS, BATCH):
                await claims.claim(registry, posts[start : start + BATCH], NOW)
