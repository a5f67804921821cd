"""Choosing the original of a cluster: the first post seen, with limits for stated dates."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from random import Random

import pytest
from bson import ObjectId
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st

from crawler.dedup.posts import rank_of
from crawler.storage.client import Database
from crawler.storage.dedup import claims, clusters, signatures
from crawler.storage.dedup.signatures import Registry
from tests.conftest import Databases
from tests.integration.claiming import HOUR, NOW, Posts, candidate, edited, text
from tests.integration.harness import Db, Freshet, Row
from tests.integration.inside import run

# The scheme that the settings of this file select.
DUPLICATES = "characters"

DAY = timedelta(days=1)
DATE_DAYS = 2
LONG = text(1)
LONG_AGO = datetime(2003, 5, 1, tzinfo=UTC)
BLOG, SPAM, PLANET = 1, 2, 3


@pytest.fixture(params=["mongodb", "redis"])
def posts(request: pytest.FixtureRequest, stored: tuple[Db, str]) -> Posts:
    """Return an index whose claims are stored in MongoDB or Redis."""
    redis = request.getfixturevalue("redis") if request.param == "redis" else None
    return Posts(stored[1], redis)


def test_copy_with_false_old_date_does_not_become_original(posts: Posts) -> None:
    week_ago = NOW - 7 * DAY
    posts.claim(candidate("honest", LONG, week_ago, seen=week_ago, source=BLOG))
    spam = candidate("spam", edited(LONG, 2), LONG_AGO, seen=NOW, source=SPAM)
    assert posts.claim(spam)["spam"].duplicate_of == "honest"
    # Neither an edit of the copy nor an earlier stated date changes the original.
    again = candidate("spam", edited(LONG, 3), LONG_AGO - 9 * DAY, seen=NOW, source=SPAM, edit=True)
    posts.claim(again)
    assert posts.originals() == {"honest"}
    (cluster,) = posts.clusters()
    assert (cluster["post"], cluster.get("changes", [])) == ("honest", [])
    assert "unsettled" not in cluster


def test_late_post_dated_two_days_earlier_becomes_original(posts: Posts) -> None:
    posts.claim(candidate("copy", LONG, NOW, seen=NOW, source=PLANET))
    late = candidate("first", edited(LONG, 1), NOW - 2 * DAY, seen=NOW + HOUR, source=BLOG)
    assert posts.claim(late)["first"].is_original
    assert posts.originals() == {"first"}
    assert posts.post("copy")["duplicate_of"] == "first"


def test_first_seen_of_posts_with_same_date_is_original(
    posts: Posts,
) -> None:
    """A feed that aggregates blogs states the dates of the blogs."""
    posts.claim(candidate("z", LONG, NOW, seen=NOW + HOUR, source=BLOG))
    posts.claim(candidate("a", LONG, NOW, seen=NOW + 2 * HOUR, source=PLANET))
    assert posts.originals() == {"z"}


def test_sources_added_on_one_day_are_ordered_by_date(posts: Posts) -> None:
    posts.claim(candidate("copy", LONG, NOW - 300 * DAY, seen=NOW, source=PLANET))
    posts.claim(candidate("first", LONG, NOW - 400 * DAY, seen=NOW + HOUR, source=BLOG))
    assert posts.originals() == {"first"}


def test_stated_dates_decide_within_a_source(posts: Posts) -> None:
    """Read an archive backwards, with its oldest post last."""
    posts.claim(candidate("new", LONG, NOW - DAY, seen=NOW, source=BLOG))
    posts.claim(candidate("old", LONG, LONG_AGO, seen=NOW + 30 * DAY, source=BLOG))
    assert posts.originals() == {"old"}


def test_a_source_that_takes_the_lead_brings_its_earliest_post(posts: Posts) -> None:
    """On its own, the earliest post cannot replace the original of the other source."""
    posts.claim(candidate("other", LONG, NOW, seen=NOW, source=PLANET))
    posts.claim(candidate("old", LONG, LONG_AGO, seen=NOW + 20 * DAY, source=BLOG))
    assert posts.originals() == {"other"}
    posts.claim(candidate("new", LONG, NOW - DAY, seen=NOW + HOUR, source=BLOG))
    assert posts.originals() == {"old"}
    (cluster,) = posts.clusters()
    assert cluster.keys().isdisjoint({"overtaken", "unsettled"})
    # Without this post, the other source is first again.
    posts.remove("new")
    assert posts.originals() == {"other"}
    assert posts.post("old")["duplicate_of"] == "other"


def test_next_worker_completes_interrupted_change_of_original(posts: Posts) -> None:
    posts.claim(candidate("other", LONG, NOW, seen=NOW, source=PLANET))
    posts.claim(candidate("old", LONG, LONG_AGO, seen=NOW + 20 * DAY, source=BLOG))
    posts.claim(candidate("new", LONG, NOW - DAY, seen=NOW + HOUR, source=BLOG))

    async def interrupted(db: Database, registry: Registry) -> None:
        """Restore the document to its state before the new source's earliest post was proposed."""
        row = await registry.signatures.find_one({"post": "new"})
        assert row is not None
        order = [row["created"], row["seen"], "new"]
        change = {
            "post": "new", "original": row["_id"], "order": order, "overtaken": True,
            "unsettled": True, "created": row["created"],
        }  # fmt: skip
        await registry.clusters.update_one({}, {"$set": change})

    posts.on(interrupted)
    posts.claim(candidate("elsewhere", text(7), NOW, source=BLOG))
    assert posts.originals() == {"old", "elsewhere"}
    assert posts.post("new")["duplicate_of"] == "old"


def test_posts_that_share_free_bands_get_each_band_once(stored: tuple[Db, str]) -> None:
    first, second, third = (candidate(key, edited(LONG, n)) for n, key in enumerate("abc"))

    async def take(_db: Database, registry: Registry) -> None:
        rows = [
            signatures.row_of(registry, post, bands, NOW)
            for post, bands in ((first, ()), (second, ()), (third, first.bands - second.bands))
        ]
        await registry.signatures.insert_many([row | {"cluster": ObjectId()} for row in rows])
        await clusters.take_free_bands(registry, [first, second])

    index = Posts(stored[1])
    index.on(take)
    own = {key: set(index.signature(key).get("bands", ())) for key in "abc"}
    assert first.bands & second.bands
    assert own["a"] == first.bands & second.bands
    assert own["b"] == second.bands - first.bands
    assert own["c"] == first.bands - second.bands


def test_cluster_changed_during_update_is_updated_again(posts: Posts) -> None:
    posts.claim(candidate("first", LONG, NOW, seen=NOW, source=BLOG))
    posts.claim(candidate("copy", edited(LONG, 1), NOW, seen=NOW + HOUR, source=PLANET))

    async def shown(db: Database, registry: Registry) -> None:
        row = await registry.clusters.find_one({})
        assert row is not None
        await clusters.mark_unsettled(registry, [row["_id"]])
        outdated = row | {"original": row["original"] + 1}
        assert await clusters.mark_settled(registry, {row["_id"]: outdated}) == {row["_id"]}
        assert await clusters.mark_settled(registry, {row["_id"]: row}) == set()

    posts.on(shown)
    (cluster,) = posts.clusters()
    assert "unsettled" not in cluster


@dataclass(frozen=True)
class Dated:
    """A post of one story, its times in hours relative to NOW."""

    source: int
    created: int
    seen: int

    def candidate(self, key: str) -> object:
        created, seen = (NOW + hours * HOUR for hours in (self.created, self.seen))
        return candidate(key, LONG, created, seen=seen, source=self.source)


def original_of(story: Sequence[Dated]) -> str:
    """Return the key of the original according to the documentation."""
    keys = "abcdefgh"[: len(story)]

    def lead(key: str) -> tuple[object, ...]:
        _, created, seen, _ = order(key)
        return rank_of(created, seen, DATE_DAYS), created, seen, key

    def order(key: str) -> tuple[int, datetime, datetime, str]:
        post = story[keys.index(key)]
        return post.source, NOW + post.created * HOUR, NOW + post.seen * HOUR, key

    source = order(min(keys, key=lead))[0]
    return min((key for key in keys if order(key)[0] == source), key=lambda key: order(key)[1:])


@st.composite
def stories(draw: st.DrawFn) -> list[Dated]:
    hours = st.sampled_from([0, 1, 20, 30, 60, 120, 500])
    seen = [draw(hours) for _ in range(draw(st.integers(2, 6)))]
    before = st.sampled_from([0, 0, 1, 24, 47, 49, 80, 200, 2000])
    return [Dated(draw(st.sampled_from([1, 2, 3])), s - draw(before), s) for s in seen]


# The case of test_leading_source_provides_its_earliest_post.
OVERTAKING = [Dated(3, 0, 0), Dated(1, -9999, 480), Dated(1, -24, 1), Dated(2, 30, 30)]


@pytest.fixture
def index_of(request: pytest.FixtureRequest) -> Callable[[str, str, int], Posts]:
    """Return a function that opens the index in a round; `moved`: in Redis from round 1 on."""

    def made(backend: str, uri: str, round_: int) -> Posts:
        in_redis = backend == "redis" or (backend == "moved" and round_ > 0)
        return Posts(uri, request.getfixturevalue("redis") if in_redis else None)

    return made


@pytest.mark.soak
@pytest.mark.parametrize("backend", ["mongodb", "redis", "moved"])
@settings(
    max_examples=8,
    deadline=None,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(story=stories(), order=st.randoms(use_true_random=False))
@example(story=OVERTAKING, order=Random(1))
@example(story=OVERTAKING, order=Random(2))
@example(story=OVERTAKING, order=Random(3))
@example(story=OVERTAKING, order=Random(5))
def test_arrival_order_does_not_affect_original(
    databases: Databases,
    index_of: Callable[[str, str, int], Posts],
    backend: str,
    story: list[Dated],
    order: Random,
) -> None:
    """Each batch uses its own process; a post may be claimed again, and one post is deleted."""
    posts = {key: post.candidate(key) for key, post in zip("abcdefgh", story, strict=False)}
    shuffled = order.sample(sorted(posts), len(posts))
    with databases() as (_, uri):
        round_ = 0
        while shuffled:
            batch = [shuffled.pop() for _ in range(min(len(shuffled), order.randint(1, 3)))]
            again = order.sample(batch, order.randint(0, 1))
            kept = index_of(backend, uri, round_)
            kept.claim(*(posts[key] for key in (*batch, *again)))
            round_ += 1
        kept = index_of(backend, uri, round_)
        assert kept.originals() == {original_of(story)}
        assert {row.get("duplicate_of") for row in kept.all().values()} <= {
            None, original_of(story),
        }  # fmt: skip
        first = min(posts)
        kept.remove(first)
        expected = original_of([Dated(99, 10**4, 10**4), *story[1:]])
        assert kept.originals() == {expected}


def test_a_rebuild_finds_the_same_originals(freshet: Freshet, stored: tuple[Db, str]) -> None:
    _, uri = stored
    random = Random(5)
    rows: list[Row] = []
    for story in range(12):
        for number in range(4):
            name, host = f"{story}-{number}", f"site{random.randint(1, 3)}.example"
            seen = NOW + random.choice([0, 1, 30, 60, 200]) * HOUR
            rows.append({
                "_id": f"shop https://{host}/{name}", "spider": "shop",
                "url": f"https://{host}/{name}", "title": "T", "text": text(story), "fields": {},
                "published": seen - random.choice([0, 1, 30, 60, 3000]) * HOUR,
                "first_seen": seen, "changed_at": seen, "content_hash": "x", "original": True,
            })  # fmt: skip
    posts = Posts(uri)

    async def claimed(database: Database, registry: Registry) -> None:
        await database.posts.insert_many(rows)
        for row in random.sample(rows, len(rows)):
            post = signatures.candidate_of(row, registry.scheme)
            assert post is not None
            verdicts = await claims.claim(registry, [post], NOW)
            await clusters.show_verdicts(database, verdicts)
            await clusters.confirm(database, registry, verdicts, {post.key})

    posts.on(claimed)
    before = posts.originals()
    assert len(before) == 12
    assert json.loads(run(freshet, "duplicates", "rebuild", "--json").out)
    assert posts.originals() == before
    done = run(freshet, "duplicates", "rebuild", FRESHET_DUPLICATE_DATE_DAYS=36_500)
    assert done.code == 0, done.err
    assert posts.originals() != before
