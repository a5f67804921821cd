"""Near-duplicates are detected when stored, and a cluster always has one original."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from random import Random

import pytest

from crawler.dedup.posts import Candidate
from crawler.storage.client import Database
from crawler.storage.dedup.signatures import Registry
from tests.integration.claiming import HOUR, NOW, Posts, candidate, edited, index, stored, text
from tests.integration.harness import Db

LONG = text(1)


@pytest.fixture
def posts(stored: tuple[Db, str]) -> Posts:
    """Return an empty index."""
    return Posts(stored[1])


@pytest.fixture
def stored_twice(stored: tuple[Db, str]) -> Iterator[list[Posts]]:
    """Return two empty indexes."""
    db, uri = stored
    other = f"{db.name}_2"
    yield [Posts(uri), Posts(uri.replace(db.name, other))]
    db.client.drop_database(other)


def test_a_copy_is_linked_to_its_original(posts: Posts) -> None:
    assert posts.claim(candidate("a", LONG))["a"].is_original
    verdict = posts.claim(candidate("b", edited(LONG, 3)))["b"]
    assert verdict.duplicate_of == "a"
    assert verdict.similarity == pytest.approx(0.9, abs=0.1)
    assert posts.originals() == {"a"}
    assert posts.post("b")["duplicate_of"] == "a"
    assert posts.post("a")["cluster"] == posts.post("b")["cluster"] == verdict.cluster


def test_different_posts_are_originals(posts: Posts) -> None:
    posts.claim(*(candidate(f"p{n}", text(n)) for n in range(50)))
    assert len(posts.originals()) == 50
    assert posts.clusters() == []


def test_posts_of_one_batch_are_compared_with_each_other(posts: Posts) -> None:
    verdicts = posts.claim(
        candidate("late", edited(LONG, 2), NOW + HOUR),
        candidate("early", LONG, NOW - HOUR),
        candidate("between", edited(LONG, 1), NOW),
        candidate("other", text(2)),
    )
    assert {key for key, verdict in verdicts.items() if verdict.is_original} == {"early", "other"}
    assert verdicts["late"].duplicate_of == verdicts["between"].duplicate_of == "early"


def test_a_copy_of_a_copy_is_found_by_the_copys_own_bands(posts: Posts) -> None:
    posts.claim(candidate("a", LONG))
    first = edited(LONG, 8, seed=1)
    assert posts.claim(candidate("b", first))["b"].duplicate_of == "a"
    second = edited(first, 8, seed=2)
    verdict = posts.claim(candidate("c", second))["c"]
    assert verdict.duplicate_of == "a"
    assert verdict.similarity is not None
    assert verdict.similarity < posts.claim(candidate("d", first))["d"].similarity


def test_repeated_claim_changes_nothing(posts: Posts) -> None:
    pair = [candidate("a", LONG), candidate("b", edited(LONG, 3))]
    before = posts.claim(*pair)
    again = posts.claim(*pair)
    assert (again["a"].duplicate_of, again["b"]) == (None, before["b"])
    assert len(posts.clusters()) == 1
    assert posts.originals() == {"a"}


def test_late_post_with_earlier_date_becomes_original(posts: Posts) -> None:
    posts.claim(candidate("a", LONG), candidate("b", edited(LONG, 2), NOW + HOUR))
    posts.claim(candidate("first", edited(LONG, 1), NOW - HOUR))
    assert posts.originals() == {"first"}
    assert posts.post("a")["duplicate_of"] == posts.post("b")["duplicate_of"] == "first"
    assert "duplicate_of" not in posts.post("first")
    (cluster,) = posts.clusters()
    (change,) = cluster["changes"]
    assert (change["was"], change["post"]) == ("a", "first")
    assert change["why"] == "an earlier one came late"
    assert "unsettled" not in cluster


def test_next_post_replaces_deleted_original(posts: Posts) -> None:
    posts.claim(
        candidate("a", LONG),
        candidate("c", edited(LONG, 2, seed=2), NOW + 2 * HOUR),
        candidate("b", edited(LONG, 2, seed=1), NOW + HOUR),
    )
    posts.remove("a")
    assert posts.originals() == {"b"}
    assert posts.post("c")["duplicate_of"] == "b"
    assert posts.clusters()[0]["changes"][-1]["why"] == "the original has gone"
    # The new original takes over the bands, so the next copy is detected.
    assert posts.claim(candidate("d", LONG, NOW + 3 * HOUR))["d"].duplicate_of == "b"


def test_late_original_keeps_bands_after_first_post_is_deleted(posts: Posts) -> None:
    posts.claim(candidate("a", LONG))
    posts.claim(candidate("late", LONG, NOW - HOUR))
    posts.remove("a")
    assert posts.claim(candidate("b", LONG))["b"].duplicate_of == "late"


def test_cluster_is_deleted_with_its_last_post(posts: Posts) -> None:
    posts.claim(candidate("a", LONG), candidate("b", edited(LONG, 2)))
    posts.remove("a", "b")
    assert posts.clusters() == []
    assert posts.claim(candidate("c", LONG))["c"].is_original


def test_post_stored_again_after_deletion_is_a_copy(posts: Posts) -> None:
    posts.claim(candidate("a", LONG), candidate("b", edited(LONG, 2), NOW + HOUR))
    posts.remove("a")
    assert posts.claim(candidate("a", LONG, NOW + 2 * HOUR))["a"].duplicate_of == "b"


def test_small_edit_of_copy_changes_nothing(posts: Posts) -> None:
    posts.claim(candidate("a", LONG), candidate("b", edited(LONG, 2)))
    found = posts.claim(candidate("b", edited(LONG, 3), edit=True))["b"]
    assert found.duplicate_of == "a"
    assert posts.originals() == {"a"}


def test_rewritten_copy_becomes_original(posts: Posts) -> None:
    posts.claim(candidate("a", LONG), candidate("b", edited(LONG, 2)))
    assert posts.claim(candidate("b", text(7), edit=True))["b"].is_original
    assert posts.originals() == {"a", "b"}
    assert "cluster" not in posts.post("b")


def test_rewritten_original_leaves_copies_to_next_post(posts: Posts) -> None:
    posts.claim(candidate("a", LONG), candidate("b", edited(LONG, 2), NOW + HOUR))
    assert posts.claim(candidate("a", text(7), edit=True))["a"].is_original
    assert posts.originals() == {"a", "b"}
    assert posts.claim(candidate("c", text(7)))["c"].duplicate_of == "a"
    assert posts.claim(candidate("d", LONG, NOW + 2 * HOUR))["d"].duplicate_of == "b"


def test_original_rewritten_into_copy_becomes_copy(posts: Posts) -> None:
    posts.claim(candidate("a", LONG), candidate("b", text(7)))
    found = posts.claim(candidate("b", edited(LONG, 1), edit=True))["b"]
    assert found.duplicate_of == "a"
    assert posts.originals() == {"a"}


def test_edited_original_releases_dissimilar_copies(posts: Posts) -> None:
    far = edited(LONG, 12, seed=3)
    posts.claim(
        candidate("a", LONG),
        candidate("near", edited(LONG, 12, seed=4), NOW + HOUR),
        candidate("far", far, NOW + HOUR),
    )
    assert posts.originals() == {"a"}
    posts.claim(candidate("a", edited(edited(LONG, 12, seed=4), 3, seed=9), edit=True))
    assert posts.post("near")["duplicate_of"] == "a"
    assert posts.originals() == {"a", "far"}
    assert "duplicate_of" not in posts.post("far")


def test_original_and_copy_edited_together_stay_in_one_cluster(
    posts: Posts, caplog: pytest.LogCaptureFixture
) -> None:
    near, far = edited(LONG, 12, seed=4), edited(LONG, 12, seed=3)
    later = NOW + HOUR
    posts.claim(
        candidate("a", LONG),
        candidate("far", far, later),
        candidate("near", near, later),
        candidate("old", edited(far, 1), later),
    )
    assert posts.originals() == {"a"}
    # The old text of "far" resembles only "old" now, its new text only the original.
    new = candidate("far", edited(near, 4, seed=8), later, edit=True)
    verdicts = posts.claim(candidate("a", edited(near, 3, seed=9), edit=True), new)
    assert verdicts["far"].duplicate_of == "a"
    assert posts.originals() == {"a", "old"}
    assert posts.signature("far")["sketch"] == new.sketch.encode()
    assert caplog.messages == []


@pytest.mark.soak
def test_ten_thousand_identical_posts_have_one_original_and_few_bands(posts: Posts) -> None:
    same = [candidate(f"p{n:05}", LONG) for n in range(10_000)]
    for start in range(0, len(same), 500):
        posts.claim(*same[start : start + 500])
    assert posts.originals() == {"p00000"}
    assert posts.on(_holders) == 1


async def _holders(db: Database, registry: Registry) -> int:
    """Count the posts that own a band."""
    return await registry.signatures.count_documents({"bands": {"$exists": True}})


def test_very_short_and_very_long_posts_are_compared(posts: Posts) -> None:
    long = text(5, words=170_000)
    assert len(long) > 1_000_000
    found = posts.claim(
        candidate("tiny", "ten chars!"),
        candidate("tiny too", "Ten  chars!", NOW + HOUR),
        candidate("tiny other", "nine chars", NOW + HOUR),
        candidate("huge", long),
        candidate("huge too", edited(long, 1000), NOW + HOUR),
    )
    assert {key for key, one in found.items() if one.is_original} == {"tiny", "tiny other", "huge"}
    assert found["huge too"].duplicate_of == "huge"


def test_texts_shorter_than_shingle_match_only_if_equal(posts: Posts) -> None:
    found = posts.claim(
        candidate("a", "ok"), candidate("b", "OK", NOW + HOUR), candidate("c", "no", NOW + HOUR)
    )
    assert (found["b"].duplicate_of, found["c"].duplicate_of) == ("a", None)


def test_multilingual_posts_are_compared(posts: Posts) -> None:
    mixed = (
        "The museum opens again on Monday after two years of work. "
        "博物馆经过两年的整修之后将于星期一重新开放，欢迎各位市民前来参观。"
        "Das Museum öffnet am Montag nach zwei Jahren wieder seine Türen für alle."
    )
    found = posts.claim(
        candidate("a", mixed),
        candidate("b", mixed.replace("Monday", "Tuesday"), NOW + HOUR),
        candidate("c", mixed.replace("星期一", "星期二"), NOW + HOUR),
        candidate("d", mixed[60:], NOW + HOUR),
    )
    assert (found["b"].duplicate_of, found["c"].duplicate_of) == ("a", "a")
    assert found["d"].is_original


def test_sources_of_one_item_are_not_copies(posts: Posts) -> None:
    verdicts = posts.claim(
        candidate("page", LONG, item=7), candidate("feed", edited(LONG, 2), NOW - HOUR, item=7)
    )
    assert all(verdict.is_original for verdict in verdicts.values())
    assert posts.originals() == {"page", "feed"}
    found = posts.claim(candidate("copy", edited(LONG, 1), NOW + HOUR, item=8))["copy"]
    assert found.duplicate_of == "feed"
    # In any order, the sources of an item are either all originals or all copies.
    posts.claim(candidate("first", LONG, NOW - 2 * HOUR, item=9))
    assert posts.originals() == {"first"}
    posts.claim(candidate("again", LONG, NOW, item=9))
    assert posts.originals() == {"first", "again"}
    posts.remove("first", "again")
    assert posts.originals() == {"page", "feed"}
    posts.remove("feed")
    assert posts.originals() == {"page"}
    assert posts.post("copy")["duplicate_of"] == "page"


def test_source_moved_to_another_item_is_compared_again(posts: Posts) -> None:
    posts.claim(candidate("page", LONG, item=7), candidate("feed", LONG, NOW + HOUR, item=7))
    posts.claim(candidate("feed", LONG, NOW + HOUR, item=8, edit=True))
    assert posts.originals() == {"page"}
    posts.claim(candidate("feed", LONG, NOW + HOUR, item=7, edit=True))
    assert posts.originals() == {"page", "feed"}
    posts.claim(candidate("page", LONG, edit=True))
    assert posts.originals() == {"page"}
    assert posts.post("feed")["duplicate_of"] == "page"


def test_long_run_gives_the_same_verdicts_as_many_short_ones(stored_twice: list[Posts]) -> None:
    """A long run knows the owners of bands, and a short one reads them from the database."""
    random = Random(3)
    base = [text(seed) for seed in range(4)]
    made = [
        candidate(f"p{n % 40}", edited(base[n % 4], random.randint(0, 50), seed=n), edit=n >= 40)
        for n in range(60)
    ]
    long, short = stored_twice

    async def run(db: Database, registry: Registry) -> list[str | None]:
        verdicts = [await stored(db, registry, [post]) for post in made]
        return [found[post.key].duplicate_of for found, post in zip(verdicts, made, strict=True)]

    expected = [short.claim(post)[post.key].duplicate_of for post in made]
    assert long.on(run) == expected
    assert None in expected
    assert len(set(expected)) > 4
    assert long.originals() == short.originals()


def test_edited_owner_of_bands_is_forgotten(posts: Posts) -> None:
    before, after = candidate("a", LONG), candidate("a", text(7), edit=True)

    async def run(db: Database, registry: Registry) -> tuple[bool, bool]:
        await stored(db, registry, [before])
        was_known = bool(registry.known.of(before.bands))
        await stored(db, registry, [after])
        return was_known, bool(registry.known.of(before.bands))

    assert posts.on(run) == (True, False)


@pytest.mark.soak
def test_concurrent_workers_give_each_item_one_verdict(posts: Posts) -> None:
    """Concurrent workers get the same result as one worker for pages, feed posts and copies."""
    groups = 40
    made = [
        (
            candidate(f"page {n}", edited(text(n), 1), NOW, item=2 * n + 1),
            candidate(f"feed {n}", edited(text(n), 2), NOW - HOUR, item=2 * n + 1),
            candidate(f"copy {n}", edited(text(n), 3), NOW + HOUR, item=2 * n + 2),
            candidate(f"feed of copy {n}", edited(text(n), 4), NOW + HOUR, item=2 * n + 2),
        )
        for n in range(groups)
    ]

    async def run_workers() -> None:
        order = [post for group in made for post in group]
        Random(1).shuffle(order)
        parts = [order[start::4] for start in range(4)]
        await asyncio.gather(*(worker(part) for part in parts))

    async def worker(share: list[Candidate]) -> None:
        async with index(posts.uri) as (db, registry):
            for start in range(0, len(share), 7):
                await stored(db, registry, share[start : start + 7])

    asyncio.run(run_workers())
    assert posts.originals() == {f"{kind} {n}" for n in range(groups) for kind in ("page", "feed")}
    all_of = posts.all()
    for n in range(groups):
        assert all_of[f"copy {n}"]["duplicate_of"] == all_of[f"feed of copy {n}"]["duplicate_of"]
        assert all_of[f"copy {n}"]["duplicate_of"] == f"feed {n}"
