"""Which passes begin now, and when to look again: decided from times alone, in seconds."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

# Between two looks, as imports and replans may bring visits forward.
LOOK_SECONDS = 5.0
SHORTEST_SECONDS = 0.2
IDLE_SECONDS = 30.0
FAILED_SECONDS = 5.0
BUSY_SECONDS = 5.0
LONGEST_SECONDS = 300.0


class Ending(StrEnum):
    """How a pass ended. IDLE: it found nothing that it could visit, though something is due."""

    GOOD = "good"
    IDLE = "idle"
    FAILED = "failed"
    BUSY = "busy"


@dataclass(slots=True)
class Standing:
    """How one spider stands; times are those of one monotonic clock.

    due:        when its next target is due; None: it has none
    not_before: end of its pause
    looked:     when `due` was read; None: it has to be read; at first and after a failure the
                next pass does not depend on that
    repeated:   how often in a row its passes ended as the last one did
    """

    due: float | None = 0.0
    not_before: float = 0.0
    looked: float | None = math.inf
    is_running: bool = False
    ending: Ending = Ending.GOOD
    repeated: int = 0

    @property
    def ready(self) -> float | None:
        """When a pass may begin; None: not as things are."""
        return None if self.is_running or self.due is None else max(self.due, self.not_before)

    @property
    def is_blind(self) -> bool:
        """Whether its pass begins, or began, without a look: it need not find anything to do."""
        return self.looked == math.inf

    def needs_look(self, now: float) -> bool:
        """Whether `due` is to be read before the next decision."""
        if self.is_running or now < self.not_before:
            return False
        return self.looked is None or now >= self.looked + LOOK_SECONDS

    def ended(self, ending: Ending, now: float) -> float:
        """Note the end of a pass; seconds of the pause after it."""
        self.repeated = self.repeated + 1 if ending is self.ending else 1
        self.is_running, self.ending = False, ending
        seconds = pause_seconds(ending, self.repeated)
        self.not_before = now + seconds
        # Of a spider that could not begin the database may know nothing yet.
        is_known = ending in (Ending.GOOD, Ending.IDLE)
        self.due, self.looked = (None, None) if is_known else (self.not_before, math.inf)
        return seconds


@dataclass(frozen=True, slots=True)
class Decision:
    """Names of the spiders whose passes begin, and the seconds to sleep unless one ends."""

    begin: list[str]
    sleep: float


def decide(now: float, standings: Mapping[str, Standing], room: int) -> Decision:
    """Those who have waited longest begin, as many as there is room for.

    room: passes that may be at work at a time
    """
    room -= sum(standing.is_running for standing in standings.values())
    times = {name: ready for name, s in standings.items() if (ready := s.ready) is not None}
    waiting = sorted((name for name, ready in times.items() if ready <= now), key=times.__getitem__)
    begin = waiting[: max(0, room)]
    # Those that find no room wait for the end of a pass, which ends the sleep.
    later = [ready - now for ready in times.values() if ready > now]
    pauses = [s.not_before - now for s in standings.values() if s.not_before > now]
    return Decision(begin, min([LOOK_SECONDS, *later, *pauses]))


def pause_seconds(ending: Ending, repeated: int) -> float:
    """How long a spider rests after a pass.

    repeated: passes in a row that ended so
    """
    if ending is Ending.GOOD:
        return SHORTEST_SECONDS
    if ending is Ending.BUSY:
        return BUSY_SECONDS
    first = IDLE_SECONDS if ending is Ending.IDLE else FAILED_SECONDS
    return min(LONGEST_SECONDS, first * 2.0 ** min(repeated - 1, 10))
