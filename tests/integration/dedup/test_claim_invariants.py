"""Invariant of claims: each story has one original after any inserts, edits and deletions."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.conftest import Databases
from tests.integration.claiming import NOW, Posts, candidate, edited, text

STORIES = [text(n, words=200) for n in range(3)]
KEYS = "abcdef"


@dataclass(frozen=True)
class Step:
    """A step: store or edit a post as a variant of a story, or delete it (no story)."""

    key: str
    story: int | None
    variant: int = 0
    created: int = 0


keys, minutes = st.sampled_from(KEYS), st.integers(0, 20)
stored = st.builds(Step, keys, st.integers(0, len(STORIES) - 1), st.integers(0, 3), minutes)
deleted = st.builds(Step, keys, st.none())
# Each example uses its own database, and the shared server keeps no state of it.
UNCHECKED = [HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
# An example takes seconds, so shrinking takes longer than reading it.
UNSHRUNK = [Phase.explicit, Phase.reuse, Phase.generate]
batches = st.lists(st.one_of(deleted, st.lists(stored, min_size=1, max_size=4)), max_size=10)


@pytest.mark.soak
@settings(max_examples=6, deadline=None, phases=UNSHRUNK, suppress_health_check=UNCHECKED)
@given(steps=batches)
def test_each_story_has_one_original(databases: Databases, steps: list[object]) -> None:
    with databases() as (_, uri):
        posts, stories = Posts(uri), dict[str, int]()
        for step in steps:
            if isinstance(step, Step):
                posts.remove(step.key)
                stories.pop(step.key, None)
            else:
                assert isinstance(step, list)
                _claim(posts, step, stories)
            _check(posts, stories)


def _claim(posts: Posts, steps: list[Step], stories: dict[str, int]) -> None:
    last = {step.key: step for step in steps}
    candidates = []
    for step in last.values():
        assert step.story is not None
        words = edited(STORIES[step.story], step.variant, seed=step.variant)
        created = NOW - timedelta(minutes=step.created)
        candidates.append(candidate(step.key, words, created, edit=step.key in stories))
        stories[step.key] = step.story
    posts.claim(*candidates)


def _check(posts: Posts, stories: dict[str, int]) -> None:
    rows = posts.all()
    assert rows.keys() == stories.keys()
    for story in set(stories.values()):
        members = [key for key, number in stories.items() if number == story]
        (original,) = [key for key in members if rows[key]["original"]]
        assert {rows[key].get("duplicate_of", original) for key in members} == {original}
        assert "duplicate_of" not in rows[original]
        assert len({rows[key].get("cluster") for key in members}) == 1
        _check_earliest(posts, members, original)


def _check_earliest(posts: Posts, members: list[str], original: str) -> None:
    created = {key: posts.signature(key)["created"] for key in members}
    assert created[original] == min(created.values())
