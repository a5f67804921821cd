"""Parse RSS, Atom, CDF and JSON Feed, including malformed documents, into a FeedDocument.

Documents are untrusted: the size of the document, the number of entries and the length of texts are
limited, and parsing takes time linear in the length of the document.

Ids of posts stay the same from one fetch to the next: see `identified`.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Sequence
from datetime import datetime, timedelta, timezone
from urllib.parse import urldefrag
from zoneinfo import ZoneInfo

from crawler.extract.page_values import markup_without
from crawler.extract.plain_text import line, lines, plain
from crawler.feeds.draft import (
    MAX_GUID_CHARACTERS,
    MAX_TITLE_CHARACTERS,
    MAX_URL_CHARACTERS,
    DateReader,
    Draft,
    Row,
    Source,
    absolute,
    address,
    announced,
    fabricated,
    in_zone,
    offset_of,
    plausible,
    problems_of,
    rows_in,
    string_in,
    unique,
)
from crawler.feeds.recover import decoded
from crawler.feeds.rss_atom import xml_source
from crawler.items import Entry, FeedDocument, NoFeed
from crawler.utils import exact_json
from crawler.utils.text import listed
from crawler.utils.urls import canonical

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
DIGEST_BYTES = 16
MAX_ID_CHARACTERS = 400
SHOWN_CHARACTERS = 60
# Values that feed generators write in place of a missing guid.
PLACEHOLDERS = frozenset({"none", "null", "nil", "undefined", "nan", "n/a", "#", "-"})
# Each post has up to four ids. More rounds are only needed for ids made to collide repeatedly.
MAX_ROUNDS = 8


def read(
    body: bytes,
    url: str,
    content_type: str | None,
    now: datetime,
    max_entries: int = MAX_ENTRIES,
    zone: ZoneInfo | None = None,
    ignore: Sequence[str] = (),
) -> FeedDocument:
    """Parse a feed document. Raises NoFeed for anything else, with a description of the document.

    url:          absolute URL of the feed, to resolve relative links
    content_type: HTTP header, for the encoding; the format is detected from the document
    now:          aware time of the fetch; dates in the future are not used yet
    max_entries:  further entries are left out and reported as a problem
    zone:         time zone of dates without one; None: unknown, see `offset_of`
    ignore:       CSS selectors of elements that the texts of posts leave out
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
        source = json_source(start, url, dates, max_entries, ignore)
    else:
        source = xml_source(text, url, dates, max_entries, ignore)
    local = [d.stated for d in source.drafts if d.stated and d.stated.tzinfo is None]
    offset_hours = offset_of(local, now) if zone is None else 0.0
    assumed = zone or timezone(timedelta(hours=offset_hours))
    of_draft = {id(d): in_zone(d.stated, assumed) for d in source.drafts if d.stated}
    stated = [date for date in of_draft.values() if date]
    built = in_zone(source.built, assumed) if source.built else None
    problems += source.problems + problems_of(dates, stated, now, offset_hours)
    if reason := fabricated(stated, built, now):
        problems.append(reason)
        of_draft = {}
        for draft in source.drafts:
            draft.stated = None
    # Ids have the dates as stated, because the assumed offset may change.
    posts, id_problems = identified(source, url)
    return FeedDocument(
        format=source.format,
        title=source.title or None,
        site=source.site,
        entries=tuple(
            Entry(
                post_id,
                draft.link,
                plausible(date, now),
                draft.content(),
                announced(date, now),
                has_offset=zone is not None
                or draft.stated is None
                or draft.stated.tzinfo is not None,
            )
            for post_id, draft in posts
            for date in (of_draft.get(id(draft)),)
        ),
        problems=tuple(line(problem, MAX_PROBLEM_CHARACTERS) for problem in problems + id_problems),
        bounds=source.bounds,
        hubs=source.hubs,
        topic=source.topic,
        utc_offset_hours=offset_hours,
    )


MARK = "jsonfeed.org/version/"
VERSIONS = {"1": "json1", "1.1": "json11"}


def json_source(
    text: str, url: str, dates: DateReader, max_entries: int, ignore: Sequence[str] = ()
) -> Source:
    """Parse a JSON Feed. Raises NoFeed if the document is something else.

    url:         URL to resolve relative links
    max_entries: further entries are left out
    """
    try:
        feed = exact_json.loads(text)
    except RecursionError:
        raise NoFeed("JSON, nested too deeply") from None
    except ValueError as error:
        raise NoFeed(f"malformed JSON: {line(str(error), 100)}") from None
    if not isinstance(feed, dict):
        raise NoFeed("JSON, but not a JSON Feed")
    items = rows_in(feed, "items")
    hubs = [absolute(string_in(hub, "url"), url) for hub in rows_in(feed, "hubs")]
    source = Source(
        format="json11",
        title=line(string_in(feed, "title"), MAX_TITLE_CHARACTERS),
        site=absolute(string_in(feed, "home_page_url"), url),
        hubs=tuple(filter(None, dict.fromkeys(hubs))),
        topic=absolute(string_in(feed, "feed_url"), url),
    )
    _, has_version, version = string_in(feed, "version").partition(MARK)
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
    source.drafts = [_draft_of_item(item, url, dates, ignore) for item in items[:max_entries]]
    return source


def _draft_of_item(item: Row, url: str, dates: DateReader, ignore: Sequence[str]) -> Draft:
    tags = item.get("tags")
    files = [address(string_in(file, "url"), url) or "" for file in rows_in(item, "attachments")]
    guid = item.get("id")
    # Version 1 allows numbers as ids.
    if isinstance(guid, int | float) and not isinstance(guid, bool):
        guid = json.dumps(guid) if isinstance(guid, float) or abs(guid) < 10**30 else ""
    # Version 1 has one author, 1.1 has several.
    single = item.get("author")
    authors = rows_in(item, "authors") or ([single] if isinstance(single, dict) else [])
    return Draft(
        guid=line(guid if isinstance(guid, str) else "", MAX_GUID_CHARACTERS),
        link=address(string_in(item, "url"), url) or address(string_in(item, "external_url"), url),
        stated=dates.read(_text_of(item, "date_published"))
        or dates.read(_text_of(item, "date_modified")),
        title=line(string_in(item, "title"), MAX_TITLE_CHARACTERS),
        text=plain(markup_without(string_in(item, "content_html"), ignore))
        or lines(string_in(item, "content_text"))
        or lines(string_in(item, "summary")),
        author=line(
            ", ".join(unique([string_in(row, "name") for row in authors])), MAX_TITLE_CHARACTERS
        ),
        tags=unique([tag for tag in tags if isinstance(tag, str)])
        if isinstance(tags, list)
        else [],
        enclosures=unique(files, MAX_URL_CHARACTERS),
    )


def _text_of(item: Row, name: str) -> str:
    """Return a text, or a number as text: some generators write Unix times."""
    value = item.get(name)
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return str(value) if is_number else string_in(item, name)


def identified(source: Source, url: str) -> tuple[list[tuple[str, Draft]], list[str]]:
    """Return the posts of a document with their ids, and the problems of the ids.

    url: URL of the feed

    Each id is returned once. Of identical posts, only the latest is returned.

    The id of a post is its guid, else its link, else a digest of title and date (title and text for
    posts without a date). Values that cannot identify a post, such as the URL of the feed, are
    ignored. If different posts of a document have the same id, all of them get longer ids: with the
    link, then with title and date, then with the whole content.

    No post keeps a shared id, not even the first. Otherwise, in a feed that uses one guid for all
    its posts, the short id would pass to another post whenever its owner leaves the document. With
    longer ids for all posts, the ids remain stable.

    Ids can still change when posts begin or cease to share one. This cannot be avoided by looking
    at a single document: a post with a unique guid must be identified by the guid only, because
    feeds change their links at times, and a post with a shared guid must not. Whenever such a group
    begins or ends, one post is treated as new again, and one as edited.
    """
    # Values that belong to the feed do not identify a post.
    own = [url, source.site, source.topic, source.title]
    common = frozenset(filter(None, [*own, *map(_canonical, own[:3])]))
    drafts, problems = _without_copies(source.drafts)
    ids, shared = _shortest_unique([_candidate_ids(draft, common) for draft in drafts])
    if shared:
        shown = [f"{n:,} entries share the id {_short(id_)}" for id_, n in shared.items()]
        problems.append(f"{listed(shown)}: distinguished by link, title and date")
    posts: dict[str, Draft] = {}
    for id_, draft in zip(ids, drafts, strict=True):
        posts.setdefault(id_, draft)
    if left_out := len(drafts) - len(posts):
        problems.append(f"{left_out:,} entries left out: their ids cannot be distinguished")
    return list(posts.items()), problems


def _without_copies(drafts: Sequence[Draft]) -> tuple[list[Draft], list[str]]:
    """Return the posts without identical copies, and a problem that reports the copies."""
    kept: dict[str, Draft] = {}
    copies: Counter[str] = Counter()
    for draft in drafts:
        link = _canonical(draft.link)
        own_id = draft.guid or link
        # A status page announces the same news again, with the same link.
        key = _digest(draft.guid, link, draft.content(), draft.guid or _moment(draft))
        if (other := kept.setdefault(key, draft)) is not draft:
            # The choice must not depend on the order in the document, because longer ids contain
            # the date and link of the copy that is kept.
            kept[key] = max(other, draft, key=lambda copy: (_moment(copy), copy.link or ""))
            copies[own_id] += 1
    shown = [
        f"{n + 1:,} entries " + (f"share the id {_short(id_)}" if id_ else "without guid and link")
        for id_, n in copies.items()
    ]
    return list(kept.values()), [f"{listed(shown)} and are identical"] if shown else []


def _shortest_unique(candidates: Sequence[Sequence[str]]) -> tuple[list[str], dict[str, int]]:
    """Return the first unique id of each post, and the number of posts by shared first id.

    candidates: possible ids of each post, shortest first
    """
    steps = [0] * len(candidates)
    shared: dict[str, int] = {}
    for _ in range(MAX_ROUNDS):
        ids = [options[step] for options, step in zip(candidates, steps, strict=True)]
        counts = Counter(ids)
        for n, id_ in enumerate(ids):
            if counts[id_] > 1 and steps[n] + 1 < len(candidates[n]):
                if steps[n] == 0:
                    shared[id_] = counts[id_]
                steps[n] += 1
        if len(counts) == len(ids):
            break
    return [options[step] for options, step in zip(candidates, steps, strict=True)], shared


def _candidate_ids(draft: Draft, common: frozenset[str]) -> list[str]:
    """Return the possible ids of a post, each more specific than the one before.

    common: values that do not identify a post
    """
    is_usable = draft.guid not in common and draft.guid.lower() not in PLACEHOLDERS
    guid = draft.guid if is_usable else ""
    link, fragment = _canonical(draft.link), urldefrag(draft.link or "")[1]
    full_link = f"{link}#{fragment}" if fragment else link
    if link in common:
        link = full_link = full_link if fragment else ""
    short = guid or link or _digest(draft.title, _moment(draft) or draft.text)
    longer = f"{guid} {full_link}".strip() or short
    dated = _digest(draft.title, _moment(draft))
    ids = [short, longer, f"{longer} {dated}", f"{longer} {_digest(dated, draft.content())}"]
    half = MAX_ID_CHARACTERS // 2
    bounded = (
        id_ if len(id_) <= MAX_ID_CHARACTERS else f"{id_[:half]} {_digest(id_)}" for id_ in ids
    )
    return list(dict.fromkeys(bounded))


def _canonical(link: str | None) -> str:
    try:
        return canonical(link) if link else ""
    except ValueError:
        return link or ""


def _moment(draft: Draft) -> str:
    return draft.stated.isoformat() if draft.stated else ""


def _digest(*parts: object) -> str:
    text = json.dumps(parts, sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=DIGEST_BYTES).hexdigest()


def _short(id_: str) -> str:
    return repr(id_ if len(id_) <= SHOWN_CHARACTERS else f"{id_[:SHOWN_CHARACTERS]}…")
