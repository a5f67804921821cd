"""525 real feeds and test feeds of other parsers, many of them malformed.

Requires a folder that contains the feeds in `feeds.tar.xz` and feedparser's results in `index.csv`.
Set the variable REAL_FEEDS to the folder's path. The texts belong to their publishers and are not
part of this project.
"""

from __future__ import annotations

import csv
import os
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path, PurePosixPath

import pytest

from crawler.items import FeedDocument, NoFeed
from tests.unit.feeding import reading

REAL_FEEDS = os.environ.get("REAL_FEEDS")
pytestmark = pytest.mark.skipif(
    not REAL_FEEDS, reason="set REAL_FEEDS to a folder with the 525 feed documents"
)
# Parts of problem messages about a wrong encoding or malformed XML.
DECODING_PROBLEMS = ("malformed XML", "no encoding declared", "unknown encoding", "character")
OMISSION_PROBLEMS = ("are identical", "left out")


@dataclass(frozen=True)
class Case:
    """A document with feedparser's results; `found` is our result, or why it is not a feed."""

    name: str
    body: bytes
    entries: int
    malformed: bool
    version: str
    found: FeedDocument | str


@cache
def cases() -> tuple[Case, ...]:
    folder = Path(str(REAL_FEEDS))
    with (folder / "index.csv").open(newline="") as index:
        rows = {row["file"]: row for row in csv.DictReader(index)}
    return tuple(_case(rows[name], body) for name, body in _bodies(folder / "feeds.tar.xz"))


def _bodies(archive: Path) -> Iterator[tuple[str, bytes]]:
    with tarfile.open(archive, "r:xz") as files:
        for member in files:
            if (file := files.extractfile(member)) is not None:
                yield PurePosixPath(member.name).name, file.read()


def _case(row: dict[str, str], body: bytes) -> Case:
    try:
        result: FeedDocument | str = reading(body)
    except NoFeed as why:
        result = str(why)
    entries, malformed = int(row["feedparser_items"]), row["feedparser_bozo"] == "1"
    return Case(row["file"], body, entries, malformed, row["feedparser_version"], result)


def feeds() -> Iterator[tuple[Case, FeedDocument]]:
    for case in cases():
        if isinstance(case.found, FeedDocument):
            yield case, case.found


def test_feeds_are_distinguished_from_other_documents() -> None:
    others = {case.name: case.found for case in cases() if isinstance(case.found, str)}
    assert len(cases()) == 525
    assert [case.name for case in cases() if case.name in others and case.entries] == []
    assert {case.version for case in cases() if case.name in others} == {""}
    assert all(others.values())


def test_number_of_entries_matches_feedparser_or_is_explained() -> None:
    missing = [
        case.name
        for case, result in feeds()
        if len(result.entries) != case.entries
        and not any(word in problem for problem in result.problems for word in OMISSION_PROBLEMS)
    ]
    assert missing == []


def test_formats_match_feedparser() -> None:
    ours = {"unknown": "", "cdf": ""}
    others = [
        c.name for c, result in feeds() if ours.get(result.format, result.format) != c.version
    ]
    assert others == []


def test_reported_malformed_feeds_match_feedparser() -> None:
    messages = {
        case.name
        for case, result in feeds()
        if any(
            problem.startswith("malformed XML") or "encod" in problem for problem in result.problems
        )
    }
    assert messages == {case.name for case, _ in feeds() if case.malformed}


def test_truncated_document_yields_the_first_entries() -> None:
    """Cut each long real document in the middle."""
    for case, whole in feeds():
        if len(case.body) < 5_000 or case.malformed or _is_special(whole):
            continue
        try:
            part = reading(case.body[: len(case.body) // 2])
        except NoFeed:
            part = replace(whole, entries=())
        assert len(part.entries) < len(whole.entries), case.name
        firsts = {entry.id: entry.content for entry in whole.entries[: len(part.entries)]}
        assert {entry.id: entry.content for entry in part.entries} == firsts, case.name


def _is_special(document: FeedDocument) -> bool:
    """Return True if the document's ids or dates depend on all of its posts."""
    return any("share the id" in problem or "dates" in problem for problem in document.problems)
