"""Spider traps: caps that limit which links of endless sites become targets."""

from __future__ import annotations

import logging

import pytest

from crawler.config import Config
from crawler.extract.links import Traps, repeats
from crawler.items import Kind, Link
from tests.unit.pages import SITE, wrapper


def traps(**keys: object) -> Traps:
    """Return the link caps of a shop."""
    return Traps(wrapper(**keys).completed(Config.load()))


def items(of: Traps, *paths: str) -> list[Link]:
    """Return links to items of the shop."""
    urls = [f"{SITE}{path}" for path in paths]
    return [Link(url, Kind.ITEM, pattern=of.wrapper.match(url).pattern) for url in urls]


def test_links_at_the_depth_cap_are_followed() -> None:
    shop = traps(max_depth=3)
    links = items(shop, "item/1")
    assert shop.within_caps(links, 3) == links
    assert shop.within_caps(links, 4) == []
    assert shop.left_out == 1


def test_item_cap_applies_to_each_pattern() -> None:
    shop = traps(item_pages=["/item/", "/event/"], max_pattern_items=2)
    some = items(shop, "item/1", "item/2", "item/3", "event/1")
    assert [link.url for link in shop.within_caps(some, 1)] == [
        f"{SITE}item/1", f"{SITE}item/2", f"{SITE}event/1",
    ]  # fmt: skip
    assert shop.within_caps(items(shop, "event/2", "event/3"), 1) == items(shop, "event/2")
    assert sorted(shop.targets.values()) == [2, 2]


def test_over_caps_returns_patterns_that_would_exceed_the_cap() -> None:
    shop = traps(max_pattern_items=2)
    (pattern,) = {link.pattern for link in items(shop, "item/1")}
    assert shop.over_caps(items(shop, "item/1", "item/2")) == set()
    assert shop.over_caps(items(shop, "item/1", "item/2", "item/3")) == {pattern}


def test_cap_is_logged_once_and_skipped_links_are_counted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    shop = traps(max_pattern_items=1)
    with caplog.at_level(logging.WARNING):
        for n in range(4):
            shop.within_caps(items(shop, f"item/{n}"), 1)
    (message,) = caplog.messages
    assert f"{SITE}item/1 left out, and others like it: already 1 items match '/item/'" in message
    assert "max_pattern_items in the site definition, or FRESHET_MAX_PATTERN_ITEMS" in message
    assert shop.left_out == 3


@pytest.mark.parametrize(
    ("path", "times"),
    [
        ("", 1),
        ("a", 1),
        ("a/b/c/", 1),
        ("2011/11/11/11/", 3),
        ("a/b/a/b/a/b/", 3),
        ("a/a/a/a", 4),
        ("a/x/a/y/a/z", 3),
        ("a//b//c//", 3),
        ("a?b=/c/c/c/c/c", 1),
    ],
)
def test_repeated_path_segments_are_counted(path: str, times: int) -> None:
    assert not repeats(f"{SITE}{path}", times)
    assert repeats(f"{SITE}{path}", times - 1) or times == 1


def test_default_caps_allow_ordinary_links() -> None:
    shop = traps()
    links = items(shop, "2011/11/11/11/item/1", "item/a/b/c/d/e/f/g/h/i/j/k?a=/1/1/1/1/1/1/1/1/1/1")
    assert shop.within_caps(links, 1000) == links
