"""Detection of pages to parse in a subprocess, and of pages nested too deeply."""

from __future__ import annotations

import gzip

import pytest

from crawler.extract.response import is_heavy, is_truncated
from tests.unit.pages import page

LEAVES = "<p>x</p>" * 4_000
FORTY = "<div>" * 40


@pytest.mark.parametrize(
    "body",
    [
        "",
        "<h1>A small page</h1>",
        f"<p>{'x' * 290_000}",
        FORTY + LEAVES,
        "<div>" * 1500,
    ],
    ids=["empty", "small", "long", "as deep as real pages", "deep and small"],
)
def test_ordinary_page_is_not_heavy(body: str) -> None:
    assert not is_heavy(page(body))


@pytest.mark.parametrize(
    "body",
    [
        f"<p>{'x' * 300_000}",
        f"<div {' '.join(f'a{n}' for n in range(60_000))}>",
        "<br>" * 20_001,
        "<div>" * 60 + LEAVES,
    ],
    ids=["long", "attributes", "tags", "deep, with many tags"],
)
def test_slow_page_is_heavy(body: str) -> None:
    assert is_heavy(page(body))


def test_compressed_page_is_heavy_at_smaller_size() -> None:
    entries = "".join(f"<url><loc>https://a.example/{n * n * n}</loc></url>" for n in range(9999))
    assert is_heavy(page(gzip.compress(entries.encode())))


@pytest.mark.parametrize(
    ("body", "truncated"),
    [
        ("<div>" * 1_900 + "x", False),
        ("<div>" * 1_900 + "</div>" * 1_900 + "<p>x" * 5_000, False),
        ("<div>" * 2_100 + "x", True),
        ("<div>" * 100_000 + "</div>" * 100_000, True),
        ("<table><tr><td>" * 5_000, True),
        ("<b>x" * 5_000, True),
        ("<a href=/item/1>x" * 5_000, False),
        ("<font><p>x</font>" * 5_000, False),
        ("<base href='http://[x'>" + "<div>" * 5_000, False),
    ],
    ids=lambda value: value[:20] if isinstance(value, str) else None,
)
def test_deep_page_is_truncated_by_parser(body: str, truncated: bool) -> None:
    assert is_truncated(page(body)) is truncated
