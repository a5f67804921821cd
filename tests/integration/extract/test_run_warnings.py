"""A run warns if its patterns match nothing or its selectors find nothing."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.integration.harness import Db, Freshet, Pages, Result, outcomes, target
from tests.integration.inside import run

pytestmark = pytest.mark.soak

ITEMS = [f"/artikel/haus-{n}.html" for n in range(12)]
TAGS = [f"/tag/{word}/" for word in ("a", "bb", "cc", "dd")]
SITEMAP = '<urlset xmlns="http://www.sitemaps.org/schemas/sitemap/0.9">{0}</urlset>'
Definition = Callable[..., Path]


@pytest.fixture
def define(freshet: Freshet, pages: Pages) -> Definition:
    """Create a site of two lists and twelve items; return a function that writes its definition."""
    pages.list("index.html", [*ITEMS[:6], "/seite2.html", *TAGS])
    pages.list("seite2.html", [*ITEMS[6:], "/index.html"])
    for n, path in enumerate(ITEMS):
        pages.file(
            path, f"<h1>Haus {n}</h1><p class=price>{n + 1} EUR</p><i>{'rare' * (n < 2)}</i>"
        )

    def written(**keys: object) -> Path:
        usual: dict[str, object] = {
            "start_urls": [f"{pages.url}/index.html"],
            "list_pages": r"/seite\d",
            "item_pages": "/artikel/",
            "fields": {"title": "h1", "price": {"css": ".price", "type": "price"}},
        }
        return freshet.wrapper("shop", **usual | keys)

    return written


def warned(result: Result) -> list[str]:
    """Return the warnings at the end of a run, without the site's name."""
    lines = [
        line
        for line in result.err.splitlines()
        if "[crawler.frontier.session] WARNING: shop: " in line
    ]
    return [line.partition("WARNING: shop: ")[2] for line in lines]


def test_successful_run_does_not_warn(freshet: Freshet, define: Definition) -> None:
    for hours in (0, 7, 30):
        assert warned(freshet.crawl(define(), hours=hours)) == []


def test_item_pages_that_match_no_link_fail_the_run(
    freshet: Freshet, pages: Pages, database: Db, define: Definition
) -> None:
    result = freshet.crawl(define(item_pages=r"/artikel/\d+"), code=1)
    assert warned(result) == [
        f"no link matched item_pages (18 links seen on 2 pages, for example {pages.url}"
        f"{ITEMS[0]} and {pages.url}{TAGS[0]}); try patterns with scrapy wrapper check",
        "no items found on 2 pages",
    ]
    (done,) = database.runs.find()
    assert done["counts"]["links"] == 18
    assert done["counts"]["unmatched_links"] == 16


def test_login_page_in_place_of_the_start_page_is_named(
    freshet: Freshet, pages: Pages, define: Definition
) -> None:
    pages.file("index.html", "<h1>Log in</h1><form><input type=password name=p></form>")
    assert warned(freshet.crawl(define(), code=1))[0] == (
        "no link matched list_pages or item_pages (no links on 1 page): "
        f"{pages.url}/index.html asks for a password; if the site requires one, add headers or "
        "cookies to the site definition"
    )
    checked = freshet("wrapper", "check", define(), f"{pages.url}/index.html")
    assert checked.code == 1
    assert f"matches list_pages or item_pages; {pages.url}/index.html asks for" in checked.out


def test_consent_page_in_place_of_the_start_page_is_named(
    freshet: Freshet, pages: Pages, define: Definition
) -> None:
    refresh = '<meta http-equiv="refresh" content="0; url=/consent.html">'
    pages.file("index.html", f"<html><head>{refresh}</head><body></body></html>")
    pages.file("consent.html", "<h1>Before you continue</h1><button>Accept all</button>")
    assert warned(freshet.crawl(define(), code=1))[0] == (
        "no link matched list_pages or item_pages (no links on 1 page): "
        f"{pages.url}/index.html redirects to {pages.url}/consent.html; if that page asks visitors "
        "to sign in or to accept cookies, add headers or cookies to the site definition"
    )


def test_runs_fail_until_an_item_is_found(freshet: Freshet, define: Definition) -> None:
    wrong = define(item_pages=r"/artikel/\d+")
    freshet.crawl(wrong, code=1)
    again = freshet.crawl(wrong, "-a", "full=1", code=1)
    assert warned(again) == ["no items found on 2 pages"], "a 304 has no links"
    nothing_due = freshet.crawl(wrong)
    assert warned(nothing_due) == []
    assert warned(freshet.crawl(define(), "-a", "full=1")) == []


def test_list_pages_that_match_no_link_are_a_warning(
    freshet: Freshet, pages: Pages, define: Definition
) -> None:
    (line,) = warned(freshet.crawl(define(list_pages=r"/page\d")))
    assert line.startswith("no link matched list_pages (11 links seen on 1 page, for example ")
    assert f"{pages.url}{TAGS[0]}" in line


def test_broken_pattern_warns_and_keeps_known_items(
    freshet: Freshet, database: Db, define: Definition
) -> None:
    freshet.crawl(define())
    (line,) = warned(freshet.crawl(define(item_pages="/artikle/"), "-a", "full=1"))
    assert line.startswith("no link matched item_pages (18 links seen on 2 pages")
    assert database.posts.count_documents({}) == len(ITEMS)


def test_equivalent_pattern_does_not_warn(
    freshet: Freshet, pages: Pages, define: Definition
) -> None:
    freshet.crawl(define())
    pages.list("index.html", ["/about.html"])
    pages.list("seite2.html", [])
    edited = define(list_pages="/seite", item_pages="/artikel/haus")
    assert warned(freshet.crawl(edited, "-a", "full=1")) == []


def test_links_that_match_both_patterns_warn_once(
    freshet: Freshet, pages: Pages, define: Definition
) -> None:
    result = freshet.crawl(define(list_pages=r"/seite|\.html"), code=1)
    assert warned(result) == [
        f"12 links matched both list_pages and item_pages, for example {pages.url}{ITEMS[0]}; "
        "they are skipped until only one of the two matches",
        "no items found on 2 pages",
    ]
    assert "ERROR" not in result.err


def test_site_with_only_external_links_fails_the_run(
    freshet: Freshet, pages: Pages, define: Definition
) -> None:
    pages.list("index.html", ["https://other.example/1", "https://other.example/2"])
    first, _ = warned(freshet.crawl(define(), code=1))
    assert first.startswith(
        "no link matched list_pages or item_pages (2 links seen on 1 page, all to other hosts, "
        "for example https://other.example/1)"
    )


def test_a_site_that_cannot_be_read_fails_the_run(freshet: Freshet, define: Definition) -> None:
    missing = freshet.crawl(define(start_urls=["http://127.0.0.1:1/"]), code=1)
    (line,) = warned(missing)
    assert line.startswith(
        "nothing could be read: 1 visit failed, for example http://127.0.0.1:1/: "
    )
    assert line.endswith(
        "later runs try again. scrapy doctor checks whether the sites can be reached"
    )


def test_run_whose_visits_all_fail_exits_with_1_although_items_are_known(
    freshet: Freshet, pages: Pages, define: Definition
) -> None:
    freshet.crawl(define())
    pages.file("robots.txt", "User-agent: *\nDisallow: /\n")
    (line,) = warned(freshet.crawl(define(), "-a", "full=1", code=1))
    assert line.startswith("nothing could be read: 14 visits refused, for example ")
    assert ": Forbidden by robots.txt; such pages wait for an hour or longer." in line


def test_runs_of_a_few_pages_report_a_site_that_is_down(
    freshet: Freshet, pages: Pages, define: Definition
) -> None:
    freshet.crawl(define())
    pages.file("robots.txt", "User-agent: *\nDisallow: /\n")
    for minutes in (0, 10):
        hours = 25 + minutes / 60
        assert warned(freshet.crawl(define(), "-a", "limit=3", hours=hours)) == []
    (line,) = warned(freshet.crawl(define(), "-a", "limit=3", hours=25.3, code=1))
    assert line.startswith("nothing could be read: 3 visits refused, for example ")
    assert "; no page could be read since 2" in line


def test_retries_of_a_few_broken_pages_do_not_fail(
    freshet: Freshet, pages: Pages, define: Definition
) -> None:
    freshet.crawl(define())
    pages.file("robots.txt", f"User-agent: *\nDisallow: {ITEMS[0]}\nDisallow: {ITEMS[1]}\n")
    freshet.crawl(define(), hours=25)
    for hours in (26.1, 28.2):
        result = freshet.crawl(define(), "-a", "limit=2", hours=hours)
        assert warned(result) == []


def test_limited_run_does_not_fail(freshet: Freshet, database: Db, define: Definition) -> None:
    assert warned(freshet.crawl(define(), "-a", "limit=1")) == []
    assert outcomes(database) == {"new": 1}


def test_one_page_can_be_watched(freshet: Freshet, pages: Pages, database: Db) -> None:
    url = f"{pages.url}{ITEMS[0]}"
    pages.item(ITEMS[0], "Alone", ["/index.html"])
    words = ("name=shop", f"start_urls={url}", f"item_pages={url}")
    result = freshet("crawl", "site", *(word for given in words for word in ("-a", given)))
    assert (result.code, warned(result)) == (0, []), result.err
    assert target(database, url)["kind"] == "item"
    (post,) = database.posts.find()
    assert (post["url"], post["title"]) == (url, "Alone")


def test_start_url_becomes_item_if_item_pages_matches(
    freshet: Freshet, pages: Pages, database: Db, define: Definition
) -> None:
    url = f"{pages.url}{ITEMS[0]}"
    freshet.crawl(define(start_urls=[url], list_pages="/artikel", item_pages="/nowhere"), code=1)
    assert target(database, url)["kind"] == "list"
    freshet.crawl(define(start_urls=[url]))
    row = target(database, url)
    assert (row["kind"], row["start"]) == ("item", True)
    assert database.posts.distinct("title") == ["Haus 0"]


def test_list_matched_by_item_pages_is_a_warning(
    freshet: Freshet, pages: Pages, database: Db, define: Definition
) -> None:
    fields = {"title": "h2"}
    pages.list("index.html", [*ITEMS, "/about.html"], category="All")
    result = freshet.crawl(define(item_pages=r"\.html$", list_pages=[], fields=fields))
    assert warned(result) == [
        f"{pages.url}/index.html is an item because item_pages matches it, so 13 matching links "
        "on it are not followed; if it is a list of items, make list_pages match it or narrow "
        "item_pages"
    ]
    assert database.targets.count_documents({}) == 1


def test_sitemap_matched_by_item_pages_is_an_error(
    freshet: Freshet, pages: Pages, define: Definition
) -> None:
    entries = "".join(f"<url><loc>{pages.url}{path}</loc></url>" for path in ITEMS)
    pages.file("sitemap.xml", SITEMAP.format(entries))
    keys = {"start_urls": [f"{pages.url}/sitemap.xml"], "item_pages": "/"}
    result = freshet.crawl(define(**keys), code=1)
    assert "sitemap.xml: error: sitemap matched by item_pages: make list_pages" in result.err
    corrected = define(**keys | {"item_pages": "/artikel/", "list_pages": "sitemap"})
    assert warned(freshet.crawl(corrected, "-a", "full=1")) == []


def test_selector_that_finds_nothing_is_a_warning(
    freshet: Freshet, define: Definition, database: Db
) -> None:
    result = freshet.crawl(define(fields={"title": "h1", "price": ".prise"}))
    assert warned(result) == ["field price: nothing found on 12 of 12 pages (selector .prise)"]
    (done,) = database.runs.find()
    assert (done["counts"]["items_read"], done["counts"]["without_price"]) == (12, 12)


def test_run_fails_if_no_selector_finds_anything(freshet: Freshet, define: Definition) -> None:
    result = freshet.crawl(define(fields={"price": ".prise"}), code=1)
    assert warned(result) == [
        "field price: nothing found on 12 of 12 pages (selector .prise)",
        "no items found: 12 item pages fetched, none read (12 failed)",
    ]


def test_pages_rendered_by_scripts_are_a_warning(
    freshet: Freshet, pages: Pages, define: Definition
) -> None:
    for path in ITEMS:
        pages.file(path, "<html><head><title>App</title></head><body></body></html>")
    result = freshet.crawl(define(fields={}))
    assert warned(result) == ["main_text: nothing found on 12 of 12 pages"]


def test_rare_field_missing_on_one_page_does_not_warn(
    freshet: Freshet, pages: Pages, define: Definition
) -> None:
    fields = {"title": "h1", "rare": "i"}
    assert warned(freshet.crawl(define(fields=fields))) == []
    pages.list("index.html", [*ITEMS[:6], "/seite2.html", "/artikel/new.html"])
    pages.file("/artikel/new.html", "<h1>New</h1>")
    assert warned(freshet.crawl(define(fields=fields), hours=7)) == []


def test_redesigned_site_is_a_warning(freshet: Freshet, pages: Pages, define: Definition) -> None:
    freshet.crawl(define())
    for n, path in enumerate(ITEMS[:6]):
        pages.file(path, f"<h1>Haus {n}</h1><p class=cost>{n + 1} EUR</p>")
    (half,) = warned(freshet.crawl(define(), hours=30))
    assert half.startswith("6 pages lost fields that they had before, such as ")
    for path in ITEMS:
        pages.file(path, f"<h1>{path}</h1><p class=cost>5 EUR</p>")
    result = freshet.crawl(define(), hours=60)
    assert warned(result) == ["field price: nothing found on 12 of 12 pages (selector .price)"]


def test_warning_for_thousands_of_links_is_short(
    freshet: Freshet, pages: Pages, database: Db, define: Definition
) -> None:
    many = 30_000
    pages.list("index.html", [f"/x/{'y' * (n % 50)}{n}" for n in range(many)])
    result = freshet.crawl(define(), code=1)
    first, *_ = warned(result)
    assert first.startswith("no link matched list_pages or item_pages (30,000 links seen on 1 page")
    assert len(first) < 1000
    (done,) = database.runs.find()
    assert len(json.dumps(done, default=str)) < 2000


def test_workers_warn_once_for_all_of_them(
    freshet: Freshet, pages: Pages, database: Db, redis: str
) -> None:
    lists = [f"/seite{n}.html" for n in range(30)]
    pages.list("index.html", lists)
    for n, path in enumerate(lists):
        pages.list(path, [f"/artikel/haus-{n}-{k}" for k in range(4)])
    wrapper = freshet.wrapper(
        "shop", start_urls=[f"{pages.url}/index.html"], list_pages=r"/seite\d", concurrency=1,
        item_pages=r"/artikel/\d+", delay_seconds=0.02,
    )  # fmt: skip
    words = ("crawl", "site", "-a", f"wrapper={wrapper}")
    workers = [freshet.start(*words, REDIS_URL=redis) for _ in range(2)]
    done = []
    for worker in workers:
        out, err = worker.communicate(timeout=60)
        done.append(Result(worker.returncode, out, err))
    (done_run,) = database.runs.find()
    assert done_run["workers"] == 2
    assert sorted(result.code for result in done) == [0, 1], "the last worker fails"
    first, last = [line for result in done for line in warned(result)]
    assert first.startswith("no link matched item_pages (150 links seen on 31 pages, for example ")
    assert "/artikel/haus-" in first
    assert last == "no items found on 31 pages"
    assert 1 <= len(done_run["unmatched"]) <= 6, "each worker stores a few links"


def test_doctor_reports_fields_never_found(freshet: Freshet, define: Definition) -> None:
    broken = define(fields={"title": "h1", "price": ".prise"})
    freshet.crawl(broken)
    assert found_by_doctor(freshet, broken) == [
        ("fields", "warning", "price: not found in any of the newest 12 items (selector .prise)")
    ]
    fixed = define(fields={"title": "h1", "price": ".price"})
    assert found_by_doctor(freshet, fixed) == [], "no page was read with this selector yet"
    freshet.crawl(fixed, "-a", "full=1")
    assert found_by_doctor(freshet, fixed) == [
        ("fields", "ok", "all fields found in the newest 12 items")
    ]


def test_doctor_reports_sites_without_items(
    freshet: Freshet, pages: Pages, define: Definition
) -> None:
    wrong = define(item_pages=r"/artikel/\d+")
    assert found_by_doctor(freshet, wrong) == [], "not crawled yet"
    freshet.crawl(wrong, code=1)
    assert found_by_doctor(freshet, wrong) == [
        ("items", "warning", "no items collected in any finished run")
    ]


def found_by_doctor(freshet: Freshet, wrapper: Path) -> list[tuple[str, str, str]]:
    """Return the doctor's findings about items and their fields."""
    done = run(freshet, "doctor", "--quick", "--json", "--spider", wrapper)
    findings = json.loads(done.out)["findings"]
    wanted = [finding for finding in findings if finding["check"] in ("items", "fields")]
    return [(finding["check"], finding["status"], finding["found"]) for finding in wanted]


@pytest.mark.parametrize(
    ("other", "canonical", "fix"),
    [
        ("{0}?ref=list", "{0}", "add ref to strip_parameters"),
        ("{0}?b=1&id=7&ref=", "{0}?id=7", "add b, ref to strip_parameters"),
        ("/artikel/HAUS-{1}.html", "/artikel/haus-{1}.html", "use not_item_pages"),
        # The home page on all pages, one item on all pages, and URLs that are no items.
        ("{0}?ref=list", "/index.html", ""),
        ("{0}?ref=list", ITEMS[0], ""),
        ("{0}?ref=list", "{0}#top", "add ref to strip_parameters"),
        ("{0}?ref=list", "http://[", ""),
    ],
)
def test_run_warns_about_items_under_several_urls(
    freshet: Freshet, pages: Pages, database: Db, other: str, canonical: str, fix: str
) -> None:
    """The site links to both forms of the URL of each item; its pages state the canonical one."""
    links = []
    for n, path in enumerate(ITEMS):
        stated = canonical.format(path, n)
        page = f'<head><link rel="canonical" href="{stated}"></head><h1>Haus {n}</h1>'
        for link in (other.format(path, n), stated if "{" in canonical else path):
            links.append(link)
            if "?" not in link:
                pages.file(link.partition("#")[0], page)
        pages.file(path, page)
    pages.list("index.html", links)
    wrapper = freshet.wrapper(
        "shop", start_urls=[f"{pages.url}/index.html"], item_pages="/artikel/",
        fields={"title": "h1"},
    )  # fmt: skip
    lines = warned(freshet.crawl(wrapper))
    if not fix:
        assert lines == []
        return
    (line,) = lines
    assert line.startswith("12 items visited under another form of the URL that the page states")
    assert line.endswith(f"to visit each item once, {fix}")
    assert database.targets.count_documents({"kind": "item"}) == 24, "no item is left out"
