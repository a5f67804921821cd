"""Feed documents: RSS, Atom, CDF and JSON Feed as one type, however broken. Pure, fetches nothing.

A document is never trusted: its size, its entries and its longest texts are bounded, and reading
takes time in proportion to its length whatever is in it.
"""

from __future__ import annotations

import re
from datetime import datetime

from crawler.extract.plain_text import line
from crawler.feeds.dates import DateReader, believed, made_up, problems_of
from crawler.feeds.entry_id import named
from crawler.feeds.json import json_source
from crawler.feeds.recover import decoded
from crawler.feeds.xml import xml_source
from crawler.items import Entry, FeedDocument, NoFeed

MOST_ENTRIES = 50_000
LARGEST_BYTES = 64 * 1024 * 1024
LONGEST_PROBLEM = 300
# What begins files that nobody reads as text.
BINARY = re.compile(
    rb"\x1f\x8b|PK\x03\x04|%PDF-|\x89PNG|\xff\xd8\xff|GIF8|BZh|\xfd7zXZ|\x28\xb5\x2f\xfd"
)
BLANKS = "\ufeff\0 \t\r\n"
SNIFFED_CHARACTERS = 512
NO_TEXT = re.compile("[\x00-\x08\x0e-\x1a\x1c-\x1f\x80-\x9f\ufffd]")
MOST_NO_TEXT = 0.1


def read(
    body: bytes,
    url: str,
    content_type: str | None,
    now: datetime,
    most_entries: int = MOST_ENTRIES,
) -> FeedDocument:
    """Read a feed document; raises NoFeed, which says what it is instead.

    url:          of the feed, absolute; relative links are resolved against it
    content_type: HTTP header, for the encoding; what the document is, it shows itself
    now:          aware; no post is from the future
    most_entries: further ones are left out, which is a problem that is told
    """
    if len(body) > LARGEST_BYTES:
        raise NoFeed(f"larger than {LARGEST_BYTES // 1024**2} MB")
    if BINARY.match(body):
        raise NoFeed("binary data")
    text, problems = decoded(body, content_type)
    start = text.lstrip(BLANKS)
    head = start[:SNIFFED_CHARACTERS]
    if not head:
        raise NoFeed("empty")
    if len(NO_TEXT.findall(head)) > MOST_NO_TEXT * len(head):
        raise NoFeed("binary data")
    dates = DateReader()
    if start.startswith(("{", "[")):
        source = json_source(start, url, dates, most_entries)
    else:
        source = xml_source(text, url, dates, most_entries)
    stated = [draft.stated for draft in source.drafts if draft.stated]
    problems += source.problems + problems_of(dates, stated, now)
    if why := made_up(stated, source.built, now):
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
        problems=tuple(line(problem, LONGEST_PROBLEM) for problem in problems + shared),
        bounds=source.bounds,
        hubs=source.hubs,
        topic=source.topic,
    )
