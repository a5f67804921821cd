"""Parse RSS, Atom, CDF and JSON Feed, including malformed documents, into a FeedDocument.

Documents are untrusted: the size of the document, the number of entries and the length of texts are
limited, and parsing takes time linear in the length of the document.
"""

from __future__ import annotations

import json
import re
from datetime import datetime
from typing import Any

from crawler.extract.plain_text import line, lines, plain
from crawler.feeds.dates import DateReader, fabricated, plausible, problems_of
from crawler.feeds.draft import (
    MAX_GUID_CHARACTERS,
    MAX_TITLE_CHARACTERS,
    MAX_URL_CHARACTERS,
    Draft,
    Source,
    absolute,
    unique,
)
from crawler.feeds.entry_id import identified
from crawler.feeds.recover import decoded
from crawler.feeds.rss_atom import xml_source
from crawler.items import Entry, FeedDocument, NoFeed

MAX_ENTRIES = 50_000
MAX_BYTES = 64 * 1024 * 1024
MAX_PROBLEM_CHARACTERS = 300
# Signatures of binary files: gzip, zip, PDF, PNG, JPEG, GIF, bzip2, xz and zstd.
BINARY = re.compile(
    rb"\x1f\x8b|PK\x03\x04|%PDF-|\x89PNG|\xff\xd8\xff|GIF8|BZh|\xfd7zXZ|\x28\xb5\x2f\xfd"
)
BLANKS = "\ufeff\0 \t\r\n"
SNIFFED_CHARACTERS = 512
CONTROLS = re.compile("[\x00-\x08\x0e-\x1a\x1c-\x1f\x80-\x9f\ufffd]")
MAX_CONTROL_SHARE = 0.1


def read(
    body: bytes,
    url: str,
    content_type: str | None,
    now: datetime,
    max_entries: int = MAX_ENTRIES,
) -> FeedDocument:
    """Parse a feed document. Raises NoFeed for anything else, with a description of the document.

    url:          absolute URL of the feed, to resolve relative links
    content_type: HTTP header, for the encoding; the format is detected from the document
    now:          aware time of the fetch; dates in the future are ignored
    max_entries:  further entries are left out and reported as a problem
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
    if len(CONTROLS.findall(head)) > MAX_CONTROL_SHARE * len(head):
        raise NoFeed("binary data")
    dates = DateReader()
    if start.startswith(("{", "[")):
        source = json_source(start, url, dates, max_entries)
    else:
        source = xml_source(text, url, dates, max_entries)
    stated = [draft.stated for draft in source.drafts if draft.stated]
    problems += source.problems + problems_of(dates, stated, now)
    if reason := fabricated(stated, source.built, now):
        problems.append(reason)
        for draft in source.drafts:
            draft.stated = None
    posts, id_problems = identified(source, url)
    return FeedDocument(
        format=source.format,
        title=source.title or None,
        site=source.site,
        entries=tuple(
            Entry(post_id, draft.link, plausible(draft.stated, now), draft.content())
            for post_id, draft in posts
        ),
        problems=tuple(line(problem, MAX_PROBLEM_CHARACTERS) for problem in problems + id_problems),
        bounds=source.bounds,
        hubs=source.hubs,
        topic=source.topic,
    )


MARK = "jsonfeed.org/version/"
VERSIONS = {"1": "json1", "1.1": "json11"}
Row = dict[str, Any]


def json_source(text: str, url: str, dates: DateReader, max_entries: int) -> Source:
    """Parse a JSON Feed. Raises NoFeed if the document is something else.

    url:         URL to resolve relative links
    max_entries: further entries are left out
    """
    try:
        feed = json.loads(text, strict=False)
    except RecursionError:
        raise NoFeed("JSON, nested too deeply") from None
    except ValueError as error:
        raise NoFeed(f"malformed JSON: {line(str(error), 100)}") from None
    if not isinstance(feed, dict):
        raise NoFeed("JSON, but not a JSON Feed")
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
        source.problems.append("the version of JSON Feed is missing")
    else:
        raise NoFeed("JSON, but not a JSON Feed")
    if len(items) > max_entries:
        source.problems.append(f"more than {max_entries:,} entries: the rest is left out")
    source.drafts = [_draft_of_item(item, url, dates) for item in items[:max_entries]]
    return source


def _draft_of_item(item: Row, url: str, dates: DateReader) -> Draft:
    tags = item.get("tags")
    files = [absolute(_string(file, "url"), url) or "" for file in _rows(item, "attachments")]
    guid = item.get("id")
    # Version 1 allows numbers as ids.
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
