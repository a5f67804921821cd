"""Crawls and checks learn the boilerplate of sources, store it, and do not compare it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from itertools import count
from pathlib import Path

import pytest

from crawler.dedup.boilerplate import EAGER_POSTS, MIN_POSTS, SAMPLED_POSTS, sourced
from crawler.dedup.posts import Candidate, Verdicts, id_of
from crawler.dedup.sketch import Sketch
from crawler.storage.client import Database
from crawler.storage.dedup import boilerplate, claims, edits
from crawler.storage.dedup.signatures import Registry
from tests.integration.claiming import NOW, SCHEME, Posts, edited, index, text
from tests.integration.dedup.test_duplicates_crawl import flags
from tests.integration.feeds.test_feed_crawl import crawl, post, rss, subscribe
from tests.integration.harness import Db, Freshet, Pages
from tests.integration.inside import in_json, run

DUPLICATES = "characters"
MENU, FOOTER = text(1, 60), text(2, 40)


def framed(seed: int, words: int = 14) -> str:
    return f"{MENU} {text(1000 + seed, words)} {FOOTER}"


def candidate(number: int, words: str, source: str = "feed") -> Candidate:
    sketch = SCHEME.sketch(words)
    assert sketch is not None
    created = NOW + timedelta(seconds=number)
    return Candidate(f"x {number}", created, sketch, text=sourced(source, words))


def test_boilerplate_of_feed_posts_is_not_compared(
    freshet: Freshet, stored: tuple[Db, str], pages: Pages
) -> None:
    db, uri = stored
    subscribe(db, uri, f"{pages.url}/one.xml", f"{pages.url}/two.xml")
    pages.file("two.xml", rss(post("copy", edited(framed(0), 2), ago_hours=1)))
    entries = [post(f"p{n}", framed(n), ago_hours=50 - n) for n in range(8)]
    # One post per run: the first posts are marked as copies until the boilerplate is known.
    for posts in range(1, MIN_POSTS):
        pages.file("one.xml", rss(*entries[:posts]))
        crawl(freshet, hours=12 * posts)
    assert flags(db)[f"p{MIN_POSTS - 2}"] == "p0"
    for posts in (MIN_POSTS, 8):
        pages.file("one.xml", rss(*entries[:posts]))
        crawl(freshet, hours=12 * posts)
    assert flags(db) == {"copy": "p0"} | {f"p{n}": None for n in range(8)}
    assert db.boilerplate.find_one({"_id": {"$regex": "one.xml$"}})["pending"] == []

    one, other = (db.posts.find_one({"title": name})["_id"] for name in ("p0", "p1"))
    explained = in_json(freshet, "duplicates", "explain", one, other)
    assert explained["a"]["boilerplate"] > 0.7
    assert explained["similarity"] < 0.4
    assert explained["duplicates"] is False
    assert "% boilerplate" in run(freshet, "duplicates", "explain", one, other).out

    before = flags(db)
    assert run(freshet, "duplicates", "rebuild").code == 0
    assert flags(db) == before


def test_check_learns_boilerplate_of_each_source(freshet: Freshet, tmp_path: Path) -> None:
    rows = [{"id": n, "text": framed(n), "source": "blog"} for n in range(40)]
    rows.append({"id": "copy", "text": edited(framed(7), 2), "source": "blog"})
    rows.append({"id": "elsewhere", "text": edited(framed(9), 2), "source": "other"})
    path = tmp_path / "posts.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    done = run(freshet, "duplicates", "check", path)
    found = {row["id"]: row["duplicate_of"] for row in map(json.loads, done.out.splitlines())}
    assert found == dict.fromkeys(range(40)) | {"copy": 7, "elsewhere": 9}

    # Without a source, the same texts are duplicates.
    bare = tmp_path / "bare.jsonl"
    bare.write_text("".join(json.dumps({k: row[k] for k in ("id", "text")}) + "\n" for row in rows))
    plain = run(freshet, "duplicates", "check", bare)
    assert json.loads(plain.out.splitlines()[5])["duplicate_of"] == 0


def test_boilerplate_of_one_source_does_not_affect_others(stored: tuple[Db, str]) -> None:
    """A source that repeats an article in each post does not make it boilerplate elsewhere."""
    _, uri = stored
    article = text(77, 150)

    async def story() -> tuple[object, object]:
        async with index(uri) as (_, registry):
            spam = [candidate(n, f"{text(300 + n, 120)} {article}", "spam") for n in range(6)]
            await claims.claim(registry, spam, NOW)
            await claims.claim(registry, [candidate(100, article, "ours")], NOW)
            copy = candidate(101, edited(article, 3), "theirs")
            verdicts = await claims.claim(registry, [copy], NOW)
            return verdicts["x 101"].duplicate_of, (await boilerplate.tables_of(registry, ["ours"]))

    duplicate_of, tables = asyncio.run(story())
    assert duplicate_of == "x 100"
    assert tables["ours"].common.size == 0


def test_concurrent_workers_learn_one_source(stored: tuple[Db, str]) -> None:
    _, uri = stored

    async def worker(number: int) -> None:
        async with index(uri) as (_, registry):
            for post_ in range(6):
                entry = candidate(number * 100 + post_, framed(number * 100 + post_))
                await claims.claim(registry, [entry], NOW)

    async def run_workers() -> None:
        await asyncio.gather(*map(worker, range(4)))

    asyncio.run(run_workers())

    async def table_sizes(db: Database, registry: Registry) -> tuple[int, int]:
        tables = await boilerplate.tables_of(replace(registry, tables={}), ["feed"])
        return len(tables["feed"].posts), tables["feed"].common.size

    posts, common = Posts(uri).on(table_sizes)
    # The sample includes the first posts of all workers.
    assert posts >= EAGER_POSTS
    assert common > 50


def test_next_run_reuses_learned_boilerplate(stored: tuple[Db, str]) -> None:
    """Posts that arrive one per run, as from feeds, are not marked as copies."""
    db, uri = stored

    async def story() -> None:
        for n in range(4):
            async with index(uri) as (_, registry):
                words = f"{text(500 + n, 60)} {FOOTER}"
                await claims.claim(registry, [candidate(n, words)], NOW)

    asyncio.run(story())
    found = db.boilerplate.find_one({"_id": "feed"})
    assert len(found["posts"]) == 4
    assert len(found["common"]) > 0


def test_changed_boilerplate_is_learned_from_false_copies(
    stored: tuple[Db, str],
) -> None:
    """A source that has enough posts learns from a sample only."""
    _, uri = stored
    texts = [framed(n) for n in range(20)]
    texts += [f"{text(3, 60)} {text(2000 + n, 14)} {text(4, 40)}" for n in range(12)]
    candidates = {f"x {n}": candidate(n, words) for n, words in enumerate(texts)}

    async def read_again(keys: Sequence[str]) -> list[Candidate]:
        return [candidates[key] for key in keys if key in candidates]

    async def story() -> dict[str, object]:
        async with index(uri) as (_, opened):
            registry, shown = replace(opened, read_again=read_again), dict[str, object]()
            taken = 0
            for n, entry in enumerate(candidates.values()):
                verdicts = await claims.claim(registry, [entry], NOW)
                shown |= {key: verdict.duplicate_of for key, verdict in verdicts.items()}
                taken += n >= 20 and shown[entry.key] is not None
            assert taken > 0
            return shown

    shown = asyncio.run(story())
    copies = [key for key, original in shown.items() if original is not None]
    # A post stored while the boilerplate became known may be marked as a copy by chance.
    assert len(copies) <= 1
    assert all(int(key.removeprefix("x ")) <= 20 + MIN_POSTS for key in copies)


def test_pending_posts_are_compared_again_before_run_ends(
    stored: tuple[Db, str],
) -> None:
    """The posts of a known source are compared again when many have new boilerplate."""
    db, uri = stored
    footers = [text(900 + n, 60) for n in range(2)]
    # The numbers of posts that a source with enough posts learns from.
    sampled = (n for n in count(EAGER_POSTS) if id_of(f"x {n}") % SAMPLED_POSTS == 0)
    texts = {n: text(2000 + n, 60) for n in range(EAGER_POSTS)}
    later = [{next(sampled): footer for _ in range(MIN_POSTS)} for footer in footers]

    async def store(registry: Registry, number: int, words: str) -> None:
        post_ = candidate(number, words, "x feed")
        await claims.claim(registry, [post_], NOW)
        row = {"_id": post_.key, "spider": "x", "feed": "feed", "url": "u", "text": words}
        row |= {"first_seen": post_.created, "content_hash": "x"}
        await asyncio.to_thread(db.posts.insert_one, row)

    async def own_parts() -> list[bool]:
        query = {"_id": {"$in": [id_of(f"x {n}") for n in later[1]]}}
        rows = await asyncio.to_thread(lambda: list(db.signatures.find(query)))
        return [Sketch.decode(row["sketch"]).own is not None for row in rows]

    async def story() -> tuple[dict[str, int], list[bool]]:
        async with index(uri) as (_, registry):
            for number, words in texts.items():
                await store(registry, number, words)
            for footer in later:
                for number, words in footer.items():
                    await store(registry, number, f"{text(3000 + number, 60)} {words}")
            return registry.tables["x feed"].pending.copy(), await own_parts()

    pending, before = asyncio.run(story())
    assert len(pending) >= MIN_POSTS - 1
    assert before.count(False) == MIN_POSTS - 1
    assert db.boilerplate.find_one({"_id": "x feed"})["pending"] == []
    assert asyncio.run(own_parts()) == [True] * MIN_POSTS


async def store_framed(db: Db, registry: Registry, posts: int) -> None:
    """Claim and store posts of one feed, which has boilerplate."""
    for number in range(posts):
        post_ = replace(candidate(number, framed(number), "x feed"), fences={"fence": 1})
        await claims.claim(registry, [post_], NOW)
        row = {"_id": post_.key, "spider": "x", "feed": "feed", "url": "u", "fence": 1}
        row |= {"text": framed(number), "content_hash": "x"}
        await asyncio.to_thread(db.posts.insert_one, row | {"first_seen": NOW, "changed_at": NOW})


@pytest.mark.parametrize("workers", [1, 2])
def test_edited_original_is_compared_by_its_new_text(stored: tuple[Db, str], workers: int) -> None:
    """Posts are written after their claims, so the stored text of the original is still the old."""
    db, uri = stored
    new = replace(candidate(0, framed(50), "x feed"), edited=True, fences={"fence": 2})
    copy = candidate(9, edited(framed(50), 1), "x feed")

    async def story() -> Verdicts:
        async with index(uri) as (_, registry):
            await store_framed(db, registry, 8)
            if workers == 1:
                return await claims.claim(registry, [new, copy], NOW)
            async with index(uri) as (_, other):
                await claims.claim(registry, [new], NOW)
                return await claims.claim(other, [copy], NOW)

    verdicts = asyncio.run(story())
    assert verdicts["x 9"].duplicate_of == "x 0"
    rows = {row["post"]: row for row in db.signatures.find({"post": {"$in": ["x 0", "x 9"]}})}
    sketches = [Sketch.decode(row["sketch"]) for row in rows.values()]
    assert sketches[0].similarity(sketches[1]) > SCHEME.threshold
    assert rows["x 0"]["cluster"] == rows["x 9"]["cluster"]


def test_posts_deleted_while_they_are_read_are_not_claimed_again(stored: tuple[Db, str]) -> None:
    db, uri = stored
    deleted = set[str]()

    async def story() -> None:
        async with index(uri) as (_, registry):
            await store_framed(db, registry, 8)

            async def read_again(keys: Sequence[str]) -> list[Candidate]:
                assert registry.read_again is not None
                found = await registry.read_again(keys)
                # Another worker finds that these are aliases of other pages.
                await edits.release(registry, keys, NOW)
                deleted.update(keys)
                return found

            copy = candidate(9, edited(framed(5), 1), "x feed")
            await claims.claim(replace(registry, read_again=read_again), [copy], NOW)

    asyncio.run(story())
    assert "x 5" in deleted
    assert deleted.isdisjoint(db.signatures.distinct("post"))


def test_forget_deletes_boilerplate(freshet: Freshet, stored: tuple[Db, str], pages: Pages) -> None:
    db, uri = stored
    urls = [f"{pages.url}/{name}.xml" for name in ("one", "two")]
    subscribe(db, uri, *urls)
    for name in ("one", "two"):
        entries = [post(f"{name}{n}", text(n + len(name)), ago_hours=9 - n) for n in range(3)]
        pages.file(f"{name}.xml", rss(*entries))
    crawl(freshet, hours=12)
    sources = {row["_id"] for row in db.boilerplate.find()}
    assert sources == {f"feeds {url}" for url in urls}
    assert run(freshet, "forget", urls[0], "--yes").code == 0
    assert {row["_id"] for row in db.boilerplate.find()} == {f"feeds {urls[1]}"}
    assert run(freshet, "forget", "feeds", "--yes").code == 0
    assert db.boilerplate.count_documents({}) == 0


def test_least_recently_updated_sources_are_deleted(
    stored: tuple[Db, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    db, uri = stored
    monkeypatch.setattr(boilerplate, "MAX_SOURCES", 5)

    async def story() -> None:
        async with index(uri) as (_, registry):
            for n in range(12):
                entry = candidate(n, text(n), f"s{n}")
                await claims.claim(registry, [entry], NOW + timedelta(hours=n))

    asyncio.run(story())
    assert {row["_id"] for row in db.boilerplate.find()} == {f"s{n}" for n in range(7, 12)}
