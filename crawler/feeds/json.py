"""JSON Feed, versions 1 and 1.1."""

from __future__ import annotations

import json
from typing import Any

from crawler.extract.plain_text import line, lines, plain
from crawler.feeds.dates import DateReader
from crawler.feeds.draft import (
    LONGEST_GUID,
    LONGEST_TITLE,
    LONGEST_URL,
    Draft,
    Source,
    absolute,
    unique,
)
from crawler.items import NoFeed

MARK = "jsonfeed.org/version/"
VERSIONS = {"1": "json1", "1.1": "json11"}
Row = dict[str, Any]


def json_source(text: str, url: str, dates: DateReader, most_entries: int) -> Source:
    """Read a JSON Feed; raises NoFeed where the document is another one.

    url: what its links are relative to        most_entries: the rest is left out
    """
    feed = _loaded(text)
    items = _rows(feed, "items")
    source = _head(feed, url)
    source.format, source.problems = _version(feed, items)
    if len(items) > most_entries:
        source.problems.append(f"more than {most_entries:,} entries: the rest is left out")
    source.drafts = [_draft(item, url, dates) for item in items[:most_entries]]
    return source


def _loaded(text: str) -> Row:
    try:
        feed = json.loads(text, strict=False)
    except RecursionError:
        raise NoFeed("JSON, nested too deeply") from None
    except ValueError as why:
        raise NoFeed(f"malformed JSON: {line(str(why), 100)}") from None
    if not isinstance(feed, dict):
        raise NoFeed("JSON, but no JSON Feed")
    return feed


def _version(feed: Row, items: list[Row]) -> tuple[str, list[str]]:
    """The version and what is wrong with it; without one it takes an item with a content."""
    said = _string(feed, "version")
    if MARK in said:
        number = said.partition(MARK)[2].strip("/ ")
        unknown = [] if number in VERSIONS else [f"unknown version of JSON Feed: {number[:20]!r}"]
        return VERSIONS.get(number, "json11"), unknown
    if not any("content_html" in item or "content_text" in item for item in items):
        raise NoFeed("JSON, but no JSON Feed")
    return "json11", ["no version of JSON Feed"]


def _head(feed: Row, url: str) -> Source:
    hubs = [absolute(_string(hub, "url"), url) for hub in _rows(feed, "hubs")]
    return Source(
        format="",
        title=line(_string(feed, "title"), LONGEST_TITLE),
        site=absolute(_string(feed, "home_page_url"), url),
        hubs=tuple(filter(None, dict.fromkeys(hubs))),
        topic=absolute(_string(feed, "feed_url"), url),
    )


def _draft(item: Row, url: str, dates: DateReader) -> Draft:
    tags = item.get("tags")
    files = [absolute(_string(file, "url"), url) or "" for file in _rows(item, "attachments")]
    return Draft(
        guid=line(_id(item), LONGEST_GUID),
        link=absolute(_string(item, "url"), url) or absolute(_string(item, "external_url"), url),
        stated=dates.read(_string(item, "date_published"))
        or dates.read(_string(item, "date_modified")),
        title=line(_string(item, "title"), LONGEST_TITLE),
        text=_main_text(item),
        author=line(", ".join(unique(_authors(item))), LONGEST_TITLE),
        tags=unique([tag for tag in tags if isinstance(tag, str)])
        if isinstance(tags, list)
        else [],
        enclosures=unique(files, LONGEST_URL),
    )


def _main_text(item: Row) -> str:
    return (
        plain(_string(item, "content_html"))
        or lines(_string(item, "content_text"))
        or lines(_string(item, "summary"))
    )


def _authors(item: Row) -> list[str]:
    """Version 1 has one author, 1.1 has several."""
    single = item.get("author")
    rows = _rows(item, "authors") or ([single] if isinstance(single, dict) else [])
    return [_string(row, "name") for row in rows]


def _id(item: Row) -> str:
    """The id; version 1 allows for numbers."""
    said = item.get("id")
    if isinstance(said, int | float) and not isinstance(said, bool):
        return json.dumps(said) if isinstance(said, float) or abs(said) < 10**30 else ""
    return said if isinstance(said, str) else ""


def _rows(row: Row, name: str) -> list[Row]:
    rows = row.get(name)
    return [each for each in rows if isinstance(each, dict)] if isinstance(rows, list) else []


def _string(row: Row, name: str) -> str:
    value = row.get(name)
    return value if isinstance(value, str) else ""
