"""Invariants of canonical URLs."""

from __future__ import annotations

import re
from contextlib import suppress
from random import Random

from hypothesis import example, given
from hypothesis import strategies as st
from w3lib.url import safe_url_string

from crawler.utils.urls import canonical, host_of, is_http, is_plain, within

LETTERS = st.characters(codec="utf-8", exclude_characters="?#")
PIECES = st.text(LETTERS, max_size=8) | st.sampled_from(
    [";jsessionid=1", ";", "%", "%2f", "%C3%A9", "%E9", "%zz", "..", ".", "+", " ", "=", "&"]
)
NAMES = st.text("abq_", min_size=1, max_size=3) | st.sampled_from(
    ["utm_source", "UTM_x", "gclid", "sid", "phpsessid"]
)
VALUES = st.text(LETTERS, max_size=6) | st.sampled_from(["%26", "%E9", "a+b", "%", "", "ü"])


@st.composite
def urls(draw: st.DrawFn) -> str:
    """Draw URLs as on real pages: a well-formed host, followed by arbitrary characters."""
    host = draw(st.sampled_from(["a.example", "A.Example", "bücher.example", "a.example:8080"]))
    path = "/".join(draw(st.lists(PIECES, max_size=4)))
    query = "&".join(f"{n}={v}" for n, v in draw(st.lists(st.tuples(NAMES, VALUES), max_size=4)))
    mark, fragment = draw(st.sampled_from([("", ""), ("#", "part"), ("#", "!/x?a=1")]))
    # Whitespace at the end of a URL is not part of the URL, but before a fragment it is.
    bare = re.sub(r"[\x00-\x20\s]+$", "", f"http://{host}/{path}?{query}")
    return f"{bare}{mark}{fragment}"


@given(urls())
@example("http://a.example/a;jsessionid=1;jsessionid=2")
@example("http://a.example/;utm_x;utm_y")
def test_canonical_is_idempotent(url: str) -> None:
    once = canonical(url)
    assert canonical(once) == once


LABELS = st.text("ab19-", min_size=1, max_size=4) | st.sampled_from(["xn--a", "0x1", "256", "07"])
HOSTS = st.lists(LABELS, min_size=1, max_size=5).map(".".join)
PORTS = st.sampled_from(["", ":8080", ":80", ":443", ":080", ":0", ":65536"])
SEGMENTS = st.text("aZ9_~-.%+;@", max_size=3)


@given(st.sampled_from(["http", "https"]), HOSTS, PORTS, st.lists(SEGMENTS, max_size=4))
@example("http", "1.2.3.4", "", ["a"])
@example("http", "a" * 64 + ".org", "", ["a"])
@example("https", "www.example.org", ":8080", ["a-b", "c_d.html"])
def test_plain_urls_match_parsed_urls(
    scheme: str, host: str, port: str, segments: list[str]
) -> None:
    def result(url: str) -> str | None:
        try:
            return canonical(url)
        except ValueError:
            return None

    url = "/".join([f"{scheme}://{host}{port}", *segments])
    # A URL with a fragment is always parsed.
    assert result(url) == result(f"{url}#")


@given(st.sampled_from(["http", "https"]), HOSTS, PORTS, st.lists(SEGMENTS, max_size=4))
@example("https", "www.example.org", ":8080", ["a-b", "c_d.html"])
def test_plain_urls_need_no_escapes(scheme: str, host: str, port: str, segments: list[str]) -> None:
    url = "/".join([f"{scheme}://{host}{port}", *segments])
    if is_plain(url):
        assert safe_url_string(url) == url


@given(st.text(st.characters(), max_size=60))
@example("http://x\ud800.example/")
@example("http://[::1")
@example("http://a.example:99999/")
def test_any_text_raises_only_value_errors(text: str) -> None:
    with suppress(ValueError):
        canonical(text)
    with suppress(ValueError):
        canonical(f"https://{text}/")
    with suppress(ValueError):
        canonical(f"https://a.example/{text}")


@given(urls())
def test_canonical_url_is_ascii_without_fragment(url: str) -> None:
    result = canonical(url)
    assert result.isascii()
    assert "#" not in result
    assert not any(character.isspace() for character in result)


@given(urls(), st.sampled_from(["utm_source=x", "gclid=5", "fbclid=a%20b"]))
def test_campaign_parameters_do_not_change_canonical_url(url: str, mark: str) -> None:
    bare = url.partition("#")[0]
    assert canonical(f"{bare}&{mark}") == canonical(bare)


@given(urls())
def test_fragment_does_not_change_canonical_url(url: str) -> None:
    assert canonical(url) == canonical(url.partition("#")[0])


@given(st.lists(st.tuples(NAMES, st.text("ab1", max_size=3)), max_size=5), st.randoms())
def test_parameter_order_does_not_change_canonical_url(
    parameters: list[tuple[str, str]], order: Random
) -> None:
    shuffled = list(parameters)
    order.shuffle(shuffled)

    def with_query(pairs: list[tuple[str, str]]) -> str:
        return canonical("http://a.example/?" + "&".join(f"{n}={v}" for n, v in pairs))

    assert with_query(parameters) == with_query(shuffled)


@given(st.text(st.characters(), max_size=40), st.sampled_from(["", "http://", "https://a"]))
@example("[::1", "http://")
def test_http_urls_always_have_a_host(text: str, before: str) -> None:
    url = before + text
    assert is_http(url) <= bool(host_of(url))


LABELS = st.from_regex(r"[a-z][a-z0-9]{0,5}", fullmatch=True)


@given(LABELS, LABELS, LABELS)
def test_within_accepts_subdomains_but_not_longer_names(sub: str, name: str, top: str) -> None:
    domain = f"{name}.{top}"
    assert within(domain, (domain,))
    assert within(f"{sub}.{domain}", (domain,))
    assert not within(f"{sub}{domain}", (domain,))
