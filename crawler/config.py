"""Every knob of Freshet in one model: its unit, its default, its FRESHET_* variable.

A value comes from, first wins: `-a` (where a spider takes it), `-s FRESHET_NAME=…` or Scrapy
settings of that name, the environment, the file `.env` in the project folder, the default here.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal
from urllib.parse import parse_qsl, quote, urlsplit

from pydantic import AliasChoices, BeforeValidator, Field, ValidationError, field_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from crawler.errors import ConfigError, first_problem
from crawler.utils.time import per_day, per_hour

if TYPE_CHECKING:
    from scrapy.settings import BaseSettings as ScrapySettings

PROJECT = Path(__file__).resolve().parent.parent
UNPREFIXED = {"MONGO_URI": "mongo_uri", "REDIS_URL": "redis_url"}
PREFIX = "FRESHET_"
# No wildcards: each host is listed by its name or address.
PLAIN_HOST = re.compile(r"[\w.:%-]+")

# The longest interval, unless one is set; a plan has no longer cycles.
MAX_HOURS, MAX_FEED_HOURS = 24.0 * 28, 24.0 * 7 * 24

Hours = Annotated[float, Field(gt=0, le=24 * 365)]
Seconds = Annotated[float, Field(ge=0, le=24 * 3600)]
Count = Annotated[int, Field(ge=1)]
PerDay = Annotated[float, BeforeValidator(lambda x: per_day(x) if isinstance(x, str) else x)]
PerHour = Annotated[float, BeforeValidator(lambda x: per_hour(x) if isinstance(x, str) else x)]


class Config(BaseSettings):
    """The knobs. Names carry units; `FRESHET_` and the name in capitals is the variable."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX, env_file=PROJECT / ".env", extra="ignore", frozen=True,
        populate_by_name=True, env_ignore_empty=True,
    )  # fmt: skip

    # Where things are kept.
    mongo_uri: str | None = Field(
        None,
        validation_alias=AliasChoices("MONGO_URI", "FRESHET_MONGO_URI"),
        description="MongoDB to use; without it an embedded server is started",
    )
    redis_url: str | None = Field(
        None,
        validation_alias=AliasChoices("REDIS_URL", "FRESHET_REDIS_URL"),
        description="Redis through which several workers share passes; unset: each is alone",
    )
    database: str = Field(
        "freshet", pattern=r"^[A-Za-z0-9_-]{1,38}$", description="used where MONGO_URI names none"
    )
    data_dir: Path = Field(PROJECT / ".freshet", description="embedded server")
    mongod: str | None = Field(None, description="path of the mongod to embed")
    mongo_timeout_seconds: Seconds = Field(5.0, description="wait for a server to answer")
    mongo_cache_gb: float | None = Field(
        None, ge=0.25, description="cache of the embedded server; unset: by the memory there is"
    )

    min_free_mb: float = Field(
        500.0, ge=0, le=1e9,
        description="free space of the database's disk below which a run stops and the embedded "
        "server does not start; 0: no limit",
    )  # fmt: skip

    # How writes are grouped.
    commit_size: Count = Field(200, le=5000, description="visits written in one batch at most")
    commit_ms: float = Field(25.0, ge=0, le=5000, description="wait for a batch to fill")
    commit_retry_seconds: Seconds = Field(
        300.0, description="wait for MongoDB or Redis to come back"
    )

    # When a target is visited again, until a plan says otherwise.
    list_interval_hours: Hours = Field(6.0, description="first interval of list pages")
    item_interval_hours: Hours = Field(24.0, description="first interval of items")
    feed_interval_hours: Hours = Field(6.0, description="first interval of feeds")
    cell_interval_hours: Hours = Field(1.0, description="first interval of cells without a period")
    max_interval_hours: Hours | None = Field(
        None, description="no target waits longer; unset: 28 days, feeds 24 weeks"
    )
    error_interval_hours: Hours = Field(
        1.0, description="after the third error in a row, or a refusal; doubles with each"
    )
    error_retry_seconds: Seconds = Field(
        0.0, description="after the first and second error in a row; 0: due at the next run"
    )
    gone_confirmations: Count = Field(3, description="404 or 410 in a row until a page is gone")

    push_poll_hours: Hours = Field(72.0, description="between polls of a feed that is pushed to us")

    # What `scrapy replan` is to do.
    policy: str | None = Field(None, description="how visits are shared out; unset: optimal")
    objective: str | None = Field(None, description="what optimal is to better; unset: balanced")
    budget: PerDay | None = Field(
        None, gt=0, description="requests a day, as a mean over weeks; unset: as the present plan"
    )
    daily_cap: PerDay | None = Field(
        None, ge=0, description="requests a day at most; unset: 1.5 times the budget; 0: no cap"
    )
    hourly_cap: PerHour | None = Field(None, ge=0, description="requests an hour at most")
    feed_policy: str | None = Field(None, description="as policy, of feeds; unset: optimal")
    feed_budget: PerDay | None = Field(None, gt=0, description="as budget, of feeds")
    shared_budget: bool = Field(
        False, description="pages and feeds share the budget; feed_budget has no meaning then"
    )
    post_hours: float = Field(
        24.0, gt=0, le=1e6, description="a lost post is as bad as a page stale for so many hours"
    )

    # Near-duplicates.
    duplicates: Literal["characters", "words", "supershingles", "off"] = Field(
        "characters", description="what posts are compared by"
    )
    duplicate_threshold: float = Field(
        0.7, ge=0.3, le=1, description="similarity (Jaccard) from which on a post is a duplicate"
    )
    duplicate_date_days: float = Field(
        2.0, ge=0, le=36_500,
        description="how many days before a post was first seen its date counts against posts of "
        "other sources",
    )  # fmt: skip

    # Manners.
    contact: str = Field("", max_length=200, description="URL or address in the user agent")
    throttle_start_seconds: Seconds = Field(1.0, description="AutoThrottle's first delay")
    throttle_concurrency: float = Field(2.0, gt=0, le=64, description="AutoThrottle's target")
    host_requests: int = Field(0, ge=0, description="requests to one host in one run; 0: no cap")
    retry_after_seconds: Seconds = Field(
        60.0, description="longest Retry-After waited for in a run"
    )
    blocked_strikes: Count = Field(3, description="429/503/403 in a row until a host is left alone")
    response_mb: float = Field(16.0, gt=0, le=1024, description="largest response body")
    response_seconds: Seconds = Field(
        60.0, description="longest time for a page, redirects included"
    )
    private_hosts: Annotated[tuple[str, ...], NoDecode] = Field(
        (), description="HOST:PORT that may be in private networks, separated by commas"
    )
    private_addresses: bool = Field(
        False, description="any host may be in private networks, whoever names it"
    )
    read_seconds: Seconds = Field(
        20.0, gt=0, description="longest time for reading one page, of the processor"
    )
    read_mb: float = Field(
        1024.0, ge=64, le=1_000_000, description="most memory for reading one large page"
    )
    url_characters: int = Field(2000, ge=64, le=65536, description="longest URL followed")
    strip_parameters: Annotated[tuple[str, ...] | None, NoDecode] = Field(
        None, description="query parameters off every URL, separated by spaces; unset: tracking"
    )

    # Sites without end: calendars, facets, session ids in paths.
    max_depth: Count = Field(1000, description="pages between a start URL and a target")
    max_pattern_lists: Count = Field(
        100_000, description="targets that one pattern of list_pages may have"
    )
    max_pattern_items: Count = Field(
        1_000_000, description="targets that one pattern of item_pages may have"
    )
    max_path_repeats: Count = Field(8, description="times that a part of a URL's path may stand")

    # The pass.
    dispatch: Literal[
        "value", "expected-ratio", "starved-first", "round-robin", "earliest-deadline"
    ] = Field("value", description="who goes first where a pass has no room for all")
    in_flight: Count = Field(100, le=10_000, description="targets between queue and storage")
    lease_seconds: float = Field(
        30.0, ge=1, le=3600, description="a worker or run that says nothing for so long is given up"
    )
    lease_tries: Count = Field(
        5, le=100, description="workers that may die over a page until it is left for dead"
    )
    grace_seconds: Seconds = Field(
        30.0, description="for what is under way when a process is told to end"
    )
    clock_offset_hours: float = Field(
        0.0, ge=-1e6, le=1e6, description="moves Freshet's clock, for rehearsals"
    )
    max_clock_skew_seconds: Seconds = Field(
        3600.0, description="between this machine's clock and MongoDB's; beyond, nothing runs"
    )
    progress: bool = Field(True, description="live display where there is a terminal")

    # The service.
    refresh_slice_seconds: float = Field(
        60.0, gt=0, le=24 * 3600, description="longest time of one of its passes"
    )
    refresh_sites_seconds: float = Field(
        60.0, gt=0, le=24 * 3600, description="between its checks for sites that have targets now"
    )
    refresh_replan_hours: float = Field(
        24.0, ge=0, le=24 * 365, description="between its replans; 0: never"
    )
    refresh_passes: int = Field(4, ge=1, le=64, description="its passes at work at a time")

    # Metrics.
    metrics_dir: Path | None = Field(
        None, description="folder of node_exporter's text files; unset: none are written"
    )
    metrics_port: str | None = Field(
        None,
        coerce_numbers_to_str=True,
        description="[HOST:]PORT where the service tells its metrics; unset: nowhere",
    )

    metrics_hosts: Annotated[tuple[str, ...], NoDecode] = Field(
        (), description="further host names by which metrics may be asked for, separated by commas"
    )

    # How much is kept, and how long.
    max_target_mb: float = Field(
        64.0, ge=0, le=1e9,
        description="versions kept a target, before compression; the oldest go first; 0: no limit",
    )  # fmt: skip
    max_site_mb: float = Field(
        20_000.0, ge=0, le=1e9, description="as max_target_mb, of all targets of a site"
    )
    keep_versions: int = Field(0, ge=0, description="newest versions kept a target; 0: all")
    keep_visits_days: float = Field(
        0, ge=0, le=36_500, description="older visits become day sums; 0: never"
    )

    @field_validator("strip_parameters", mode="before")
    @classmethod
    def _split(cls, value: object) -> object:
        return tuple(value.split()) if isinstance(value, str) else value

    @field_validator("private_hosts", mode="before")
    @classmethod
    def _hosts_and_ports(cls, value: object) -> object:
        given = value.replace(",", " ").split() if isinstance(value, str) else value
        if not isinstance(given, list | tuple):
            return given
        return tuple(_host_and_port(str(one)) for one in given)

    @field_validator("metrics_hosts", mode="before")
    @classmethod
    def _host_names(cls, value: object) -> object:
        given = value.replace(",", " ").lower().split() if isinstance(value, str) else value
        return tuple(given) if isinstance(given, list) else given

    def longest_hours(self, *, feeds: bool) -> float:
        """Return the longest time between two visits of feeds or of other targets, in hours."""
        return self.max_interval_hours or (MAX_FEED_HOURS if feeds else MAX_HOURS)

    @classmethod
    def load(cls, **given: Any) -> Config:
        """The knobs from `given`, environment, `.env` and defaults; ConfigError if one is bad."""
        try:
            return cls(**given)
        except ValidationError as error:
            key, cause = first_problem(error)
            raise ConfigError(f"{_variable(key)}: {cause}") from None
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or "not UTF-8"
            raise ConfigError(f"{PROJECT / '.env'} cannot be read: {reason}") from None

    @classmethod
    def of(cls, settings: ScrapySettings) -> Config:
        """The knobs as Scrapy settings (`-s FRESHET_NAME=…`, settings.py) overlay them."""
        given = {
            field: value
            for field in cls.model_fields
            for name in {_variable(field), PREFIX + field.upper()}
            if (value := settings.get(name)) is not None
        }
        unknown = {name for name in settings if name.startswith(PREFIX)} - {
            PREFIX + field.upper() for field in cls.model_fields
        }
        if unknown:
            raise ConfigError(f"{min(unknown)}: no such setting")
        key = repr(sorted(given.items())), _environment()
        if key not in _LATEST:
            _LATEST.clear()
            _LATEST[key] = cls.load(**given)
        return _LATEST[key]


# A run asks for its configuration a dozen times, and to read it takes longer than to fetch a page.
_LATEST: dict[tuple[str, object], Config] = {}


def _environment() -> object:
    """Return what a configuration depends on besides its settings."""
    variables = tuple(
        (name, text)
        for name, text in sorted(os.environ.items())
        if name.upper().startswith(PREFIX) or name.upper() in UNPREFIXED
    )
    try:
        file = (PROJECT / ".env").stat()
    except OSError:
        return variables
    return variables, file.st_mtime_ns, file.st_size


def _host_and_port(text: str) -> str:
    """The entry in lower case; raises ValueError for anything but a host with its port."""
    try:
        parts = urlsplit(f"//{text}")
        host, port = parts.hostname or "", parts.port
    except ValueError:
        host, port = "", None
    shown = f"[{host}]" if ":" in host else host
    if not port or text.lower() != f"{shown}:{port}" or not PLAIN_HOST.fullmatch(host):
        raise ValueError(f"{text!r} is not HOST:PORT. Example: intranet.example:8080")
    return text.lower()


def _variable(field: str) -> str:
    name = field.split(".", maxsplit=1)[0].upper()
    return name if name in UNPREFIXED or name.startswith(PREFIX) else PREFIX + name


VARIABLE = re.compile(r"\$\{(\w+)\}")
SECRET_NAMES = re.compile(r"authorization|cookie|token|secret|password|api-?key|session", re.I)


def expanded(value: str) -> str:
    """The text with the variables' values; ValueError names one that is not set."""
    return VARIABLE.sub(lambda found: _value(found[1]), value)


def expanded_url(value: str) -> str:
    """As `expanded`, where a value may be the whole URL, or stand in it escaped."""
    if whole := VARIABLE.fullmatch(value):
        return _value(whole[1])
    return VARIABLE.sub(lambda found: quote(_value(found[1]), safe=""), value)


def shows_secret(url: str) -> bool:
    """Whether a password stands in a URL as it is, not as a variable."""
    parts = urlsplit(url)
    named = [value for name, value in parse_qsl(parts.query) if SECRET_NAMES.search(name)]
    return any(VARIABLE.sub("", secret) for secret in (parts.password or "", *named))


def _value(name: str) -> str:
    if (secret := os.environ.get(name)) is None:
        raise ValueError(f"environment variable {name} is not set")
    return secret
