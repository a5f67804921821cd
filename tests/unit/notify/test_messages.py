"""Messages: default texts, user templates, and their limits."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from crawler.errors import ConfigError
from crawler.notify.event_views import EventView, joined, view_of
from crawler.notify.messages import (
    MAX_TEXT_CHARACTERS,
    Message,
    Templates,
    check_template,
    message_of,
    rendered,
)
from crawler.notify.rules import data_of

NOON = datetime(2026, 5, 1, 12, tzinfo=UTC)


def event(**given: Any) -> EventView:
    defaults = {"event": "changed", "site": "shop", "url": "https://shop.example/lamp"}
    return EventView(**({"title": "Lamp", "at": NOON} | defaults | given))


CHEAPER = event(
    reason="price falls by 5 %", link="https://freshet.example/targets/1"
).with_contents(
    {"price": {"amount": 10.0, "currency": "EUR"}, "stock": 3, "note": "old"},
    {"price": {"amount": 9.5, "currency": "EUR"}, "stock": 3, "tags": ["a", "b"]},
)


def test_a_message_about_one_event() -> None:
    message = message_of("m1", [CHEAPER], zone=ZoneInfo("Europe/Berlin"))
    assert (message.id, message.type, message.title) == ("m1", "changed", "shop: changed: Lamp")
    assert message.text == (
        "Changed: Lamp\n"
        "https://shop.example/lamp\n"
        "price falls by 5 %\n"
        "\n"
        "price: 10 EUR → 9.50 EUR\n"
        "tags: a, b\n"
        "note: old → (removed)\n"
        "\n"
        "shop, 2026-05-01 14:00 CEST\n"
        "https://freshet.example/targets/1\n"
    )
    assert (message.html, message.at) == (None, NOON)


def test_message_about_a_page_without_title_and_content() -> None:
    message = message_of("m1", [event(event="gone", title="")])
    assert message.title == "shop: gone: https://shop.example/lamp"
    assert message.text == (
        "Gone: https://shop.example/lamp\nhttps://shop.example/lamp\n\nshop, 2026-05-01 12:00 UTC\n"
    )


def test_a_digest_lists_some_events_and_counts_the_others() -> None:
    events = [event(title=f"Lamp {n}", at=NOON + timedelta(minutes=n)) for n in range(60)]
    message = message_of("m1", [*events, event(site="news")], more=1000)
    assert (message.type, message.title) == ("digest", "1061 events: shop")
    lines = message.text.splitlines()
    assert lines[:2] == [
        "2026-05-01 12:00 UTC shop: changed: Lamp 0",
        "  https://shop.example/lamp",
    ]
    assert len(lines) == 2 * 50 + 1
    assert lines[-1] == "and 1011 more"
    assert message.at == NOON + timedelta(minutes=59)


def test_webhooks_get_events_as_json() -> None:
    data = json.loads(json.dumps(message_of("m1", [CHEAPER], more=2).data))
    assert data["more"] == 2
    (shown,) = data["events"]
    assert shown["at"] == "2026-05-01T12:00:00Z"
    assert shown["changes"][0] == {
        "name": "price", "before": "10 EUR", "after": "9.50 EUR", "number_before": 10.0,
        "number_after": 9.5, "unit": "EUR", "direction": "lower", "ratio": pytest.approx(-0.05),
        "is_price": True,
    }  # fmt: skip
    assert shown["values"] == {"price": "9.50 EUR", "stock": "3", "tags": "a, b"}


def test_user_template_is_rendered() -> None:
    template = (
        "{% for site, of_site in events|groupby('site') %}{{ site }}: "
        "{{ of_site|map(attribute='title')|join(', ') }}; {% endfor %}"
        "{{ events|length }} of {{ count }}, {{ event.at|local('%d %B') }}, "
        "{{ event.values.price|default('no price') }}"
    )
    check_template(template)
    text = rendered(template, [CHEAPER, event(site="news", title="Storm")], more=3)
    assert text == "news: Storm; shop: Lamp; 2 of 5, 01 May, 9.50 EUR"


def test_html_is_escaped_and_text_is_not() -> None:
    hostile = event(title="<b>&")
    templates = Templates("{{ event.title }}", "{{ event.title }}", "<p>{{ event.title }}</p>")
    message = message_of("m1", [hostile], templates=templates)
    assert (message.text, message.title) == ("<b>&", "<b>&")
    assert message.html == "<p>&lt;b&gt;&amp;</p>"


def test_a_title_is_one_short_line() -> None:
    title = message_of("m1", [event(title="a\r\nBcc: me@example.com\x00\u2028b" + "x" * 900)]).title
    assert title.startswith("shop: changed: a Bcc: me@example.com b")
    assert len(title) == 200


def test_failing_template_falls_back_to_the_default() -> None:
    templates = Templates(text="{{ event.values.size }}", subject="{{ 1 / 0 }}")
    message = message_of("m1", [CHEAPER], templates=templates)
    assert message.title == "shop: changed: Lamp"
    assert message.text.startswith("Changed: Lamp\n")
    assert "because of an error: template: line 1: division by zero" in message.text


@pytest.mark.parametrize(
    ("template", "problem"),
    [
        ("a\n{{ event.prise }}", "line 2: 'EventView object' has no attribute 'prise'"),
        ("{% for e in events %}\n{{ e.x }}{% endfor %}", "line 2: 'EventView object' has no"),
        ("\n\n{{ prise }}", "unknown name: 'prise'. Available: count, event, events, more, sites"),
        ("{% if more == 99 %}{{ prise }}{% endif %}", "unknown name: 'prise'"),
        ("{% if %}", "line 1: Expected an expression"),
        ("{{ event|nosuch }}", "line 1: No filter named 'nosuch'"),
        ("{{ event.__class__ }}", "line 1: access to attribute '__class__'"),
        ("{{ event.values.clear() }}", "line 1: access to attribute 'clear'"),
        ("{{ range(9) }}", "unknown name: 'range'"),
        ("{% include '/etc/passwd' %}", "line 1: cannot include '/etc/passwd'"),
        ("{{ " + "(" * 5000 + "1" + ")" * 4900 + " }}", "nested too deeply"),
    ],
)
def test_invalid_template_is_rejected(template: str, problem: str) -> None:
    with pytest.raises(ConfigError) as raised:
        check_template(template)
    assert str(raised.value).startswith(f"template: {problem}")
    assert "\n" not in str(raised.value)


def test_template_check_accepts_unknown_page_values() -> None:
    check_template(
        "{{ event.values.size }} {{ event.values.price|float + 1 }} {{ 1 / (more - 1) }}"
    )


LONG = event(title="y" * 500).with_contents(None, {f"field{n}": "z" * 10_000 for n in range(90)})


def test_page_text_is_not_part_of_the_template() -> None:
    text = "{{ 7 * 7 }} {% for x in events %}"
    assert rendered("{{ event.title }}", [event(title=text)]) == text


def test_long_values_and_texts_are_truncated() -> None:
    assert len(LONG.changes) == 20
    assert LONG.values is not None
    assert {len(text) for text in LONG.values.values()} == {500}
    template = "{% for e in events %}{% for c in e.changes %}{{ c.after }}{% endfor %}{% endfor %}"
    text = rendered(template, [LONG] * 50)
    assert text.startswith("z" * 499 + "…")
    assert text.endswith("a message has at most 50,000 characters)")
    assert len(text) < MAX_TEXT_CHARACTERS + 100


def test_lone_surrogates_are_replaced() -> None:
    assert message_of("m1", [event(title="a\ud800b")]).title == "shop: changed: a\ufffdb"


@pytest.mark.parametrize("name", ["", "a\r\nb", "a.b", "ä", "x" * 129])
def test_message_id_must_be_valid_in_headers(name: str) -> None:
    with pytest.raises(ValueError, match="invalid message id"):
        message_of(name, [CHEAPER])


def test_message_requires_an_event_and_a_time_zone() -> None:
    with pytest.raises(ValueError, match="needs an event"):
        message_of("m1", [])
    with pytest.raises(ValueError, match="needs a time zone"):
        Message("m1", "changed", "t", "x", None, {}, NOON.replace(tzinfo=None))


def stored_event(before: dict[str, Any], after: dict[str, Any]) -> dict[str, Any]:
    """Return a document of the outbox."""
    return {
        "_id": "1", "event": "changed", "spider": "shop", "target": "https://shop.example/lamp",
        "at": NOON, "data": data_of(before, after),
    }  # fmt: skip


@pytest.mark.parametrize("is_digest", [True, False])
def test_message_shows_what_changed_late_in_a_long_text(*, is_digest: bool) -> None:
    start = "The river keeper walked along the bank and counted the herons. " * 30
    before, after = ({"main_text": f"{start}\nPrice: {euros} EUR"} for euros in (11, 12))
    events = [view_of(stored_event(before, after))] * (2 if is_digest else 1)
    text = message_of("m1", events).text
    assert text.count("Price: 11 EUR → Price: 12 EUR") == len(events)


def test_message_counts_the_places_that_it_leaves_out() -> None:
    lines = [f"line {n} of a rather long text about the mill by author{n} alone" for n in range(25)]
    after = [line.replace("author", "writer") for line in lines]
    view = view_of(stored_event({"main_text": "\n".join(lines)}, {"main_text": "\n".join(after)}))
    assert (len(view.changes), view.more_changes) == (20, 5)
    text = message_of("m1", [view]).text
    assert "and 5 more\n" in text
    assert text.count(" → ") == 20
    assert "by author0" in text


def test_joined_events_of_a_page_show_the_edits_of_long_texts() -> None:
    long = "The keeper counted the herons. " * 40
    texts = [f"{long}\nPrice: {n} EUR" for n in (11, 12, 13)]
    documents = [
        stored_event(
            {"main_text": before, "stock": f"{n} left"},
            {"main_text": after, "stock": f"{n + 1} left"},
        )
        for n, (before, after) in enumerate(pairwise(texts))
    ]
    shown = [(change["before"], change["after"]) for change in joined(documents).changes]
    assert shown == [
        ("0 left", "2 left"),
        ("Price: 11 EUR", "Price: 12 EUR"),
        ("Price: 12 EUR", "Price: 13 EUR"),
    ]
