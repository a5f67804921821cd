"""What a host may still be asked for in this pass: its cap, its holds, its strikes."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from datetime import datetime, timedelta


@dataclass(slots=True)
class HostLimits:
    """Per-host state of one pass; bounded by the number of hosts of the spider.

    cap:     requests to one host; 0: no cap
    strikes: blocked responses in a row until a host is left alone
    """

    cap: int = 0
    strikes: int = 3
    asked: Counter[str] = field(default_factory=Counter)
    holds: dict[str, datetime] = field(default_factory=dict)
    given_up: set[str] = field(default_factory=set)
    _blocked: Counter[str] = field(default_factory=Counter)

    def spend(self, host: str) -> bool:
        """Count a request to a host; False if its cap is used up."""
        if self.cap and self.asked[host] >= self.cap:
            return False
        self.asked[host] += 1
        return True

    def wait_seconds(self, host: str, now: datetime) -> float:
        """How long the host has asked to be left alone yet; 0 if it has not."""
        until = self.holds.get(host)
        return max(0.0, (until - now).total_seconds()) if until else 0.0

    def hold(self, host: str, until: datetime) -> None:
        """Leave the host alone until `until`, or longer if that was said before."""
        self.holds[host] = max(until, self.holds.get(host, until))

    def note(self, host: str, *, blocked: bool) -> bool:
        """Count a response; True when a host has just refused once too often in a row."""
        self._blocked[host] = self._blocked[host] + 1 if blocked else 0
        return self._blocked[host] == self.strikes

    def closed(self, now: datetime, patience: timedelta) -> list[str]:
        """Hosts that get no more requests in this pass: capped, on long hold, given up."""
        capped = [host for host, n in self.asked.items() if self.cap and n >= self.cap]
        held = [host for host, until in self.holds.items() if until > now + patience]
        return sorted({*capped, *held, *self.given_up})
