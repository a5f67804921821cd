"""Stored signatures load into the indexes of datasketch, as the how-to page shows."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from crawler.dedup.minhash import as_datasketch, hashes_of, stored_minhash, values_of
from crawler.dedup.schemes import scheme_of
from crawler.dedup.sketch import CHARACTERS_SHAPE
from crawler.dedup.text import compared_points
from tests.integration.claiming import SCHEME, Posts, candidate, edited, text
from tests.integration.harness import Db

PAGE = Path(__file__).parents[3] / "docs/how-to/find-near-duplicates.md"
WORDS = text(1)
TEXTS = {"first": WORDS, "copy": edited(WORDS, 5), "other": text(2), "another": text(3)}


def test_lines_of_the_page_find_similar_posts(stored: tuple[Db, str]) -> None:
    _, uri = stored
    Posts(uri).claim(*(candidate(key, words) for key, words in TEXTS.items()))
    (lines,) = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.M | re.S)
    assert len([line for line in lines.splitlines() if line]) <= 13
    found: dict[str, Any] = {}
    exec(lines.replace("mongodb://localhost/freshet", uri), found)
    assert set(found["posts"]) == set(TEXTS)
    groups = {post: sorted(group) for post, group in found["groups"].items()}
    pair = ["copy", "first"]
    assert groups == {"first": pair, "copy": pair, "other": ["other"], "another": ["another"]}
    assert set(found["five_nearest"]["first"][:2]) <= {"first", "copy"}


def test_similarity_of_stored_values_is_near_that_of_all_values() -> None:
    def estimate(left: str, right: str) -> float:
        hashes = [hashes_of(compared_points(each), CHARACTERS_SHAPE) for each in (left, right)]
        both = [as_datasketch(values_of(each)) for each in hashes if each is not None]
        return float(both[0].jaccard(both[1]))

    for edits in (0, 5, 20, 60):
        other = edited(WORDS, edits)
        sketches = [SCHEME.sketch(each) for each in (WORDS, other)]
        first, second = (stored_minhash(each.encode()) for each in sketches if each is not None)
        assert first is not None
        assert second is not None
        assert 0 <= first.jaccard(second) - estimate(WORDS, other) < 0.03


@pytest.mark.parametrize("name", ["supershingles", "characters"])
def test_text_without_values_has_no_minhash(name: str) -> None:
    sketch = scheme_of(name, 0.7).sketch(WORDS if name == "supershingles" else "ab")
    assert sketch is not None
    assert stored_minhash(sketch.encode()) is None
