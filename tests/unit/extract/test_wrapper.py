"""The model of site definitions: accepted keys and error messages."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from crawler.errors import WrapperError
from crawler.extract.fields import number, price, text
from crawler.extract.site_definition import Wrapper
from crawler.extract.stored_definition import read_toml
from crawler.items import Kind
from spiders.wrapper import Arguments, WrapperSpider
from tests.unit.pages import SITE, wrapper

MINIMAL = {"name": "shop", "start_urls": SITE, "item_pages": "/item/"}


def error_of(keys: dict[str, Any], source: str = "shop.toml") -> str:
    """Return the error message for a site definition with these keys."""
    with pytest.raises(WrapperError) as caught:
        Wrapper.of(keys, source)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_name_start_url_and_pattern_are_sufficient() -> None:
    shop = Wrapper.of(MINIMAL, "shop.toml")
    assert shop.start_urls == (SITE,)
    assert shop.item_pages == ("/item/",)
    assert shop.timezone == "UTC"


@pytest.mark.parametrize("key", ["name", "start_urls", "item_pages"])
def test_required_keys_are_checked(key: str) -> None:
    keys = {name: value for name, value in MINIMAL.items() if name != key}
    assert error_of(keys) == f"shop.toml: {key}: is missing"


def test_all_problems_of_a_definition_are_named_in_one_line() -> None:
    keys = {"name": "x", "start_urls": "nonsense", "item_pages": "(", "robot": True}
    assert error_of(keys) == (
        "shop.toml: start_urls: 'nonsense' is not an absolute http or https URL; "
        "item_pages: bad regular expression '(': missing ); "
        "robot: unknown key. Did you mean robots?"
    )
    many = {f"key{n}": 1 for n in range(9)} | {"name": "x", "start_urls": [], "item_pages": "x"}
    assert error_of(many).endswith("; and 5 more")


def test_a_misspelled_key_is_named_rather_than_the_key_that_is_missing() -> None:
    keys = {"name": "shop", "start_urls": SITE, "item_page": "/item/"}
    assert error_of(keys) == "shop.toml: item_page: unknown key. Did you mean item_pages?"


@pytest.mark.parametrize(
    ("keys", "key", "cause"),
    [
        ({"lists": "/a"}, "lists", "unknown key"),
        ({"name": "my shop"}, "name", "Use letters"),
        ({"name": "../shop"}, "name", "Use letters"),
        ({"list_pages": "("}, "list_pages:", "bad regular expression '('"),
        ({"item_pages": ["/a", "["]}, "item_pages.1", "bad regular expression '['"),
        ({"item_pages": r"/item/(\d+$"}, "item_pages:", r"bad regular expression '/item/(\d+$'"),
        ({"item_pages": r"^/item/\d+$"}, "item_pages:", "matches no URL: "),
        ({"item_pages": []}, "item_pages", "at least 1"),
        ({"start_urls": []}, "start_urls", "at least 1"),
        ({"ignore": ".tip["}, "ignore", "bad selector '.tip['"),
        ({"ignore": ".tip::text"}, "ignore", "selects texts or attributes, not elements"),
        ({"ignore": ".tip", "fields": {"title": "h1"}}, "ignore", "only for main texts"),
        ({"start_urls": "shop.example"}, "start_urls:", "'shop.example' is not an absolute"),
        ({"start_urls": "a.example:81/x"}, "start_urls:", "Did you mean https://a.example:81/x?"),
        ({"start_urls": [SITE, "ftp://a/"]}, "start_urls.1", "not an absolute http or https"),
        ({"start_urls": ["http://a.test:0/"]}, "start_urls", "not an absolute http or https"),
        ({"start_urls": "http://a.example:99999/"}, "start_urls:", "http://a.example:99999/"),
        ({"timezone": "Europe/Lundun"}, "timezone", "unknown time zone: 'Europe/Lundun'"),
        ({"timezone": "../../etc/passwd"}, "timezone", "unknown time zone: "),
        ({"timezone": "Europe"}, "timezone", "unknown time zone: "),
        ({"fields": {"a": "h1["}}, "fields.a", "bad selector 'h1['"),
        ({"fields": {"a": {"xpath": "//["}}}, "fields.a", "bad selector '//['"),
        ({"fields": {"a": {"jmespath": "["}}}, "fields.a", "bad selector '['"),
        (
            {"fields": {"a": {"xpath": "//table[matches(., 'x')]"}}},
            "fields.a",
            "unknown function matches()",
        ),
        ({"fields": {"a": {"xpath": "//table[. = $x]"}}}, "fields.a", "undefined variable $x"),
        ({"fields": {"a": {"css": "b", "kind": "text"}}}, "fields.a.kind", "unknown key"),
        ({"fields": {"a": {"css": "b", "type": "money"}}}, "fields.a.type", "'price'"),
        ({"fields": {"url": "h1"}}, "fields", "invalid or reserved field name: 'url'"),
        ({"fields": {"outcome": "h1"}}, "fields", "invalid or reserved field name: 'outcome'"),
        ({"fields": {"a.b": "h1"}}, "fields", "invalid or reserved field name: 'a.b'"),
        ({"fields": {"$a": "h1"}}, "fields", "invalid or reserved field name: '$a'"),
        ({"fields": {"": "h1"}}, "fields", "invalid or reserved field name: ''"),
        ({"list_pages": "/item/"}, "", "list_pages and item_pages share the pattern '/item/'"),
        ({"category": {"pattern": "a", "css": "b"}}, "category", "exactly one of pattern, css"),
        ({"category": {}}, "category", "exactly one of pattern, css and xpath"),
        ({"category": {"css": "h1["}}, "category", "bad selector 'h1['"),
        ({"category": {"pattern": "("}}, "category", "bad regular expression '('"),
        ({"category": {"text": "a"}}, "category", "unknown key"),
        ({"fields": {"price": {"csss": "p"}}}, "fields.price.csss", "Did you mean css?"),
        ({"fields": {"price": {"css": "p", "type": "prise"}}}, "fields.price.type", "Use 'text', "),
        ({"cookies": "hunter2"}, "cookies", "(not shown)"),
        ({"headers": {"Authorization": "hunter2"}}, "headers", "${VARIABLE}"),
        ({"headers": {"X-Api-Key": "hunter2"}}, "headers", "${VARIABLE}"),
        ({"cookies": {"session": "hunter2"}}, "cookies", "${VARIABLE}"),
        ({"headers": {"Accept": "${FRESHET_NO_SUCH}"}}, "headers", "FRESHET_NO_SUCH is not set"),
        ({"proxy": "http://me:hunter2@proxy.example"}, "proxy", "${VARIABLE}"),
        ({"proxy": "http://[::1"}, "proxy", "Invalid IPv6"),
        ({"proxy": "socks5://127.0.0.1:1080"}, "proxy", "socks5:// proxies are not supported"),
        ({"proxy": "socks5h://proxy.example"}, "proxy", "Use an HTTP proxy, such as http://"),
        ({"proxy": "https://proxy.example"}, "proxy", "https:// proxies are not supported"),
        ({"proxy": "proxy.example:3128"}, "proxy", "URLs without http:// are not supported"),
        ({"proxy": "http://proxy.example:0"}, "proxy", "not a URL of a proxy"),
        ({"proxy": "http://:3128"}, "proxy", "not a URL of a proxy"),
        ({"concurrency": 0}, "concurrency", "must be at least 1, not 0"),
        ({"delay_seconds": -1}, "delay_seconds", "must be at least 0, not -1"),
        ({"list_interval_hours": 0}, "list_interval_hours", "greater than 0"),
        ({"list_interval_hours": "often"}, "list_interval_hours", "not a number: 'often'"),
        (
            {"follow_item_links": "perhaps"},
            "follow_item_links",
            "neither true nor false: 'perhaps'",
        ),
        (
            {"visiting_hours": "Mon 8-18"},
            "visiting_hours:",
            "invalid window: 'Mon 8-18'. Use days, hours or",
        ),
        (
            {"visiting_hours": ["Sat", "08:30-18:00"]},
            "visiting_hours.1",
            "'08:30-18:00': a window must start",
        ),
        ({"visiting_hours": ""}, "visiting_hours:", "invalid window: ''"),
        ({"visiting_hours": [8]}, "visiting_hours.0", "not a text: 8"),
        ({"blackout": "never"}, "blackout:", "invalid window: 'never'"),
        ({"blackout": "Mon-Sun"}, "", "visiting_hours and blackout leave no hour of the week open"),
        ({"visiting_hours": "Sat", "blackout": "Sat,Sun"}, "", "leave no hour of the week open"),
        ({"requests_per_day": 0}, "requests_per_day", "must be at least 1, not 0"),
        ({"requests_per_hour": 1.5}, "requests_per_hour", "not a whole number: 1.5"),
        ({"min_interval_hours": 0}, "min_interval_hours", "greater than 0"),
        ({"max_interval_hours": 673}, "max_interval_hours", "must be at most 672, not 673"),
        (
            {"min_interval_hours": 24, "max_interval_hours": 6},
            "",
            "min_interval_hours 24 is longer than max_interval_hours 6",
        ),
        ({"weight": 0}, "weight", "greater than 0"),
        ({"weight": float("nan")}, "weight", "finite number"),
        ({"cost": float("inf")}, "cost", "finite number"),
        ({"weights": {"/sale/": 0}}, "weights./sale/", "greater than 0"),
        ({"weights": {"(": 2}}, "weights", "bad regular expression '('"),
        ({"weights": {"category:": 2}}, "weights", "'category:' has no category name"),
        ({"weights": ["/sale/"]}, "weights", "not a table of keys and values: ['/sale/']"),
    ],
    ids=lambda value: repr(value) if isinstance(value, dict) else "",
)
def test_an_error_names_source_key_and_cause(keys: dict[str, Any], key: str, cause: str) -> None:
    error = error_of(MINIMAL | keys)
    assert error.startswith(f"shop.toml: {key}")
    assert cause in error
    assert "hunter2" not in error


def test_a_secret_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOP_KEY", "hunter2")
    shop = wrapper(
        headers={"Authorization": "Bearer ${SHOP_KEY}", "Accept": "text/html"},
        cookies={"session": "${SHOP_KEY}"},
        proxy="http://me:${SHOP_KEY}@proxy.example:3128",
    )
    assert shop.headers == {"Authorization": "Bearer hunter2", "Accept": "text/html"}
    assert shop.cookies == {"session": "hunter2"}
    assert shop.proxy == "http://me:hunter2@proxy.example:3128"


@pytest.mark.parametrize(
    "mistake",
    [{"item_pages": "("}, {"list_pages": "/item/"}, {"cookies": 5}, {"proxy": "${NO_SUCH}"}],
    ids=["invalid pattern", "shared pattern", "wrong type", "unset variable"],
)
def test_errors_hide_secrets(mistake: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOP_KEY", "hunter2")
    error = error_of(MINIMAL | {"headers": {"Authorization": "${SHOP_KEY}"}} | mistake)
    assert "hunter2" not in error


@pytest.mark.parametrize(
    "proxy", ["http://${SHOP_USER}:hunter2@proxy.example", "http://me:hunter2@${SHOP_USER}.example"]
)
def test_proxy_password_is_rejected_despite_other_variables(
    proxy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHOP_USER", "me")
    assert "keep the password in the environment" in error_of(MINIMAL | {"proxy": proxy})


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("list_pages", "/l/"),
        ("item_pages", "/i/"),
        ("start_urls", "https://a.example/"),
        ("allowed_domains", "a.example"),
    ],
)
def test_string_is_accepted_for_a_list(key: str, text: str) -> None:
    assert getattr(wrapper(**{key: text}), key) == (text,)


def test_string_field_is_a_css_text_selector() -> None:
    assert wrapper(fields={"title": "h1"}).fields == {"title": text("h1")}


def test_main_text_is_extracted_without_fields_or_if_requested() -> None:
    assert wrapper().wants_main_text
    assert not wrapper(fields={"title": "h1"}).wants_main_text
    assert wrapper(fields={"title": "h1"}, main_text=True).wants_main_text
    assert not wrapper(main_text=False, fields={"title": "h1"}).wants_main_text


def test_start_urls_are_canonicalized_and_deduplicated() -> None:
    shop = wrapper(start_urls=["https://shop.example", "https://SHOP.example/?utm_source=x"])
    assert shop.starts == ("https://shop.example/",)


def test_strip_parameters_override_the_defaults() -> None:
    url = "https://shop.example/?sid=1&utm_source=x"
    assert wrapper().canonical(url) == "https://shop.example/?sid=1"
    assert wrapper(strip_parameters=["sid"]).canonical(url) == "https://shop.example/?utm_source=x"
    assert wrapper(strip_parameters=[]).canonical(url) == url


@pytest.mark.parametrize(
    "edit",
    [
        {"fields": {"title": "h2"}},
        {"fields": {"title": {"css": "h1", "type": "html"}}},
        {"fields": {"title": "h1", "price": ".price"}},
        {"fields": {"name": "h1"}},
        {"fields": {}},
        {"main_text": True},
        {"timezone": "Asia/Seoul"},
    ],
    ids=str,
)
def test_selector_digest_changes_with_content_keys(edit: dict[str, Any]) -> None:
    before = wrapper(fields={"title": "h1"})
    assert wrapper(**({"fields": {"title": "h1"}} | edit)).selector_digest(
        Kind.ITEM
    ) != before.selector_digest(Kind.ITEM)


@pytest.mark.parametrize(
    "edit",
    [
        {"name": "other"},
        {"list_pages": "/elsewhere/"},
        {"item_pages": "/elsewhere/"},
        {"start_urls": "https://shop.example/all"},
        {"delay_seconds": 3},
        {"item_interval_hours": 3},
        {"main_text": False},
    ],
    ids=str,
)
def test_selector_digest_ignores_other_keys(edit: dict[str, Any]) -> None:
    before = wrapper(fields={"title": "h1"})
    assert wrapper(fields={"title": "h1"}, **edit).selector_digest(
        Kind.ITEM
    ) == before.selector_digest(Kind.ITEM)


PLANNING: list[dict[str, Any]] = [
    {"visiting_hours": "08:00-18:00", "blackout": "Sun"},
    {"requests_per_day": 100, "requests_per_hour": 10},
    {"min_interval_hours": 6, "max_interval_hours": 48},
    {"weight": 2, "weights": {"/sale/": 3}, "cost": 2},
]


@pytest.mark.parametrize("kind", [Kind.LIST, Kind.ITEM])
@pytest.mark.parametrize("edit", PLANNING, ids=str)
def test_selector_digest_ignores_scheduling_keys(edit: dict[str, Any], kind: Kind) -> None:
    assert wrapper(**edit).selector_digest(kind) == wrapper().selector_digest(kind)


def test_site_without_visiting_hours_is_always_open() -> None:
    assert wrapper().open_hours.all()
    assert wrapper(visiting_hours=[], blackout=[]).open_hours.all()


def test_visiting_hours_and_blackout_use_the_sites_time_zone() -> None:
    shop = wrapper(
        visiting_hours="Mon-Fri 08:00-18:00", blackout=["12:00-13:00"], timezone="Asia/Kolkata"
    )
    monday = datetime(2024, 5, 6, tzinfo=ZoneInfo("Asia/Kolkata"))
    hours = [monday + timedelta(hours=hour) for hour in range(24)]
    assert [at.hour for at in hours if shop.open_at(at)] == [8, 9, 10, 11, 13, 14, 15, 16, 17]
    assert shop.open_hours.sum() == 5 * 9
    assert shop.open_at(datetime(2024, 5, 6, 2, 30, tzinfo=UTC))
    assert not shop.open_at(datetime(2024, 5, 6, 2, 29, tzinfo=UTC))
    assert not shop.open_at(datetime(2024, 5, 5, 5, tzinfo=UTC))


def test_open_hours_are_read_only() -> None:
    with pytest.raises(ValueError, match="read-only"):
        wrapper().open_hours[0] = False


def test_definitions_with_cached_open_hours_compare_equal() -> None:
    some, others = wrapper(visiting_hours="Sat"), wrapper(visiting_hours="Sat")
    assert some.open_hours is others.open_hours
    assert some == others != wrapper(visiting_hours="Sun")


class Shop(WrapperSpider):
    """The shop as a spider class."""

    name = "shop"
    start_urls = ["https://shop.example/"]
    list_pages = [r"/category/(?P<category>[^/]+)/", r"/page/\d+$"]
    item_pages = r"/item/\d+"
    category = {"css": "h1"}
    fields = {
        "title": text("h1"),
        "price": price(xpath="//p[@class='price']"),
        "stock": number(jmespath="stock"),
    }
    timezone = "Europe/London"
    delay_seconds = 0.5
    headers = {"Accept-Language": "en"}
    visiting_hours = "Mon-Fri 08:00-18:00"
    requests_per_day = 500
    weights = {"category:toys": 3, r"/item/\d$": 2}


SHOP_TOML = r"""
name = "shop"
start_urls = ["https://shop.example/"]
list_pages = ['/category/(?P<category>[^/]+)/', '/page/\d+$']
item_pages = '/item/\d+'
category = {css = "h1"}
timezone = "Europe/London"
delay_seconds = 0.5
headers = {Accept-Language = "en"}
visiting_hours = "Mon-Fri 08:00-18:00"
requests_per_day = 500
weights = {"category:toys" = 3, '/item/\d$' = 2}

[fields]
title = "h1"
price = {xpath = "//p[@class='price']", type = "price"}
stock = {jmespath = "stock", type = "number"}
"""


def test_class_and_toml_definitions_are_equal(tmp_path: Path) -> None:
    file = tmp_path / "shop.toml"
    file.write_text(SHOP_TOML, encoding="utf-8")
    from_class, from_file = Shop.read_wrapper(Arguments()), Wrapper.of(read_toml(file), str(file))
    assert from_class == from_file
    assert from_class.selector_digest(Kind.ITEM) == from_file.selector_digest(Kind.ITEM)


def test_error_in_a_class_names_the_source_file() -> None:
    class Broken(Shop):
        item_pages = "("

    with pytest.raises(WrapperError, match=r"test_wrapper\.py: item_pages: bad regular"):
        Broken.read_wrapper(Arguments())


@pytest.mark.parametrize(
    ("content", "cause"),
    [
        (b"name = ", "not valid TOML: "),
        (b"name = 'a'\nname = 'b'", "not valid TOML: "),
        (b"name = '\xff'", "not valid TOML: "),
        (b"shops = 1\n" + SHOP_TOML.encode(), "shops: unknown key"),
        (b"", "name: is missing"),
    ],
    ids=["syntax", "duplicate key", "not UTF-8", "unknown key", "empty"],
)
def test_an_error_in_a_file_names_the_file(tmp_path: Path, content: bytes, cause: str) -> None:
    file = tmp_path / "shop.toml"
    file.write_bytes(content)
    with pytest.raises(WrapperError) as caught:
        Wrapper.of(read_toml(file), str(file))
    assert str(caught.value).startswith(f"{file}: {cause}")
    assert "\n" not in str(caught.value)


def test_missing_file_and_folder_are_rejected(tmp_path: Path) -> None:
    with pytest.raises(WrapperError, match="No such file"):
        read_toml(tmp_path / "none.toml")
    with pytest.raises(WrapperError, match="directory"):
        read_toml(tmp_path)


def test_list_page_digest_changes_with_patterns() -> None:
    before, after = wrapper(), wrapper(item_pages="/elsewhere/")
    assert before.selector_digest(Kind.LIST) != after.selector_digest(Kind.LIST)
    assert before.selector_digest(Kind.LIST) == wrapper(delay_seconds=3).selector_digest(Kind.LIST)
