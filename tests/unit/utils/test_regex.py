"""User-supplied regular expressions: matched in linear time, or rejected."""

from __future__ import annotations

import re
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from scrapy.http import HtmlResponse

from crawler.errors import WrapperError
from crawler.extract.fields import Field
from crawler.extract.list_wrappers import CellsWrapper, FeedsWrapper
from crawler.extract.site_definition import Wrapper
from crawler.items import Kind
from crawler.utils.regex import MAX_CHARACTERS, MAX_GROUPS, compiled, patterns_in
from tests.unit.pages import wrapper

URL_CHARACTERS = 2000
# A backtracking search for these patterns takes minutes or much longer.
ENDLESS = [
    r"/(\w+/?)+$",
    r"(a|a)*b",
    r"([^/]+/?)+$",
    r"/item/(?:a?){30}a{30}$",
    r".*-.*-.*-.*-.*\.html$",
    r"/.+/.+/.+/.+/.+\.html$",
    r"((a{0,7}){0,7}){0,7}x",
    r"(.*a){20}x",
]
WORST = ["a" * URL_CHARACTERS + "!", "-" * URL_CHARACTERS, "/a" * 1000, "a/-." * 500, "ab" * 1000]
# Patterns that sites use.
USUAL = [
    "",
    r"/item/\d+$",
    r"/catalogue/[^/]+_\d+/index\.html$",
    r"/page/\d+/$|/tag/(?P<category>[^/]+)/",
    r"/(?:[^/]+/)*item-\d+",
    r"^https?://(?:www\.)?shop\.example/(?:[\w-]+/)+\d+-[\w-]+\.html$",
    r"(?i)/[^\W\d_]{2,}/",
    r".*/item/.*\d$",
    r"\.com/page/\d+/$",
    r"[?&]page=\d+(&|$)",
    r"/(?P<year>20\d\d)/(?P<month>\d{1,2})/[\w-]*?/?$",
    r"/(en|de|fr)/(news|blog)(?:/page/\d+)?/?$",
    r"\bitem\b",
    r"\A\S+/a\+\+b",
    r"[\]{,5}(?=x]",
]
# Patterns with unsupported features, and the error messages with a remedy.
UNSUPPORTED = [
    (r"/shop/(?!item/)\w+/", "look-ahead is not supported: (?!. To exclude URLs, use not_list_p"),
    (r"/a(?=b)", "look-ahead is not supported: (?="),
    (r"(?<!x)/a/", "look-behind is not supported: (?<!"),
    (r"(?<=x)/a/", "look-behind is not supported: (?<="),
    (r"/(\w+)/\1/", r"a back-reference is not supported: \1. Write out the alternatives"),
    (r"/(?P<a>\w+)/(?P=a)", "a back-reference is not supported: (?P=a"),
    (r"/(a)?(?(1)b|c)", "a conditional group is not supported"),
    (r"/(?>a+)b", "an atomic group is not supported: (?>. Use (?:…)"),
    (r"/a++b", "a possessive repeat is not supported: ++. Leave out"),
    (r"/\d{2,}+b", "a possessive repeat is not supported: {2,}+"),
    (r"/\d{,4}/", "a repeat without a minimum is not supported: {,4}. Write the minimum: {0,4}"),
    (r"/a(?#why)b", "a comment is not supported"),
    (r"(?x) / a", "this flag is not supported: (?x. Use i, m or s"),
    (r"(?ai)/a", "this flag is not supported: (?ai"),
    (r"/a\Z", r"this escape is not supported: \Z. Use $"),
    (r"/\u00e9", r"this escape is not supported: \u. Write the character itself"),
    (r"/\C\C", r"this escape is not supported: \C"),
    (r"/(?P<a>b)|/(?P<a>c)", "two groups have the name 'a'"),
    ("(", "missing )"),
    (r"/\q", r"invalid escape sequence: \q"),
    ("*a", "no argument for repetition operator: *"),
    ("/\udc80", "not valid Unicode"),
    ("a" * (MAX_CHARACTERS + 1), "longer than 4,000 characters"),
    ("(a)" * (MAX_GROUPS + 1), "more than 20 groups"),
    ("(?:a{1000}){6}", "invalid repetition size"),
    ("a{1000}" * 6, "too large"),
    (".{0,1000}" * 100, "pattern too large"),
]


@pytest.mark.parametrize("pattern", ENDLESS)
def test_searches_take_linear_time(pattern: str) -> None:
    """Check that the search takes linear time; a backtracking search would never end."""
    for text in WORST:
        compiled(pattern).search(text)
        compiled(pattern).search(text.encode())


def test_an_error_shows_the_pattern_once() -> None:
    with pytest.raises(ValueError, match="missing") as caught:
        compiled("/item/(a")
    assert str(caught.value) == "bad regular expression '/item/(a': missing )"


def test_search_for_largest_pattern_takes_linear_time() -> None:
    for text in WORST:
        compiled("a?" * 900 + "a" * 900 + "x").search(text)


def _found(pattern: str, text: str) -> tuple[Any, ...] | None:
    match = compiled(pattern).search(text)
    of_bytes = compiled(pattern).search(text.encode())
    assert (match is None) is (of_bytes is None)
    if match is None or of_bytes is None:
        return None
    assert of_bytes[0] == (match[0] or "").encode()
    return match[0], *match.groups("")


PARTS = st.sampled_from([
    "item", "blog", "page", "shop", "tag", "en", "news", "2024", "07", "7", "a", "-", "_",
    ".html", "index.html", "/", "/", "?", "&", "=", "page=", "%C3%A9", "a++b", "_12", "www.",
    ".com",
])  # fmt: skip


@given(
    st.sampled_from(USUAL),
    st.lists(PARTS, max_size=12).map("".join),
    st.sampled_from(["https://shop.example/", "http://www.shop.example/", "https://a.com/"]),
)
@example(USUAL[5], "a-b/c/12-x.html", "https://www.shop.example/")
@example(USUAL[10], "2024/7/a-b/", "https://a.com/")
def test_usual_patterns_match_like_python(pattern: str, path: str, begin: str) -> None:
    expected = re.search(pattern, begin + path)
    match = _found(pattern, begin + path)
    assert match == (expected and (expected[0], *expected.groups("")))


CHARACTERS = ["a", "b", "/", "-", r"\d", r"\w", r"\.", "[^/]", "[a-c]", ".", r"[\w-]"]


def _pieces(*parts: str, may_be_empty: bool) -> st.SearchStrategy[str]:
    optional = ["?", "??"] if may_be_empty else [""]
    return st.recursive(
        st.sampled_from([*CHARACTERS, *parts]),
        lambda inner: st.one_of(
            st.lists(inner, min_size=1, max_size=3).map("".join),
            st.lists(inner, min_size=2, max_size=3).map(lambda x: f"(?:{'|'.join(x)})"),
            st.builds("(?:{}){}".format, inner, st.sampled_from(optional)),
        ),
        max_leaves=8,
    )


# Engines differ in repeating an empty match, which URL patterns do not need.
@given(
    _pieces(may_be_empty=False),
    st.sampled_from(["", "+", "*", "{1,3}", "+?", "{2,}"]),
    _pieces("^", "$", r"\b", may_be_empty=True),
    st.text("ab/-.1", max_size=30),
)
def test_generated_patterns_match_like_python(one: str, repeat: str, other: str, text: str) -> None:
    pattern = f"(?P<a>(?:{one}){repeat}){other}"
    expected = re.search(pattern, text)
    assert _found(pattern, text) == (expected and (expected[0], *expected.groups("")))


@pytest.mark.parametrize(("pattern", "problem"), UNSUPPORTED)
def test_rejects_unsupported_patterns_with_a_remedy(pattern: str, problem: str) -> None:
    with pytest.raises(WrapperError) as caught:
        wrapper(item_pages=["/item/", pattern])
    message = str(caught.value)
    assert message.startswith("shop.toml: item_pages.1: bad regular expression ")
    assert problem in message
    assert "\n" not in message
    assert len(message) < 400


@pytest.mark.parametrize(
    ("key", "value", "instead"),
    [
        ("list_pages", r"/(?!a)", "use not_list_pages or not_item_pages"),
        ("not_list_pages", r"/(?!a)", "use not_list_pages or not_item_pages"),
        ("not_item_pages", [r"/(?!a)"], "use not_list_pages or not_item_pages"),
        ("category", {"pattern": r"/(?!a)"}, "use not_list_pages or not_item_pages"),
        ("weights", {r"/(?!a)": 2.0}, "list them first: the first pattern that matches counts"),
        ("fields", {"a": {"xpath": "//a[re:test(@href, '/(?!a)')]"}}, "use not(re:test(…))"),
    ],
)
def test_error_names_file_and_key(key: str, value: Any, instead: str) -> None:
    with pytest.raises(WrapperError, match=rf"^shop\.toml: {key}.*look-ahead") as caught:
        wrapper(**{key: value})
    assert str(caught.value).endswith(instead)


@pytest.mark.parametrize(
    ("kind", "keys"),
    [
        (FeedsWrapper, {"weights": {r"/(?!a)": 2.0}}),
        (CellsWrapper, {"cells": {"a": {
            "url": "https://a.example/", "xpath": '//a[re:match(., "(?!a)")]',
        }}}),
    ],
)  # fmt: skip
def test_definitions_of_feeds_and_cells_are_checked(
    kind: type[Wrapper], keys: dict[str, Any]
) -> None:
    with pytest.raises(WrapperError, match="look-ahead is not supported"):
        kind.of(keys, "here")


@pytest.mark.parametrize("pattern", USUAL)
def test_accepts_usual_patterns(pattern: str) -> None:
    assert compiled(pattern).pattern == pattern


def test_xpath_patterns_are_second_arguments() -> None:
    xpath = (
        "//a[re:test(concat(., '(1'), '\\d+')][contains(., '(?!')]"
        "[re:replace(translate(@b, '(', ')'), \"x(y)\", 'g', '(z')][re:match(., @pattern)]"
    )
    assert list(patterns_in(xpath)) == ["\\d+", "x(y)"]
    assert wrapper(fields={"a": {"xpath": xpath}}).fields["a"].xpath == xpath


BODY = b"""<p>Price: 12 GBP</p><p id='b'>price 7<!-- 8 --> GBP</p><p pattern='(a|a)*b'>""" + (
    b"a" * 5000 + b"</p>"
)


@pytest.mark.parametrize(
    ("xpath", "expected"),
    [
        ("//p[re:test(., 'price', 'i')]", ["Price: 12 GBP", "price 7 GBP"]),
        ("//p[re:test(., 'price')]", ["price 7 GBP"]),
        ("//p[not(re:test(., '^(a|a)*$'))]", ["Price: 12 GBP", "price 7 GBP"]),
        ("//p[@pattern][re:test(., @pattern)]", []),
        ("re:match(//p[1], '(\\w+): (\\d+)')/text()", ["Price: 12", "Price", "12"]),
        ("re:match(//p[1], '[a-z]+', 'g')/text()", ["rice"]),
        ("re:match(//p[1], '[a-z]+', 'gi')/text()", ["Price", "GBP"]),
        ("re:match(//p[1], 'none')/text()", []),
        ("re:replace(//p[1], '(\\w+): (?P<n>\\d+)', '', '\\g<n> é \\1')", ["12 é Price GBP"]),
        ("re:replace(string(//p[2]), '\\d', 'g', '')", ["price GBP"]),
        ("re:replace(12, '1', 'g', 'x')", ["x2"]),
    ],
)
def test_xpath_regex_functions(xpath: str, expected: list[str]) -> None:
    page = HtmlResponse("https://shop.example/", body=BODY, encoding="utf-8")
    assert Field(xpath=xpath, type="list").read(page, ZoneInfo("UTC")) == expected


def test_excluded_pages_are_neither_lists_nor_items() -> None:
    shop = wrapper(
        start_urls=["https://shop.example/shop/item/0", "https://shop.example/"],
        list_pages=r"/shop/(?P<category>[a-z]+)/",
        not_list_pages=["/shop/item/", r"[?&]sort="],
        item_pages="/shop/item/",
        not_item_pages="/reviews$",
    )
    kinds = {
        path: shop.match(f"https://shop.example{path}").kind
        for path in (
            "/shop/toys/", "/shop/toys/?sort=price", "/shop/item/5", "/shop/item/5/reviews",
            "/shop/item/0", "/",
        )
    }  # fmt: skip
    assert kinds == {
        "/shop/toys/": Kind.LIST, "/shop/toys/?sort=price": None, "/shop/item/5": Kind.ITEM,
        "/shop/item/5/reviews": None, "/shop/item/0": Kind.ITEM, "/": Kind.LIST,
    }  # fmt: skip
    assert shop.match("https://shop.example/shop/toys/").category == "toys"


def test_edited_exclusions_change_digest_of_lists() -> None:
    before, after = (wrapper(not_item_pages=x) for x in ("/a", "/b"))
    assert before.selector_digest(Kind.LIST) != after.selector_digest(Kind.LIST)
    assert before.selector_digest(Kind.ITEM) == after.selector_digest(Kind.ITEM)
    assert before.digest != after.digest


def test_link_with_lone_surrogate_is_matched() -> None:
    shop = wrapper(item_pages=r"/item/.+")
    assert shop.match("https://shop.example/item/\ud800").kind is Kind.ITEM
