"""Whether the clocks of machines that work together agree."""

from __future__ import annotations

from crawler.doctor.findings import Finding, failed, ok, warning

SKEW_SECONDS, MUCH_SECONDS = 1.0, 30.0
CHECK = "clock"
TODO = "keep the clocks of all machines right: timedatectl set-ntp true"


def skew(whose: str, ahead_seconds: float) -> Finding:
    """whose: a server's clock; ahead_seconds: that clock less this machine's."""
    way = "ahead of" if ahead_seconds > 0 else "behind"
    found = f"{whose} is {abs(ahead_seconds):,.3g} s {way} this machine"
    if abs(ahead_seconds) > MUCH_SECONDS:
        return failed(CHECK, found, TODO)
    if abs(ahead_seconds) > SKEW_SECONDS:
        return warning(CHECK, found, TODO)
    return ok(CHECK, f"{whose} agrees with this machine to {abs(ahead_seconds):.3f} s")
