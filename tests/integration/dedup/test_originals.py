"""Choosing the original of a cluster: the first post seen, with limits for stated dates."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from random import Random

import pytest
from bson import ObjectId
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st

from crawler.dedup.posts import Candidate, claimed_at
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
LONG = text(1)
LONG_AGO = datetime(2003, 5, 1, tzinfo=UTC)
BLOG, SPAM, PLANET = 1, 2, 3


@pytest.fixture
def posts(stored: tuple[Db, str]) -> Posts:
    """Return an empty index."""
    return Posts(stored[1])


def test_copy_with_false_old_date_does_not_become_original(posts: Posts) -> None:
    posts.claim(candidate("honest", LONG, NOW - HOUR, seen=NOW, source=BLOG))
    seen = NOW + timedelta(seconds=3)
    for number, created in enumerate((LONG_AGO, NOW - DAY, NOW - 2 * HOUR)):
        copy = candidate(f"copy {number}", edited(LONG, 2), created, seen=seen, source=SPAM)
        assert posts.claim(copy)[copy.key].duplicate_of == "honest"
    # Neither an edit of the copy nor an earlier stated date changes the original.
    again = candidate(
        "copy 0", edited(LONG, 3), LONG_AGO - 9 * DAY, seen=NOW + HOUR, source=SPAM,
        absent=seen, edit=True,
    )  # fmt: skip
    posts.claim(again)
    assert posts.originals() == {"honest"}
    (cluster,) = posts.clusters()
    assert (cluster["post"], cluster.get("changes", [])) == ("honest", [])
    assert "unsettled" not in cluster


def test_date_counts_back_to_last_visit_without_the_post(posts: Posts) -> None:
    """The planet is polled often: it had not shown the post an hour after the blog's date."""
    posts.claim(candidate("copy", LONG, NOW, seen=NOW, source=PLANET, absent=NOW - HOUR))
    late = candidate(
        "first", edited(LONG, 1), NOW - 2 * HOUR, seen=NOW + HOUR, source=BLOG, absent=NOW - DAY
    )
    assert posts.claim(late)["first"].is_original
    assert posts.originals() == {"first"}
    assert posts.post("copy")["duplicate_of"] == "first"
    # The last visit of this source contradicts its date.
    spam = candidate(
        "spam", edited(LONG, 2), NOW - 3 * HOUR, seen=NOW + HOUR, source=SPAM, absent=NOW - HOUR
    )
    assert posts.claim(spam)["spam"].duplicate_of == "first"


def test_first_seen_of_sources_that_both_can_be_first_is_original(posts: Posts) -> None:
    posts.claim(candidate("honest", LONG, NOW - HOUR, seen=NOW, source=BLOG, absent=NOW - DAY))
    copy = candidate(
        "copy", LONG, NOW - 2 * HOUR, seen=NOW + HOUR / 60, source=SPAM, absent=NOW - DAY
    )
    assert posts.claim(copy)["copy"].duplicate_of == "honest"
    assert posts.originals() == {"honest"}


def test_first_seen_of_posts_with_same_date_is_original(
    posts: Posts,
) -> None:
    """A feed that aggregates blogs states the dates of the blogs."""
    posts.claim(candidate("z", LONG, NOW, seen=NOW + HOUR, source=BLOG))
    posts.claim(candidate("a", LONG, NOW, seen=NOW + 2 * HOUR, source=PLANET))
    assert posts.originals() == {"z"}


def test_old_page_does_not_take_over_a_post_by_copying_it(posts: Posts) -> None:
    posts.claim(candidate("old", text(9), NOW - 30 * DAY, seen=NOW - 30 * DAY, source=SPAM))
    posts.claim(candidate("honest", LONG, NOW, seen=NOW, source=BLOG))
    copy = candidate(
        "old", edited(LONG, 1), NOW - 30 * DAY, seen=NOW + HOUR, source=SPAM,
        absent=NOW - HOUR, edit=True,
    )  # fmt: skip
    assert posts.claim(copy)["old"].duplicate_of == "honest"
    assert posts.originals() == {"honest"}


def test_edited_post_keeps_the_time_when_it_was_first_seen(posts: Posts) -> None:
    posts.claim(candidate("first", LONG, NOW, seen=NOW, source=BLOG))
    posts.claim(candidate("copy", LONG, NOW + HOUR, seen=NOW + HOUR, source=PLANET))
    correction = candidate(
        "first", edited(LONG, 2), NOW, seen=NOW + DAY, source=BLOG, absent=NOW + HOUR, edit=True
    )
    assert posts.claim(correction)["first"].is_original
    assert posts.originals() == {"first"}
    assert posts.signature("first")["seen"] == NOW


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
    posts.claim(candidate("new", LONG, NOW - DAY, seen=NOW - HOUR, source=BLOG))
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
    posts.claim(candidate("new", LONG, NOW - DAY, seen=NOW - HOUR, source=BLOG))

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
    """A post of one story, its times in hours relative to NOW; absent: None if unknown."""

    source: int
    created: int
    seen: int
    absent: int | None = None

    def candidate(self, key: str) -> Candidate:
        created, seen = (NOW + hours * HOUR for hours in (self.created, self.seen))
        absent = None if self.absent is None else NOW + self.absent * HOUR
        return candidate(key, LONG, created, seen=seen, source=self.source, absent=absent)

    @property
    def claimed(self) -> int:
        """Return the time from which the post counts among sources."""
        is_limited = self.absent is not None and self.absent < self.created
        return self.created if is_limited else self.seen


def original_of(story: Sequence[Dated]) -> str:
    """Return the key of the original according to the documentation."""
    posts = dict(zip("abcdefgh", story, strict=False))
    bound = min(post.claimed for post in story)
    possible = [key for key, post in posts.items() if post.absent is None or post.absent < bound]
    lead = min(possible, key=lambda key: (posts[key].seen, posts[key].created, key))
    own = [key for key, post in posts.items() if post.source == posts[lead].source]
    return min(own, key=lambda key: (posts[key].created, posts[key].seen, key))


@st.composite
def stories(draw: st.DrawFn) -> list[Dated]:
    hours = st.sampled_from([0, 1, 20, 30, 60, 120, 500])
    seen = [draw(hours) for _ in range(draw(st.integers(2, 6)))]
    before = st.sampled_from([0, 0, 1, 24, 47, 49, 80, 200, 2000])
    gap = st.sampled_from([None, 1, 2, 24, 48, 300])
    story = []
    for s in seen:
        without = draw(gap)
        absent = None if without is None else s - without
        story.append(Dated(draw(st.sampled_from([1, 2, 3])), s - draw(before), s, absent))
    return story


# The case of test_leading_source_provides_its_earliest_post, and one in which the date of a late
# post excludes the source that was seen first.
OVERTAKING = [Dated(3, 0, 0), Dated(1, -9999, 480), Dated(1, -24, -1), Dated(2, 30, 30)]
EXCLUDED = [Dated(1, 20, 20, 18), Dated(2, 10, 30, 0), Dated(3, 25, 25), Dated(1, -99, 60, 55)]


@pytest.mark.soak
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
@example(story=EXCLUDED, order=Random(1))
@example(story=EXCLUDED, order=Random(2))
@example(story=EXCLUDED, order=Random(3))
def test_arrival_order_does_not_affect_original(
    databases: Databases, story: list[Dated], order: Random
) -> None:
    """Each batch uses its own process; a post may be claimed again, and one post is deleted."""
    posts = {key: post.candidate(key) for key, post in zip("abcdefgh", story, strict=False)}
    shuffled = order.sample(sorted(posts), len(posts))
    with databases() as (_, uri):
        kept = Posts(uri)
        while shuffled:
            batch = [shuffled.pop() for _ in range(min(len(shuffled), order.randint(1, 3)))]
            again = order.sample(batch, order.randint(0, 1))
            kept.claim(*(posts[key] for key in (*batch, *again)))
        assert kept.originals() == {original_of(story)}
        assert {row.get("duplicate_of") for row in kept.all().values()} <= {
            None, original_of(story),
        }  # fmt: skip
        first = min(posts)
        kept.remove(first)
        # The first post is gone: in its place, one of another source that came last.
        expected = original_of([Dated(99, 10**4, 10**4), *story[1:]])
        assert kept.originals() == {expected}


def test_a_rebuild_finds_the_same_originals(freshet: Freshet, stored: tuple[Db, str]) -> None:
    _, uri = stored
    random = Random(5)
    rows: list[Row] = []
    absents: dict[str, datetime | None] = {}
    for story in range(12):
        for number in range(4):
            name, host = f"{story}-{number}", f"site{random.randint(1, 3)}.example"
            seen = NOW + random.choice([0, 1, 30, 60, 200]) * HOUR
            key = f"shop https://{host}/{name}"
            absents[key] = random.choice([None, seen - 2 * HOUR, seen - 90 * HOUR])
            rows.append({
                "_id": key, "spider": "shop",
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
            absent = absents[row["_id"]]
            claimed = claimed_at(post.created, row["first_seen"], absent)
            post = replace(post, absent=absent, claimed=claimed)
            verdicts = await claims.claim(registry, [post], NOW)
            await clusters.show_verdicts(database, verdicts)
            await clusters.confirm(database, registry, verdicts, {post.key})

    posts.on(claimed)
    before = posts.originals()
    assert len(before) == 12
    assert json.loads(run(freshet, "duplicates", "rebuild", "--json").out)
    assert posts.originals() == before
    # Without the times of the signatures, other posts would be first.
    assert before != {original_of_seen(rows, story) for story in range(12)}


def original_of_seen(rows: Sequence[Row], story: int) -> str:
    """Return the post of a story that was seen first."""
    own = [row for row in rows if row["text"] == text(story)]
    first: str = min(own, key=lambda row: (row["first_seen"], row["published"], row["_id"]))["_id"]
    return first
