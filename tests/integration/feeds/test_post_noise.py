"""Tokens, counters and random text in feeds are no edits of the posts; edits beside them are."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

import pytest

from tests.integration.feeds.test_feed_crawl import crawl, rss, subscribe
from tests.integration.harness import Db, Freshet, outcomes
from tests.integration.raw_server import RawServer, page

NUMBERS = count(1)


@pytest.fixture
def server() -> Iterator[RawServer]:
    with RawServer() as running:
        yield running


@pytest.fixture
def db(stored: tuple[Db, str], server: RawServer) -> Db:
    """Return a database with one feed."""
    subscribe(*stored, f"{server.url}/feed")
    return stored[0]


def episode(name: str, notes: str = "Notes", file: str = "", title: str = "") -> str:
    audio = f"<enclosure url='{file}' type='audio/mpeg'/>" if file else ""
    return (
        f"<item><guid isPermaLink='false'>{name}</guid><title>{title or name}</title>{audio}"
        f"<description><![CDATA[{notes}]]></description>"
        "<pubDate>Mon, 01 Apr 2024 08:00:00 GMT</pubDate></item>"
    )


def random(text: str = "") -> bytes:
    """Return a feed of which every post ends with another number on each request."""
    notes = f"All about tea. {text} <p class='ad'>Only today: offer {next(NUMBERS)} of ours</p>"
    return page(rss(*(episode(name, notes) for name in "abc")))


def visit(freshet: Freshet, hours: float) -> None:
    crawl(freshet, "-a", "full=1", hours=hours)


# Links to media files with tokens that differ on each request, by the path of their feed.
MEDIA = {
    "/feed-1": "https://cdn.test/ep.mp3?token-hash=0000{n}&token-time=179008{n}",
    "/feed-2": "https://cdn.test/ep.m4a?_=0000{n}",
    "/feed-3": "https://cdn.test/play/17?Expires=179008{n}&Signature=ab{n}",
    "/feed-4": "https://cdn.test/play?id=17&auth_key=179008{n}-0-0-ab{n}",
}


def test_tokens_of_media_files_are_no_edits(
    freshet: Freshet, stored: tuple[Db, str], server: RawServer
) -> None:
    db, uri = stored
    subscribe(db, uri, *(f"{server.url}{path}" for path in MEDIA))
    for number in range(3):
        for path, file in MEDIA.items():
            url = file.format(n=f"{number:04}").replace("&", "&amp;")
            posts = [episode(f"{name} of {path}", file=url) for name in "ab"]
            server.answers[path] = page(rss(*posts))
        visit(freshet, number)
    for path in MEDIA:
        assert outcomes(db, target=f"{server.url}{path}") == {"new": 1, "unchanged": 2}, path
    assert db.versions.count_documents({}) == 2 * len(MEDIA)


def test_another_media_file_is_an_edit(freshet: Freshet, db: Db, server: RawServer) -> None:
    for number, file in enumerate(("a.mp3?x=1", "b.mp3?x=1", "play?id=1", "play?id=2")):
        server.answers["/feed"] = page(rss(episode("a", file=f"https://cdn.test/{file}")))
        visit(freshet, number)
    assert db.versions.count_documents({}) == 4


def test_text_that_differs_between_two_requests_is_no_edit(
    freshet: Freshet, db: Db, server: RawServer
) -> None:
    server.answers["/feed"] = [random() for _ in range(7)]
    for hours in range(4):
        visit(freshet, hours)
    assert outcomes(db) == {"new": 1, "unchanged": 3}
    assert db.versions.count_documents({}) == 3
    assert server.asked.count("/feed") == 7


def test_edits_of_all_posts_count_if_both_requests_show_them(
    freshet: Freshet, db: Db, server: RawServer
) -> None:
    for hours, notes in enumerate(("Notes", "More notes", "Other notes")):
        server.answers["/feed"] = page(rss(*(episode(name, notes) for name in "abc")))
        visit(freshet, hours)
    assert outcomes(db) == {"new": 1, "changed": 2}
    assert db.posts.distinct("text") == ["Other notes"]


def test_ignored_elements_of_posts_are_not_compared(
    freshet: Freshet, db: Db, server: RawServer
) -> None:
    definition = freshet.folder / "list.toml"
    definition.write_text('ignore = [".ad"]\n')
    answers = [random(), random(), random("And coffee.")]
    for hours, answer in enumerate(answers):
        server.answers["/feed"] = answer
        crawl(freshet, "-a", "full=1", "-a", f"wrapper={definition}", hours=hours)
    assert outcomes(db) == {"new": 1, "unchanged": 1, "changed": 1}
    assert db.posts.distinct("text") == ["All about tea. And coffee."]
    # One for each visit, and one that confirms the edit.
    assert server.asked.count("/feed") == 4
