"""Random text of pages is no change, and edits around it are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from tests.integration.harness import Db, Freshet, Result, visits
from tests.integration.inside import in_json, run
from tests.integration.raw_server import RawServer, page

SLOGANS = ["Nothing beats good wood.", "Sit down, stay a while.", "Made to be inherited."]
STOOL = "The walnut stool is turned by hand and oiled twice in a small workshop by the sea."
CARE = "Wipe it with a damp cloth, and oil it once a year with the oil that you get with it."
SHIPPING = "It ships within two days to all of Europe, in a box that is made of old paper."
PATHS = [f"/item/{n}" for n in range(10)]


def article(title: str, *paragraphs: str) -> str:
    text = "".join(f"<p>{paragraph}</p>" for paragraph in paragraphs)
    head = f"<!DOCTYPE html><html><head><title>{title}</title></head>"
    return f"{head}<body><article><h1>{title}</h1>{text}</article></body></html>"


@pytest.fixture
def server() -> Iterator[RawServer]:
    with RawServer() as running:
        yield running


@pytest.fixture
def site(freshet: Freshet, server: RawServer) -> Path:
    """Define a site of one page."""
    return freshet.wrapper("shop", start_urls=[f"{server.url}/item/0"], item_pages="/item/")


def stool(slogan: str, *, care: str = CARE) -> bytes:
    return page(article("Stool", STOOL, care, slogan, SHIPPING))


def crawl(freshet: Freshet, site: Path, visit: int) -> Result:
    return freshet.crawl(site, "-a", "full=1", hours=12 * visit)


def found(database: Db) -> list[str]:
    """Return the outcomes of the visits of items, oldest first."""
    return [row["outcome"] for row in visits(database, target={"$regex": "/item/"})]


def test_random_slogan_stops_to_be_a_change_and_edits_around_it_are_found(
    freshet: Freshet, database: Db, server: RawServer, site: Path
) -> None:
    """The third visit asks twice, because the page changed on both visits after the first.

    The fourth asks twice to confirm that the text is random.
    """
    edited = CARE.replace("damp", "dry")
    server.answers["/item/0"] = [
        *(stool(SLOGANS[n % 3]) for n in range(8)),
        stool(SLOGANS[0], care=edited), stool(SLOGANS[2], care=edited),
        stool(SLOGANS[1], care=edited), stool(SLOGANS[0]),
    ]  # fmt: skip
    for visit in range(9):
        crawl(freshet, site, visit)
    assert found(database) == [
        "new", "changed", "changed", "unchanged", "unchanged",
        "unchanged", "changed", "unchanged", "changed",
    ]  # fmt: skip
    fourth = visits(database)[3]
    assert fourth["reason"] == "differs only in random text"
    assert server.asked.count("/item/0") == 13
    assert_reported(freshet, second_requests=4, hours=12 * 8 + 1)


def assert_reported(freshet: Freshet, second_requests: int, hours: int) -> None:
    """Check that plans report the second requests of the last week."""
    not_counted = f"{second_requests} second requests in the last week, for random text"
    replanned = run(freshet, "replan", "--budget", "4", hours=hours)
    (line,) = [line for line in replanned.out.splitlines() if "not counted" in line]
    assert line.strip().split(None, 2)[2] == not_counted
    assert f"not counted: {not_counted}" in run(freshet, "plan", hours=hours, COLUMNS=200).out
    assert in_json(freshet, "plan", hours=hours)["second_requests"] == second_requests
    assert in_json(freshet, "plan", hours=hours + 7 * 24)["second_requests"] == 0


def test_text_that_is_the_same_for_both_requests_goes_on_to_be_a_change(
    freshet: Freshet, database: Db, server: RawServer, site: Path
) -> None:
    states = ["In stock", "Sold out", "In stock", "Sold out", "In stock"]
    for visit, state in enumerate(states):
        server.answers["/item/0"] = stool(state)
        crawl(freshet, site, visit)
    assert found(database) == ["new", "changed", "changed", "changed", "changed"]


def test_returning_field_is_a_change_even_if_each_request_shows_another_value(
    freshet: Freshet, database: Db, server: RawServer
) -> None:
    keys = {"start_urls": [f"{server.url}/item/0"], "item_pages": "/item/"}
    site = freshet.wrapper("shop", main_text=True, fields={"price": "b"}, **keys)
    server.answers["/item/0"] = [
        page(article("Stool", STOOL, CARE, f"<b>{price}</b>")) for price in "ababb"
    ]
    for visit in range(4):
        crawl(freshet, site, visit)
    prices = [row["content"]["price"] for row in database.versions.find()]
    assert set(prices) == {"a", "b"}
    assert found(database) == ["new", "changed", "changed", "changed"]


def test_few_pages_are_requested_twice_if_none_has_random_text(
    freshet: Freshet, database: Db, server: RawServer
) -> None:
    """Each page changes on each visit, so all 30 have their turn on visits 2 and 5.

    On visit 5, the number of pages that were requested twice comes from the database.
    """
    paths = [f"/item/{n}" for n in range(30)]
    links = "".join(f'<a href="{path}">{path}</a>' for path in paths)
    server.answers["/list"] = page(f"<html><body>{links}</body></html>")
    site = freshet.wrapper("shop", start_urls=[f"{server.url}/list"], item_pages="/item/")
    more = []
    for visit in range(6):
        for path in paths:
            dish = f"The dish of the day is {'abcdef'[visit] * 3}."
            server.answers[path] = page(article(path, STOOL, CARE, dish))
        server.asked.clear()
        summary = crawl(freshet, site, visit).err
        more.append(sum("/item/" in path for path in server.asked) - len(paths))
        assert (f"; {more[-1]} second requests to find random text;" in summary) is bool(more[-1])
    assert Counter(found(database)) == {"new": 30, "changed": 150}
    assert [n for n in more if n] == [more[2], more[5]]
    counted = [run["counts"].get("second_requests", 0) for run in database.runs.find()]
    assert counted == more
    assert 5 <= more[2] <= 25
    assert 1 <= more[5] <= 20


def test_failed_second_request_leaves_the_change(
    freshet: Freshet, database: Db, server: RawServer, site: Path
) -> None:
    server.answers["/item/0"] = [
        stool(SLOGANS[0]), stool(SLOGANS[1]), stool(SLOGANS[2]),
        page("Busy", status="403 Forbidden"), stool(SLOGANS[2]),
    ]  # fmt: skip
    for visit in range(4):
        crawl(freshet, site, visit)
    assert found(database) == ["new", "changed", "changed", "unchanged"]


def test_run_reports_a_passage_that_changes_again_and_again(
    freshet: Freshet, database: Db, server: RawServer, site: Path
) -> None:
    """The tip of the day is the same for both requests, so it counts as a change."""
    for visit in range(6):
        server.answers["/item/0"] = stool(f"Tip of the day: {'abcdef'[visit]}.")
        result = freshet.crawl(site, "-a", "full=1", hours=24 * visit)
    assert found(database) == ["new", *["changed"] * 5]
    assert (
        f"shop: 1 page changed 5 times in a row in the same passage, for example {server.url}"
        "/item/0: 'Tip of the day: f.'"
    ) in result.err
    assert "exclude it with ignore = ['SELECTOR']" in result.err


def test_run_reports_a_field_of_which_only_a_random_part_changes(
    freshet: Freshet, server: RawServer
) -> None:
    fields = {"title": "h1", "plan": {"css": "a::attr(href)"}, "file": "b"}
    start = f"{server.url}/list"
    site = freshet.wrapper("town", start_urls=[start], item_pages="/item/", fields=fields)
    server.answers["/list"] = page("".join(f"<a href={path}>x</a>" for path in PATHS))
    for visit, session in enumerate(("8c1f0a7e55d24b3a9", "0b9e3c6d11fa47c2d")):
        for path in PATHS:
            link = f"<a href=/plan.pdf?PHPSESSID={session}>Plan</a><b>plan-2026-0{visit}.pdf</b>"
            server.answers[path] = page(f"<h1>{path}</h1>{link}")
        result = freshet.crawl(site, "-a", "full=1", hours=24 * visit)
    assert (
        f"town: field plan: only a random part changed on 10 pages, for example {server.url}/item/"
    ) in result.err
    assert "field file" not in result.err


def test_invisible_characters_are_no_change(
    freshet: Freshet, database: Db, server: RawServer
) -> None:
    paths = dict(zip(PATHS, ("\u200b", "\u00ad", "\ufeff"), strict=False))
    starts = [f"{server.url}{path}" for path in paths]
    site = freshet.wrapper("shop", start_urls=starts, item_pages="/item/", fields={"a": "p"})
    texts = ["a walnut stool", "a wal{}nut stool", "a\u00a0walnut stool", "an oak stool"]
    for visit, text in enumerate(texts):
        server.answers |= {path: page(f"<p>{text.format(x)}</p>") for path, x in paths.items()}
        crawl(freshet, site, visit)
    for url in starts:
        seen = [visit["outcome"] for visit in visits(database, target=url)]
        assert seen == ["new", "unchanged", "unchanged", "changed"], url


VACANCIES = [f"Vacancy {letter}: apply by mail to the office" for letter in "ABCDEFGHIJKL"]


def vacancies(seed: int, names: list[str] = VACANCIES) -> bytes:
    order = names.copy()
    Random(seed).shuffle(order)
    items = "".join(f"<li>{name}</li>" for name in order)
    text = f"<h1>Vacancies</h1><p>These are the open positions of this week.</p><ul>{items}</ul>"
    return page(f"<!DOCTYPE html><html><body><main>{text}<p>{CARE}</p></main></body></html>")


def test_list_in_random_order_stops_to_be_a_change_as_the_log_says(
    freshet: Freshet, database: Db, server: RawServer, site: Path
) -> None:
    other = [*VACANCIES[:-1], "Vacancy Z: apply by phone"]
    server.answers["/item/0"] = [
        *(vacancies(n) for n in range(12)), *(vacancies(n, other) for n in range(12, 18)),
    ]  # fmt: skip
    logs = [crawl(freshet, site, visit).err for visit in range(14)]
    (said,) = (n for n, log in enumerate(logs) if "order of the lines, such as" in log)
    assert said <= 3
    after = found(database)[said:]
    assert after.count("changed") == 1, "only the edit"
    assert after[0] == "unchanged"


@pytest.mark.parametrize(
    "keys", [{"ignore_order": True}, {"fields": {"jobs": {"css": "li", "type": "list"}},
             "ignore_order": ["jobs"]}],
)  # fmt: skip
def test_ignore_order_compares_lines_and_lists_in_any_order(
    freshet: Freshet, database: Db, server: RawServer, keys: dict[str, object]
) -> None:
    site = freshet.wrapper("shop", start_urls=[f"{server.url}/item/0"], item_pages="/item/", **keys)
    edited = [*VACANCIES[:-1], "Vacancy Z: apply by phone"]
    server.answers["/item/0"] = [*(vacancies(n) for n in range(4)), vacancies(5, edited)]
    for visit in range(5):
        crawl(freshet, site, visit)
    assert found(database) == ["new", *["unchanged"] * 3, "changed"]


def test_order_of_a_single_text_cannot_be_ignored(freshet: Freshet, server: RawServer) -> None:
    keys = {"start_urls": [server.url], "item_pages": "/item/", "fields": {"title": "h1"}}
    site = freshet.wrapper("shop", **keys, ignore_order=["title"])
    refused = freshet.crawl(site, code=1)
    assert "ignore_order: 'title' is neither a field of type list" in refused.complaint
