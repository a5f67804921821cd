"""Link headers: hubs and topic, parsed from valid and invalid headers."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crawler.feeds.discovery import MAX_HUBS, hubs_of_headers

HUB, OTHER, TOPIC = "https://hub.example/", "https://hub.other/", "https://blog.example/feed"


@pytest.mark.parametrize(
    "values",
    [
        [f'<{HUB}>; rel="hub"', f'<{TOPIC}>; rel="self"'],
        [f'<{HUB}>; rel="hub", <{TOPIC}>; rel="self"'],
        [f"<{HUB}>;rel=hub,<{TOPIC}>;rel=self"],
        [f'<{HUB}> ; REL = "Hub" , < {TOPIC} > ; Rel="SELF"'],
        [f'<{HUB}>; title="a, <b>; rel=self"; rel="hub", <{TOPIC}>; rel="self"'],
        [f'<{HUB}>; title="\\"quoted\\""; rel=hub, <{TOPIC}>; type=a; rel="alternate self"'],
        [f'<{HUB}>; rel="hub"; rel="self", <{TOPIC}>; rel="self"'],
        ["", "rubbish", f'<{HUB}>; rel="hub"', f'<{TOPIC}>; rel="self"', '<https://never.ends'],
        [f'<{TOPIC}>; rel="self", <{HUB}>; rel="hub", <{HUB}>; rel="hub"'],
    ],
    ids=["two headers", "one header", "bare", "case and spaces", "quoted delimiters",
         "quotes", "first rel applies", "invalid values", "repeated hub"],
)  # fmt: skip
def test_hub_and_topic_are_found(values: list[str]) -> None:
    assert hubs_of_headers(values) == ((HUB,), TOPIC)


def test_hubs_keep_their_order() -> None:
    values = [f'<{OTHER}>; rel="hub", <{HUB}>; rel="hub"']
    assert hubs_of_headers(values) == ((OTHER, HUB), None)


def test_link_may_be_hub_and_topic() -> None:
    assert hubs_of_headers([f'<{HUB}>; rel="self hub"']) == ((HUB,), HUB)


def test_relative_urls_without_a_base_are_kept() -> None:
    assert hubs_of_headers(['</hub>; rel="hub", </feed>; rel="self"']) == (("/hub",), "/feed")


@pytest.mark.parametrize(
    "value",
    ["", "<>; rel=hub", f"<{HUB}>", f"<{HUB}>; rel=hubs", f"<{HUB}>, rel=hub", f"{HUB}; rel=hub",
     f'<{HUB}>; rel="hub"; anchor="https://elsewhere.example/"', f'<{HUB}>; rel="hub'],
    ids=["empty", "no URL", "no rel", "other rel", "extra comma", "no brackets",
         "other anchor", "unclosed quote"],
)  # fmt: skip
def test_invalid_or_unrelated_links_are_ignored(value: str) -> None:
    assert hubs_of_headers([value]) == ((), None)


def test_number_of_hubs_is_limited() -> None:
    value = ", ".join(f"<https://hub{n}.example/>; rel=hub" for n in range(100))
    assert len(hubs_of_headers([value])[0]) == MAX_HUBS


@pytest.mark.parametrize("part", ["<a>", '<a>;rel="', "; ", '<a>;x="\\', " " * 9, "<a>;a=b "])
def test_long_headers_are_parsed_quickly(part: str) -> None:
    began = time.process_time()
    hubs_of_headers([part * 100_000] * 100)
    assert time.process_time() - began < 1


@given(st.lists(st.text(alphabet=st.sampled_from('<>;,="\\ ahubrelsf/:\t'), max_size=60)))
def test_arbitrary_text_is_parsed_without_errors(values: list[str]) -> None:
    hubs, topic = hubs_of_headers(values)
    assert all(hub and hub == hub.strip() for hub in hubs)
    assert topic is None or topic


@given(st.lists(st.sampled_from([HUB, OTHER, TOPIC, "/x?a=1;b=2,3"]), unique=True), st.booleans())
def test_valid_hub_links_are_read_back(hubs: list[str], joined: bool) -> None:
    links = [f'<{hub}>; rel="hub"' for hub in hubs]
    assert hubs_of_headers([", ".join(links)] if joined else links) == (tuple(hubs), None)


def test_relative_links_are_resolved_and_invalid_urls_skipped() -> None:
    links = ['</hub>; rel="hub", <http://[x/>; rel="hub", <http://[y/>; rel="self"']
    assert hubs_of_headers(links, "https://blog.test/feed") == (("https://blog.test/hub",), None)
