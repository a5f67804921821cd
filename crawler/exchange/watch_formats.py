"""Read the watches of other programs: changedetection.io (JSON, zip), urlwatch, webchanges (YAML).

Each watch becomes a `Watch`, with the settings that Freshet has no equivalent for. Files may come
from anyone: their size, number of watches and nesting are limited, and archives are never unpacked
to disk.
"""

from __future__ import annotations

import json
import re
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml
from cssselect import HTMLTranslator, SelectorError

from crawler.errors import ConfigError
from crawler.extract.stored_definition import PLAIN_HEADERS
from crawler.utils.exact_json import loads
from crawler.utils.files import file_errors
from crawler.utils.sandbox import TimeLimitExceeded, time_limit

CHANGEDETECTION, URLWATCH = "changedetection.io", "urlwatch or webchanges"
MEGABYTE = 1024**2
# A datastore with thousands of watches has a few megabytes. YAML is read at about 0.1 MB a second.
MAX_FILE_BYTES, MAX_JSON_BYTES, MAX_YAML_BYTES = 2048 * MEGABYTE, 64 * MEGABYTE, 2 * MEGABYTE
START_BYTES = 512
MAX_ENTRY_BYTES, MAX_ENTRIES = 10 * MEGABYTE, 1_000_000
MAX_WATCHES, MAX_DEPTH, READ_SECONDS = 10_000, 40, 120
MAX_SELECTOR_CHARACTERS, MAX_SELECTORS = 2000, 20
SECONDS = {"weeks": 604_800, "days": 86_400, "hours": 3600, "minutes": 60, "seconds": 1}
WEEKDAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")

# Exceptions of the loader for values that do not match their tag, such as `!!bool x`.
BAD_VALUES = (AttributeError, LookupError, TypeError, ValueError, RecursionError)

NO_COMMANDS = "Freshet runs no commands"
NO_BROWSER = "Freshet reads pages as the server sends them, without JavaScript"
NO_TEXT_FILTER = "Freshet compares the whole value; select the part that matters"
NOTIFICATIONS = "notifications are set up in Freshet"
ONLY_GET = "Freshet only sends GET requests"
# Settings of a watch that are not carried over, with the reason.
LOST = {
    "subtractive_selectors": "fields cannot exclude parts of a page",
    **dict.fromkeys(
        ("ignore_text", "trigger_text", "text_should_not_be_present", "extract_text",
         "check_unique_lines", "sort_text_alphabetically", "remove_duplicate_lines"),
        NO_TEXT_FILTER,
    ),
    "conditions": NO_TEXT_FILTER,
    **dict.fromkeys(
        ("notification_urls", "notification_title", "notification_body",
         "price_change_threshold_percent", "restock_settings"),
        NOTIFICATIONS,
    ),
    "webdriver_js_execute_code": NO_BROWSER,
    "webdriver_delay": NO_BROWSER,
    "proxy": "the name of a proxy; write its URL into the site definition (proxy)",
    "ignore_status_codes": "error pages are never stored",
}  # fmt: skip
LOST_OF_JOBS = {
    **dict.fromkeys(("diff_filter", "diff_filters", "additions_only", "deletions_only", "differ",
                     "diff_tool", "contextlines"), "Freshet always stores the whole version"),
    **dict.fromkeys(("wait_until", "wait_for", "wait_for_navigation", "wait_for_selector",
                     "chromium_revision", "switches", "user_data_dir"), NO_BROWSER),
    "cookies": "may be secret; set cookies = { NAME = '${VARIABLE}' }",
    "timeout": "set DOWNLOAD_TIMEOUT for all sites",
    "encoding": "Freshet detects the encoding",
    "ignore_http_error_codes": "error pages are never stored",
    "compared_versions": "each page is compared with its last version",
    "no_redirects": "redirects are followed",
}  # fmt: skip
# Filters of jobs that Freshet always applies, or that change nothing in the values of fields.
IMPLIED = frozenset(
    {"html2text", "strip", "striplines", "strip_each_line", "beautify", "format-json",
     "format-xml", "pretty-xml", "absolute_links", "content_only"}
)  # fmt: skip
# Filters for documents that are not HTML, XML or JSON.
UNREADABLE = frozenset({"pdf2text", "ical2text", "csv2text", "ocr", "hexdump"})
_ONE_ID = re.compile(r"[\w-]*#[\w-]+|body|html")
_FIRST = re.compile(r"\(.*\)\[(?:1|last\(\))\]", re.S)
_JSON_PATH = re.compile(r"\$((?:\.[A-Za-z_]\w*|\[\d+\]|\[\*\])*)")
_JQ_PATH = re.compile(r"((?:\.[A-Za-z_]\w*|\.?\[\d*\])+|\.)")
_FEED_END = re.compile(
    r"(?:^|/)(?:feed|rss|atom|index\.rdf)/?$|\.(?:rss|atom|rdf)$|(?:rss|atom|feed)[^/]*\.xml$", re.I
)
# Places of price and stock that shops mark for search engines.
PRICE = (
    '(//*[@itemprop="price"]/@content | //meta[@property="product:price:amount" or '
    '@property="og:price:amount"]/@content | //*[@itemprop="price"])[1]'
)
STOCK = (
    '(//*[@itemprop="availability"]/@href | //*[@itemprop="availability"]/@content | '
    '//meta[@property="product:availability" or @property="og:availability"]/@content)[1]'
)


@dataclass(frozen=True, slots=True)
class Lost:
    """A setting that is not carried over. key: its name in the other program."""

    key: str
    reason: str


@dataclass(slots=True)
class Watch:
    """One watch of another program.

    where:   position such as `watch 3`
    fields:  fields of a site definition by name; empty: the page's main text
    every:   interval in seconds; None: not set
    refusal: why the watch cannot be imported; None: it can
    """

    where: str
    url: str = ""
    name: str | None = None
    fields: dict[str, dict[str, str]] = field(default_factory=dict)
    every: float | None = None
    tags: tuple[str, ...] = ()
    headers: dict[str, str] = field(default_factory=dict)
    keys: dict[str, Any] = field(default_factory=dict)
    is_feed: bool = False
    lost: list[Lost] = field(default_factory=list)
    refusal: str | None = None

    def lose(self, key: str, reason: str) -> None:
        """Record a setting that is not carried over."""
        self.lost.append(Lost(key, reason))

    def take_headers(self, headers: object) -> None:
        """Take the headers that cannot be secret; record the others."""
        if not isinstance(headers, Mapping):
            return
        for name, value in headers.items():
            if str(name).lower() in PLAIN_HEADERS:
                self.headers[str(name)] = str(value)
            else:
                self.lose(f"headers.{name}", "may be secret; set headers with '${VARIABLE}'")

    def take_selector(self, kind: str, text: str, *, is_one: bool = False) -> None:
        """Add a field with a selector. kind: css, xpath or jmespath."""
        if len(text) > MAX_SELECTOR_CHARACTERS or len(self.fields) == MAX_SELECTORS:
            self.refusal = "the selectors are too long, or too many"
            return
        is_one = is_one or bool((_FIRST if kind == "xpath" else _ONE_ID).fullmatch(text))
        if kind == "jmespath":
            is_one = "[]" not in text and "[*]" not in text
        name = f"value_{len(self.fields) + 1}" if self.fields else "value"
        self.fields[name] = {kind: text} | ({} if is_one else {"type": "list"})


@dataclass(frozen=True, slots=True)
class WatchFile:
    """The watches of a file. problems: settings of the whole file that are not carried over."""

    program: str
    watches: list[Watch]
    problems: list[Lost] = field(default_factory=list)


def read_watches(path: Path) -> WatchFile:
    """Read the watches of a file. Raises ConfigError if it is too large, invalid or unknown."""
    # Open the file once, because it may be a pipe.
    with file_errors(str(path)), path.open("rb") as file:
        start = file.read(START_BYTES)
        if start.startswith(b"PK"):
            if path.stat().st_size > MAX_FILE_BYTES:
                raise ConfigError(f"{path}: larger than {MAX_FILE_BYTES // MEGABYTE} MB")
            return _changedetection(_of_archive(path), str(path))
        text = start.lstrip(b"\xef\xbb\xbf \t\r\n")
        if text.startswith(b"<"):
            raise ConfigError(f"{path}: looks like OPML. Run scrapy feeds import {path}")
        is_json = text.startswith(b"{")
        limit = MAX_JSON_BYTES if is_json else MAX_YAML_BYTES
        data = start + file.read(limit)
        if len(data) > limit:
            raise ConfigError(
                f"{path}: larger than {limit // MEGABYTE} MB. Split it into smaller files"
            )
    if not is_json:
        return _jobs(_yaml_documents(data, str(path)), str(path))
    document = _json(data, str(path))
    if isinstance(document.get("urls"), list):
        return _jobs(document["urls"], str(path))
    return _changedetection(document, str(path))


def _json(data: bytes, name: str) -> dict[str, Any]:
    try:
        document = loads(data.decode(json.detect_encoding(data)))
    except (ValueError, RecursionError):
        raise ConfigError(f"{name}: not valid JSON. Export the watches again") from None
    if not isinstance(document, dict):
        raise ConfigError(f"{name}: not a file of watches. Give url-watches.json or urls.yaml")
    return document


class _Loader(yaml.SafeLoader):
    """Loader that rejects aliases, whose expansion may take exponential time, and deep nesting."""

    depth = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        """Return the next node."""
        if self.check_event(yaml.AliasEvent):
            line = self.peek_event().start_mark.line + 1  # type: ignore[no-untyped-call]
            raise ConfigError(f"line {line}: aliases (*name) are not supported. Write them out")
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise ConfigError(f"more than {MAX_DEPTH} levels")
        try:
            return super().compose_node(parent, index)
        finally:
            self.depth -= 1


def _yaml_documents(data: bytes, name: str) -> list[Any]:
    documents = []
    try:
        with time_limit(READ_SECONDS):
            for document in yaml.load_all(data, _Loader):
                if document is not None:
                    documents.append(document)
                if len(documents) > MAX_WATCHES:
                    raise ConfigError(f"more than {MAX_WATCHES:,} watches. Split the file")
    except ConfigError as error:
        raise ConfigError(f"{name}: {error}") from None
    except TimeLimitExceeded:
        raise ConfigError(f"{name}: takes more than {READ_SECONDS} s to read. Split it") from None
    except (yaml.YAMLError, *BAD_VALUES) as error:
        mark = getattr(error, "problem_mark", None)
        line = f"line {mark.line + 1}: " if mark else ""
        raise ConfigError(f"{name}: {line}not valid YAML. Fix the file") from None
    if len(documents) == 1 and isinstance(documents[0], list):
        documents = documents[0]
    marks = {"url", "navigate", "command", "shell", "path"}
    if not any(isinstance(job, dict) and job.keys() & marks for job in documents):
        raise ConfigError(
            f"{name}: no watches found. Give url-watches.json, a backup of changedetection.io, "
            "urls.yaml or jobs.yaml"
        )
    return documents


def _of_archive(path: Path) -> dict[str, Any]:
    """Return the watches and settings in a backup of changedetection.io, as one document."""
    left = MAX_JSON_BYTES
    document: dict[str, Any] = {}
    watching: dict[str, Any] = {}
    tags: dict[str, Any] = {}
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
            if len(names) > MAX_ENTRIES:
                raise ConfigError(f"{path}: more than {MAX_ENTRIES:,} entries")
            for name in names:
                folder, _, file = name.rpartition("/")
                is_main = not folder and file in ("url-watches.json", "changedetection.json")
                if not is_main and not (folder and file in ("watch.json", "tag.json")):
                    continue
                with archive.open(name) as entry:
                    data = entry.read(min(left, MAX_ENTRY_BYTES) + 1)
                left -= len(data)
                if left < 0 or len(data) > MAX_ENTRY_BYTES:
                    raise ConfigError(f"{path}: {name} is too large")
                content = _json(data, f"{path}: {name}")
                if is_main:
                    document |= content
                else:
                    (watching if file == "watch.json" else tags)[folder] = content
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, KeyError):
        raise ConfigError(f"{path}: the archive is damaged. Export the backup again") from None
    if watching:
        document["watching"] = {**_mapping(document.get("watching")), **watching}
    if tags:
        settings = _mapping(document.get("settings"))
        application = _mapping(settings.get("application"))
        tags = {**_mapping(application.get("tags")), **tags}
        document["settings"] = {**settings, "application": {**application, "tags": tags}}
    return document


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _texts(value: object) -> list[str]:
    """Return the non-empty texts of a list, or of a single text."""
    values = [value] if isinstance(value, str) else value if isinstance(value, list) else []
    return [text for each in values if (text := str(each).strip())]


def _changedetection(document: Mapping[str, Any], name: str) -> WatchFile:
    watching = document.get("watching")
    if not isinstance(watching, Mapping):
        raise ConfigError(
            f"{name}: no watches found. Give url-watches.json or a backup of changedetection.io"
        )
    if len(watching) > MAX_WATCHES:
        raise ConfigError(f"{name}: more than {MAX_WATCHES:,} watches")
    settings = _mapping(document.get("settings"))
    application, requests = (
        _mapping(settings.get("application")),
        _mapping(settings.get("requests")),
    )
    watches = [
        _watch(_mapping(values), f"watch {number}", application, requests)
        for number, values in enumerate(watching.values(), start=1)
    ]
    reasons = {key.removeprefix("global_"): key for key in ("global_ignore_text",
               "global_subtractive_selectors")}  # fmt: skip
    problems = [Lost(key, LOST[own]) for own, key in reasons.items() if application.get(key)]
    if application.get("notification_urls"):
        problems.append(Lost("notification_urls", NOTIFICATIONS))
    return WatchFile(CHANGEDETECTION, watches, problems)


def _watch(
    values: Mapping[str, Any],
    where: str,
    application: Mapping[str, Any],
    requests: Mapping[str, Any],
) -> Watch:
    url = str(values.get("url") or "").strip()
    watch = Watch(where, url.removeprefix("source:"), str(values.get("title") or "") or None)
    watch.refusal = _refusal(values, url)
    if url.startswith("source:"):
        watch.lose("source:", "the text of the page is compared, not its source")
    for key, reason in LOST.items():
        if values.get(key):
            watch.lose(key, reason)
    backend = values.get("fetch_backend")
    if backend in (None, "system"):
        backend = application.get("fetch_backend")
    if str(backend).startswith(("html_webdriver", "extra_browser")):
        watch.lose("fetch_backend", NO_BROWSER)
    watch.take_headers(values.get("headers"))
    for text in _texts(values.get("include_filters")) or _texts(values.get("css_filter")):
        _take_include_filter(watch, text)
    if values.get("processor") == "restock_diff" and not watch.fields:
        watch.fields = {"price": {"xpath": PRICE, "type": "price"}, "stock": {"xpath": STOCK}}
        watch.lose("processor", "prices in scripts are not read; run scrapy wrapper check")
    stored = _mapping(application.get("tags"))
    tags = [_mapping(stored.get(tag)) for tag in _texts(values.get("tags"))]
    titles = [str(tag["title"]) for tag in tags if tag.get("title")]
    # Old versions have the titles of the tags as text.
    watch.tags = tuple(titles or _texts(values.get("tag")))
    if any(tag.get("overrides_watch") for tag in tags):
        watch.lose("tags", "settings of a tag are not applied to its watches")
    # Old versions lack the switch, and the interval of the watch is empty if it is not set.
    uses_default = bool(values.get("time_between_check_use_default"))
    own = requests if uses_default else values
    watch.every = _interval(own) or _interval(requests)
    limit = _mapping(own.get("time_schedule_limit"))
    if limit.get("enabled"):
        default_zone = application.get("scheduler_timezone_default") or application.get("timezone")
        _take_hours(watch, limit, default_zone)
    kind = str(values.get("content_type") or values.get("content-type") or "")
    watch.is_feed = "rss" in kind or "atom" in kind or _is_feed_url(watch.url)
    return watch


def _refusal(values: Mapping[str, Any], url: str) -> str | None:
    """Return why a watch of changedetection.io cannot be imported; None if it can."""
    if values.get("paused"):
        return "the watch is paused"
    if str(values.get("method") or "GET").upper() != "GET" or values.get("body"):
        return ONLY_GET
    if values.get("browser_steps"):
        return f"it has browser steps. {NO_BROWSER}"
    return "the URL is a template" if "{{" in url or "{%" in url else None


def _interval(values: Mapping[str, Any]) -> float | None:
    """Return the interval of one watch or of all watches, in seconds; None if it is not set."""
    parts = _mapping(values.get("time_between_check"))
    try:
        total = sum(float(parts.get(unit) or 0) * size for unit, size in SECONDS.items())
        # Versions before 0.39.5 have minutes.
        return total or float(values.get("minutes_between_check") or 0) * 60 or None
    except (TypeError, ValueError, OverflowError):
        return None


def _take_include_filter(watch: Watch, text: str) -> None:
    """Add a field for a filter of changedetection.io: a CSS selector unless it has a prefix."""
    for prefix in ("xpath1:", "xpath:"):
        if text.startswith(prefix):
            watch.take_selector("xpath", text.removeprefix(prefix).strip())
            return
    if text.startswith(("/", "(/")):
        watch.take_selector("xpath", text)
    elif text.startswith(("json:", "jq:", "jqraw:")):
        kind, _, path = text.partition(":")
        _take_json_path(watch, path.strip(), _JSON_PATH if kind == "json" else _JQ_PATH)
    else:
        watch.take_selector("css", text.removeprefix("css:").strip())


def _take_json_path(watch: Watch, path: str, pattern: re.Pattern[str]) -> None:
    """Add a field for a path that JMESPath supports, too: names, indexes, all elements."""
    match = pattern.fullmatch(path) if len(path) <= MAX_SELECTOR_CHARACTERS else None
    if match is None:
        watch.refusal = f"cannot be written as JMESPath: {path[:80]!r}"
        return
    # The path of the whole document is `$` or `.`.
    watch.take_selector("jmespath", match[1].replace(".[", "[").removeprefix(".") or "@")


def _take_hours(watch: Watch, limit: Mapping[str, Any], default_zone: object) -> None:
    """Take the hours of each weekday, if they are whole hours."""
    windows = []
    for number, day in enumerate(WEEKDAYS):
        hours = _mapping(limit.get(day))
        if not hours.get("enabled"):
            continue
        try:
            start, minute = map(int, str(hours.get("start_time")).split(":"))
            duration = _mapping(hours.get("duration"))
            length, rest = int(duration.get("hours") or 0), int(duration.get("minutes") or 0)
        except (TypeError, ValueError, OverflowError):
            minute, rest, start, length = 1, 0, 0, 0
        if minute or rest or not 0 <= start < 24 or not 0 < length <= 24:
            watch.lose("time_schedule_limit", "visiting hours are whole hours")
            return
        end = (start + length) % 24
        name = day[:3].capitalize()
        if length == 24:
            windows.append(f"{name} {start:02}:00-24:00" if start else name)
            # A window must be shorter than a day.
            following = WEEKDAYS[(number + 1) % 7][:3].capitalize()
            windows += [f"{following} 00:00-{start:02}:00"] if start else []
        else:
            windows.append(f"{name} {start:02}:00-{end or 24:02}:00")
    if windows:
        watch.keys["visiting_hours"] = windows
    if zone := limit.get("timezone") or default_zone:
        watch.keys["timezone"] = str(zone)


def _jobs(jobs: Sequence[Any], name: str) -> WatchFile:
    if len(jobs) > MAX_WATCHES:
        raise ConfigError(f"{name}: more than {MAX_WATCHES:,} watches")
    watches = [_job(_mapping(job), f"job {n}") for n, job in enumerate(jobs, start=1)]
    return WatchFile(URLWATCH, watches)


def _job(values: Mapping[str, Any], where: str) -> Watch:
    url = str(values.get("url") or values.get("navigate") or "").strip()
    watch = Watch(where, url, str(values.get("name") or "") or None)
    if not url:
        is_command = any(key in values for key in ("command", "shell"))
        watch.refusal = NO_COMMANDS if is_command else "the job has no URL"
        return watch
    if values.get("enabled") is False:
        watch.refusal = "the job is disabled"
    elif str(values.get("method") or "GET").upper() != "GET" or values.keys() & {"data", "post"}:
        watch.refusal = ONLY_GET
    for key, reason in LOST_OF_JOBS.items():
        if values.get(key):
            watch.lose(key, reason)
    if values.get("navigate") or values.get("use_browser") or values.get("kind") == "browser":
        watch.lose("use_browser" if values.get("use_browser") else "navigate", NO_BROWSER)
    watch.take_headers(values.get("headers"))
    _take_connection(watch, values)
    watch.tags = tuple(_texts(values.get("tags")))
    watch.is_feed = _is_feed_url(url)
    filters = values.get("filters") or values.get("filter")
    # Old versions have all filters in one text.
    entries = filters.split(",") if isinstance(filters, str) else filters
    for entry in entries if isinstance(entries, list) else []:
        if isinstance(entry, Mapping):
            for kind, argument in entry.items():
                _take_filter(watch, str(kind), argument)
        else:
            kind, _, argument = str(entry).partition(":")
            _take_filter(watch, kind.strip(), argument or None)
    return watch


def _take_connection(watch: Watch, values: Mapping[str, Any]) -> None:
    """Take the proxy of a job, and whether certificates are verified."""
    if values.get("ssl_no_verify"):
        watch.keys["verify_tls"] = False
    proxies = {str(values[key]) for key in ("http_proxy", "https_proxy") if values.get(key)}
    if len(proxies) == 1 and "@" not in (proxy := proxies.pop()):
        watch.keys["proxy"] = proxy
    elif proxies:
        watch.lose("http_proxy", "has a password, or differs by scheme; set proxy")


def _take_filter(watch: Watch, kind: str, argument: Any) -> None:
    """Turn the selector of a filter into a field, or record that the filter is not carried over."""
    if kind in IMPLIED:
        return
    if kind in UNREADABLE:
        watch.refusal = f"{kind}: Freshet reads HTML, XML and JSON"
    elif kind in ("shellpipe", "execute"):
        watch.lose(f"filter {kind}", NO_COMMANDS)
    elif kind in ("jq", "jsonpath"):
        path = str(_mapping(argument).get("query") or argument or "")
        _take_json_path(watch, path, _JQ_PATH if kind == "jq" else _JSON_PATH)
    elif kind not in ("xpath", "css") and not kind.startswith("element-by-"):
        watch.lose(f"filter {kind}", NO_TEXT_FILTER)
    elif watch.fields:
        watch.lose(f"filter {kind}", "only the first selector of a chain is used")
    elif kind.startswith("element-by-"):
        name, quoted = kind.removeprefix("element-by-"), json.dumps(str(argument))
        selectors = {"tag": str(argument), "class": f"[class~={quoted}]"}
        css = selectors.get(name, f"[{name}={quoted}]")
        watch.take_selector("css", css, is_one=name == "id" or css in ("body", "html"))
    else:
        options = _mapping(argument)
        selector = str(options.get("path" if kind == "xpath" else "selector") or argument or "")
        for key in ("exclude", "namespaces"):
            if options.get(key) and not watch.is_feed:
                watch.lose(f"{kind}.{key}", "a field supports a single selector only")
        _take_part(watch, kind, selector, options)


def _take_part(watch: Watch, kind: str, selector: str, options: Mapping[str, Any]) -> None:
    """Add a field for the matches of a selector, after the first `skip`, at most `maxitems`."""
    try:
        skip, limit = int(options.get("skip") or 0), int(options.get("maxitems") or 0)
        if skip or limit:
            if kind == "css":
                selector = HTMLTranslator().css_to_xpath(selector)
            last = f" and position() <= {skip + limit}" if limit else ""
            number = "1" if (skip, limit) == (0, 1) else f"position() > {skip}{last}"
            kind, selector = "xpath", f"({selector})[{number}]"
    except (TypeError, ValueError, OverflowError, SelectorError, RecursionError):
        watch.refusal = f"the selector is not valid: {selector[:80]!r}"
        return
    watch.take_selector(kind, selector, is_one=options.get("maxitems") == 1)


def _is_feed_url(url: str) -> bool:
    try:
        return _FEED_END.search(urlsplit(url).path[-200:]) is not None
    except ValueError:
        return False
