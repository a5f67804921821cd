"""Random text of pages: found by second requests on two visits, and not compared."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from crawler.extract.noise import CHANGE, is_chosen, learned, passage_of, without_noise
from crawler.items import Noise

BEFORE = "The stool is made of walnut."
AFTER = "It ships within two days."
SLOGANS = ["Nothing beats good wood.", "Sit down, stay a while.", "Made to be inherited."]


def page(*lines: str, title: str = "Stool", **values: Any) -> dict[str, Any]:
    return {"title": title, "main_text": "\n".join(lines)} | values


def stool(slogan: str, before: str = BEFORE, after: str = AFTER) -> dict[str, Any]:
    return page(before, slogan, after)


def noise_of(first: dict[str, Any], second: dict[str, Any], *fixed: str) -> Noise:
    """Return the noise after two visits whose requests showed these pages."""
    return learned(first, second, learned(first, second, Noise("s1"), fixed)[0], fixed)[0]


def differs(first: dict[str, Any], second: dict[str, Any], noise: Noise) -> bool:
    return without_noise(first, noise) != without_noise(second, noise)


def test_line_that_two_requests_show_differently_is_not_compared() -> None:
    noise = noise_of(stool(SLOGANS[0]), stool(SLOGANS[1]))
    assert not differs(stool(SLOGANS[0]), stool("A slogan that was never seen."), noise)


def test_page_that_is_edited_between_two_requests_has_no_random_text() -> None:
    """The change after it is confirmed, too, and its requests show the same text."""
    noise, shown = learned(stool(SLOGANS[0]), stool(SLOGANS[1]), Noise("s1"))
    assert (noise.is_empty, shown) == (True, [])
    assert noise.score + CHANGE >= noise.wait
    noise, _ = learned(stool(SLOGANS[2]), stool(SLOGANS[2]), noise)
    assert differs(stool(SLOGANS[1]), stool(SLOGANS[2]), noise)


def test_place_is_found_again_after_the_line_before_it_was_edited() -> None:
    noise = noise_of(stool(SLOGANS[0]), stool(SLOGANS[1]))
    edited = [stool(slogan, before="The stool is made of oak.") for slogan in SLOGANS]
    noise, _ = learned(edited[0], edited[1], noise)
    assert not differs(edited[1], edited[2], noise)


@pytest.mark.parametrize(
    "edited",
    [
        stool(SLOGANS[2], before="The stool is made of oak."),
        stool(SLOGANS[2], after="It is sold out."),
        page(BEFORE, "A new paragraph.", SLOGANS[2], AFTER),
        page(BEFORE, SLOGANS[2], AFTER, "A new paragraph."),
        page(BEFORE, SLOGANS[2], AFTER, title="Walnut stool"),
        page(BEFORE, SLOGANS[2], AFTER, offers=["49.90 EUR, InStock"]),
        page(BEFORE, SLOGANS[2], AFTER, details=["Sold out"]),
        page(BEFORE),
    ],
)
def test_edits_around_random_text_are_found(edited: dict[str, Any]) -> None:
    noise = noise_of(stool(SLOGANS[0]), stool(SLOGANS[1]))
    assert differs(stool(SLOGANS[0]), edited, noise)


def test_variants_of_an_a_b_test_are_equal_but_a_third_one_is_not() -> None:
    a, b = page("Packed by hand.", BEFORE, AFTER), page(BEFORE, AFTER, "Questions?", "Write to us.")
    noise = noise_of(a, b)
    assert not differs(a, b, noise)
    assert differs(a, page("Packed by machines.", BEFORE, AFTER), noise)


def test_known_headlines_are_equal_but_a_new_one_is_not() -> None:
    a, b = page(BEFORE, title="Stool"), page(BEFORE, title="Why you need this stool")
    noise = noise_of(a, b)
    assert not differs(a, b, noise)
    assert differs(a, page(BEFORE, title="Walnut stool"), noise)


def test_a_value_with_a_selector_is_always_compared() -> None:
    a, b = page(BEFORE, title="Stool"), page(BEFORE, title="Chair")
    assert noise_of(a, b, "title").is_empty
    assert noise_of(stool(SLOGANS[0]), stool(SLOGANS[1]), "main_text").is_empty


@pytest.mark.parametrize("prices", [("£12.00", "£14.50"), ("Now 12 EUR.", "Now 14 EUR.")])
def test_prices_are_always_compared(prices: tuple[str, str]) -> None:
    assert noise_of(stool(prices[0]), stool(prices[1])).is_empty


def test_a_page_that_is_another_one_on_each_request_changes() -> None:
    a, b = page("One.", "Two.", title="A"), page("Three.", "Four.", title="A")
    assert noise_of(a, b).is_empty


def test_a_post_that_appears_between_two_requests_hides_no_other_post() -> None:
    live = page("Goal!", BEFORE, AFTER)
    noise = noise_of(page(BEFORE, AFTER), live)
    assert differs(live, page("Half-time.", "Goal!", BEFORE, AFTER), noise)


ITEMS = [f"Vacancy {letter}: apply by mail" for letter in "ABCDEFGHIJKL"]


def shuffled(seed: int, *more: str, items: list[str] = ITEMS) -> dict[str, Any]:
    lines = items.copy()
    Random(seed).shuffle(lines)
    return page("Vacancies of the week", *lines, "Write to us.", *more)


def test_list_in_random_order_is_compared_in_any_order() -> None:
    noise = noise_of(shuffled(1), shuffled(2))
    assert not any(differs(shuffled(1), shuffled(seed), noise) for seed in range(3, 30))


@pytest.mark.parametrize(
    "edited",
    [
        shuffled(5, items=[*ITEMS[:5], "Vacancy Z: apply by phone", *ITEMS[6:]]),
        shuffled(5, items=ITEMS[:-1]),
        shuffled(5, items=[*ITEMS, ITEMS[0]]),
        shuffled(5, "Closed on Monday."),
        shuffled(5) | {"title": "Jobs"},
    ],
    ids=["other item", "without an item", "item twice", "other line", "title"],
)
def test_edits_of_a_list_in_random_order_are_found(edited: dict[str, Any]) -> None:
    noise = noise_of(shuffled(1), shuffled(2))
    assert differs(shuffled(1), edited, noise)


def test_order_stays_ignored_after_an_edit_of_the_list() -> None:
    noise, items = noise_of(shuffled(1), shuffled(2)), [*ITEMS, "Vacancy Z: apply by phone"]
    noise, _ = learned(shuffled(3, items=items), shuffled(4, items=items), noise)
    for seed in range(5, 20):
        assert not differs(shuffled(3, items=items), shuffled(seed, items=items), noise)


def test_lines_with_prices_may_come_in_any_order_but_prices_are_compared() -> None:
    items = [f"Kettle {n} for {n + 10} EUR" for n in range(8)]
    noise = noise_of(shuffled(1, items=items), shuffled(2, items=items))
    assert not differs(shuffled(1, items=items), shuffled(3, items=items), noise)
    cheaper = [*items[:-1], "Kettle 7 for 15 EUR"]
    assert differs(shuffled(1, items=items), shuffled(3, items=cheaper), noise)


def test_random_slogan_beside_a_list_in_random_order_is_found_as_well() -> None:
    pages = [shuffled(n, SLOGANS[n % 3], AFTER) for n in range(8)]
    noise = Noise("s1")
    for first, second in ((0, 1), (2, 3), (3, 4)):
        noise, _ = learned(pages[first], pages[second], noise)
    assert not differs(pages[5], pages[6], noise)
    assert differs(pages[5], shuffled(6, SLOGANS[0], "It ships today."), noise)


def test_paragraph_that_moves_between_two_requests_is_an_edit() -> None:
    noise, shown = learned(page(BEFORE, "A.", AFTER), page("A.", BEFORE, AFTER), Noise("s1"))
    assert (noise.is_empty, shown) == (True, [])


def test_known_places_are_limited_and_those_that_are_gone_are_forgotten() -> None:
    noise = Noise("s1")
    for n in range(30):
        lines = [f"Line {i}." for i in range(60)]
        first, second = lines.copy(), lines.copy()
        first[2 * n], second[2 * n] = SLOGANS[0], SLOGANS[1]
        for _ in range(2):
            noise, _ = learned(page(*first), page(*second), noise)
        assert len(noise.places) <= 16
    noise, _ = learned(page("Other.", "Text."), page("Other.", "Text."), noise)
    assert noise.places == ()


def test_text_of_very_many_lines_is_compared_as_it_is() -> None:
    noise = noise_of(stool(SLOGANS[0]), stool(SLOGANS[1]))
    long = page(BEFORE, SLOGANS[0], AFTER, *["A line."] * 20_000)
    assert without_noise(long, noise) is long


def test_second_requests_become_rare_if_they_find_nothing() -> None:
    noise, waits = Noise("s1"), []
    for _ in range(12):
        noise, lines = learned(stool(SLOGANS[0]), stool(SLOGANS[0]), noise)
        assert lines == []
        waits.append(noise.wait)
    assert waits == sorted(waits)
    assert waits[:3] == [5, 8, 13]
    assert waits[-1] == 96


def test_changes_in_one_passage_have_the_same_name() -> None:
    first = passage_of(stool(SLOGANS[0]), stool(SLOGANS[1]))
    second = passage_of(stool(SLOGANS[1]), stool(SLOGANS[2]))
    other = passage_of(stool(SLOGANS[1]), stool(SLOGANS[1], before="Oak."))
    assert first is not None
    assert second is not None
    assert other is not None
    assert first.name == second.name != other.name
    assert first.text == SLOGANS[1]
    assert passage_of(stool(SLOGANS[0]), stool(SLOGANS[0])) is None


@pytest.mark.parametrize(
    ("pages", "random", "share"),
    [(5, 0, 0.5), (20, 0, 0.2), (1000, 0, 0.05), (20, 20, 1), (60, 10, 1), (100, 2, 0.15)],
)
def test_share_of_pages_that_are_requested_twice(pages: int, random: int, share: float) -> None:
    """All of them while few are known, and on sites with random text."""
    keys = [f"shop https://shop.example/{n}" for n in range(2000)]
    chosen = sum(is_chosen(key, Noise("s1"), pages, random) for key in keys)
    assert chosen / len(keys) == pytest.approx(share, abs=0.03)
    assert all(is_chosen(key, Noise("s1"), 4, 4) for key in keys)


def test_page_with_text_that_may_be_random_is_always_requested_twice() -> None:
    noise, _ = learned(stool(SLOGANS[0]), stool(SLOGANS[1]), Noise("s1"))
    keys = [f"shop https://shop.example/{n}" for n in range(200)]
    assert all(is_chosen(key, noise, 1000, 0) for key in keys)
