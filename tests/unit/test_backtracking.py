"""Regular expressions that may search for ever are refused when a wrapper is loaded."""

from __future__ import annotations

import re
from typing import Any

import pytest

from crawler.backtracking import hard_text
from crawler.cells.wrapper import CellsWrapper
from crawler.errors import WrapperError
from crawler.feeds.wrapper import FeedsWrapper
from crawler.wrapper import Wrapper
from tests.unit.pages import wrapper

BAD = r"/(\w+/?)+$"
ENDLESS = [
    BAD,
    r"(a|a)*b",
    r"/shop/(\w+-?)+/$",
    r"([^/]+/?)+$",
    r"/item/(?:a?){30}a{30}$",
    r".*.*.*.*.*=$",
]
HARMLESS = [
    "",
    r"/item/\d+$",
    r"/catalogue/[^/]+_\d+/index\.html$",
    r"/page/\d+/$|/tag/(?P<category>[^/]+)/",
    r"/(?:[^/]+/)*item-\d+",
    r"^https?://(?:www\.)?shop\.example/(?:[\w-]+/)+\d+-[\w-]+\.html$",
    r"(?<!x)/a/(?=b)(?!c)",
    r"/(\w+)/\1/(?(1)a|b)",
    r"/(?>a+)b(c++)d",
    r"(?i)[^\W\d_]{2,}",
    r".*/item/.*\d$",
]


@pytest.mark.parametrize("pattern", ENDLESS)
def test_a_pattern_that_may_search_for_ever_is_found_by_a_short_text(pattern: str) -> None:
    found = hard_text(pattern)
    assert found is not None
    assert len(found) < 200


@pytest.mark.parametrize("pattern", HARMLESS)
def test_an_ordinary_pattern_is_not(pattern: str) -> None:
    assert hard_text(pattern) is None


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("list_pages", BAD),
        ("item_pages", ["/item/", BAD]),
        ("category", {"pattern": BAD}),
        ("weights", {BAD: 2.0}),
        ("fields", {"a": {"xpath": f"//a[re:test(@href, '{BAD}')]"}}),
    ],
)
def test_the_error_names_file_and_key(key: str, value: Any) -> None:
    with pytest.raises(WrapperError, match=rf"^shop\.toml: {key}.*may search for ever, as in '/a"):
        wrapper(**{key: value})


@pytest.mark.parametrize(
    ("kind", "keys"),
    [
        (FeedsWrapper, {"weights": {BAD: 2.0}}),
        (CellsWrapper, {"cells": {"a": {
            "url": "https://a.example/", "xpath": f'//a[re:match(., "{BAD}")]',
        }}}),
    ],
)  # fmt: skip
def test_wrappers_of_feeds_and_cells_are_checked_too(
    kind: type[Wrapper], keys: dict[str, Any]
) -> None:
    with pytest.raises(WrapperError, match="may search for ever"):
        kind.of(keys, "here")


def test_texts_of_xpath_that_are_no_regular_expressions_may_be_anything() -> None:
    xpath = "//a[re:test(., '\\d+')][contains(., '(')][contains(., \"[a-\")]"
    assert wrapper(fields={"a": {"xpath": xpath}}).fields["a"].xpath == xpath
    assert re.compile(BAD), "what is no regular expression's place is not looked at"
    assert wrapper(fields={"a": {"xpath": f"//a[. = '{BAD}']"}})
