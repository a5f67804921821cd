"""Passwords: Argon2id hashes in a thread, and a limit on failed sign-ins.

The parameters are those that OWASP recommends: 19 MB and two iterations per hash. At most two
hashes are computed at a time, so that a flood of sign-ins cannot fill the memory.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable

from argon2 import PasswordHasher
from argon2.exceptions import InvalidHashError, VerificationError

from crawler.errors import ConfigError

MIN_CHARACTERS, MAX_CHARACTERS = 12, 1000
# Consecutive failed sign-ins by a user or from an address before a wait, and its length.
MAX_FAILURES, WAIT_SECONDS = 10, 900.0
# Maximum number of users and addresses whose failures are remembered.
MAX_REMEMBERED = 10_000
CONCURRENT_HASHES = 2

_HASHER = PasswordHasher(time_cost=2, memory_cost=19_456, parallelism=1)
# Checked instead of the hash of an unknown user, so that the response takes the same time.
_NOBODY = _HASHER.hash("")


def check(password: str) -> str:
    """Return a new password; raises ConfigError if it is too short or too long."""
    if not MIN_CHARACTERS <= len(password) <= MAX_CHARACTERS:
        raise ConfigError(
            f"the password has {len(password)} characters. Use {MIN_CHARACTERS} to "
            f"{MAX_CHARACTERS:,}, such as four random words"
        )
    return password


def hashed(password: str) -> str:
    """Return the hash of a password, with a random salt; takes tens of milliseconds."""
    return _HASHER.hash(password)


def matches(password_hash: str | None, password: str) -> bool:
    """Return whether a password has this hash; takes the same time if there is no hash."""
    try:
        is_right = _HASHER.verify(password_hash or _NOBODY, password[:MAX_CHARACTERS])
    except (VerificationError, InvalidHashError):
        return False
    return is_right and password_hash is not None


class Hashing:
    """Computes hashes in threads, a few at a time."""

    def __init__(self) -> None:
        self._room = asyncio.Semaphore(CONCURRENT_HASHES)

    async def hashed(self, password: str) -> str:
        """Return the hash of a password."""
        async with self._room:
            return await asyncio.to_thread(hashed, password)

    async def matches(self, password_hash: str | None, password: str) -> bool:
        """Return whether a password has this hash. None: the user does not exist."""
        async with self._room:
            return await asyncio.to_thread(matches, password_hash, password)


class FailureLimit:
    """Counts failed sign-ins by user and by address.

    After MAX_FAILURES in a row, further attempts have to wait until WAIT_SECONDS have passed since
    the last failure. An attempt counts as failed from its start, so that many attempts at the same
    time do not evade the limit.

    clock: monotonic, in seconds
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        # By key: number of failures, and the time of the last one.
        self._failures: OrderedDict[str, tuple[int, float]] = OrderedDict()

    def begin(self, *keys: str) -> float:
        """Return the seconds to wait before an attempt; if 0, count the attempt for each key."""
        now = self._clock()
        wait = max(self._wait(key, now) for key in keys)
        if wait > 0:
            return wait
        for key in keys:
            count, _ = self._failures.pop(key, (0, 0.0))
            self._failures[key] = count + 1, now
        while len(self._failures) > MAX_REMEMBERED:
            self._failures.popitem(last=False)
        return 0.0

    def succeeded(self, *keys: str) -> None:
        """Forget the failures of a user and an address, after a sign-in."""
        for key in keys:
            self._failures.pop(key, None)

    def _wait(self, key: str, now: float) -> float:
        count, last = self._failures.get(key, (0, 0.0))
        if count and now >= last + WAIT_SECONDS:
            del self._failures[key]
            return 0.0
        return last + WAIT_SECONDS - now if count >= MAX_FAILURES else 0.0
