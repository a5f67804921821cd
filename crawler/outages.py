"""An outage of a server in the log: when it begins, at intervals while it lasts, and at its end."""

from __future__ import annotations

import logging
from dataclasses import dataclass

# Between two lines about an outage that goes on.
SAY_SECONDS = 60.0
# Longer than between two attempts of a call: without a failure for so long, no call retries.
QUIET_SECONDS = 15.0


@dataclass(slots=True)
class Outage:
    """Whether a server is unavailable, and since when.

    logger: of the module that retries
    name:   of the server, as a line begins with it
    count:  outages so far
    """

    logger: logging.Logger
    name: str
    count: int = 0
    _began: float | None = None
    _said: float = 0.0
    _failed: float = 0.0

    @property
    def is_on(self) -> bool:
        """Whether it lasts."""
        return self._began is not None

    def lasts(self, now: float, reason: str, max_seconds: float) -> None:
        """Note an attempt that failed at `now`, in seconds of a clock that never goes back.

        reason: in one line; max_seconds: how long attempts go on
        """
        self._failed = now
        if self._began is None:
            self.count += 1
            self._began = self._said = now
            self.logger.warning(
                "%s unavailable, retrying for up to %.0f s: %s", self.name, max_seconds, reason
            )
        elif now >= self._said + SAY_SECONDS:
            self._said = now
            self.logger.warning(
                "%s still unavailable after %.0f s, retrying: %s",
                self.name, now - self._began, reason,
            )  # fmt: skip

    def succeeds(self, now: float, *, has_failed: bool) -> bool:
        """Note that a call succeeded at `now`; whether that ended an outage.

        has_failed: whether an attempt of this call failed before. The success of another call says
        little: a server without room for writes can be read.
        """
        if self._began is None or not (has_failed or now > self._failed + QUIET_SECONDS):
            return False
        self.logger.warning("%s available again after %.0f s", self.name, now - self._began)
        self._began = None
        return True
