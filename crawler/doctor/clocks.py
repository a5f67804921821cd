"""Whether the clocks of machines that work together agree."""

from __future__ import annotations

from crawler.doctor.findings import Finding, failed, ok, warning

SKEW_SECONDS = 1.0
CHECK = "clock"
ADVICE = "set the clocks of all machines by NTP: timedatectl set-ntp true"


def of_mongodb(ahead_seconds: float, max_seconds: float) -> Finding:
    """Return how far apart the two clocks are, and what Freshet makes of it.

    ahead_seconds: MongoDB's clock less this machine's
    max_seconds:   from here on nothing runs
    """
    if abs(ahead_seconds) > max_seconds:
        found = f"{_told('MongoDB', ahead_seconds)}, more than FRESHET_MAX_CLOCK_SKEW_SECONDS"
        return failed(CHECK, f"{found}: nothing runs", ADVICE)
    if abs(ahead_seconds) > SKEW_SECONDS:
        return warning(CHECK, f"{_told('MongoDB', ahead_seconds)}; runs go by MongoDB's", ADVICE)
    return _agrees("MongoDB", ahead_seconds)


def of_redis(product: str, ahead_seconds: float) -> Finding:
    """Return how far apart two clocks are; no time of Redis's is compared with any other.

    product:       of the server, such as Valkey
    ahead_seconds: its clock less this machine's
    """
    if abs(ahead_seconds) > SKEW_SECONDS:
        return warning(CHECK, _told(product, ahead_seconds), ADVICE)
    return _agrees(product, ahead_seconds)


def _told(whose: str, ahead_seconds: float) -> str:
    way = "ahead of" if ahead_seconds > 0 else "behind"
    return f"{whose} is {abs(ahead_seconds):,.3g} s {way} this machine"


def _agrees(whose: str, ahead_seconds: float) -> Finding:
    return ok(CHECK, f"{whose} agrees with this machine to {abs(ahead_seconds):.3f} s")
