"""Pages that servers send with status 200 instead of the requested page."""

from __future__ import annotations

import pytest
from scrapy.http import JsonResponse

from crawler.extract.response import stand_in
from crawler.items import Outcome
from tests.unit.pages import SITE, page

PASSWORD = '<input type="password">'
ACCEPT = "<form><button class=ok>Accept all</button></form>"
SCRIPTS = "<p>Enable JavaScript and cookies to continue</p>"
TEXT = "<p>Wool, clay and oak from small workshops.</p>" * 40


def outcome(title: str, heading: str = "", rest: str = "", *, is_known: bool = True) -> str | None:
    html = f"<html><head><title>{title}</title></head><body><h1>{heading}</h1>{rest}</body></html>"
    found = stand_in(page(html), is_known=is_known)
    return None if found is None else str(found[0])


@pytest.mark.parametrize(
    ("title", "heading", "rest", "expected"),
    [
        ("Just a moment...", "shop.example", SCRIPTS, Outcome.BLOCKED),
        ("Shop", "Checking your browser before accessing shop.example", "", Outcome.BLOCKED),
        ("Access Denied", "Access Denied", "Reference #18.2f1", Outcome.BLOCKED),
        ("Shop", "Please verify you are human", '<div class="g-recaptcha">', Outcome.BLOCKED),
        ("Sign in – Shop", "", PASSWORD, Outcome.ERROR),
        ("Anmelden", "", PASSWORD, Outcome.ERROR),
        ("Shop", "We value your privacy", ACCEPT, Outcome.ERROR),
        ("Before you continue to Shop", "", "<button>I agree</button>", Outcome.ERROR),
        ("Datenschutz-Einstellungen", "", "<button>Alle akzeptieren</button>", Outcome.ERROR),
        ("503 Service Temporarily Unavailable", "", "", Outcome.ERROR),
        ("Shop", "We’ll be back soon!", "", Outcome.ERROR),
        ("Page not found | Shop", "", "", Outcome.GONE),
        ("Sorry, this product is no longer available.", "", "", Outcome.GONE),
        ("Shop", "This job has expired", "", Outcome.GONE),
        ("Dieser Artikel ist leider nicht mehr verf\u00fcgbar", "", "", Outcome.GONE),
        ("Cette annonce n\u2019est plus disponible", "", "", Outcome.GONE),
        ("Shop", "Oops! That page can’t be found.", "", Outcome.GONE),
        ("404 | Shop", "", "<p>We could not find this page. It may no longer exist.", Outcome.GONE),
        ("Seite nicht gefunden – Laden", "", "", Outcome.GONE),
    ],
)
def test_stand_ins_are_recognized_by_their_heading(
    title: str, heading: str, rest: str, expected: Outcome
) -> None:
    assert outcome(title, heading, rest) == expected


@pytest.mark.parametrize(
    ("title", "heading", "rest"),
    [
        ("Walnut stool | Shop", "Walnut stool", PASSWORD),
        ("Shop", "Walnut stool", "<h2>Login</h2>" + PASSWORD),
        ("Just a moment", "Just a moment", "<p>A song in three parts.</p>"),
        ("CAPTCHA", "CAPTCHA", "<p>A test with distorted letters.</p>"),
        ("Login", "Login", "<p>What a login is.</p>"),
        ("Cookie settings", "Cookie settings", "<p>How to accept cookies.</p>"),
        ("Walnut stool | Shop", "Walnut stool", f"<h2>We value your privacy</h2>{ACCEPT}"),
        ("Trousers - 501 | Shop", "", ""),
        ("Peugeot - 404", "404", "<p>A car of the 1960s."),
        ("Chain cleaning - Maintenance - Bikes", "", ""),
        ("Walnut stool", "", "<svg><title>Log in</title></svg>" + PASSWORD),
        ("How to fix Page not found", "Page not found in Apache", ""),
        ("Kettle | No longer available", "Kettle", ""),
        ("404", "Page not found", TEXT),
        ("Service unavailable", "", TEXT),
    ],
)
def test_other_pages_are_not(title: str, heading: str, rest: str) -> None:
    assert outcome(title, heading, rest) is None


def test_json_has_no_heading() -> None:
    json = JsonResponse(
        SITE, body=b'{"title": "404"}', headers={"Content-Type": "application/json"}
    )
    assert stand_in(json, is_known=True) is None


def test_menus_do_not_make_a_page_long() -> None:
    assert outcome("Page not found", "", f"<nav>{TEXT}</nav><footer>{TEXT}</footer>")


def test_links_to_other_items_do_not_make_a_missing_page_long() -> None:
    items = "<ul>" + "<li><a href=/item/2>Bowl of clay and oak, from a small workshop</a>" * 60
    assert outcome("Page not found", "", f"<p>We looked everywhere.</p>{items}") == Outcome.GONE
    described = "<li><a href=/item/2>Bowl</a> of clay and oak, from a small workshop" * 60
    assert outcome("Page not found", "", described) is None


def test_unread_pages_may_be_about_errors_and_logins_but_not_a_check_for_robots() -> None:
    assert outcome("Maintenance", is_known=False) is None
    assert outcome("Page not found", is_known=False) is None
    assert outcome("Log in", "", PASSWORD, is_known=False) is None
    assert outcome("Just a moment...", "", SCRIPTS, is_known=False) == Outcome.BLOCKED
