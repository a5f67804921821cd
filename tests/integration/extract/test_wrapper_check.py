"""`scrapy wrapper check`: a preview of patterns and selectors before anything is stored."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.integration.harness import Db, Freshet, Pages, Result

TAGS = [f"/tag/{word}/" for word in ("love", "life", "tea", "books")]


@pytest.fixture
def wrapper(freshet: Freshet, pages: Pages) -> Path:
    """Define a site with a wrong selector for prices."""
    items = [f"/item/{n}" for n in range(5)]
    pages.list("index.html", [*items, "/list/2", *TAGS, "/about", "https://other.example/"])
    for n, path in enumerate(items):
        pages.item(path, f"Item {n}")
    pages.file("/item/full.html", "<h1>Full</h1><b class=prise>5 EUR</b>")
    return freshet.wrapper(
        "shop",
        start_urls=[f"{pages.url}/index.html"],
        list_pages="/list/",
        item_pages="/item/",
        fields={"title": "h1", "price": ".prise"},
    )


def checked(freshet: Freshet, *args: object, code: int = 0) -> dict[str, Any]:
    """Run the check and return its JSON."""
    done = freshet("wrapper", "check", *args, "--json")
    assert (done.code, done.err) == (code, ""), done
    printed: dict[str, Any] = json.loads(done.out)
    return printed


def text(freshet: Freshet, *args: object, code: int = 0) -> str:
    """Run the check and return its text output."""
    done: Result = freshet("wrapper", "check", *args)
    assert (done.code, done.err) == (code, ""), done
    return done.out


def test_links_that_matched_no_pattern_are_grouped_by_shape(
    freshet: Freshet, pages: Pages, wrapper: Path, database: Db
) -> None:
    index = f"{pages.url}/index.html"
    report = checked(freshet, wrapper, index)
    assert report["problems"] == []
    assert report["unmatched"] == [
        {"text": "/tag/{word}/", "count": 4, "example": f"{pages.url}/tag/love/"},
        {"text": "/about", "count": 1, "example": f"{pages.url}/about"},
    ]
    (page,) = report["pages"]
    assert page["matches"] == "start_urls (list page)"
    assert (len(page["links"]["item"]), len(page["links"]["list"])) == (5, 1)
    shown = text(freshet, wrapper, index)
    assert f"  /tag/{{word}}/  ×4  for example {pages.url}/tag/love/\n" in shown
    assert "  1 link to other hosts\n" in shown
    assert shown.endswith("no problems found\n")
    names = database.list_collection_names(filter={"name": {"$ne": "meta"}})
    assert not [name for name in names if database[name].find_one()], "nothing is stored"


def test_a_field_that_no_item_page_has_is_a_problem(
    freshet: Freshet, pages: Pages, wrapper: Path
) -> None:
    urls = [f"{pages.url}/item/{n}" for n in range(3)]
    message = "field price: nothing found on 3 of 3 pages (selector .prise)"
    assert checked(freshet, wrapper, *urls, code=1)["problems"] == [message]
    shown = text(freshet, wrapper, *urls, code=1)
    assert shown.count("  price: nothing found (selector .prise)\n") == 3
    assert f"problem: {message}\n" in shown
    one_has_it = checked(freshet, wrapper, *urls, f"{pages.url}/item/full.html")
    assert one_has_it["problems"] == []
    assert [page["empty_fields"] for page in one_has_it["pages"]] == [["price"]] * 3 + [[]]


def test_a_url_that_matches_no_pattern_is_a_problem(
    freshet: Freshet, pages: Pages, wrapper: Path
) -> None:
    urls = [f"{pages.url}/about", "https://other.example/item/1", f"{pages.url}/list/item/1"]
    assert checked(freshet, wrapper, *urls, code=1)["problems"] == [
        f"{urls[0]}: matches neither list_pages nor item_pages",
        f"{urls[1]}: host is neither in start_urls nor in allowed_domains",
        f"{urls[2]}: matches both, so a crawl skips it",
    ]
    assert text(freshet, wrapper, urls[0], code=1).splitlines()[1:] == [
        urls[0],
        "  problem: matches neither list_pages nor item_pages",
    ]


def test_a_field_that_the_only_item_page_lacks_is_shown_once(
    freshet: Freshet, pages: Pages, wrapper: Path
) -> None:
    shown = text(freshet, wrapper, f"{pages.url}/item/1", code=1)
    assert shown.count("price: nothing found") == 1
    assert "no problems found" not in shown


def test_prices_are_shown_as_people_write_them(freshet: Freshet, pages: Pages) -> None:
    pages.file("/item/1.html", "<h1>Lamp</h1><b>€ 1.234,5</b>")
    site = freshet.wrapper(
        "shop",
        start_urls=[f"{pages.url}/item/1.html"],
        item_pages="/item/",
        fields={"price": {"css": "b", "type": "price"}},
    )
    assert "  price = €1,234.50\n" in text(freshet, site, f"{pages.url}/item/1.html")


def test_a_misspelled_spider_is_suggested(freshet: Freshet) -> None:
    done = freshet("wrapper", "check", "quores")
    assert done.code == 1
    assert "no file or spider with this name: 'quores'. Did you mean quotes?" in done.err


def test_list_page_without_matching_links_is_a_problem(
    freshet: Freshet, pages: Pages, wrapper: Path
) -> None:
    pages.list("/list/2", ["/index.html", "/about"])
    pages.list("/list/3", ["/list/item/1"])
    urls = [f"{pages.url}/list/{n}" for n in (2, 3)]
    assert checked(freshet, wrapper, *urls, code=1)["problems"] == [
        f"{urls[0]}: no link on this page except start_urls matches list_pages or item_pages",
        f"{urls[1]}: no link on this page matches only one of list_pages and item_pages",
    ]


def test_site_may_be_defined_by_arguments(freshet: Freshet, pages: Pages, wrapper: Path) -> None:
    index = f"{pages.url}/index.html"
    given = ("-a", "name=shop", "-a", f"start_urls={index}", "-a", r"item_pages=/item/\d+$")
    report = checked(freshet, "site", *given, index, f"{pages.url}/item/1")
    assert [page["matches"] for page in report["pages"]] == ["start_urls (list page)", "item_pages"]
    assert report["unmatched"][0]["text"] == "/tag/{word}/"
    wrong = (*given[:-1], "item_pages=/artikel/")
    (problem,) = checked(freshet, "site", *wrong, index, code=1)["problems"]
    assert problem == f"{index}: no link on this page matches list_pages or item_pages"


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("site",), "missing argument: name"),
        (("site", "-a", "nosuch=1"), "nosuch"),
        (("site", "-a", "name=x", "-a", "start_urls=x", "-a", "item_pages=/"), "start_urls"),
    ],
)
def test_bad_arguments_print_one_line(freshet: Freshet, words: tuple[str, ...], named: str) -> None:
    done = freshet("wrapper", "check", *words)
    assert done.code == 1
    assert named in done.complaint


def test_an_argument_without_a_value_is_wrong_usage(freshet: Freshet) -> None:
    done = freshet("wrapper", "check", "site", "-a", "name")
    assert done.code == 2
    assert "-a NAME=VALUE" in done.err


def test_output_for_many_links_is_short(freshet: Freshet, pages: Pages, wrapper: Path) -> None:
    pages.list("index.html", [f"/a{'z' * (n % 9)}/{'x/' * (n % 60)}{n}" for n in range(5000)])
    shown = text(freshet, wrapper, f"{pages.url}/index.html", code=1)
    assert "2,000 links matched no pattern, 3,000 more not examined:\n" in shown
    assert len(shown.splitlines()) < 40


def test_start_url_that_is_an_item_reports_skipped_links(
    freshet: Freshet, pages: Pages, wrapper: Path
) -> None:
    index = f"{pages.url}/index.html"
    given = ("name=shop", f"start_urls={index}", "item_pages=/i")
    words = [word for argument in given for word in ("-a", argument)]
    shown = text(freshet, "site", *words, index, code=1)
    assert "  matches start_urls (item page)\n" in shown
    assert "  5 matching links not followed, because this is an item page" in shown


def test_sitemaps_in_robots_txt_are_offered(freshet: Freshet, pages: Pages, wrapper: Path) -> None:
    index, sitemap = f"{pages.url}/index.html", f"{pages.url}/sitemap.xml"
    pages.file(
        "robots.txt", f"Sitemap: {index}\nSitemap: /sitemap.xml\nSitemap: http://b.example/s"
    )
    report = checked(freshet, wrapper, index, f"{pages.url}/item/full.html")
    assert report["sitemaps"] == [sitemap]
    shown = text(freshet, wrapper, index)
    assert f"robots.txt names a sitemap, which you can add to start_urls: {sitemap}\n" in shown
