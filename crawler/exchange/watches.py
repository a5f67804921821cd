"""Turn watches of other programs into site definitions, lists of cells, and feeds.

Watches of one host with the same settings become one site with several start URLs. A watch that is
due more than once an hour becomes a cell, which is read at equal intervals.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from copy import deepcopy
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from crawler.config import Config
from crawler.errors import ConfigError, WrapperError
from crawler.exchange.watch import MAX_KEY_CHARACTERS, NO_EXCLUSION, Watch, WatchFile
from crawler.extract.keys import absolute_url, checked_css
from crawler.extract.list_wrappers import any_wrapper
from crawler.extract.site_definition import Wrapper
from crawler.extract.stored_definition import toml_of
from crawler.feeds.subscriptions import Subscription, category_of, feed_url, opml_lines, tidy
from crawler.storage import feeds, sites
from crawler.storage.client import Database
from crawler.storage.feeds import Added
from crawler.utils.files import atomic_replace, file_errors
from crawler.utils.text import is_spider_name
from crawler.utils.urls import TRACKING_PARAMETERS, canonical, host_of

FEEDS = "feeds"
FEEDS_FILE = "feeds.opml"
SITE, CELLS = "site", "cells"
HOUR_SECONDS = 3600
MAX_INTERVAL_HOURS, MIN_CELL_SECONDS = 672, 1
MAX_START_URLS, MAX_NAME_CHARACTERS, MAX_TITLE_CHARACTERS = 1000, 50, 200
# Watches whose pages are visited during an import.
MAX_CHECKED = 200
# The whole page, for a cell of a watch without a selector.
WHOLE_PAGE = {"css": "body"}


@dataclass(slots=True)
class PlannedSite:
    """A site definition, or a list of cells.

    kind:    `site` or `cells`
    watches: the watches that it replaces, as indexes
    wrapper: the loaded definition
    known:   whether a definition with this name and these keys exists
    """

    kind: str
    values: dict[str, Any]
    watches: list[int] = field(default_factory=list)
    wrapper: Wrapper | None = None
    known: bool = False

    @property
    def name(self) -> str:
        """Return the name of the site."""
        return str(self.values["name"])

    def take_name(self, existing: Mapping[str, str], taken: set[str]) -> None:
        """Take a free name, or that of an existing definition with the same keys."""
        base = name = self.name
        number = 1
        while name in taken:
            self.values["name"] = name
            if existing.get(name) == json.dumps(self.values, ensure_ascii=False, default=str):
                self.known = True
                return
            number += 1
            name = f"{base}-{number}"
        self.values["name"] = name
        taken.add(name)


@dataclass(slots=True)
class Plan:
    """The result of turning watches into definitions and feeds.

    feeds:  with the index of the watch
    places: name of the definition, or `feeds`, by the index of the watch
    """

    definitions: list[PlannedSite]
    feeds: list[tuple[int, Subscription]]
    places: dict[int, str]


def plan(file: WatchFile, config: Config, existing: Mapping[str, str]) -> Plan:
    """Plan the definitions for watches; watches that cannot be imported get a `refusal`.

    existing: keys of the definitions that exist, as JSON, by name; empty if unknown. Their names
              are not used for other keys.
    """
    groups: dict[str, list[int]] = {}
    result = Plan([], [], {})
    seen: dict[str, str] = {}
    for index, watch in enumerate(file.watches):
        if watch.refusal is None:
            _check(watch, config)
        if watch.refusal is not None:
            continue
        read = [_url(watch), watch.fields, watch.every, watch.keys.get("ignore")]
        key = json.dumps(read, sort_keys=True)
        if (earlier := seen.setdefault(key, watch.where)) != watch.where:
            watch.refusal = f"the same as {earlier}"
        elif watch.is_feed:
            categories = tuple(filter(None, map(category_of, watch.tags)))
            title = tidy(watch.name or "", MAX_TITLE_CHARACTERS) or None
            feed = Subscription(feed_url(watch.url, config), title, None, categories)
            result.feeds.append((index, feed))
            result.places[index] = FEEDS
        else:
            groups.setdefault(json.dumps(_group_of(watch), sort_keys=True), []).append(index)
    taken = set(existing)
    for indexes in groups.values():
        for start in range(0, len(indexes), MAX_START_URLS):
            part = indexes[start : start + MAX_START_URLS]
            planned = _definition([(n, file.watches[n]) for n in part])
            planned.take_name(existing, taken)
            try:
                planned.wrapper = any_wrapper(planned.values, planned.name)
            except WrapperError as error:
                for n in part:
                    file.watches[n].refusal = str(error).removeprefix(f"{planned.name}: ")
                taken -= {planned.name} - existing.keys()
                continue
            result.definitions.append(planned)
            result.places.update(dict.fromkeys(part, planned.name))
    return result


def definitions_to_check(file: WatchFile, config: Config) -> dict[int, dict[str, Any]]:
    """Return a definition with which the page of each watch can be visited once, by its index.

    Watches that cannot be imported, feeds, and all after the first MAX_CHECKED are left out.
    """
    copy = deepcopy(file)
    made = plan(copy, config, {})
    pages: dict[int, dict[str, Any]] = {}
    for index, place in sorted(made.places.items()):
        watch = copy.watches[index]
        if place != FEEDS and len(pages) < MAX_CHECKED:
            watch.every = None
            pages[index] = _definition([(index, watch)]).values
    return pages


def note_check(watch: Watch, problem: str | None, *, is_markup: bool) -> None:
    """Take over what a visit of a watch's page found.

    Other programs read JSON in scripts of an HTML page with `json:`; Freshet reads it as offers.
    """
    if is_markup and any("jmespath" in each for each in watch.fields.values()):
        watch.fields, watch.needs_page = {}, True
        watch.lose("json", "the page is HTML: its offers and main text are read instead")
    else:
        watch.problem = problem


def existing_files(folder: Path) -> dict[str, str]:
    """Return the names of the definitions in a folder, without their keys."""
    return {path.stem: "" for path in folder.glob("*.toml")}


async def store(db: Database, made: Plan, now: datetime) -> Added:
    """Store the definitions and feeds; return the number of added and known feeds."""
    for planned in made.definitions:
        if not planned.known and planned.wrapper is not None:
            await sites.create(db, planned.wrapper, planned.values, now, planned.kind)
    return await feeds.add(db, FEEDS, [feed for _, feed in made.feeds], now)


def write(folder: Path, made: Plan, now: datetime) -> list[Path]:
    """Write a TOML file for each definition, and an OPML file of the feeds; return their paths.

    Raises ConfigError if one of them exists or cannot be written; no file is kept in that case.
    """
    texts = {
        folder / f"{planned.name}.toml": toml_of(planned.values) for planned in made.definitions
    }
    if made.feeds:
        lines = opml_lines([feed for _, feed in made.feeds], "Imported feeds", now)
        texts[folder / FEEDS_FILE] = "".join(lines)
    written: list[Path] = []
    with file_errors(str(folder)), ExitStack() as undo:
        folder.mkdir(parents=True, exist_ok=True)
        for path, text in texts.items():
            if path.exists():
                raise ConfigError(f"{path}: the file exists. Choose another folder")
            undo.callback(path.unlink, missing_ok=True)
            with atomic_replace(path) as draft:
                draft.write_text(text, encoding="utf-8")
            written.append(path)
        undo.pop_all()
    return written


def _check(watch: Watch, config: Config) -> None:
    """Set the refusal of a watch whose URL or interval cannot be used."""
    try:
        if watch.is_feed:
            feed_url(watch.url, config)
        else:
            absolute_url(watch.url)
            if len(watch.url) > config.url_characters:
                raise ValueError(f"longer than {config.url_characters} characters")
    except ValueError as error:
        watch.refusal = str(error)
    if watch.every is not None and not MIN_CELL_SECONDS <= watch.every < float("inf"):
        watch.lose("interval", "out of range")
        watch.every = None
    if watch.is_feed and watch.fields:
        watch.lose("selector", "all posts of a feed are collected")
        watch.fields = {}
    if watch.refusal is None:
        _check_settings(watch)


def _check_settings(watch: Watch) -> None:
    """Record the settings that the target of a watch cannot have; set its refusal."""
    _take_ignored(watch)
    if watch.is_feed:
        for key in [*watch.headers, *watch.keys]:
            watch.lose(key, "all feeds of a list have the same settings")
        return
    if watch.needs_page and watch.every is not None and watch.every < HOUR_SECONDS:
        watch.lose("interval", "pages with offers are visited once an hour at most")
        watch.every = HOUR_SECONDS
    if watch.name and not _is_cell(watch):
        watch.lose(watch.name_key, "pages are shown with their own titles")
    # Here, so that one bad selector does not refuse the other watches of a list of cells.
    planned = _definition([(0, watch)])
    try:
        any_wrapper(planned.values, planned.name)
    except WrapperError as error:
        watch.refusal = str(error).removeprefix(f"{planned.name}: ")


def _take_ignored(watch: Watch) -> None:
    """Take the selectors of elements to leave out, as far as the definition can have them."""
    for key, text in watch.ignore:
        reason = NO_EXCLUSION if watch.fields or watch.is_feed or _is_cell(watch) else None
        if reason is None:
            try:
                selectors = watch.keys.setdefault("ignore", [])
                if (css := checked_css(text.removeprefix("css:").strip())) not in selectors:
                    selectors.append(css)
                continue
            except ValueError:
                reason = f"only CSS selectors of elements, not {text[:MAX_KEY_CHARACTERS]!r}"
        watch.lose(key, reason)
    if not watch.keys.get("ignore"):
        watch.keys.pop("ignore", None)


def _url(watch: Watch) -> str:
    # Some programs distinguish watches of the same page by a fragment.
    return canonical(watch.url, TRACKING_PARAMETERS)


def _is_cell(watch: Watch) -> bool:
    return watch.every is not None and watch.every < HOUR_SECONDS


def _group_of(watch: Watch) -> list[Any]:
    """Return the values that the watches of one definition have in common."""
    host = urlsplit(_url(watch)).netloc.removeprefix("www.")
    common = [host, watch.headers, watch.keys, _is_cell(watch)]
    if _is_cell(watch):
        if watch.tags:
            watch.lose("tags", "cells have no categories")
        return common
    if len(watch.tags) > 1:
        watch.lose("tags", f"only the first one, {watch.tags[0]!r}, is the category")
    return [*common, watch.fields, watch.every, watch.tags[:1]]


def _definition(watches: Sequence[tuple[int, Watch]]) -> PlannedSite:
    """Return the definition for a group of watches."""
    first = watches[0][1]
    host = urlsplit(_url(first)).netloc.removeprefix("www.")
    name = re.sub(r"[^A-Za-z0-9]+", "-", host)[:MAX_NAME_CHARACTERS].strip("-")
    values: dict[str, Any] = {"name": name if is_spider_name(name) else SITE}
    rest: dict[str, Any] = dict(first.keys)
    if first.headers:
        rest["headers"] = dict(first.headers)
    planned = PlannedSite(CELLS if _is_cell(first) else SITE, values, [n for n, _ in watches])
    if planned.kind == CELLS:
        values["name"] += "-cells"
        cells: dict[str, Any] = {}
        for _, watch in watches:
            text = watch.name or urlsplit(_url(watch)).path or host_of(watch.url)
            words = re.findall(r"[A-Za-z0-9]+", text[:MAX_TITLE_CHARACTERS])
            base = "-".join(words).lower()[:MAX_NAME_CHARACTERS].strip("-") or "page"
            base = base if base[0].isalpha() else f"page-{base}"
            number, cell_name = 1, base
            while cell_name in cells:
                number += 1
                cell_name = f"{base}-{number}"
            selectors: Mapping[str, Any] = {"fields": watch.fields}
            if len(watch.fields) < 2:
                selectors = next(iter(watch.fields.values()), WHOLE_PAGE)
            cells[cell_name] = {"url": _url(watch), **selectors, "every": f"{watch.every:.0f}s"}
        values |= rest | {"cells": cells}
        return planned
    values["start_urls"] = list(dict.fromkeys(_url(watch) for _, watch in watches))
    values["item_pages"] = rf"^https?://(?:www\.)?{re.escape(host)}/"
    if first.tags:
        values["category"] = tidy(first.tags[0], MAX_TITLE_CHARACTERS)
    if first.every is not None:
        hours = first.every / HOUR_SECONDS
        values["item_interval_hours"] = round(min(hours, 24 * 365), 3)
        values["max_interval_hours"] = round(min(hours, MAX_INTERVAL_HOURS), 3)
    values |= rest
    if first.fields:
        values["fields"] = first.fields
    return planned
