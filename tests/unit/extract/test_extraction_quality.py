"""Main texts of 319 real pages, compared with what they must and must not contain."""

from __future__ import annotations

import json
import lzma
import os
import re
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from lxml import html

from crawler.extract.fields import squeeze
from crawler.extract.main_text import main_text
from tests.unit.pages import page

EXTRACTION = os.environ.get("EXTRACTION")
pytestmark = [
    pytest.mark.soak,
    pytest.mark.skipif(not EXTRACTION, reason="set EXTRACTION to a folder with the real pages"),
]


@cache
def rows() -> list[tuple[dict[str, Any], str]]:
    """Return the rows with the main texts of their pages."""
    with lzma.open(Path(str(EXTRACTION)) / "pages.jsonl.xz", "rt") as lines:
        parsed = [json.loads(line) for line in lines]
    return [
        (row, main_text(page(row["html"].encode("utf-8", "ignore").decode()))["main_text"] or "")
        for row in parsed
    ]


def words(text: str) -> Counter[str]:
    return Counter(re.findall(r"\w+", text.lower()))


def f1(true: int, extra: int, missing: int) -> float:
    return 2 * true / max(1, 2 * true + extra + missing)


def test_words_of_articles_are_those_of_reviewed_articles() -> None:
    """0.925 with trafilatura 2.3, 0.935 with Resiliparse 2.0."""
    scores = []
    for row, text in rows():
        if truth_html := row.get("truth_html"):
            truth, read = words(" ".join(html.fromstring(truth_html).itertext())), words(text)
            common = (truth & read).total()
            scores.append(f1(common, read.total() - common, truth.total() - common))
    assert sum(scores) / len(scores) >= 0.95


def test_main_text_has_the_segments_of_the_content_and_no_others() -> None:
    """0.925 with trafilatura 2.3, 0.840 with Resiliparse 2.0."""
    true = extra = missing = 0
    for row, text in rows():
        if "with" in row and not row.get("truth_html"):
            line = squeeze(text)
            found = sum(squeeze(segment) in line for segment in row["with"])
            true, missing = true + found, missing + len(row["with"]) - found
            extra += sum(squeeze(segment) in line for segment in row["without"])
    assert f1(true, extra, missing) >= 0.93
