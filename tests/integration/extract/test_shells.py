"""Pages that only a browser shows have an outcome of their own, and never replace a stored page."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.integration.harness import Db, Freshet, outcomes, visits
from tests.integration.raw_server import RawServer, page

SHELL = (
    "<html><head><title>Shop</title><script src=/app.js></script></head><body><noscript>"
    "You need to enable JavaScript to run this app.</noscript><div id=root></div></body></html>"
)
KETTLE = "<html><head><title>Kettle</title></head><body><h1>Kettle</h1><p>{}</p></body></html>"
WORDS = "It is made of polished copper, has an oak handle, holds two liters and whistles softly."


@pytest.fixture
def server() -> Iterator[RawServer]:
    with RawServer() as running:
        yield running


@pytest.mark.parametrize("fields", [{}, {"title": "h1", "price": "p.price"}])
def test_shell_does_not_replace_a_stored_page(
    freshet: Freshet, database: Db, server: RawServer, fields: dict[str, str]
) -> None:
    keys = {"start_urls": [f"{server.url}/item/0"], "item_pages": "/item/", "fields": fields}
    site = freshet.wrapper("shop", **keys)
    server.answers["/item/0"] = page(KETTLE.format(WORDS))
    freshet.crawl(site)
    before = database.posts.find_one()
    server.answers["/item/0"] = page(SHELL)
    run = freshet.crawl(site, "-a", "full=1", hours=1, code=1)
    assert outcomes(database) == {"new": 1, "shell": 1}
    reason = "a page that JavaScript fills, which Freshet does not run"
    assert visits(database)[-1]["reason"] == reason
    assert database.posts.find_one() == before
    assert "1 need JavaScript" in run.err
    assert "1 page without content in the HTML" in run.err
    server.answers["/item/0"] = page(KETTLE.replace("Kettle", "Pot").format(WORDS + " It is new."))
    freshet.crawl(site, "-a", "full=1", hours=2)
    assert visits(database)[-1]["outcome"] == "changed"


def test_page_with_values_for_search_engines_is_read(
    freshet: Freshet, database: Db, server: RawServer
) -> None:
    offer = '{"@type": "Product", "name": "Kettle", "offers": {"price": 9, "priceCurrency": "EUR"}}'
    data = f"<script type=application/ld+json>{offer}</script></head>"
    server.answers["/item/0"] = page(SHELL.replace("</head>", data))
    keys = {"start_urls": [f"{server.url}/item/0"], "item_pages": "/item/"}
    freshet.crawl(freshet.wrapper("shop", **keys))
    assert outcomes(database) == {"new": 1}


def test_shells_are_named_by_check_run_and_doctor(
    freshet: Freshet, database: Db, server: RawServer
) -> None:
    links = "".join(f"<a href=/item/{n}>{n}</a>" for n in range(3))
    server.answers |= {
        "/": page(f"<html><body>{links}<p>{WORDS}</p></body></html>"),
        "/item/0": page(SHELL), "/item/1": page(KETTLE.format(WORDS)),
        "/item/2": page("<html><body><script>location.replace('/item/9')</script></body></html>"),
        "/list": page(SHELL),
    }  # fmt: skip
    keys = {"start_urls": [f"{server.url}/"], "item_pages": "/item/", "list_pages": "/list"}
    site = freshet.wrapper("shop", **keys)
    urls = [f"{server.url}{path}" for path in ("/item/0", "/item/2", "/list")]
    check = freshet("wrapper", "check", site, *urls)
    assert check.code == 1
    shown = " ".join(check.out.split())
    assert shown.count("shell: a page that JavaScript fills") == 2
    assert f"only redirects by JavaScript, to {server.url}/item/9. Use that URL" in shown
    assert "no problems found" not in shown
    run = freshet.crawl(site)
    assert outcomes(database) == {"new": 2, "shell": 2}
    assert "2 need JavaScript" in run.err
    doctor = " ".join(freshet("doctor", "--spider", site).out.split())
    assert "2 pages without content before scripts run" in doctor
    assert database.targets.count_documents({"outcome": "shell"}) == 2
