"""Adding and editing sites in the web app."""

from __future__ import annotations

import asyncio
import json
import re
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from crawler.config import Config
from crawler.extract.site_definition import Wrapper
from crawler.extract.stored_definition import edited_toml, toml_of
from crawler.storage import sites
from crawler.storage.store import opened
from crawler.web.options import WebOptions
from crawler.web.site_pages import SitePages
from spiders.probe import fetch_pages
from tests.conftest import Databases
from tests.integration.harness import Db
from tests.integration.web.browser import NOW, Browser, browsers_of
from tests.site.running import RunningFolder

HOME = "https://shop.example/"
EDITING = re.compile(r'name="digest" value="(\w*)"')
TITLES = ("Green tea from Uji", "Black tea with bergamot", "A cup of oolong", "Mint and lemon")
HOSTILE = (
    "<script>window.evil = 1</script><img src=x onerror=alert(1)>"
    "<a href='javascript:alert(2)'>x</a>"
    "<svg onload=alert(3)><style>@import '//evil.example/x'</style></svg>"
    "<iframe src=//evil.example></iframe><form action=//evil.example><input name=q></form>"
    "<p style='background:url(//evil.example/y)' onclick=alert(4)>text</p>"
)


def item(number: int) -> str:
    return (
        f"<html><body><h1>{TITLES[number]}</h1><div class='product-info'>"
        f"<p class=price>€ {number + 1}.50</p><span class='stock level'>{number} left</span></div>"
        f"{HOSTILE}</body></html>"
    )


PAGES = {
    HOME: "<nav><a href=/about>About</a></nav><main><ul>"
    + "".join(f"<li class=card><a href=/product/tea-{n}/>{t}</a>" for n, t in enumerate(TITLES))
    + "</ul><a href=/category/tea/>Tea</a></main>",
    f"{HOME}category/tea/": "<a href=/product/other-tea-9/>Another long title of tea</a>"
    "<a href=/category/tea/page/2/>2</a>",
} | {f"{HOME}product/tea-{n}/": item(n) for n in range(4)}


class Site:
    """Fake page fetcher without a network; records the requests."""

    def __init__(self) -> None:
        self.pages = dict(PAGES)
        self.sitemaps: list[str] = []
        self.requests: list[str] = []
        self.definitions: list[dict[str, Any]] = []

    async def fetch(
        self, definition: dict[str, Any], urls: Sequence[str], config: Config
    ) -> list[dict[str, Any]]:
        self.requests += urls
        self.definitions.append(definition)
        return [
            {"url": url, "final_url": url, "text": self.pages.get(url, ""),
             "problem": None if url in self.pages else "the server responded with status 404",
             "sitemaps": self.sitemaps}
            for url in urls
        ]  # fmt: skip


@pytest.fixture
def site() -> Site:
    return Site()


@pytest.fixture
def local(stored: tuple[Db, str], site: Site) -> Iterator[Browser]:
    with browser_of(stored[1], site) as browser:
        yield browser


@contextmanager
def browser_of(uri: str, site: Site) -> Iterator[Browser]:
    with browsers_of(uri, WebOptions()) as make:
        make.app.state.site_pages = SitePages(Config.load(mongo_uri=uri), site.fetch)
        make.app.state.spider_names = frozenset({"books"})
        yield make(address="127.0.0.1")


@pytest.fixture(scope="module")
def sampled(databases: Databases) -> Iterator[Browser]:
    """Share a browser that has analyzed the site and fetched items; its tests store nothing."""
    site = Site()
    site.pages[f"{HOME}category/tea/"] += "<h2 class=heading>Loose tea</h2>"
    with databases() as (_, uri), browser_of(uri, site) as browser:
        begin(browser)
        browser.post("/setup/pages", form(browser, more="items"))
        yield browser


def form(browser: Browser, **values: Any) -> dict[str, Any]:
    """Return the form fields as the browser sends them."""
    empty = {"field_name": [], "field_selector": [], "field_language": [], "field_type": []}
    usual = {
        "csrf": browser.token("/setup"), "digest": "", "sample": "", "name": "shop",
        "start_urls": HOME, "timezone": "UTC", "item_pages": "/product/",
        "list_pages": "/category/",
    }  # fmt: skip
    return usual | empty | values


def fields(*rows: tuple[str, str, str]) -> dict[str, list[str]]:
    names, selectors, types = zip(*rows, strict=True)
    return {
        "field_name": list(names), "field_selector": list(selectors), "field_type": list(types),
        "field_language": ["css"] * len(rows),
    }  # fmt: skip


def begin(browser: Browser, url: str = HOME) -> httpx.Response:
    return browser.post("/setup", {"csrf": browser.token("/setup"), "url": url})


def save(browser: Browser, **values: Any) -> httpx.Response:
    return browser.post("/setup/sites", form(browser, **values))


def editing(browser: Browser) -> tuple[str, str]:
    """Return the page on which the site is edited, and the digest in its form."""
    page = browser.get("/setup/sites/shop").text
    digest = EDITING.search(page)
    assert digest
    return page, digest[1]


def definition(uri: str, name: str = "shop") -> dict[str, Any]:
    async def read() -> dict[str, Any]:
        async with opened(Config.load(mongo_uri=uri)) as db:
            return (await sites.definitions(db, [name]))[name].values

    return asyncio.run(read())


def test_first_page_requests_a_url(sampled: Browser) -> None:
    page = sampled.get("/setup")
    assert page.status_code == 200
    assert "URL of the site" in page.text
    assert "No site definition is stored yet" in page.text
    assert 'href="/setup"' in sampled.get("/").text


def test_url_is_analyzed_into_proposals(local: Browser, site: Site) -> None:
    response = begin(local, "shop.example")
    assert response.status_code == 303
    assert response.headers["location"] == "/setup/new?url=https%3A%2F%2Fshop.example%2F"
    assert site.requests[0] == HOME
    assert len(site.requests) <= 15
    page = local.get(response.headers["location"])
    assert page.status_code == 200
    assert 'data-pattern="^https?://[^/]+/product/[^/]+/?$"' in page.text
    assert 'data-pattern="^https?://[^/]+/category/[^/]+(?:/page/\\d+)?/?$"' in page.text
    assert 'name="name" value="shop"' in page.text
    assert "frame-src 'self'" in page.headers["content-security-policy"]


def test_another_port_is_another_site(local: Browser, site: Site) -> None:
    other = "https://shop.example:8443/"
    links = "".join(f"<li><a href={HOME}product/tea-{n}/>{t}</a>" for n, t in enumerate(TITLES))
    site.pages[other] = f"{PAGES[HOME].replace('/product/', '/ware/')}<main><ul>{links}</ul>"
    begin(local)
    new = local.get(begin(local, other).headers["location"]).text
    assert "/ware/" in new
    assert "/product/" not in new
    first = local.get("/setup/new", params={"url": HOME}).text
    assert "/product/" in first
    assert "/ware/" not in first


def test_a_host_without_a_scheme_may_have_no_https(local: Browser, site: Site) -> None:
    site.pages["http://plain.example/"] = site.pages[HOME]
    response = begin(local, "plain.example")
    assert response.headers["location"] == "/setup/new?url=http%3A%2F%2Fplain.example%2F"
    assert site.requests[:2] == ["https://plain.example/", "http://plain.example/"]


def test_sitemaps_in_robots_txt_are_offered_as_start_urls(local: Browser, site: Site) -> None:
    site.sitemaps = [HOME, f"{HOME}sitemap.xml"]
    shown = local.get(begin(local).headers["location"])
    assert "robots.txt names 1 sitemap" in shown.text
    assert f'data-use="start_urls" data-pattern="{HOME}sitemap.xml"' in shown.text
    csrf = {"Origin": local.origin, "X-CSRF-Token": local.token("/setup")}
    found = local.request("POST", "/api/v1/setup/proposals", json={"url": HOME}, headers=csrf)
    assert found.json()["sitemaps"] == [f"{HOME}sitemap.xml"]


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("", "Not a web address"),
        ("ftp://x.example/", "Not a web address"),
        ("https://a:b@shop.example/", "Not a web address"),
        ("https://[x/", "Not a web address"),
        ("http://127.0.0.1:27017/", "FRESHET_PRIVATE_HOSTS"),
        ("http://2130706433/", "FRESHET_PRIVATE_HOSTS"),
        ("http://[::1]/", "FRESHET_PRIVATE_HOSTS"),
        ("http://169.254.169.254/latest/", "FRESHET_PRIVATE_HOSTS"),
        ("https://shop.example/nope", "status 404"),
    ],
)
def test_rejected_url_stays_in_the_form(local: Browser, site: Site, url: str, problem: str) -> None:
    response = begin(local, url)
    assert response.status_code == 422
    assert problem in response.text
    assert f'value="{url}"' in response.text
    if "nope" not in url:
        assert site.requests == []


def test_the_preview_shows_what_each_pattern_matches(sampled: Browser) -> None:
    sent = form(sampled, item_pages="/product/\n/nothing/\n(?=x)", not_item_pages="tea-0")
    page = sampled.get("/setup/preview", params=sent)
    assert page.status_code == 200
    assert "look-ahead is not supported" in page.text
    valid = sampled.get("/setup/preview", params=sent | {"item_pages": "/product/"}).text
    assert "4 items" in valid, "not_item_pages excludes one of five"
    assert "https://shop.example/product/tea-1/" in valid
    assert "item_pages = &#34;/product/&#34;" in valid
    assert "&lt;h1" not in valid


def test_links_that_match_both_kinds_are_reported(sampled: Browser) -> None:
    page = sampled.get(
        "/setup/preview", params=form(sampled, list_pages="tea", item_pages="/product/")
    )
    assert "left out, as they would be both" in page.text
    assert "match list and item patterns" in page.text


def test_fields_show_their_values_on_other_pages(local: Browser, site: Site) -> None:
    begin(local)
    rows = fields(("title", "h1", "text"), ("price", ".price", "price"), ("bad", "h1[", "text"))
    before = len(site.requests)
    page = local.post("/setup/pages", form(local, more="items", **rows))
    assert page.status_code == 200
    for title in TITLES:
        assert title in page.text
    assert "€3.50" in page.text
    assert "bad selector" in page.text
    assert "status 404" in page.text, "the page that cannot be fetched is not reported"
    after = len(site.requests)
    assert after - before <= 6
    local.get("/setup/preview", params=form(local, **rows))
    assert len(site.requests) == after, "a preview fetched pages"


def test_a_clicked_element_becomes_a_field(sampled: Browser) -> None:
    urls = [f"{HOME}product/tea-{n}/" for n in range(4)]
    shown = sampled.get("/setup/frame", params={"url": urls[0]})
    number = re.search(r'<p class="price" data-n="(\d+)">€ 1.50', shown.text)
    assert number
    query = {"url": urls[0], "number": number[1], "sample": urls[1:]}
    field = sampled.get("/api/v1/setup/selector", params=query).json()
    assert field == {"name": "price", "selector": ".price", "type": "price"}
    missing = sampled.get("/api/v1/setup/selector", params=query | {"number": "99999"})
    assert missing.status_code == 404


def test_frame_has_no_active_content(sampled: Browser) -> None:
    url = f"{HOME}product/tea-0/"
    shown = sampled.get("/setup/frame", params={"url": url})
    assert shown.status_code == 200
    body = shown.text.partition("<body>")[2]
    for word in ("script", "onerror", "onclick", "href", "src", "style", "evil", "iframe", "form"):
        assert word not in body, word
    assert "text" in body
    policy = shown.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "sandbox allow-same-origin" in policy
    assert "script" not in policy
    assert shown.headers["x-frame-options"] == "SAMEORIGIN"
    assert sampled.get("/setup/frame", params={"url": "https://x.example/"}).status_code == 404


def test_new_site_is_saved_for_the_command_line(local: Browser, stored: tuple[Db, str]) -> None:
    begin(local)
    rows = fields(("title", "h1", "text"), ("price", ".price", "price"))
    response = save(local, not_item_pages="tea-0", **rows)
    assert response.status_code == 303
    assert response.headers["location"] == "/sites/shop?added=true"
    assert definition(stored[1]) == {
        "name": "shop", "start_urls": [HOME], "list_pages": "/category/",
        "item_pages": "/product/", "not_item_pages": "tea-0",
        "fields": {"title": "h1", "price": {"css": ".price", "type": "price"}},
    }  # fmt: skip
    page = local.get("/sites/shop?added=true")
    assert "scrapy crawl shop" in page.text
    assert 'action="/sites/shop/run"' in page.text
    assert 'href="/sites/shop"' in local.get("/").text
    (start,) = local.get("/api/v1/sites/shop/targets").json()["targets"]
    assert start["url"] == HOME
    assert ">shop</bdi>" in local.get("/setup").text
    assert stored[0].audit.find_one({"detail": "site definition shop"})


def test_draft_of_a_shop_needs_only_to_be_saved(local: Browser, site: Site) -> None:
    page = local.get(begin(local).headers["location"]).text
    assert re.search(r"A shop: <b>5 items</b> so far", page)
    assert "Green tea from Uji, " in re.sub("</?bdi>", "", page)
    csrf = {"Origin": local.origin, "X-CSRF-Token": local.token("/setup")}
    answer = local.request("POST", "/api/v1/setup/proposals", json={"url": HOME}, headers=csrf)
    draft = answer.json()["draft"]
    assert draft["item_pages"] == ["^https?://[^/]+/product/[^/]+/?$"]
    assert draft["list_pages"] == ["^https?://[^/]+/category/[^/]+(?:/page/\\d+)?/?$"]
    assert [(each["name"], each["type"]) for each in draft["fields"]] == [
        ("title", "text"), ("price", "price"), ("stock", "text"),
    ]  # fmt: skip
    saved = local.request(
        "PUT", "/api/v1/setup/sites/shop", json={"definition": draft}, headers=csrf
    )
    assert saved.is_success, saved.text


def test_site_is_told_of_from_its_first_day(local: Browser, database: Db) -> None:
    empty = local.get("/setup/alert").text
    assert 'href="/notifications/channels/new"' in empty
    team = {
        "csrf": local.token("/notifications/channels/new?service=webhook"), "service": "webhook",
        "name": "team", "url": "https://hooks.example/x",
    }  # fmt: skip
    assert local.post("/notifications/channels", team).is_success
    assert "<option>team</option>" in local.get("/setup/alert").text
    wrong = save(local, alert_what="falls", alert_percent="much", alert_channel="team")
    assert wrong.status_code == 422
    assert "not a number, such as 5" in wrong.text
    assert database.sites.count_documents({}) == 0
    assert save(local, alert_what="falls", alert_percent="7", alert_channel="team").is_redirect
    (rule,) = local.get("/api/v1/notifications/rules").json()["rules"]
    assert rule["rule"]["sites"] == ["shop"]
    assert rule["rule"]["when"] == ["price falls by 7 %"]
    assert rule["rule"]["channels"] == ["team"]


def test_duplicate_keeps_all_keys_under_another_name(
    local: Browser, stored: tuple[Db, str]
) -> None:
    save(local, delay_seconds="2", robots="false")
    page = local.get("/setup/copy/shop")
    assert 'name="name" value="shop-2"' in page.text
    assert 'name="copy_of" value="shop"' in page.text
    assert save(local, name="shop-2", copy_of="shop", item_pages="/ware/").is_redirect
    copied, original = definition(stored[1], "shop-2"), definition(stored[1])
    assert copied == original | {"name": "shop-2", "item_pages": "/ware/"}
    assert save(local, name="shop", copy_of="shop").status_code == 409
    assert local.get("/setup/copy/nobody").status_code == 404


@pytest.mark.parametrize(
    ("html", "remark"),
    [
        ("<button>Load more products</button>", "loads more items when “Load more products”"),
        ("<a role=button href=#>Mehr anzeigen</a>", "loads more items when “Mehr anzeigen”"),
        ("<a href=/category/tea/page/2/>Show more</a>", None),
        ("<button>Read more about us</button>", None),
        ("<a href=/price-list.PDF>Prices</a>", "link to 1 document, such as a PDF"),
    ],
)
def test_what_is_not_seen_is_said(
    local: Browser, site: Site, html: str, remark: str | None
) -> None:
    site.pages[f"{HOME}category/tea/"] += html
    shown = local.get(begin(local).headers["Location"]).text
    assert ('class="notice warn"' in shown) == (remark is not None)
    assert remark is None or remark in shown


def test_unreadable_items_are_said_with_the_reason(local: Browser, site: Site) -> None:
    for number in range(4):
        del site.pages[f"{HOME}product/tea-{number}/"]
    shown = local.get(begin(local).headers["Location"]).text
    assert "cannot be read: the server responded with status 404" in shown


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({"name": ""}, "name"),
        ({"name": "../x"}, "name"),
        ({"name": "books"}, "a spider has this name"),
        ({"item_pages": ""}, "item_pages"),
        ({"item_pages": "("}, "bad regular expression"),
        ({"item_pages": "same", "list_pages": "same"}, "share the pattern"),
        ({"start_urls": "javascript:alert(1)"}, "not an absolute http or https URL"),
        ({"start_urls": "http://10.0.0.1/"}, "FRESHET_PRIVATE_HOSTS"),
        ({"timezone": "Mars/Base"}, "unknown time zone"),
        (fields(("at", "h1", "text")), "invalid or reserved field name"),
        (fields(("a", "h1", "text"), ("a", "h2", "text")), "two fields have the name"),
        (fields(("a", "h1[", "text")), "bad selector"),
    ],
)
def test_rejected_form_keeps_its_values(
    sampled: Browser, values: dict[str, Any], problem: str
) -> None:
    kept = {"list_pages": "/kept-<pattern>/"} | values
    response = save(sampled, **kept)
    assert response.status_code in (409, 422)
    assert problem in response.text.replace("&#39;", "'")
    if kept["list_pages"].startswith("/kept"):
        assert "/kept-&lt;pattern&gt;/" in response.text
    assert "<pattern>" not in response.text
    assert sampled.get("/api/v1/setup/sites").json() == {"names": []}


def test_concurrent_edit_is_rejected(local: Browser, stored: tuple[Db, str]) -> None:
    save(local)
    _, digest = editing(local)
    first = save(local, digest=digest, item_pages="/first/")
    assert first.status_code == 303
    second = save(local, digest=digest, item_pages="/second/")
    assert second.status_code == 409
    assert "somebody else changed this site definition" in second.text
    assert "/second/" in second.text, "the form lost its values"
    assert f'name="digest" value="{digest}"' in second.text, "a second attempt would be accepted"
    assert definition(stored[1])["item_pages"] == "/first/"
    again = save(local, name="shop")
    assert again.status_code == 409
    assert "a site with this name exists" in again.text


def test_edit_keeps_other_keys_and_file_comments(
    local: Browser, stored: tuple[Db, str], tmp_path: Path
) -> None:
    text = (
        '# Teas.\nname = "shop"\nstart_urls = ["https://shop.example/"]\n'
        "item_pages = '/p/\\d+' # numbers\ndelay_seconds = 2\n\n[fields]\n"
        'title = "h1" # heading\nprice = { css = ".p", type = "price" }\n'
    )
    path = tmp_path / "shop.toml"
    path.write_text(text)
    put(stored[0], path, tomllib.loads(text))
    _, digest = editing(local)
    rows = fields(("title", "h2", "text"), ("price", ".p", "price"), ("date", "time", "date"))
    response = save(local, digest=digest, item_pages="/p/\\d+", list_pages="/c/\n/d/", **rows)
    assert response.status_code == 303, response.text
    edited = path.read_text()
    for kept in ("# Teas.", "# numbers", "delay_seconds = 2", "'/p/\\d+'"):
        assert kept in edited
    expected = tomllib.loads(text) | {"list_pages": ["/c/", "/d/"]}
    expected["fields"] |= {"title": "h2", "date": {"css": "time", "type": "date"}}
    assert tomllib.loads(edited) == expected
    assert definition(stored[1]) == expected
    _, digest = editing(local)
    path.write_text(edited.replace("Teas", "Cups"))
    refused = save(local, digest=digest, item_pages="/x/")
    assert refused.status_code == 409, "a change of the file was overwritten"
    assert [each.name for each in tmp_path.iterdir()] == ["shop.toml"]


ALL = {
    "category": "/category/([^/]+)/", "category_by": "pattern", "main_text": "true",
    "delay_seconds": "2.5", "concurrency": "1", "robots": "true",
    "user_agent": "shop-bot (me@example.org)",
}  # fmt: skip


def test_category_main_text_and_politeness_are_saved(
    local: Browser, stored: tuple[Db, str]
) -> None:
    assert save(local, **ALL, **fields(("title", "h1", "text"))).status_code == 303
    saved = definition(stored[1])
    assert saved == {
        "name": "shop", "start_urls": [HOME], "list_pages": "/category/",
        "item_pages": "/product/", "category": {"pattern": "/category/([^/]+)/"},
        "main_text": True, "delay_seconds": 2.5, "concurrency": 1, "robots": True,
        "headers": {"User-Agent": "shop-bot (me@example.org)"}, "fields": {"title": "h1"},
    }  # fmt: skip
    wrapper = Wrapper.of(saved, "test")
    assert (wrapper.delay_seconds, wrapper.concurrency, wrapper.wants_main_text) == (2.5, 1, True)
    page, digest = editing(local)
    for shown in (
        'value="/category/([^/]+)/"', 'value="2.5"', 'value="shop-bot (me@example.org)"',
        '<option value="true" selected>always</option>', '<option value="pattern" selected>',
    ):  # fmt: skip
        assert shown in page
    assert save(local, digest=digest, **ALL, **fields(("title", "h1", "text"))).is_redirect
    assert definition(stored[1]) == saved, "an unchanged form changed the definition"
    _, digest = editing(local)
    empty = dict.fromkeys(ALL, "") | {"delay_seconds": "0", "robots": "false"}
    assert save(local, digest=digest, **empty).status_code == 303
    assert definition(stored[1]) == {
        "name": "shop", "start_urls": [HOME], "list_pages": "/category/",
        "item_pages": "/product/", "delay_seconds": 0, "robots": False,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({"delay_seconds": "soon"}, "not a number"),
        ({"delay_seconds": "-1"}, "must be at least 0"),
        ({"delay_seconds": "nan"}, "delay_seconds"),
        ({"concurrency": "65"}, "must be at most 64"),
        ({"concurrency": "1.5"}, "not a whole number"),
        ({"user_agent": "a\nX-Evil: 1"}, "contains a line break"),
        ({"user_agent": "bot ${MONGO_URI}"}, "variables such as ${NAME} cannot be added here"),
        ({"category": "h1[", "category_by": "css"}, "bad selector"),
        ({"category": "(?=x)", "category_by": "pattern"}, "look-ahead is not supported"),
        ({"category": "x", "category_by": "jmespath"}, "category"),
        ({"robots": "maybe"}, "neither true nor false"),
    ],
)
def test_invalid_value_stays_in_the_form(
    sampled: Browser, values: dict[str, str], problem: str
) -> None:
    response = save(sampled, **{**ALL, "list_pages": "/kept/", **values})
    assert response.status_code == 422
    assert problem in response.text.replace("&#39;", "'")
    assert "/kept/" in response.text
    (name, text) = next(iter(values.items()))
    if name not in ("robots", "user_agent"):
        assert f'value="{text}"' in response.text
    assert 'aria-invalid="true"' in response.text
    assert sampled.get("/api/v1/setup/sites").json() == {"names": []}


def test_environment_variables_are_kept_but_not_expanded(
    local: Browser, stored: tuple[Db, str], site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHOP_AGENT", "kept secret")
    headers = {"user-agent": "${SHOP_AGENT}", "Accept-Language": "fr"}
    put(stored[0], None, {"name": "shop", "start_urls": [HOME], "item_pages": "x",
                          "headers": headers})  # fmt: skip
    page, digest = editing(local)
    assert "kept secret" not in page
    shown = {"user_agent": "${SHOP_AGENT}", "digest": digest}
    assert save(local, **shown).status_code == 303
    assert definition(stored[1])["headers"] == headers
    begin(local)
    before = len(site.requests)
    stolen = form(local, more="lists", user_agent="${MONGO_URI}")
    assert local.post("/setup/pages", stolen).status_code == 422
    assert len(site.requests) == before
    _, digest = editing(local)
    assert save(local, digest=digest, user_agent="mine").status_code == 303
    assert definition(stored[1])["headers"] == {"Accept-Language": "fr", "user-agent": "mine"}


SECRET = {
    "name": "shop", "start_urls": ["https://shop.example/", "http://old.shop.example/"],
    "item_pages": "/product/", "list_pages": "/category/", "allowed_domains": ["shop.example"],
}  # fmt: skip


@pytest.mark.parametrize(
    "secrets",
    [
        {"headers": {"Authorization": "Bearer ${SHOP_KEY}"}},
        {"headers": {"User-Agent": "bot ${SHOP_KEY}"}},
        {"cookies": {"lang": "${SHOP_KEY}"}},
    ],
)
@pytest.mark.parametrize(
    "starts",
    [
        "https://evil.example/",
        "https://shop.example/\nhttps://evil.example/",
        "https://shop.example.evil.example/",
        "https://shop.example:8443/",
        "http://shop.example/",
        "http://old.shop.example/",
    ],
)
def test_secrets_stay_with_the_places_they_were_written_for(
    local: Browser, database: Db, site: Site, secrets: dict[str, Any], starts: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setenv("SHOP_KEY", "k3y")
    put(database, None, SECRET | secrets)
    _, digest = editing(local)
    sent = {"digest": digest, "start_urls": starts}
    for more in ("items", "lists"):
        fetched = local.post("/setup/pages", form(local, more=more, **sent))
        assert fetched.status_code == 422
        assert "may be secret" in fetched.text
    saved = save(local, **sent)
    assert saved.status_code == 422
    assert "may be secret" in saved.text
    edit = {"name": "shop", "start_urls": starts.split(), "item_pages": ["/product/"]}
    csrf = {"Origin": local.origin, "X-CSRF-Token": local.token("/setup")}
    for method, path in (("PUT", "sites/shop"), ("POST", "pages")):
        body = {"definition": edit, "digest": digest}
        answer = local.request(method, f"/api/v1/setup/{path}", json=body, headers=csrf)
        assert answer.status_code == 422, path
        assert "may be secret" in answer.text
    assert site.requests == []
    assert json.loads(database.sites.find_one({"_id": "shop"})["definition"]["keys"]) == (
        SECRET | secrets
    )


def test_secrets_do_not_move_to_cells(local: Browser, database: Db) -> None:
    cell = {"url": "https://evil.example/", "css": "h1"}
    values = {
        "name": "shop", "start_urls": [HOME], "item_pages": "x", "cells": {"far": cell},
        "cookies": {"sid": "${SHOP_KEY}"},
    }  # fmt: skip
    put(database, None, values)
    _, digest = editing(local)
    saved = save(local, digest=digest, start_urls="", item_pages="", list_pages="")
    assert saved.status_code == 422
    assert "may be secret" in saved.text


def test_secrets_allow_other_pages_of_their_places(
    local: Browser, database: Db, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHOP_KEY", "k3y")
    put(database, None, SECRET | {"cookies": {"sid": "${SHOP_KEY}"}})
    _, digest = editing(local)
    starts = "https://www.shop.example/new\nhttps://tea.shop.example/"
    assert save(local, digest=digest, start_urls=starts).status_code == 303
    put(database, None, SECRET | {"name": "plain", "headers": {"Accept-Language": "fr"}})
    plain = local.get("/api/v1/setup/sites/plain").json()
    edit = plain["definition"] | {"start_urls": ["https://tea.example/"]}
    sent = {"definition": edit, "digest": plain["digest"]}
    csrf = {"Origin": local.origin, "X-CSRF-Token": local.token("/setup")}
    saved = local.request("PUT", "/api/v1/setup/sites/plain", json=sent, headers=csrf)
    assert saved.status_code == 200


def test_the_preview_shows_the_category_of_items(sampled: Browser) -> None:
    sent = form(sampled, category="/category/([^/]+)/", category_by="pattern")
    page = sampled.get("/setup/preview", params=sent).text
    assert '1 × <bdi class="outside">tea</bdi>' in page
    assert "4 × <span" in page, "items on the start page have a category"
    sent = form(sampled, category=".heading", category_by="css")
    page = sampled.get("/setup/preview", params=sent).text
    assert '1 × <bdi class="outside">Loose tea</bdi>' in page
    sent = form(sampled, category="All teas", category_by="text")
    assert "5 ×" in sampled.get("/setup/preview", params=sent).text
    broken = form(sampled, category="h1[", category_by="css")
    assert sampled.get("/setup/preview", params=broken).status_code == 200


def test_the_preview_shows_title_and_main_text(sampled: Browser) -> None:
    page = sampled.get("/setup/preview", params=form(sampled)).text
    assert "<bdi>main_text</bdi>" in page
    rows = fields(("price", ".price", "price"))
    assert "main_text" not in sampled.get("/setup/preview", params=form(sampled, **rows)).text
    both = sampled.get("/setup/preview", params=form(sampled, main_text="true", **rows)).text
    assert "<bdi>main_text</bdi>" in both
    assert TITLES[1] in both
    never = sampled.get("/setup/preview", params=form(sampled, main_text="false")).text
    assert "<bdi>main_text</bdi>" not in never


def test_pages_are_fetched_with_the_politeness_of_the_form(local: Browser, site: Site) -> None:
    begin(local)
    local.post("/setup/pages", form(local, more="items", **ALL))
    sent = site.definitions[-1]
    assert (sent["delay_seconds"], sent["concurrency"], sent["robots"]) == (2.5, 1, True)
    assert sent["headers"] == {"User-Agent": "shop-bot (me@example.org)"}
    wrong = form(local, more="items", **ALL | {"delay_seconds": "soon"})
    assert local.post("/setup/pages", wrong).status_code == 422, "fetched with an invalid delay"


def put(db: Db, path: Path | None, values: dict[str, Any], **more: Any) -> None:
    db.sites.insert_one(
        {"_id": values["name"], "timezone": "UTC", "visiting_hours": [], "blackout": [],
         "weight": 1.0, "weights": [], "cost": 1.0, "at": NOW,
         "definition": {"reader": "site", "keys": json.dumps(values), "file": path and str(path),
                        "withheld": [], "stored": NOW} | more}
    )  # fmt: skip


def test_pages_are_fetched_with_the_headers_of_the_site(
    local: Browser, database: Db, site: Site
) -> None:
    values = {
        "name": "shop", "start_urls": [HOME], "item_pages": "/product/",
        "headers": {"Accept-Language": "fr"}, "robots": False,
    }  # fmt: skip
    put(database, None, values)
    _, digest = editing(local)
    local.post("/setup/pages", form(local, digest=digest, more="items"))
    assert site.definitions[0]["headers"] == {"Accept-Language": "fr"}
    assert site.requests[0] == HOME


def test_definition_with_withheld_secrets_is_not_editable(local: Browser, database: Db) -> None:
    values = {"name": "shop", "start_urls": [HOME], "item_pages": "x"}
    put(database, Path("/nowhere/shop.toml"), values, withheld=["cookies.sid"])
    page = local.get("/setup/sites/shop")
    assert page.status_code == 422
    assert "may be secret" in page.text
    assert local.get("/setup/sites/nope").status_code == 404


def test_secrets_of_a_file_are_not_shown(
    local: Browser, stored: tuple[Db, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHOP_KEY", "third secret")
    text = (
        'name = "shop"\nstart_urls = ["https://shop.example/"]\nitem_pages = "/item/"\n\n'
        '[headers]\nX-Key = "first secret"\nX-Name = "${SHOP_KEY}"\nAccept-Language = "fr"\n\n'
        '[cookies]\nsid = "second secret"\n'
    )
    path = tmp_path / "shop.toml"
    path.write_text(text, encoding="utf-8")
    put(stored[0], path, {"name": "shop"}, withheld=["headers.X-Key", "cookies.sid"])
    page, api = local.get("/setup/sites/shop"), local.get("/api/v1/setup/sites/shop")
    preview = local.get("/setup/preview", params=form(local, digest=editing(local)[1]))
    for response in (page, api, preview):
        assert response.status_code == 200
        assert "first secret" not in response.text
        assert "second secret" not in response.text
        assert "${SHOP_KEY}" in response.text
    values = api.json()["definition"] | {"timezone": "Europe/Paris"}
    saved = local.request(
        "PUT", "/api/v1/setup/sites/shop",
        json={"definition": values, "digest": api.json()["digest"]},
        headers={"Origin": local.origin, "X-CSRF-Token": local.token("/setup")},
    )  # fmt: skip
    assert saved.status_code == 200
    assert "second secret" not in saved.text
    written = tomllib.loads(path.read_text(encoding="utf-8"))
    assert written["headers"]["X-Key"] == "first secret"
    assert written["cookies"] == {"sid": "second secret"}


def test_viewers_cannot_fetch_or_save(anna: Browser, vic: Browser) -> None:
    assert vic.get("/setup").status_code == 200
    token = vic.token("/account")
    for path in ("/setup", "/setup/pages", "/setup/sites"):
        response = vic.post(path, {"csrf": token, "url": HOME, "name": "shop"})
        assert response.status_code == 403, path
    put_response = vic.request(
        "PUT", "/api/v1/setup/sites/shop", json={"definition": {"name": "shop"}},
        headers={"Origin": vic.origin, "X-CSRF-Token": token},
    )  # fmt: skip
    assert put_response.status_code == 403


def test_json_api_proposes_matches_and_saves(local: Browser, stored: tuple[Db, str]) -> None:
    csrf = {"Origin": local.origin, "X-CSRF-Token": local.token("/setup")}
    found = local.request("POST", "/api/v1/setup/proposals", json={"url": HOME}, headers=csrf)
    assert found.status_code == 200, found.text
    item_page = found.json()["items"][0]["pattern"]
    new = {"name": "shop", "start_urls": [HOME], "item_pages": [item_page]}
    matched = local.request("POST", "/api/v1/setup/matches", json=new, headers=csrf).json()
    assert matched["n_items"] == 5
    path = "/api/v1/setup/sites/shop"
    saved = local.request("PUT", path, json={"definition": new}, headers=csrf)
    assert saved.status_code == 200, saved.text
    assert tomllib.loads(saved.json()["toml"])["item_pages"] == item_page
    assert local.get("/api/v1/setup/sites").json() == {"names": ["shop"]}
    digest = local.get(path).json()["digest"]
    edit = {"definition": new | {"list_pages": ["/c/"]}, "digest": digest}
    assert local.request("PUT", path, json=edit, headers=csrf).status_code == 200
    assert local.request("PUT", path, json=edit, headers=csrf).status_code == 409
    hidden = {"definition": new | {"proxy": "http://evil.example"}, "digest": digest}
    assert local.request("PUT", path, json=hidden, headers=csrf).status_code == 422


def test_the_json_api_fetches_samples_and_returns_values(local: Browser) -> None:
    begin(local)
    csrf = {"Origin": local.origin, "X-CSRF-Token": local.token("/setup")}

    def send(name: str, definition: dict[str, Any]) -> httpx.Response:
        body = {"definition": definition}
        return local.request("POST", f"/api/v1/setup/{name}", json=body, headers=csrf)

    shop = {
        "name": "shop", "start_urls": [HOME], "item_pages": ["/product/"],
        "list_pages": ["/category/"], "category": {"by": "text", "value": "Tea"},
        "fields": [{"name": "price", "selector": ".price", "type": "price"}],
    }  # fmt: skip
    before = send("values", shop).json()
    assert len(before["samples"]) == 4, "the samples are not the pages fetched for proposals"
    fetched = send("pages", shop).json()
    assert len(fetched["pages"]) == 4
    assert list(fetched["problems"].values()) == ["the server responded with status 404"]
    found = send("values", shop).json()
    assert found["samples"] == fetched["pages"]
    assert found["values"] == [
        {"name": "price", "values": ["€1.50", "€2.50", "€3.50", "€4.50"], "problem": None}
    ]
    assert found["categories"][0]["category"] == "Tea"
    wrong = send("values", {"robots": 3})
    assert wrong.status_code == 422
    schema = local.get("/api/openapi.json").json()
    response = schema["paths"]["/api/v1/setup/values"]["post"]["responses"]["200"]
    assert "SampleValues" in str(response)


def test_edit_keeps_keys_it_does_not_contain(local: Browser, stored: tuple[Db, str]) -> None:
    values = {
        "name": "shop", "start_urls": [HOME], "item_pages": "x", "delay_seconds": 3,
        "category": "Tea", "robots": False, "headers": {"User-Agent": "mine"},
    }  # fmt: skip
    put(stored[0], None, values)
    path = "/api/v1/setup/sites/shop"
    stored_site = local.get(path).json()
    assert stored_site["definition"]["category"] == {"by": "text", "value": "Tea"}
    edit = {"name": "shop", "start_urls": [HOME], "item_pages": ["y"], "robots": None}
    sent = {"definition": edit, "digest": stored_site["digest"]}
    assert local.request("PUT", path, json=sent).status_code == 200
    kept = {key: value for key, value in values.items() if key != "robots"}
    assert definition(stored[1]) == kept | {"item_pages": "y"}


def test_large_and_deep_pages_are_handled(local: Browser, site: Site) -> None:
    many = "".join(f"<a href=/product/{n}>{n}</a>" for n in range(200_000))
    site.pages[HOME] = many[:2_000_000]
    began = begin(local)
    assert began.status_code in (303, 422)
    deep = "<div>" * 5000 + "x"
    site.pages[f"{HOME}deep"] = deep
    assert begin(local, f"{HOME}deep").status_code == 303
    shown = local.get("/setup/frame", params={"url": f"{HOME}deep"})
    assert shown.status_code in (200, 422)


@pytest.mark.parametrize(
    ("html", "remark"),
    [
        ("<form><input type=password></form><a href=/forgot>x</a>", " asks for a password. "),
        ("<div id=root></div><script src=/main.js></script>", " has no links to its own site "),
        (PAGES[HOME] + "<input type='search'>", None),
        (PAGES[HOME] + "<input type=password>" + "<a href=/p/1>1</a>" * 9, None),
    ],
)
def test_unusual_first_pages_are_explained(
    local: Browser, site: Site, html: str, remark: str | None
) -> None:
    site.pages[HOME] = html
    began = begin(local)
    shown = local.get(began.headers["Location"]).text
    assert ('class="notice warn"' in shown) == (remark is not None)
    assert remark is None or remark in shown


@pytest.mark.soak
def test_documents_that_are_not_pages_are_explained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "feed.xml").write_text("<?xml version='1.0'?>\n<rss version='2.0'></rss>")
    (tmp_path / "api.json").write_text("{}")
    shell = "<div id=root></div><script src=/main.js></script>"
    (tmp_path / "shell.html").write_text(f"<html><body>{shell}</body></html>")
    (tmp_path / "robots.txt").write_text("")
    definition = {"name": "a", "start_urls": "http://shop.example/", "item_pages": "/a"}
    with RunningFolder({"shop.example": tmp_path}) as server:
        monkeypatch.setenv("http_proxy", server.url)
        config = Config.load(mongo_uri="mongodb://unused")
        urls = [f"http://shop.example/{name}" for name in ("feed.xml", "api.json", "shell.html")]
        pages = asyncio.run(fetch_pages(definition, urls, config))
    feed, api, filled = (page["problem"] or "" for page in pages)
    assert feed == "this is a feed, not a page. Add it on the page Feeds"
    assert api.startswith("not an HTML page: 'application/json")
    assert api.endswith("Enter a page with links, as a browser shows it")
    assert filled.startswith("this is a page that JavaScript fills, which Freshet does not run. ")
    assert "the URL of the data that the page loads" in filled


def test_pages_are_fetched_in_a_subprocess(
    stored: tuple[Db, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "index.html").write_text("<p><a href=/product/1>A product</a></p>")
    (tmp_path / "robots.txt").write_text("User-agent: *\nDisallow: /product/\nSitemap: /map.xml\n")
    with RunningFolder({"shop.example": tmp_path}) as server:
        monkeypatch.setenv("http_proxy", server.url)
        with browsers_of(stored[1], WebOptions()) as make:
            config = Config.load(mongo_uri=stored[1])
            make.app.state.site_pages = SitePages(config, fetch_pages)
            browser = make(address="127.0.0.1")
            assert begin(browser, "http://shop.example/").status_code == 303
            offered = browser.get("/setup/new?url=http%3A%2F%2Fshop.example%2F").text
        assert 'data-pattern="http://shop.example/map.xml"' in offered
        paths = [request["path"] for request in server.requests()]
    assert any("robots.txt" in path for path in paths)
    assert not any("/product/" in path for path in paths)


def test_pages_are_fetched_with_the_options_of_the_app() -> None:
    definition = {"name": "a", "start_urls": "http://127.0.0.1:9/", "item_pages": "/a"}
    config, url = Config.load(mongo_uri="mongodb://unused"), "http://127.0.0.1:9/a"
    (page,) = asyncio.run(fetch_pages(definition, [url], config, {"FRESHET_BUDGET": "none"}))
    assert "FRESHET_BUDGET: invalid request rate" in (page["problem"] or "")


@pytest.mark.soak
def test_pages_of_unlisted_private_hosts_are_refused() -> None:
    definition = {"name": "a", "start_urls": "http://127.0.0.1:9/", "item_pages": "/a"}
    config = Config.load(mongo_uri="mongodb://unused")
    (page,) = asyncio.run(fetch_pages(definition, ["http://127.0.0.2:9/a"], config))
    assert "127.0.0.2:9 is not on the public Internet" in (page["problem"] or "")


@pytest.mark.parametrize(
    "values",
    [
        {"name": "a", "item_pages": ["x'\\d", 'y"'], "fields": {"t": "h1"}},
        {"name": "a", "weights": {"/x/": 2.0}, "fields": {"t": {"xpath": "//a"}}, "robots": False},
    ],
)
def test_toml_round_trip(values: dict[str, Any]) -> None:
    assert tomllib.loads(toml_of(values)) == values
    assert tomllib.loads(edited_toml("[fields]\nold = 'x' # c\n", values)) == values
    assert edited_toml(toml_of(values), values) == toml_of(values)
