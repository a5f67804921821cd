"""Notification rules: conditions, selection of pages, and errors in configuration files."""

from __future__ import annotations

from pathlib import Path

import pytest

from crawler.errors import ConfigError
from crawler.extract.notification_rules import (
    MAX_CONDITION_CHARACTERS,
    Condition,
    Rule,
    read_keys,
    rules_in,
    wanted_by,
)
from crawler.items import Event

BEFORE = {"price": {"amount": 20.0, "currency": "€"}, "stock": 4, "title": "Red shoes", "size": "9"}
AFTER = BEFORE | {"price": {"amount": 19.0, "currency": "€"}, "stock": 0, "title": "Shoes on SALE"}
OF_SHOP = {"name": "cheap", "channels": "phone"}


@pytest.mark.parametrize(
    ("condition", "holds"),
    [
        ("price < 19.5", True),
        ("price<19", False),
        ("price.amount >= 19", True),
        ("size = 9", True),
        ("stock == 0", True),
        ("title = '>9'", False),
        ("title != 9", True),
        ("title = 'shoes on sale'", True),
        ("price falls", True),
        ("price falls by 5 %", True),
        ("price falls by 5.1%", False),
        ("price falls by 1", True),
        ("price rises", False),
        ("stock becomes 0", True),
        ("size becomes 9", False),
        ("stock changes", True),
        ("size changes", False),
        ("title contains sale", True),
        ('title starts containing "sale"', True),
        ("title stops containing red", True),
        ("title stops containing shoes", False),
        ("title does not contain red", True),
        ("content contains on sale", True),
        ("color is missing", True),
        ("stock is present", True),
    ],
)
def test_condition_compares_old_and_new_fields(condition: str, holds: bool) -> None:
    assert Condition.parse(condition).holds(BEFORE, AFTER) is holds


def test_prices_in_different_currencies_neither_fall_nor_rise() -> None:
    euros, dollars, unknown = (
        {"price": {"amount": amount, "currency": currency}}
        for amount, currency in ((20.0, "EUR"), (15.0, "USD"), (10.0, None))
    )
    falls, rises = Condition.parse("price falls"), Condition.parse("price rises by 1")
    assert not falls.holds(euros, dollars)
    assert not rises.holds(dollars, euros)
    assert falls.holds(euros, unknown)


@pytest.mark.parametrize("condition", ["price falls", "stock changes", "title stops containing x"])
def test_change_conditions_do_not_hold_for_new_pages(condition: str) -> None:
    assert not Condition.parse(condition).holds(None, AFTER)


@pytest.mark.parametrize(
    "condition",
    ["", "price", "price <", "price < cheap", "price falls by", "price falls by -1", "< 3",
     "price => 3", "price = <3", "price === 3", "price is missing now", "price likes 3",
     "a = " + "b" * MAX_CONDITION_CHARACTERS],
)  # fmt: skip
def test_invalid_condition_error_has_examples(condition: str) -> None:
    with pytest.raises(ValueError, match=r"^invalid condition: .* Examples: 'price < 10'"):
        Condition.parse(condition)


def test_a_rule_selects_pages_by_event_site_category_and_url() -> None:
    rule = Rule.model_validate(
        OF_SHOP | {"events": "changed", "sites": "shop", "categories": "toys", "urls": r"/item-\d"}
    )
    url = "https://shop.example/item-1"
    assert rule.is_about(Event.CHANGED, "shop", url, ["toys", "sale"])
    assert not rule.is_about(Event.NEW, "shop", url, ["toys"])
    assert not rule.is_about(Event.CHANGED, "books", url, ["toys"])
    assert not rule.is_about(Event.CHANGED, "shop", url, ["books"])
    assert not rule.is_about(Event.CHANGED, "shop", "https://shop.example/", ["toys"])


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[[rules]]\nname = 'a'\n", "rule 'a': channels: is missing"),
        ("[[rules]]\nname = 'a'\nchannels = 'x'\nurl = 'y'\n", "rule 'a': url: unknown key"),
        ("[[rules]]\nchannels = 'x'\n", "rule 1: name: is missing"),
        ("[[rules]]\nname = 'a'\nchannels = 'x'\n" * 2, "two rules are named 'a'"),
        ("[[rules]]\nname =", "not valid TOML"),
    ],
)
def test_an_error_names_the_file_the_rule_and_the_key(
    tmp_path: Path, text: str, problem: str
) -> None:
    path = tmp_path / "notify.toml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError) as error:
        rules_in(read_keys(path).get("rules"), str(path))
    assert str(error.value).startswith(f"{path}: {problem}")


def test_wanted_events_combine_all_rules_of_the_site() -> None:
    rules = rules_in(
        [
            OF_SHOP | {"events": ["failing"], "failures": 7, "sites": ["shop"]},
            OF_SHOP | {"name": "all", "events": ["gone"]},
        ],
        "a test",
    )
    assert wanted_by(rules, "shop").events == {Event.FAILING, Event.GONE}
    assert wanted_by(rules, "shop").failures == {7}
    assert wanted_by(rules, "books").events == {Event.GONE}
