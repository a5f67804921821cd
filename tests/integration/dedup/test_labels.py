"""Labels that people give to pairs of posts are respected by all later claims."""

from __future__ import annotations

import pytest

from crawler.errors import ConfigError
from crawler.storage.client import Database
from crawler.storage.dedup import labels
from crawler.storage.dedup.labels import label
from crawler.storage.dedup.signatures import Registry
from tests.integration.claiming import HOUR, NOW, Posts, candidate, edited, text
from tests.integration.harness import Db

LONG = text(1)


@pytest.fixture
def posts(stored: tuple[Db, str]) -> Posts:
    """Return an empty index."""
    return Posts(stored[1])


def put(posts: Posts, a: str, b: str, *, same: bool) -> labels.Label:
    async def labeled(db: Database, registry: Registry) -> labels.Label:
        return await label(db, registry, (a, b), NOW, same=same, by="anna")

    found: labels.Label = posts.on(labeled)
    return found


def measured(posts: Posts) -> labels.MeasuredPrecision:
    found: labels.MeasuredPrecision = posts.on(lambda db, registry: labels.measured_precision(db))
    return found


def test_a_copy_labeled_as_different_leaves_its_cluster(posts: Posts) -> None:
    posts.claim(candidate("a", LONG), candidate("b", edited(LONG, 2), NOW + HOUR))
    put(posts, "b", "a", same=False)
    assert posts.originals() == {"a", "b"}
    assert "duplicate_of" not in posts.post("b")
    assert posts.signature("a")["cluster"] != posts.signature("b").get("cluster")


@pytest.mark.parametrize("edit", [False, True])
def test_the_pair_is_not_flagged_again(posts: Posts, edit: bool) -> None:
    posts.claim(candidate("a", LONG), candidate("b", edited(LONG, 2), NOW + HOUR))
    put(posts, "a", "b", same=False)
    found = posts.claim(candidate("b", edited(LONG, 1), NOW + HOUR, edit=edit))
    assert found["b"].is_original
    found = posts.claim(candidate("a", edited(LONG, 3), edit=edit))
    assert found["a"].is_original
    assert posts.originals() == {"a", "b"}


def test_a_copy_of_either_post_is_still_found(posts: Posts) -> None:
    posts.claim(candidate("a", LONG), candidate("b", edited(LONG, 2), NOW + HOUR))
    put(posts, "a", "b", same=False)
    found = posts.claim(candidate("c", LONG, NOW + 2 * HOUR))["c"]
    assert found.duplicate_of == "a"


def test_labels_apply_within_one_batch(posts: Posts) -> None:
    posts.claim(candidate("a", LONG), candidate("b", edited(LONG, 2), NOW + HOUR))
    put(posts, "a", "b", same=False)
    posts.remove("a", "b")
    posts.claim(
        candidate("b", edited(LONG, 2), NOW + HOUR),
        candidate("a", LONG),
        candidate("c", LONG, NOW + 2 * HOUR),
    )
    assert posts.originals() == {"a", "b"}
    assert posts.post("c")["duplicate_of"] in {"a", "b"}


def test_posts_labeled_as_same_are_duplicates(posts: Posts) -> None:
    posts.claim(candidate("a", LONG), candidate("b", text(2), NOW + HOUR))
    assert posts.originals() == {"a", "b"}
    put(posts, "a", "b", same=True)
    assert posts.post("b")["duplicate_of"] == "a"
    assert posts.post("b")["similarity"] < 0.3
    assert posts.originals() == {"a"}
    # An edit does not separate them.
    found = posts.claim(candidate("b", text(3), NOW + HOUR, edit=True))["b"]
    assert found.duplicate_of == "a"
    found = posts.claim(candidate("a", text(4), edit=True))["a"]
    assert found.is_original
    assert posts.originals() == {"a"}


def test_label_applies_when_posts_are_stored_again(posts: Posts) -> None:
    posts.claim(candidate("a", LONG), candidate("b", text(2), NOW + HOUR))
    put(posts, "a", "b", same=True)
    posts.remove("a", "b")
    posts.claim(candidate("b", text(2), NOW + HOUR))
    assert posts.originals() == {"b"}
    posts.claim(candidate("a", LONG))
    assert posts.originals() == {"a"}, "the earlier post becomes the original"
    assert posts.post("b")["duplicate_of"] == "a"


def test_latest_label_wins(posts: Posts) -> None:
    posts.claim(candidate("a", LONG), candidate("b", edited(LONG, 2), NOW + HOUR))
    put(posts, "a", "b", same=False)
    assert posts.originals() == {"a", "b"}
    found = put(posts, "b", "a", same=True)
    assert (found["same"], found["flagged"], found["by"]) == (True, True, "anna")
    assert posts.originals() == {"a"}
    assert posts.post("b")["duplicate_of"] == "a"


def test_contradicting_labels_keep_posts_separate(posts: Posts) -> None:
    posts.claim(
        candidate("a", LONG),
        candidate("b", text(2), NOW + HOUR),
        candidate("c", text(3), NOW + HOUR),
    )
    put(posts, "a", "b", same=False)
    put(posts, "a", "c", same=True)
    put(posts, "b", "c", same=True)
    assert posts.originals() == {"a", "b"}
    assert posts.post("c")["duplicate_of"] in {"a", "b"}


def test_a_post_labeled_as_the_same_joins_the_cluster_of_an_original(posts: Posts) -> None:
    posts.claim(candidate("a", LONG), candidate("x", text(2), NOW + HOUR))
    posts.claim(candidate("y", edited(text(2), 2), NOW + 2 * HOUR))
    put(posts, "a", "x", same=True)
    assert posts.originals() == {"a"}, "the earliest of the three"
    assert posts.post("x")["duplicate_of"] == posts.post("y")["duplicate_of"] == "a"


def test_precision_counts_labels_of_flagged_pairs(posts: Posts) -> None:
    posts.claim(
        candidate("a", LONG),
        candidate("b", edited(LONG, 2), NOW + HOUR),
        candidate("c", edited(LONG, 3), NOW + 2 * HOUR),
        candidate("x", text(2)),
        candidate("y", text(3)),
    )
    put(posts, "a", "b", same=True)
    put(posts, "a", "c", same=False)
    put(posts, "x", "y", same=True)
    found = measured(posts)
    assert (found["labels"], found["flagged"], found["confirmed"]) == (3, 2, 1)
    assert (found["precision"], found["missed"]) == (0.5, 1)
    assert (found["low"], found["high"]) == (0.0945, 0.9055)
    # A new label does not change whether the pair was flagged.
    put(posts, "a", "c", same=True)
    assert measured(posts)["confirmed"] == 2


def test_a_post_that_is_not_stored_cannot_be_labeled(posts: Posts) -> None:
    posts.claim(candidate("a", LONG))
    with pytest.raises(ConfigError, match="post not found: b"):
        put(posts, "a", "b", same=True)
    with pytest.raises(ConfigError, match="the same post"):
        put(posts, "a", "a", same=True)
    assert measured(posts)["labels"] == 0
