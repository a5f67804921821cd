"""Warnings after a run in which no link matched or no item was found."""

from __future__ import annotations

from typing import Any

from crawler.frontier.lifecycle import never_found, no_items, no_match, nothing_read
from crawler.items import LinkCounts
from tests.unit.pages import SITE, wrapper

TAGS = dict.fromkeys(f"{SITE}{path}" for path in ("about", "tag/a", "tag/b", "tag/c", "tag/d"))


def test_unmatched_links_are_reported_with_common_examples() -> None:
    counts = {"pages with links": 3, "links": 1214}
    assert no_match(["item_pages"], counts, LinkCounts(unmatched=TAGS)) == (
        "no link matched item_pages (1,214 links seen on 3 pages, for example "
        f"{SITE}tag/a and {SITE}about); try patterns with scrapy wrapper check"
    )


def test_no_example_if_all_links_match_the_other_pattern() -> None:
    message = no_match(["item_pages"], {"pages with links": 1, "links": 1}, LinkCounts())
    assert message.startswith("no link matched item_pages (1 link seen on 1 page);")


def test_foreign_links_are_reported_with_an_example() -> None:
    links = LinkCounts(examples={"foreign links": "https://b.example/x"})
    counts = {"pages with links": 1, "foreign links": 57}
    message = no_match(["list_pages", "item_pages"], counts, links)
    assert message == (
        "no link matched list_pages or item_pages (57 links seen on 1 page, all to other hosts, "
        "for example https://b.example/x); to follow them, add the hosts to allowed_domains"
    )


def test_pages_without_links_are_reported() -> None:
    message = no_match(["item_pages"], {"pages with links": 1}, LinkCounts())
    assert "no links on 1 page" in message
    assert "does not run scripts" in message


def test_page_that_asks_for_a_password_is_named() -> None:
    login = LinkCounts(examples={"pages with links": f"{SITE}login"})
    hint = (
        f"{SITE}login asks for a password; if the site requires one, add headers or cookies to the "
        "site definition"
    )
    counts = {"pages with links": 1}
    assert no_match(["item_pages"], counts, login) == (
        f"no link matched item_pages (no links on 1 page): {hint}"
    )
    line = no_match(["item_pages"], {**counts, "links": 2}, login)
    assert line.endswith(f"; try patterns with scrapy wrapper check; {hint}")


def test_redirect_to_a_page_without_links_is_named() -> None:
    consent = LinkCounts(examples={"links": f"{SITE} redirects to {SITE}privacy/gate"})
    hint = (
        f"{SITE} redirects to {SITE}privacy/gate; if that page asks visitors to sign in or to "
        "accept cookies, add headers or cookies to the site definition"
    )
    counts = {"pages with links": 1}
    assert no_match(["item_pages"], counts, consent) == (
        f"no link matched item_pages (no links on 1 page): {hint}"
    )
    assert no_match(["item_pages"], {**counts, "links": 2}, consent).endswith(f"check; {hint}")


def test_failed_runs_are_explained_by_the_reason() -> None:
    def hint(reason: str) -> str:
        return nothing_read({"visits": 1, "error": 1}, f"{SITE}: {reason}").partition("again. ")[2]

    assert hint("timeout") == "scrapy doctor checks whether the sites can be reached"
    assert hint("not a text page: application/pdf") == (
        "start_urls have to be HTML pages, sitemaps or JSON"
    )
    assert hint("redirects to https://consent.example/?to=1") == (
        "If the site has moved, change start_urls or allowed_domains; if that page asks visitors "
        "to sign in or to accept cookies, add headers or cookies to the site definition"
    )


def test_run_without_items_explains_the_cause() -> None:
    failed = {"visits": 3, "error": 2.0, "gone": 1}
    refused = nothing_read({"visits": 3, "error": 2.0, "blocked": 1}, "http://a.test/: timeout")
    assert refused.startswith(
        "nothing could be read: 2 visits failed, 1 refused, for example http://a.test/: timeout; "
    )
    assert no_items(failed) == "no items found: 3 pages fetched, none read (2 failed, 1 gone)"
    items = {"visits": 41, "error": 40, "new": 1, "item pages": 40}
    assert no_items(items) == "no items found: 40 item pages fetched, none read (40 failed)"
    assert no_items({"visits": 1, "new": 1}) == "no items found on 1 page"


def test_empty_field_is_reported_with_its_selector() -> None:
    def warning(name: str, **keys: Any) -> str:
        return never_found(wrapper(**keys), name, 40)

    assert warning("price", fields={"price": ".prise"}) == (
        "field price: nothing found on 40 of 40 pages (selector .prise)"
    )
    assert warning("price", fields={"price": {"xpath": "//b"}}).endswith("(selector //b)")
    assert warning("main_text") == "main_text: nothing found on 40 of 40 pages"


def test_field_names_include_those_of_main_text() -> None:
    assert wrapper().field_names == ("title", "main_text")
    assert wrapper(fields={"title": "h1", "b": "b"}).field_names == ("title", "b")
    assert wrapper(fields={"b": "b"}, main_text=True).field_names == ("b", "title", "main_text")
