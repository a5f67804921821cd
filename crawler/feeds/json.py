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
    try:
        feed = json.loads(text, strict=False)
    except RecursionError:
        raise NoFeed("JSON, nested too deeply") from None
    except ValueError as why:
        raise NoFeed(f"malformed JSON: {line(str(why), 100)}") from None
    if not isinstance(feed, dict):
        raise NoFeed("JSON, but no JSON Feed")
    items = _rows(feed, "items")
    hubs = [absolute(_string(hub, "url"), url) for hub in _rows(feed, "hubs")]
    source = Source(
        format="json11",
        title=line(_string(feed, "title"), LONGEST_TITLE),
        site=absolute(_string(feed, "home_page_url"), url),
        hubs=tuple(filter(None, dict.fromkeys(hubs))),
        topic=absolute(_string(feed, "feed_url"), url),
    )
    _, has_version, version = _string(feed, "version").partition(MARK)
    version = version.strip("/ ")
    if version in VERSIONS:
        source.format = VERSIONS[version]
    elif has_version:
        source.problems.append(f"unknown version of JSON Feed: {version[:20]!r}")
    elif any("content_html" in item or "content_text" in item for item in items):
        source.problems.append("no version of JSON Feed")
    else:
        raise NoFeed("JSON, but no JSON Feed")
    if len(items) > most_entries:
        source.problems.append(f"more than {most_entries:,} entries: the rest is left out")
    source.drafts = [_draft(item, url, dates) for item in items[:most_entries]]
    return source


def _draft(item: Row, url: str, dates: DateReader) -> Draft:
    tags = item.get("tags")
    files = [absolute(_string(file, "url"), url) or "" for file in _rows(item, "attachments")]
    guid = item.get("id")
    # Version 1 allows for numbers.
    if isinstance(guid, int | float) and not isinstance(guid, bool):
        guid = json.dumps(guid) if isinstance(guid, float) or abs(guid) < 10**30 else ""
    # Version 1 has one author, 1.1 has several.
    single = item.get("author")
    authors = _rows(item, "authors") or ([single] if isinstance(single, dict) else [])
    return Draft(
        guid=line(guid if isinstance(guid, str) else "", LONGEST_GUID),
        link=absolute(_string(item, "url"), url) or absolute(_string(item, "external_url"), url),
        stated=dates.read(_string(item, "date_published"))
        or dates.read(_string(item, "date_modified")),
        title=line(_string(item, "title"), LONGEST_TITLE),
        text=plain(_string(item, "content_html"))
        or lines(_string(item, "content_text"))
        or lines(_string(item, "summary")),
        author=line(", ".join(unique([_string(row, "name") for row in authors])), LONGEST_TITLE),
        tags=unique([tag for tag in tags if isinstance(tag, str)])
        if isinstance(tags, list)
        else [],
        enclosures=unique(files, LONGEST_URL),
    )


def _rows(row: Row, name: str) -> list[Row]:
    rows = row.get(name)
    return [each for each in rows if isinstance(each, dict)] if isinstance(rows, list) else []


def _string(row: Row, name: str) -> str:
    value = row.get(name)
    return value if isinstance(value, str) else ""
