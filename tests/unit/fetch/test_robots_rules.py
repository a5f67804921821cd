"""Parsing of robots.txt, and selection of the rules that apply to Freshet."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from protego import Protego

from crawler.fetch.robots import MAX_BYTES, MAX_SITEMAPS, beginning, for_agent, sitemaps_of

AGENT = "Freshet/1.0 (+https://bot.example/fresh)"
URLS = ["http://a.example/", *(f"http://a.example/{n}" for n in range(4))]
LINES = st.sampled_from(
    [
        "User-agent: *", "User-agent: Freshet", "user agent freshet", "User-agent: Fresh*",
        "User-agent: other", "User-agent: bot", "User-agent:", "Useragent : FRESHET/1.0",
        "Disallow: /", "Disallow: /1", "Allow: /1", "Disallow: /2", "Disallow:", "Disallow: /*3$",
        "Crawl-delay: 5", "Sitemap: http://a.example/s.xml", "Host: a.example", "", "# a comment",
        "nonsense", "Noindex: /2", "Disallow: /0 # User-agent: *",
    ]
)  # fmt: skip


@given(st.lists(LINES, max_size=12))
def test_reduced_rules_are_equivalent(lines: list[str]) -> None:
    text = "\n".join(lines)
    whole, ours = Protego.parse(text), Protego.parse(for_agent(text, AGENT))
    for url in URLS:
        assert ours.can_fetch(url, AGENT) == whole.can_fetch(url, AGENT), url
    assert ours.crawl_delay(AGENT) == whole.crawl_delay(AGENT)


def test_rules_for_other_agents_are_removed() -> None:
    text = "User-agent: other\nDisallow: /\n\nUser-agent: *\nDisallow: /private\n"
    assert for_agent(text, AGENT) == "User-agent: *\nDisallow: /private"


@pytest.mark.parametrize("name", ["reshet", "ot"])
def test_agent_name_does_not_match_inside_a_word(name: str) -> None:
    text = f"User-agent: {name}\nDisallow: /\n"
    assert for_agent(text, AGENT) == ""
    assert Protego.parse(text).can_fetch(URLS[0], AGENT)


def test_sitemaps_of_any_agent_are_read() -> None:
    text = (
        "Sitemap: https://a.example/s.xml # all\nUser-agent: other\nDisallow: /\n"
        "SITEMAP : /more.xml\nsitemap: https://a.example/s.xml\nSitemap:\nSitemap: ftp://a/b\n"
        f"Sitemap: https://a.example/{'x' * 3000}\n"
    )
    named = ("https://a.example/s.xml", "https://a.example/more.xml")
    assert sitemaps_of(text, "https://a.example/robots.txt") == named
    many = "".join(f"Sitemap: /{n}\n" for n in range(1000))
    assert len(sitemaps_of(many, "https://a.example/robots.txt")) == MAX_SITEMAPS


def test_many_names_and_rules_are_not_multiplied() -> None:
    names = "".join(f"User-agent: f{n}\n" for n in range(15_000))
    rules = "".join(f"Disallow: /x{n}\n" for n in range(15_000))
    assert for_agent(names + rules, AGENT) == ""
    kept = for_agent(names + "User-agent: *\n" + rules, AGENT)
    assert len(kept.splitlines()) == 15_001


def test_oversized_file_is_truncated_at_a_line_end() -> None:
    line = b"Disallow: /private/of/somebody\n"
    body = line * (MAX_BYTES // len(line) + 10)
    read = beginning(body, is_cut=False)
    assert MAX_BYTES - len(line) < len(read) <= MAX_BYTES
    assert read.endswith(line)


def test_last_line_of_a_truncated_download_is_dropped() -> None:
    assert beginning(b"Disallow: /a\r\nDisallow: /", is_cut=True) == b"Disallow: /a\r\n"
    assert beginning(b"Disallow: /a\rDisallow: /", is_cut=True) == b"Disallow: /a\r"
    assert beginning(b"Disallow: /", is_cut=True) == b""
    assert beginning(b"Disallow: /", is_cut=False) == b"Disallow: /"


@pytest.mark.parametrize("text", ["", "\0\1\2\xff", "User-agent: other\nDisallow: /"])
def test_file_without_applicable_rules_becomes_empty(text: str) -> None:
    assert for_agent(text, AGENT) == ""
