"""Processes that claim near-duplicates of one another at the same moment."""

from __future__ import annotations

import asyncio
import multiprocessing
from datetime import timedelta
from multiprocessing.synchronize import Barrier
from random import Random

from crawler.dedup.model import Candidate
from crawler.storage.dedup import claims
from tests.integration.claiming import NOW, candidate, edited, index, text

GROUPS, PROCESSES, BATCH = 300, 4, 10
WORDS = 200
SPAWN = multiprocessing.get_context("spawn")


def key_of(turn: int, group: int, process: int) -> str:
    """The post of a process in a group of near-duplicates."""
    return f"{turn}:{group}:{process}"


def group_of(turn: int, process: int) -> list[Candidate]:
    """The posts of one process: one of each group, in the same order as all processes'."""
    random = Random(turn * 100 + process)
    posts = []
    for group in range(GROUPS):
        words = text(turn * GROUPS + group, WORDS)
        created = NOW - timedelta(minutes=random.randrange(100_000))
        variant = edited(words, 1, seed=process)
        posts.append(candidate(key_of(turn, group, process), variant, created))
    return posts


class Claimers:
    """Processes that claim their posts, each turn of all at the same moment."""

    def __init__(self, uri: str, turns: int, redis: str | None = None) -> None:
        # Kept as long as they run: its semaphores end with it.
        self._barrier = SPAWN.Barrier(PROCESSES)
        self.processes = [
            SPAWN.Process(target=_work, args=(uri, redis, turns, process, self._barrier))
            for process in range(PROCESSES)
        ]
        for process in self.processes:
            process.start()

    def kill(self, process: int) -> None:
        """`kill -9` of one."""
        self.processes[process].kill()

    @property
    def running(self) -> bool:
        """Whether all are at work."""
        return all(process.is_alive() for process in self.processes)

    def codes(self) -> list[int | None]:
        """How each ended, once all have."""
        for process in self.processes:
            process.join(300)
        return [process.exitcode for process in self.processes]


def _work(uri: str, redis: str | None, turns: int, process: int, barrier: Barrier) -> None:
    asyncio.run(_claim(uri, redis, turns, process, barrier))


async def _claim(uri: str, redis: str | None, turns: int, process: int, barrier: Barrier) -> None:
    async with index(uri, redis) as (_, registry):
        for turn in range(turns):
            posts = group_of(turn, process)
            barrier.wait(60)
            for start in range(0, GROUPS, BATCH):
                await claims.claim(registry, posts[start : start + BATCH], NOW)
