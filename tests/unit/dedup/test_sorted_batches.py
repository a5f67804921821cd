"""How the posts of a batch are sorted before their claims are inserted."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from crawler.dedup.posts import Candidate, Owner
from crawler.storage.dedup.claims import NO_RULING, Holders, Ruling, SortedBatch, sort_candidates
from tests.integration.claiming import HOUR, NOW, SCHEME, candidate, edited, text

TEXT = text(1)
A, B = candidate("a", TEXT), candidate("b", edited(TEXT, 3), NOW + HOUR)


def sort(*posts: Candidate, ruling: Ruling = NO_RULING, **given: Any) -> SortedBatch:
    return sort_candidates(posts, Holders(**given), ruling, SCHEME.threshold)


def owned_by(post: Candidate) -> dict[int, Owner]:
    """Return the bands of a stored post, with the post as their owner."""
    return dict.fromkeys(post.bands, Owner(post.id, post.key, post.created, post.sketch))


def test_a_new_post_is_inserted_with_its_bands() -> None:
    assert sort(A) == SortedBatch(inserts={A: A.bands})


def test_a_stored_post_is_not_inserted() -> None:
    row = {"_id": A.id}
    assert sort(A, rows={A.id: row}, owners=owned_by(A)) == SortedBatch(stored=[(A, row)])


def test_a_copy_of_a_stored_post_gets_the_bands_without_owner() -> None:
    owners = owned_by(A)
    batch = SortedBatch(copies=[(B, owners[min(owners)], B.bands - A.bands)])
    assert sort(B, owners=owners) == batch
    assert B.bands - A.bands


def test_a_copy_in_the_same_batch_waits_for_its_original() -> None:
    assert sort(A, B) == SortedBatch(inserts={A: A.bands}, waiting=[B])


def test_a_different_post_gets_only_free_bands() -> None:
    shared, other, third = sorted(A.bands)[:3]
    stranger = candidate("c", text(2))
    owners = dict.fromkeys([shared], owned_by(stranger)[min(stranger.bands)])
    batch = sort(A, owners=owners, taken={other})
    assert batch.inserts == {A: A.bands - {shared, other}}
    assert third in batch.inserts[A]


def test_a_post_labeled_as_not_the_same_is_inserted_without_the_owners_bands() -> None:
    ruling = replace(NO_RULING, apart=frozenset({A.id}))
    assert sort(B, owners=owned_by(A), ruling=ruling).inserts == {B: B.bands - A.bands}
