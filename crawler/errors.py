"""Errors that Freshet reports to its users.

FreshetError            base class; the message is one line: the problem, its place and its fix
├── ConfigError         invalid setting, environment variable or spider argument
│   └── NoTargets       nothing to plan: nothing was crawled yet
├── WrapperError        invalid site definition: file, key and cause
├── TraceError          invalid file of changes, pages, posts, feeds or visits: file, line and cause
├── Busy                another process is already doing the same work
└── StorageError        database error
    ├── Unreachable     MongoDB or Redis did not answer in time
    ├── ClockError      the clocks of this machine and the server differ too much
    ├── LeaseLost       another process has taken over this process's work
    ├── RunLost         Redis lost the crawl run that workers share
    ├── NewerDatabase   the database was written by a later version of Freshet
    ├── ArchiveError    the archive of a site cannot be written or read
    └── ServerError     the embedded server was not found, or did not start or stop
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pydantic import ValidationError
from scrapy.exceptions import IgnoreRequest

# Less similar names are not suggested.
MIN_SIMILARITY = 0.75


class FreshetError(Exception):
    """Base class of errors that the user can fix; `str()` is one line."""


class ConfigError(FreshetError):
    """Raised for an invalid setting, environment variable or spider argument."""


class WrapperError(FreshetError):
    """Raised for an invalid site definition; the message contains file, key and cause."""


class NoTargets(ConfigError):
    """Raised if a plan has no targets, because nothing was crawled yet."""

    def __init__(
        self, message: str = "no targets to plan. Run scrapy crawl to discover them"
    ) -> None:
        super().__init__(message)


class TraceError(FreshetError):
    """Raised for an invalid simulation file, or one that cannot be written.

    The message contains file and line.
    """


class Busy(FreshetError):
    """Raised if another process is already doing the same work; the user need not act."""

    ENDING = "; nothing to do"

    @property
    def without_ending(self) -> str:
        """Return the message for a command that the user has to repeat."""
        return str(self).removesuffix(self.ENDING)


class StorageError(FreshetError):
    """Raised if the database is unusable or rejected a write."""


class Unreachable(StorageError):
    """Raised if MongoDB or Redis did not answer in time."""


class ClockError(StorageError):
    """Raised if the clocks of this machine and the server differ too much."""


class LeaseLost(StorageError):
    """Raised if another process took over this one's work after it missed its heartbeats."""


class RunLost(StorageError):
    """Raised if Redis lost the crawl run that workers share."""


class NewerDatabase(StorageError):
    """Raised if the database was written by a later version of Freshet."""


class ArchiveError(StorageError):
    """Raised if the archive of a site cannot be written, or a record cannot be read."""


class ServerError(StorageError):
    """Raised if the embedded MongoDB server was not found, or did not start or stop."""


def first_problem(
    error: ValidationError,
    keys: Iterable[str] = (),
    tables: Mapping[str, Iterable[str]] | None = None,
) -> tuple[str, str]:
    """Return the dotted key and the one-line cause of pydantic's first error.

    If a key is missing and another one is unknown, that one is probably its misspelled name.

    keys:   valid keys, of which the most similar one is suggested for an unknown key
    tables: valid keys in the tables below a key, such as `fields`
    """
    return next(iter(problems(error, keys, tables)))


MAX_PROBLEMS = 5
# Longer lists of valid keys do not help.
MAX_LISTED_KEYS = 12


def problems(
    error: ValidationError,
    keys: Iterable[str] = (),
    tables: Mapping[str, Iterable[str]] | None = None,
) -> list[tuple[str, str]]:
    """Return the dotted keys and the causes of pydantic's errors; see `first_problem`."""
    details = error.errors(include_url=False)
    detail = details[0]
    if detail["type"] == "missing":
        unknown = (d for d in details if d["type"] == "extra_forbidden" and len(d["loc"]) == 1)
        detail = next(unknown, detail)
    # A list whose only entry is invalid is also too short for pydantic.
    wrong = {each["loc"][:1] for each in details if each["type"] != "too_short"}
    others = (d for d in details if d["type"] != "too_short" or d["loc"][:1] not in wrong)
    ordered = [detail, *(each for each in others if each is not detail)]
    found = dict(_problem(each, keys, tables) for each in ordered)
    meant = " ".join(found.values())
    return [
        (key, cause)
        for key, cause in found.items()
        # A misspelled key is one problem, not two.
        if not (cause == CAUSES["missing"] and f"Did you mean {key}?" in meant)
    ]


def _problem(
    detail: Any, keys: Iterable[str], tables: Mapping[str, Iterable[str]] | None
) -> tuple[str, str]:
    key = ".".join(str(part) for part in detail["loc"] if part not in ("text", "rule"))
    cause = cause_of(detail)
    if detail["type"] == "extra_forbidden":
        first, *inner = detail["loc"]
        valid = [*((tables or {}).get(str(first), ()) if inner else keys)]
        name, is_short = str(detail["loc"][-1]), 0 < len(valid) <= MAX_LISTED_KEYS
        cause += suggestion_or_all(name, valid) if is_short else suggestion(name, valid)
    return key, cause


# Causes by pydantic's type of an error. `{name}` is from the error's context; `{input}`, the
# invalid value, and `{article}` are added.
CAUSES = {
    "missing": "is missing",
    "extra_forbidden": "unknown key",
    "int_parsing": "not a whole number: {input}",
    "int_parsing_size": "not a whole number: {input}",
    "int_type": "not a whole number: {input}",
    "int_from_float": "not a whole number: {input}",
    "float_parsing": "not a number: {input}",
    "float_type": "not a number: {input}",
    "finite_number": "not a finite number: {input}",
    "bool_parsing": "neither true nor false: {input}",
    "bool_type": "neither true nor false: {input}",
    "string_type": "not a text: {input}",
    "string_too_short": "shorter than {min_length} characters: {input}",
    "string_too_long": "longer than {max_length} characters",
    "string_pattern_mismatch": "invalid: {input}. It must match the pattern {pattern}",
    "path_type": "not a path: {input}",
    "greater_than": "must be greater than {gt}, not {input}",
    "greater_than_equal": "must be at least {ge}, not {input}",
    "less_than": "must be less than {lt}, not {input}",
    "less_than_equal": "must be at most {le}, not {input}",
    "literal_error": "unknown value {input}. Use {expected}",
    "enum": "unknown value {input}. Use {expected}",
    "list_type": "not a list: {input}",
    "tuple_type": "not a list: {input}",
    "set_type": "not a list: {input}",
    "too_short": "needs at least {min_length}, has {actual_length}",
    "too_long": "has more than {max_length}",
    "dict_type": "not a table of keys and values: {input}",
    "mapping_type": "not a table of keys and values: {input}",
    "model_type": "not a table of keys and values: {input}",
    "model_attributes_type": "not a table of keys and values: {input}",
    "datetime_parsing": "not a date with a time: {input}",
    "datetime_from_date_parsing": "not a date with a time: {input}",
    "datetime_type": "not a date with a time: {input}",
    "timezone_aware": "has no time zone: {input}. Append Z for UTC",
    "json_invalid": "not valid JSON: {error}",
}
MAX_INPUT_CHARACTERS = 80
# Keys whose values errors do not repeat.
PRIVATE_KEYS = re.compile(
    r"apprise|authorization|cookie|header|key|pass|secret|session|smtp|token|user|webhook", re.I
)


def cause_of(detail: Mapping[str, Any]) -> str:
    """Return the cause of an error of pydantic's in one line, in Freshet's words.

    detail: one of `ValidationError.errors()`
    """
    message = str(detail["msg"])
    if template := CAUSES.get(detail["type"]):
        value = repr(detail.get("input"))
        if any(map(PRIVATE_KEYS.search, map(str, detail["loc"]))):
            value = "(not shown)"
        elif len(value) > MAX_INPUT_CHARACTERS:
            value = f"{value[:MAX_INPUT_CHARACTERS]}…"
        context = detail.get("ctx", {}).items()
        limits = {name: f"{n:.10g}" if isinstance(n, float) else n for name, n in context}
        message = template.format_map({**limits, "input": value})
    cause = message.removeprefix("Value error, ").removeprefix("Assertion failed, ")
    return " ".join(cause.split())


def most_similar(name: str, names: Iterable[str]) -> str | None:
    """Return the name most similar to an unknown one; None if none is similar enough."""
    # Only errors need it, and every command imports this module.
    import difflib

    return next(iter(difflib.get_close_matches(name, names, 1, MIN_SIMILARITY)), None)


def suggestion(name: str, names: Iterable[str]) -> str:
    """Return the end of an error about an unknown name: the most similar one, or nothing."""
    near = most_similar(name, names)
    return f". Did you mean {near}?" if near else ""


def suggestion_or_all(name: str, names: Sequence[str], title: str = "Available") -> str:
    """Return the end of an error about an unknown name: the most similar one, or all of them."""
    return suggestion(name, names) or f". {title}: {', '.join(names) or 'none'}"


def no_targets(spider: str, stored: Sequence[str]) -> ConfigError:
    """Return the error for a spider without targets. stored: the spiders with targets."""
    names = stored or ["none. Run scrapy crawl first"]
    return ConfigError(
        f"no targets of {spider!r}{suggestion_or_all(spider, names, 'Spiders with targets')}"
    )


# Scrapy's message. The class is not enough: Scrapy raises IgnoreRequest for redirect loops, too.
FORBIDDEN = "Forbidden by robots.txt"
# Hints at the end of error messages: how to allow a refused host, or an address that host names
# must not resolve to.
ALLOW_HOST_HINT = "to allow this host and port, add them to FRESHET_PRIVATE_HOSTS"
ALLOW_ADDRESS_HINT = "write the address in start_urls, or set FRESHET_PRIVATE_ADDRESSES=1"
IGNORE_ROBOTS_HINT = "to ignore robots.txt: robots = false in the site definition"
# Errors that end with one of these are logged once per host, not for each page.
HOST_ERRORS = (
    FORBIDDEN, f"({ALLOW_HOST_HINT})", f"({ALLOW_ADDRESS_HINT})", f"({IGNORE_ROBOTS_HINT})",
)  # fmt: skip


class BadResponse(IgnoreRequest):
    """Raised for an invalid response, or one that exceeds a limit.

    An IgnoreRequest, so that Scrapy does not retry: the next response would most likely be the
    same.
    """


class TooLarge(BadResponse):
    """Raised for a body that decompresses to more than `limit_bytes`."""

    def __init__(self, limit_bytes: int) -> None:
        super().__init__(f"decompresses to more than {limit_bytes} bytes (FRESHET_RESPONSE_MB)")


class NoConnection(BadResponse):
    """Raised if no connection to a host was established.

    It did not accept one in time, or its certificate is invalid.
    """


class OffLimits(IgnoreRequest):
    """Raised for a request to an address that Freshet may not connect to.

    url: URL of the refused request
    """

    def __init__(self, url: str, why: str) -> None:
        super().__init__(why)
        self.url = url


class QueryFailed(Exception):
    """Raised if a query failed; the message contains no secrets.

    hangs: the database did not answer in time
    """

    def __init__(self, reason: str, *, hangs: bool = False) -> None:
        super().__init__(reason)
        self.hangs = hangs
