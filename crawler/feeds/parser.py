"""Feed documents: RSS, Atom, CDF and JSON Feed as one type, however broken. Pure, fetches nothing.

A document is never trusted: its size, its entries and its longest texts are bounded, and reading
takes time in proportion to its length whatever is in it.
"""

from __future__ import annotations

import json
import re
from datetime import datetime
from typing import Any

from crawler.extract.plain_text import line, lines, plain
from crawler.feeds.dates import DateReader, believed, fabricated, problems_of
from crawler.feeds.draft import (
    MAX_GUID_CHARACTERS,
    MAX_TITLE_CHARACTERS,
    MAX_URL_CHARACTERS,
    Draft,
    Source,
    absolute,
    unique,
)
from crawler.feeds.entry_id import named
from crawler.feeds.recover import decoded
from crawler.feeds.xml import xml_source
from crawler.items import Entry, FeedDocument, NoFeed

MAX_ENTRIES = 50_000
MAX_BYTES = 64 * 1024 * 1024
MAX_PROBLEM_CHARACTERS = 300
# What begins files that nobody reads as text.
BINARY = re.compile(
    rb"\x1f\x8b|PK\x03\x04|%PDF-|\x89PNG|\xff\xd8\xff|GIF8|BZh|\xfd7zXZ|\x28\xb5\x2f\xfd"
)
BLANKS = "\ufeff\0 \t\r\n"
SNIFFED_CHARACTERS = 512
NO_TEXT = re.compile("[\x00-\x08\x0e-\x1a\x1c-\x1f\x80-\x9f\ufffd]")
MAX_CONTROL_SHARE = 0.1


def read(
    body: bytes,
    url: str,
    content_type: str | None,
    now: datetime,
    max_entries: int = MAX_ENTRIES,
) -> FeedDocument:
    """Read a feed document; raises NoFeed, which says what it is instead.

    url:          of the feed, absolute; relative links are resolved against it
    content_type: HTTP header, for the encoding; what the document is, it shows itself
    now:          aware; no post is from the future
    max_entries: further ones are left out, which is a problem that is told
    """
    if len(body) > MAX_BYTES:
        raise NoFeed(f"larger than {MAX_BYTES // 1024**2} MB")
    if BINARY.match(body):
        raise NoFeed("binary data")
    text, problems = decoded(body, content_type)
    start = text.lstrip(BLANKS)
    head = start[:SNIFFED_CHARACTERS]
    if not head:
        raise NoFeed("empty")
    if len(NO_TEXT.findall(head)) > MAX_CONTROL_SHARE * len(head):
        raise NoFeed("binary data")
    dates = DateReader()
    if start.startswith(("{", "[")):
        source = json_source(start, url, dates, max_entries)
    else:
        source = xml_source(text, url, dates, max_entries)
    stated = [draft.stated for draft in source.drafts if draft.stated]
    problems += source.problems + problems_of(dates, stated, now)
    if why := fabricated(stated, source.built, now):
        problems.append(why)
        for draft in source.drafts:
            draft.stated = None
    posts, shared = named(source, url)
    return FeedDocument(
        format=source.format,
        title=source.title or None,
        site=source.site,
        entries=tuple(
            Entry(name, draft.link, believed(draft.stated, now), draft.content())
            for name, draft in posts
        ),
        problems=tuple(line(problem, MAX_PROBLEM_CHARACTERS) for problem in problems + shared),
        bounds=source.bounds,
        hubs=source.hubs,
        topic=source.topic,
    )


MARK = "jsonfeed.org/version/"
VERSIONS = {"1": "json1", "1.1": "json11"}
Row = dict[str, Any]


def json_source(text: str, url: str, dates: DateReader, max_entries: int) -> Source:
    """Read a JSON Feed; raises NoFeed where the document is another one.

    url: what its links are relative to        max_entries: the rest is left out
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
        title=line(_string(feed, "title"), MAX_TITLE_CHARACTERS),
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
    if len(items) > max_entries:
        source.problems.append(f"more than {max_entries:,} entries: the rest is left out")
    source.drafts = [_draft(item, url, dates) for item in items[:max_entries]]
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
        guid=line(guid if isinstance(guid, str) else "", MAX_GUID_CHARACTERS),
        link=absolute(_string(item, "url"), url) or absolute(_string(item, "external_url"), url),
        stated=dates.read(_string(item, "date_published"))
        or dates.read(_string(item, "date_modified")),
        title=line(_string(item, "title"), MAX_TITLE_CHARACTERS),
        text=plain(_string(item, "content_html"))
        or lines(_string(item, "content_text"))
        or lines(_string(item, "summary")),
        author=line(
            ", ".join(unique([_string(row, "name") for row in authors])), MAX_TITLE_CHARACTERS
        ),
        tags=unique([tag for tag in tags if isinstance(tag, str)])
        if isinstance(tags, list)
        else [],
        enclosures=unique(files, MAX_URL_CHARACTERS),
    )


def _rows(row: Row, name: str) -> list[Row]:
    rows = row.get(name)
    return [each for each in rows if isinstance(each, dict)] if isinstance(rows, list) else []


def _string(row: Row, name: str) -> str:
    value = row.get(name)
    return value if isinstance(value, str) else ""
