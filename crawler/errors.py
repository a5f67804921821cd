"""Every error that Freshet raises for its user, drawn as a tree.

FreshetError            one line: what is wrong, where, what to do
├── ConfigError         a setting, an environment variable, a spider argument
├── WrapperError        a wrapper: file, key and cause
├── TraceError          a file of changes, pages, posts, feeds or visits: file, line and cause
├── Busy                another process is at the same work, so that nothing is to be done
└── StorageError        the database
    ├── Unreachable     no MongoDB or Redis answered in time
    ├── ClockError          this machine's clock is too far from the server's
    ├── LeaseLost       another process has taken over the work of this one
    ├── BandsLost       Redis lost its claims, or they are made anew
    ├── PassLost        Redis lost the pass that several workers share
    ├── NewerDatabase   written by a later Freshet
    └── ServerError     the embedded server could not be found, started or stopped
"""

from __future__ import annotations

from pydantic import ValidationError
from scrapy.exceptions import IgnoreRequest


class FreshetError(Exception):
    """Base of all errors that are the user's to mend; `str()` is one line."""


class ConfigError(FreshetError):
    """A setting, an environment variable or a spider argument is wrong."""


class WrapperError(FreshetError):
    """A wrapper is wrong; the message names file, key and cause."""


class TraceError(FreshetError):
    """A file of a simulation is wrong or cannot be written; names file and line."""


class Busy(FreshetError):
    """Another process is at the same work; nothing is wrong, and nothing is to be done."""


class StorageError(FreshetError):
    """The database cannot be used or refused a write."""


class Unreachable(StorageError):
    """No MongoDB or Redis server answered in time."""


class ClockError(StorageError):
    """The clock of this machine is too far from the server's."""


class LeaseLost(StorageError):
    """Another process has taken over the work of this one, which was not heard of for too long."""


class BandsLost(StorageError):
    """Redis lost its claims of near-duplicates, or they are being made anew."""


class PassLost(StorageError):
    """Redis lost the pass that several workers share."""


class NewerDatabase(StorageError):
    """The database was written by a later version of Freshet."""


class ServerError(StorageError):
    """The embedded MongoDB server cannot be found, started or stopped."""


def first_problem(error: ValidationError) -> tuple[str, str]:
    """The first complaint of pydantic as (dotted key, cause in one line)."""
    detail = error.errors(include_url=False)[0]
    key = ".".join(str(part) for part in detail["loc"] if part not in ("text", "rule"))
    cause = detail["msg"].removeprefix("Value error, ").removeprefix("Assertion failed, ")
    if detail["type"] == "extra_forbidden":
        cause = "unknown key"
    elif detail["type"] == "missing":
        cause = "is missing"
    return key, " ".join(cause.split())


# What Scrapy's robots.txt middleware says; redirect loops are IgnoreRequests too.
FORBIDDEN = "Forbidden by robots.txt"
# How a user allows a refused host; an address to which names must not lead.
WAY_OUT = "to allow this host and port, add them to FRESHET_PRIVATE_HOSTS"
LITERAL_WAY_OUT = "write the address in start_urls, or set FRESHET_PRIVATE_ADDRESSES=1"
# Ends of reasons that are logged for the host, and not for each of its pages.
OF_THE_HOST = (FORBIDDEN, f"({WAY_OUT})", f"({LITERAL_WAY_OUT})")


class Misbehaves(IgnoreRequest):
    """An answer that costs more than it may, or is none; `str()` says what is wrong.

    Asked again at once, the server would hardly answer otherwise.
    """


class TooLarge(Misbehaves):
    """A body that unpacks to more than it may."""

    def __init__(self, limit_bytes: int) -> None:
        super().__init__(f"unpacks to more than {limit_bytes} bytes (FRESHET_RESPONSE_MB)")


class OffLimits(IgnoreRequest):
    """An address that is not asked; `str()` says why.

    url: what leads there
    """

    def __init__(self, url: str, why: str) -> None:
        super().__init__(why)
        self.url = url


class QueryFailed(Exception):
    """The query has no result, in words without secrets. hangs: the database does not answer."""

    def __init__(self, reason: str, *, hangs: bool = False) -> None:
        super().__init__(reason)
        self.hangs = hangs
