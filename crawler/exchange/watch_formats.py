"""Read the watches of other programs: changedetection.io (JSON, zip), urlwatch, webchanges (YAML).

Each watch becomes a `Watch`, with the settings that Freshet has no equivalent for. Files may come
from anyone: their size, number of watches and nesting are limited, and archives are never unpacked
to disk.
"""

from __future__ import annotations

import json
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from crawler.errors import ConfigError
from crawler.exchange.watch import (
    BINARY_TYPE,
    JQ_PATH,
    JSON_PATH,
    MAX_KEY_CHARACTERS,
    MAX_WATCHES,
    NO_BROWSER,
    NO_SETTING,
    NO_TEXT_FILTER,
    ONLY_GET,
    ONLY_TEXTS,
    Lost,
    Watch,
    WatchFile,
    is_feed_url,
    mapping,
    take_json_path,
    texts,
)
from crawler.exchange.watch_jobs import read_jobs, yaml_documents
from crawler.utils.exact_json import loads
from crawler.utils.files import file_errors

CHANGEDETECTION = "changedetection.io"
MEGABYTE = 1024**2
# A datastore with thousands of watches has a few megabytes. YAML is read at about 0.1 MB a second.
MAX_FILE_BYTES, MAX_JSON_BYTES, MAX_YAML_BYTES = 2048 * MEGABYTE, 64 * MEGABYTE, 2 * MEGABYTE
START_BYTES = 512
MAX_ENTRY_BYTES, MAX_ENTRIES = 10 * MEGABYTE, 1_000_000
SECONDS = {"weeks": 604_800, "days": 86_400, "hours": 3600, "minutes": 60, "seconds": 1}
WEEKDAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")


NOTIFICATIONS = "notifications are set up in Freshet"
# Settings of a watch that are not carried over, with the reason.
LOST = {
    **dict.fromkeys(
        ("ignore_text", "trigger_text", "text_should_not_be_present", "extract_text",
         "check_unique_lines", "sort_text_alphabetically", "remove_duplicate_lines",
         "extract_lines_containing", "strip_ignored_lines"),
        NO_TEXT_FILTER,
    ),
    "conditions": NO_TEXT_FILTER,
    **dict.fromkeys(
        ("notification_urls", "notification_title", "notification_body",
         "price_change_threshold_percent", "price_change_custom_include_filters",
         "restock_settings", "notification_muted", "notification_screenshot"),
        NOTIFICATIONS,
    ),
    "webdriver_js_execute_code": NO_BROWSER,
    "webdriver_delay": NO_BROWSER,
    "proxy": "the name of a proxy; write its URL into the site definition (proxy)",
    "ignore_status_codes": "error pages are never stored",
}  # fmt: skip
# Settings of a watch that are carried over, that are results of earlier checks, or that only
# concern the other program; all others are reported.
KNOWN = frozenset(
    {"url", "title", "tags", "tag", "include_filters", "css_filter", "subtractive_selectors",
     "headers", "processor", "time_between_check", "time_between_check_use_default",
     "minutes_between_check", "time_schedule_limit", "content-type", "content_type", "method",
     "body", "paused", "browser_steps", "fetch_backend", "uuid", "date_created", "last_checked",
     "last_changed", "last_viewed", "last_error", "last_notification_error", "previous_md5",
     "previous_md5_before_filters", "check_count", "fetch_time", "consecutive_filter_failures",
     "has_ldjson_price_data", "track_ldjson_price_data", "remote_server_reply", "page_title",
     "notification_alert_count", "browser_steps_last_error_step", "restock", "history",
     "newest_history_key", "history_n", "viewed", "default", "use_page_title_in_list",
     "extract_title_as_title", "conditions_match_logic", "follow_price_changes", "in_stock_only",
     "filter_text_added", "filter_text_removed", "filter_text_replaced", "trim_text_whitespace",
     "notification_format", "filter_failure_notification_send", "link"}
)  # fmt: skip


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
        return read_jobs(yaml_documents(data, str(path)), str(path))
    document = _json(data, str(path))
    if isinstance(document.get("urls"), list):
        return read_jobs(document["urls"], str(path))
    return _changedetection(document, str(path))


def _json(data: bytes, name: str) -> dict[str, Any]:
    try:
        document = loads(data.decode(json.detect_encoding(data)))
    except (ValueError, RecursionError):
        raise ConfigError(f"{name}: not valid JSON. Export the watches again") from None
    if not isinstance(document, dict):
        raise ConfigError(f"{name}: not a file of watches. Give url-watches.json or urls.yaml")
    return document


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
        document["watching"] = {**mapping(document.get("watching")), **watching}
    if tags:
        settings = mapping(document.get("settings"))
        application = mapping(settings.get("application"))
        tags = {**mapping(application.get("tags")), **tags}
        document["settings"] = {**settings, "application": {**application, "tags": tags}}
    return document


def _changedetection(document: Mapping[str, Any], name: str) -> WatchFile:
    watching = document.get("watching")
    if not isinstance(watching, Mapping):
        raise ConfigError(
            f"{name}: no watches found. Give url-watches.json or a backup of changedetection.io"
        )
    if len(watching) > MAX_WATCHES:
        raise ConfigError(f"{name}: more than {MAX_WATCHES:,} watches")
    settings = mapping(document.get("settings"))
    application, requests = (
        mapping(settings.get("application")),
        mapping(settings.get("requests")),
    )
    watches = [
        _watch(mapping(values), f"watch {number}", application, requests)
        for number, values in enumerate(watching.values(), start=1)
    ]
    reasons = {
        "global_ignore_text": (application, NO_TEXT_FILTER),
        "notification_urls": (application, NOTIFICATIONS),
        "proxy": (requests, LOST["proxy"]),
        "extra_proxies": (requests, LOST["proxy"]),
        "extra_browsers": (requests, NO_BROWSER),
        "default_ua": (requests, "set a contact: FRESHET_CONTACT"),
        "headers": (settings, "set headers in the site definition"),
    }
    problems = [
        Lost(key, reason)
        for key, (of, reason) in reasons.items()
        if (isinstance(given := of.get(key), Mapping) and any(given.values()))
        or (given and not isinstance(given, Mapping))
    ]
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
    for text in texts(values.get("include_filters")) or texts(values.get("css_filter")):
        _take_include_filter(watch, text)
    _take_processor(watch, values)
    watch.ignore = [
        (key, text)
        for key, of in (
            ("subtractive_selectors", values), ("global_subtractive_selectors", application),
        )
        for text in texts(of.get(key))
    ]  # fmt: skip
    stored = mapping(application.get("tags"))
    tags = [mapping(stored.get(tag)) for tag in texts(values.get("tags"))]
    titles = [str(tag["title"]) for tag in tags if tag.get("title")]
    # Old versions have the titles of the tags as text.
    watch.tags = tuple(titles or texts(values.get("tag")))
    if any(tag.get("overrides_watch") for tag in tags):
        watch.lose("tags", "settings of a tag are not applied to its watches")
    # Old versions lack the switch, and the interval of the watch is empty if it is not set.
    uses_default = bool(values.get("time_between_check_use_default"))
    own = requests if uses_default else values
    watch.every = _interval(watch, own) or _interval(watch, requests)
    limit = mapping(own.get("time_schedule_limit"))
    if limit.get("enabled"):
        default_zone = application.get("scheduler_timezone_default") or application.get("timezone")
        _take_hours(watch, limit, default_zone)
    _take_kind(watch, values)
    watch.check_url()
    watch.lose_unknown(values, KNOWN)
    return watch


def _take_processor(watch: Watch, values: Mapping[str, Any]) -> None:
    """Take what the watch compares, and record what it leaves out."""
    for key in ("filter_text_added", "filter_text_removed", "filter_text_replaced"):
        if values.get(key) is False:
            watch.lose(key, NO_TEXT_FILTER)
    processor = str(values.get("processor") or "text_json_diff")
    if processor == "restock_diff" and not watch.fields:
        # Pages without fields have the offers that shops mark for search engines.
        watch.needs_page = True
        watch.lose("processor", "offers are read with the main text; a rule can watch only them")
    elif processor not in ("text_json_diff", "restock_diff"):
        watch.lose("processor", f"{processor[:MAX_KEY_CHARACTERS]}: {NO_SETTING}")


def _take_kind(watch: Watch, values: Mapping[str, Any]) -> None:
    """Refuse documents of types that Freshet does not read, or not with these selectors."""
    kind = str(values.get("content_type") or values.get("content-type") or "")
    watch.is_feed = "rss" in kind or "atom" in kind or is_feed_url(watch.url)
    if BINARY_TYPE.match(kind):
        watch.refusal = watch.refusal or f"{kind[:MAX_KEY_CHARACTERS]}: {ONLY_TEXTS}"
    if "html" in kind and any("jmespath" in field for field in watch.fields.values()):
        watch.refusal = watch.refusal or (
            "json: and jq: read scripts of an HTML page, Freshet's jmespath only JSON documents. "
            "Without this filter, the page is imported with its offers"
        )


def _refusal(values: Mapping[str, Any], url: str) -> str | None:
    """Return why a watch of changedetection.io cannot be imported; None if it can."""
    if values.get("paused"):
        return "the watch is paused"
    if str(values.get("method") or "GET").upper() != "GET" or values.get("body"):
        return ONLY_GET
    if values.get("browser_steps"):
        return f"it has browser steps. {NO_BROWSER}"
    return "the URL is a template" if "{{" in url or "{%" in url else None


def _interval(watch: Watch, values: Mapping[str, Any]) -> float | None:
    """Return the interval of one watch or of all watches, in seconds; None if it is not set."""
    parts = mapping(values.get("time_between_check"))
    try:
        total = sum(float(parts.get(unit) or 0) * size for unit, size in SECONDS.items())
        # Versions before 0.39.5 have minutes.
        return total or float(values.get("minutes_between_check") or 0) * 60 or None
    except (TypeError, ValueError, OverflowError):
        watch.lose("time_between_check", "not a number")
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
        take_json_path(watch, path.strip(), JSON_PATH if kind == "json" else JQ_PATH)
    else:
        watch.take_selector("css", text.removeprefix("css:").strip())


def _take_hours(watch: Watch, limit: Mapping[str, Any], default_zone: object) -> None:
    """Take the hours of each weekday, if they are whole hours."""
    windows = []
    for number, day in enumerate(WEEKDAYS):
        hours = mapping(limit.get(day))
        if not hours.get("enabled"):
            continue
        try:
            start, minute = map(int, str(hours.get("start_time")).split(":"))
            duration = mapping(hours.get("duration"))
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
