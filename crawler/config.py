"""Settings of Freshet (FRESHET_*): types, units, defaults and descriptions.

A value is taken from the first of these that has it: `-a` (if the spider has such an argument), `-s
FRESHET_NAME=…` or the Scrapy settings, the environment, the file `.env` in the project folder, the
default here.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple
from urllib.parse import parse_qsl, quote, urlsplit

from pydantic import AliasChoices, BeforeValidator, Field, ValidationError, field_validator
from pydantic.fields import FieldInfo
from pydantic_settings import (
    BaseSettings,
    DotEnvSettingsSource,
    EnvSettingsSource,
    NoDecode,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)

from crawler.errors import ConfigError, first_problem, most_similar, suggestion
from crawler.utils.time import Clock, per_day, per_hour

if TYPE_CHECKING:
    from collections.abc import Iterator

    from scrapy.settings import BaseSettings as ScrapySettings

PROJECT = Path(__file__).resolve().parent.parent
ENV_FILE = PROJECT / ".env"
UNPREFIXED = {"MONGO_URI": "mongo_uri", "REDIS_URL": "redis_url"}
# What misspelled names of these settings begin with.
UNPREFIXED_STARTS = ("MONGO", "REDIS")
PREFIX = "FRESHET_"
# No wildcards: every host has to be listed by its name or address.
PLAIN_HOST = re.compile(r"[\w.:%-]+")
WEB_URL = re.compile(r"https?://[^\s/?#@]+(/[^\s?#]*)?")

# The maximum interval unless max_interval_hours is set; no plan has a longer cycle.
MAX_HOURS, MAX_FEED_HOURS = 24.0 * 28, 24.0 * 7 * 24

Hours = Annotated[float, Field(gt=0, le=24 * 365)]
Seconds = Annotated[float, Field(ge=0, le=24 * 3600)]
Count = Annotated[int, Field(ge=1)]
PerDay = Annotated[float, BeforeValidator(lambda x: per_day(x) if isinstance(x, str) else x)]
PerHour = Annotated[float, BeforeValidator(lambda x: per_hour(x) if isinstance(x, str) else x)]


class _Environment(EnvSettingsSource):
    """Environment variables; without looking for parts of unset settings, as none has parts."""

    def prepare_field_value(
        self, field_name: str, field: FieldInfo, value: Any, value_is_complex: bool
    ) -> Any:
        if value is None:
            return None
        return super().prepare_field_value(field_name, field, value, value_is_complex)


class Config(BaseSettings):
    """Settings of Freshet; the environment variable is `FRESHET_` and the name in capitals."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX, env_file=ENV_FILE, extra="ignore", frozen=True,
        populate_by_name=True, env_ignore_empty=True,
    )  # fmt: skip

    # Storage.
    mongo_uri: str | None = Field(
        None,
        validation_alias=AliasChoices("MONGO_URI", "FRESHET_MONGO_URI"),
        description="MongoDB URI; unset: start an embedded server",
    )
    redis_url: str | None = Field(
        None,
        validation_alias=AliasChoices("REDIS_URL", "FRESHET_REDIS_URL"),
        description="URL of a Redis or Valkey server through which workers share crawl runs, "
        "redis://HOST:PORT/DB or unix:///PATH; unset: no sharing",
    )
    database: str = Field(
        "freshet",
        pattern=r"^[A-Za-z0-9_-]{1,38}$",
        description="name of the MongoDB database if MONGO_URI has none",
    )
    data_dir: Path = Field(
        PROJECT / ".freshet",
        description="folder for the data of the embedded server and for lock files",
    )
    mongod: str | None = Field(
        None, description="path of the mongod binary for the embedded server; unset: search for it"
    )
    mongo_timeout_seconds: Seconds = Field(
        5.0, description="timeout in seconds for connecting to MongoDB or Redis"
    )
    mongo_cache_gb: float | None = Field(
        None,
        ge=0.25,
        description="cache size of the embedded server in GB; unset: 1/8 of the memory, between "
        "0.5 and 2",
    )

    min_free_mb: float = Field(
        500.0, ge=0, le=1e9,
        description="minimum free disk space of the database in MB; below it, runs stop and the "
        "embedded server does not start; 0: no minimum",
    )  # fmt: skip

    # Batches of writes.
    commit_size: Count = Field(
        200,
        le=5000,
        description="maximum number of visits per batch of writes; never more than half of "
        "FRESHET_IN_FLIGHT",
    )
    commit_ms: float = Field(
        25.0,
        ge=0,
        le=5000,
        description="maximum time in ms to wait until a batch is full; items and unchanged pages "
        "wait for at least 500 if more can come",
    )
    commit_retry_seconds: Seconds = Field(
        300.0, description="maximum time in seconds to retry while MongoDB or Redis is unavailable"
    )

    # Initial intervals between visits, until a plan exists.
    list_interval_hours: Hours = Field(
        6.0, description="initial interval in hours between visits of a list page"
    )
    item_interval_hours: Hours = Field(
        24.0, description="initial interval in hours between visits of an item"
    )
    feed_interval_hours: Hours = Field(
        6.0, description="initial interval in hours between visits of a feed"
    )
    cell_interval_hours: Hours = Field(
        1.0, description="initial interval in hours between visits of a cell without a period"
    )
    max_interval_hours: Hours | None = Field(
        None,
        description="maximum interval in hours between visits; unset: 28 days, or 24 weeks for "
        "feeds with a plan",
    )
    error_interval_hours: Hours = Field(
        1.0,
        description="interval in hours after the third consecutive error, or after a refusal; "
        "doubles with each further error or refusal",
    )
    error_retry_seconds: Seconds = Field(
        0.0,
        description="interval in seconds after the first and second consecutive error; 0: due "
        "at the next run",
    )
    gone_confirmations: Count = Field(
        3, description="number of consecutive 404 or 410 responses after which a page is gone"
    )

    push_poll_hours: Hours = Field(
        72.0,
        description="interval in hours between polls of a feed whose posts a WebSub hub pushes",
    )

    # Replans.
    policy: str | None = Field(
        None,
        description="allocation policy of replans: optimal, groups, groups6, uniform, sqrt, "
        "freshness, harmonic, age, adaptive; unset: optimal",
    )
    objective: str | None = Field(
        None,
        description="objective of the policy optimal: balanced, freshness, age, delay; unset: "
        "balanced",
    )
    budget: PerDay | None = Field(
        None, gt=0, description="mean number of requests per day; unset: budget of the current plan"
    )
    daily_cap: PerDay | None = Field(
        None,
        ge=0,
        description="maximum number of requests per day; unset: 1.5 times the budget; 0: no cap",
    )
    hourly_cap: PerHour | None = Field(
        None, ge=0, description="maximum number of requests per hour; unset or 0: no cap"
    )
    feed_policy: str | None = Field(
        None,
        description="allocation policy of replans for feeds: optimal, uniform, min-delay, "
        "min-missing; unset: optimal",
    )
    feed_budget: PerDay | None = Field(
        None,
        gt=0,
        description="mean number of requests per day for feeds; unset: budget of the current plan",
    )
    shared_budget: bool = Field(
        False,
        description="whether pages and feeds share FRESHET_BUDGET; FRESHET_FEED_BUDGET is then "
        "ignored",
    )
    post_hours: float = Field(
        24.0,
        gt=0,
        le=1e6,
        description="with a shared budget: number of hours for which a page has to be stale to "
        "weigh as much as one missed post",
    )

    # Near-duplicates.
    duplicates: Literal["characters", "words", "supershingles", "off"] = Field(
        "characters",
        description="features by which posts are compared to find near-duplicates: characters, "
        "words, supershingles, off",
    )
    duplicate_threshold: float = Field(
        0.7,
        ge=0.3,
        le=1,
        description="minimum Jaccard similarity of near-duplicates, from 0.3 to 1",
    )

    # Politeness.
    contact: str = Field(
        "", max_length=200, description="contact URL or email address for the user agent"
    )
    throttle_start_seconds: Seconds = Field(
        1.0, description="initial delay of AutoThrottle in seconds"
    )
    throttle_concurrency: float = Field(
        2.0,
        gt=0,
        le=64,
        description="mean number of concurrent requests per host that AutoThrottle aims for",
    )
    host_requests: int = Field(
        0, ge=0, description="maximum number of requests per host and run; 0: no cap"
    )
    crawl_delay_seconds: Seconds = Field(
        30.0,
        description="maximum Crawl-delay of a robots.txt that crawls obey, in seconds; a longer "
        "one is shortened; 0: ignore Crawl-delay",
    )
    retry_after_seconds: Seconds = Field(
        60.0, description="maximum Retry-After in seconds that a run waits for"
    )
    blocked_failures: Count = Field(
        3,
        description="number of consecutive 403 or 429 responses after which a host is "
        "paused for an hour",
    )
    response_mb: float = Field(
        16.0,
        gt=0,
        le=1024,
        description="maximum size of a response body in MB, compressed and decompressed",
    )
    response_seconds: Seconds = Field(
        60.0, description="timeout in seconds for fetching a page, including redirects and retries"
    )
    private_hosts: Annotated[tuple[str, ...], NoDecode] = Field(
        (), description="hosts that may be in private networks, as HOST:PORT, separated by commas"
    )
    private_addresses: bool = Field(
        False, description="whether all hosts may be in private networks"
    )
    read_seconds: Seconds = Field(
        20.0, gt=0, description="maximum CPU time in seconds for parsing one page"
    )
    read_processes: int = Field(
        2,
        ge=0,
        le=64,
        description="processes that extract the main text of long pages (30 kB or more) while the "
        "crawl goes on; at most one for each processor; 0 or 1: the crawl itself extracts it",
    )
    read_mb: float = Field(
        1024.0, ge=64, le=1_000_000, description="maximum memory in MB for parsing one large page"
    )
    url_characters: int = Field(
        2000, ge=64, le=65536, description="maximum length of a URL in characters"
    )
    strip_parameters: Annotated[tuple[str, ...] | None, NoDecode] = Field(
        None,
        description="query parameters to remove from URLs, separated by spaces; unset: common "
        "tracking parameters",
    )

    # Limits on crawler traps: calendars, facets, session ids in paths.
    max_depth: Count = Field(
        1000, description="maximum number of links between a start URL and a target"
    )
    max_redundant_lists: Count = Field(
        100,
        description="maximum number of list pages in a row, each linked by the one before, that "
        "show no items, or only those of other pages of the same list",
    )
    max_pattern_lists: Count = Field(
        100_000, description="maximum number of targets per pattern of list_pages"
    )
    max_pattern_items: Count = Field(
        1_000_000, description="maximum number of targets per pattern of item_pages"
    )
    max_path_repeats: Count = Field(
        8, description="maximum number of times that a segment occurs in the path of a URL"
    )

    # Crawl runs.
    dispatch: Literal[
        "value", "expected-ratio", "starved-first", "round-robin", "earliest-deadline"
    ] = Field(
        "value",
        description="order of targets if a run cannot fetch all that are due: value, "
        "expected-ratio, starved-first, round-robin, earliest-deadline",
    )
    in_flight: Count = Field(
        100, le=10_000, description="maximum number of targets between queue and storage"
    )
    lease_seconds: float = Field(
        30.0,
        ge=1,
        le=3600,
        description="time in seconds without a heartbeat after which a worker or run counts as "
        "crashed",
    )
    lease_tries: Count = Field(
        5,
        le=100,
        description="number of worker crashes on a page after which the page is dead-lettered",
    )
    grace_seconds: Seconds = Field(
        30.0, description="maximum time in seconds between a stop signal and the end of a process"
    )
    clock_offset_hours: float = Field(
        0.0, ge=-1e6, le=1e6, description="offset of Freshet's clock in hours, for tests"
    )
    max_clock_skew_seconds: Seconds = Field(
        3600.0,
        description="maximum difference in seconds between the clocks of this machine and of "
        "MongoDB; beyond it, commands fail",
    )
    progress: bool = Field(True, description="whether to display progress on terminals")

    # The service.
    refresh_slice_seconds: float = Field(
        60.0,
        gt=0,
        le=24 * 3600,
        description="maximum duration in seconds of a crawl run of the service",
    )
    refresh_sites_seconds: float = Field(
        60.0,
        gt=0,
        le=24 * 3600,
        description="interval in seconds between checks of the service for sites with new targets",
    )
    refresh_replan_hours: float = Field(
        24.0,
        ge=0,
        le=24 * 365,
        description="interval in hours between replans of the service; 0: never",
    )
    refresh_runs: int = Field(
        4, ge=1, le=64, description="maximum number of concurrent crawl runs of the service"
    )

    # Notifications.
    notify_file: Path = Field(
        PROJECT / "notify.toml", description="file with the channels and rules of notifications"
    )
    web_url: str | None = Field(
        None,
        max_length=1000,
        description="URL at which the web app is reached, for links in notifications; unset: no "
        "links",
    )

    # Metrics.
    metrics_dir: Path | None = Field(
        None,
        description="folder for metrics files, such as the textfile folder of node_exporter; "
        "unset: no files",
    )
    metrics_port: str | None = Field(
        None,
        coerce_numbers_to_str=True,
        description="[HOST:]PORT at which the service exports metrics; unset: no export",
    )

    metrics_hosts: Annotated[tuple[str, ...], NoDecode] = Field(
        (),
        description="additional host names accepted in requests to scrapy refresh run --metrics, "
        "separated by commas",
    )

    # The web app.
    web_hosts: Annotated[tuple[str, ...], NoDecode] = Field(
        (),
        description="host names under which the web app is reachable, separated by commas; "
        "if set, all users have to sign in",
    )

    # Retention.
    max_target_mb: float = Field(
        64.0, ge=0, le=1e9,
        description="maximum size in MB of the versions kept per target, uncompressed; the "
        "oldest are removed; 0: no limit",
    )  # fmt: skip
    max_site_mb: float = Field(
        20_000.0,
        ge=0,
        le=1e9,
        description="maximum size in MB of the versions kept per site, uncompressed; 0: no limit",
    )
    archive_file_mb: float = Field(
        1000.0, gt=0, le=1e6,
        description="size in MB at which a WARC file of an archive is full; at most a quarter of "
        "FRESHET_MAX_ARCHIVE_MB",
    )  # fmt: skip
    max_archive_mb: float = Field(
        50_000.0, ge=0, le=1e9,
        description="maximum size in MB of the archive of a site; the oldest files are deleted; "
        "0: no limit",
    )  # fmt: skip
    keep_versions: int = Field(
        20, ge=0, description="number of newest versions kept per target; 0: all"
    )
    keep_visits_days: float = Field(
        365, ge=0, le=36_500,
        description="number of days after which visits are replaced by daily aggregates; 0: never",
    )  # fmt: skip
    keep_aggregates_days: float = Field(
        1095, ge=0, le=36_500,
        description="number of days after which daily aggregates are deleted; 0: never",
    )  # fmt: skip
    keep_runs_days: float = Field(
        90, ge=0, le=36_500,
        description="number of days after which runs are deleted; 0: never",
    )  # fmt: skip
    keep_plans_days: float = Field(
        365, ge=0, le=36_500,
        description="number of days after which plans that no target uses anymore are deleted; "
        "0: never",
    )  # fmt: skip

    silence_false_alarms_per_week: float = Field(
        1.0,
        ge=0,
        le=1000,
        description="number of silence alarms per week that may be false, over all pages, over all "
        "feeds and over all fields; 0: no alarms",
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
        pairs = [str(pair) for pair in given]
        for pair in pairs:
            try:
                parts = urlsplit(f"//{pair}")
                host, port = parts.hostname or "", parts.port
            except ValueError:
                host, port = "", None
            shown = f"[{host}]" if ":" in host else host
            if not port or pair.lower() != f"{shown}:{port}" or not PLAIN_HOST.fullmatch(host):
                raise ValueError(f"{pair!r} is not HOST:PORT. Example: intranet.example:8080")
        return tuple(pair.lower() for pair in pairs)

    @field_validator("web_url")
    @classmethod
    def _web_url(cls, value: str | None) -> str | None:
        if value and not WEB_URL.fullmatch(value):
            raise ValueError(f"{value!r} is not a URL such as https://freshet.example")
        return value.rstrip("/") if value else None

    @field_validator("metrics_hosts", "web_hosts", mode="before")
    @classmethod
    def _host_names(cls, value: object) -> object:
        given = value.replace(",", " ").lower().split() if isinstance(value, str) else value
        return tuple(given) if isinstance(given, list) else given

    @property
    def clock(self) -> Clock:
        """Return the clock of commands and crawls."""
        return Clock(self.clock_offset_hours)

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Return the sources of values, the first one wins; every command reads them."""
        sources = init_settings, _Environment(settings_cls)
        if isinstance(dotenv_settings, DotEnvSettingsSource) and not dotenv_settings.env_vars:
            return sources
        return *sources, dotenv_settings

    def longest_hours(self, *, feeds: bool) -> float:
        """Return the longest time between two visits of feeds or of other targets, in hours."""
        return self.max_interval_hours or (MAX_FEED_HOURS if feeds else MAX_HOURS)

    @classmethod
    def load(cls, **given: Any) -> Config:
        """Load settings from `given`, environment, `.env` and defaults; raises ConfigError."""
        key = repr(sorted(given.items())), _environment()
        if key in _LATEST:
            return _LATEST[key]
        _LATEST.clear()
        try:
            _LATEST[key] = cls(**given)
        except ValidationError as error:
            name, cause = first_problem(error)
            raise ConfigError(f"{_variable(name)}: {cause}") from None
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or "not UTF-8"
            raise ConfigError(f"{ENV_FILE} cannot be read: {reason}") from None
        return _LATEST[key]

    @classmethod
    def of(cls, settings: ScrapySettings) -> Config:
        """Load settings, overridden by Scrapy's (`-s FRESHET_NAME=…`, settings.py)."""
        given = {
            field: value
            for field in cls.model_fields
            for name in {_variable(field), PREFIX + field.upper()}
            if (value := settings.get(name)) is not None
        }
        known = {PREFIX + field.upper() for field in cls.model_fields}
        if unknown := {name for name in settings if name.startswith(PREFIX)} - known:
            name = min(unknown)
            raise ConfigError(f"{name}: not a Freshet setting{suggestion(name, sorted(known))}")
        return cls.load(**given)


# A run loads its configuration a dozen times, and parsing it takes longer than fetching a page.
_LATEST: dict[tuple[str, object], Config] = {}


def _environment() -> object:
    """Return the cache key of a configuration: its variables, and the time and size of `.env`."""
    variables = tuple(
        (name, text)
        for name, text in sorted(os.environ.items())
        if name.upper().startswith(PREFIX) or name.upper() in UNPREFIXED
    )
    try:
        file = ENV_FILE.stat()
    except OSError:
        return variables
    return variables, file.st_mtime_ns, file.st_size


# Names of all settings with the prefix.
SETTINGS = frozenset(PREFIX + field.upper() for field in Config.model_fields)


class UnknownVariable(NamedTuple):
    """A variable that looks like a setting, but has no effect.

    name:    in capitals
    place:   path of the file `.env`, or empty if the variable is in the environment
    similar: the most similar setting; None if none is similar enough
    """

    name: str
    place: str
    similar: str | None

    @property
    def hint(self) -> str:
        """Return what to do about the variable."""
        return f"did you mean {self.similar}?" if self.similar else "see docs/reference/settings.md"


def unknown_variables() -> Iterator[UnknownVariable]:
    """Yield the variables of the environment and of `.env` that look like misspelled settings.

    These are unknown names with the prefix of settings, and names such as MONGODB_URI that are
    similar to a setting without a prefix that is not set.
    """
    places = dict.fromkeys(os.environ, "") | dict.fromkeys(env_file_variables(), str(ENV_FILE))
    given = {name.upper(): place for name, place in places.items()}
    for name, place in sorted(given.items()):
        if name.startswith(PREFIX) and name not in SETTINGS:
            yield UnknownVariable(name, place, most_similar(name, sorted(SETTINGS)))
        elif name.startswith(UNPREFIXED_STARTS) and name not in UNPREFIXED:
            near = most_similar(name, UNPREFIXED)
            if near is not None and near not in given and PREFIX + near not in given:
                yield UnknownVariable(name, place, near)


def env_file_variables() -> dict[str, str | None]:
    """Return the values in `.env` by name; None for a line without `=`."""
    if not ENV_FILE.is_file():
        return {}
    # Slow to import, and most projects have no such file.
    from dotenv import dotenv_values

    return dict(dotenv_values(ENV_FILE, interpolate=False))


def _variable(field: str) -> str:
    name = field.split(".", maxsplit=1)[0].upper()
    return name if name in UNPREFIXED or name.startswith(PREFIX) else PREFIX + name


# `${NAME}` stands for a variable, `$${NAME}` for the text `${NAME}`.
VARIABLE = re.compile(r"(?<!\$)\$\{(\w+)\}")
_LIKE_VARIABLE = re.compile(r"\$\{\w+\}")
_REFERENCE = re.compile(r"\$(\$\{\w+\})|\$\{(\w+)\}")
SECRET_NAMES = re.compile(r"authorization|cookie|token|secret|password|api-?key|session", re.I)


def expanded(value: str) -> str:
    """Expand `${NAME}` variables of the environment or of `.env`; `$${NAME}` becomes `${NAME}`.

    Raises ValueError if one is not set.
    """
    return _REFERENCE.sub(lambda match: match[1] or _value(match[2]), value)


def unexpanded(value: str) -> str:
    """Return a text that `expanded` turns into `value`: a text from outside is no reference."""
    return _LIKE_VARIABLE.sub(r"$\g<0>", value)


def expanded_url(value: str) -> str:
    """Expand variables in a URL; percent-encode the values unless one is the whole URL."""
    if whole := VARIABLE.fullmatch(value):
        return _value(whole[1])
    return _REFERENCE.sub(lambda match: match[1] or quote(_value(match[2]), safe=""), value)


def shows_secret(url: str) -> bool:
    """Return whether a URL contains a literal password or token instead of a variable."""
    parts = urlsplit(url)
    named = [value for name, value in parse_qsl(parts.query) if SECRET_NAMES.search(name)]
    return any(VARIABLE.sub("", secret) for secret in (parts.password or "", *named))


def value_of(name: str) -> str | None:
    """Return a variable of the environment, else of `.env`; None if it is not set."""
    value = os.environ.get(name)
    return env_file_variables().get(name) if value is None else value


def _value(name: str) -> str:
    if (secret := value_of(name)) is None:
        raise ValueError(f"environment variable {name} is not set; set it in the shell or in .env")
    return secret
