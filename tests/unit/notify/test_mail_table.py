"""The HTML part of emails: a bounded table of changes, in which values of pages are text."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from lxml import html

from crawler.notify.event_views import EventView
from crawler.notify.mail_table import MAX_ROWS
from crawler.notify.messages import Message, Templates, message_of
from tests.unit.channels import channels_in

NOON = datetime(2026, 5, 1, 12, tzinfo=UTC)
WEB = "https://freshet.example"
EMAIL = Templates(has_table=True)
SMTP = {"host": "mail.example", "from": "a@example.org", "to": ["b@example.org"]}
HOSTILE = (
    "<script>alert(1)</script>\"'&\r\n\x00\u202e</td></table><img src=http://evil.example/x>\ud800"
)


def pounds(amount: float) -> dict[str, Any]:
    return {"amount": amount, "currency": "£"}


def event(
    name: str = "Lamp", before: Any = None, after: Any = None, kind: str = "changed", **given: Any
) -> EventView:
    defaults = {"rule": "cheap", "site": "shop", "url": f"https://shop.example/{name[:99]}"}
    view = EventView(kind, title=name, at=NOON, **(defaults | given))
    return view.with_contents(before, after)


def email(*events: EventView, **given: Any) -> Message:
    return message_of("m1", events, templates=given.pop("templates", EMAIL), **given)


def rows(message: Message) -> list[str]:
    """Return the texts of the table's rows."""
    assert message.html
    document = html.document_fromstring(message.html)
    cells = [row.xpath("./th | ./td") for row in document.xpath("//tbody/tr")]
    return [
        " | ".join(" ".join(cell.text_content().split()) for cell in row).strip() for row in cells
    ]


def test_a_table_has_values_before_and_now_with_their_difference() -> None:
    lamp = event(
        "Lamp", {"stock": 4, "price": pounds(321), "color": "oak"},
        {"stock": 0, "price": pounds(289.9), "color": "walnut"},
        link=f"{WEB}/targets/1",
    )  # fmt: skip
    bench = event("Bench", {"price": pounds(0)}, {"price": pounds(5)})
    message = email(lamp, bench, zone=ZoneInfo("Europe/Berlin"), web_url=WEB, more=3)
    assert rows(message) == [
        "Lamp shop, 1 May 2026, 14:00 · open page",
        "price | £321 | £289.90 | −9.7 %",
        "stock | 4 | 0 | −100 %",
        "color | oak | walnut |",
        "Bench shop, 1 May 2026, 14:00",
        "price | £0 | £5 | ↑ higher",
    ]
    assert message.html
    document = html.document_fromstring(message.html)
    assert document.xpath("//h1//text()") == ["cheap"]
    assert "5 events: shop" in message.html
    assert "and 3 more events" in message.html
    assert document.xpath("//a/@href") == [
        f"{WEB}/targets/1", "https://shop.example/Lamp", "https://shop.example/Bench",
        f"{WEB}/changes",
    ]  # fmt: skip
    assert "price: £321 → £289.90" not in message.html
    assert "price: £321 → £289.90" in message.text


def test_items_that_come_and_go_have_their_values_in_one_row() -> None:
    values = {"title": "x", "about": "word " * 90, "stock": "9 left", "price": pounds(10)}
    message = email(
        event("New", None, values, "new"), event("Gone", values, None, "gone"),
        event("Site", None, None, "broken", reason="no items on 3 visits", url=""),
    )  # fmt: skip
    assert [row for row in rows(message) if "shop," not in row] == [
        "new | – | £10 · stock 9 left |",
        "gone | £10 · stock 9 left | – |",
        "broken: no items on 3 visits",
    ]


def test_each_rule_of_a_digest_has_a_table() -> None:
    message = email(event("a", rule="x"), event("b", rule="y"), event("c", rule="x"))
    assert message.html
    assert html.document_fromstring(message.html).xpath("//h1//text()") == ["x", "y"]
    assert [row[0] for row in rows(message) if "shop," in row] == ["a", "c", "b"]


def test_hostile_values_are_text() -> None:
    values = [{HOSTILE: f"{HOSTILE}{side}", "n": side * 100_000} for side in "ab"]
    message = email(
        event(HOSTILE, *values, site=HOSTILE, rule=HOSTILE, url=f"javascript:{HOSTILE}"),
        event("x" * 100_000, None, None, "broken", reason=HOSTILE * 1000, url="cell:top"),
        more=1,
    )  # fmt: skip
    assert message.html
    message.html.encode()
    document = html.document_fromstring(message.html)
    tags = {str(element.tag) for element in document.iter()}
    assert tags.isdisjoint({"script", "img", "style", "link", "iframe", "object"})
    assert document.xpath("//a/@href | //@src") == []
    assert len(document.xpath("//table")) == 2
    assert not set("\x00\r") & set(message.html)
    assert "url(" not in message.html
    assert len(message.html) < 20_000


def test_a_long_table_is_cut_and_says_so() -> None:
    before, after = ({f"f{n}": f"{HOSTILE}{n}{side}" for n in range(20)} for side in "ab")
    message = email(*(event(f"{n} {HOSTILE * 50}", before, after) for n in range(50)), more=100)
    shown = rows(message)
    assert len([row for row in shown if "shop," not in row]) <= MAX_ROWS
    assert "and 15 more changes" in shown
    assert message.html
    assert "and 144 more events" in message.html
    assert len(message.html.encode()) < 100_000


@pytest.mark.parametrize(
    ("keys", "part"),
    [
        ({}, "table"),
        ({"template": "mine"}, None),
        ({"html": ""}, None),
        ({"html": "<p>own</p>"}, "own"),
        ({"html": "{{ 1 / 0 }}"}, "table"),
        ({"template": "mine", "html": "<p>own</p>"}, "own"),
        ({"subject": "{{ 1 / 0 }}"}, "because of an error: template: line 1"),
    ],
)
def test_templates_decide_on_the_html_part(keys: dict[str, str], part: str | None) -> None:
    channel = channels_in({"channels": {"team": {"smtp": SMTP} | keys}}, "a test")["team"]
    message = email(event(), templates=channel.templates)
    assert (message.html is None) == (part is None)
    assert (part or "") in (message.html or "")


def test_only_emails_have_a_table() -> None:
    channel = channels_in({"channels": {"team": {"apprise": "json://127.0.0.1"}}}, "a test")["team"]
    assert email(event(), templates=channel.templates).html is None


def test_times_are_of_the_zone_of_the_channel() -> None:
    late = EventView("changed", "shop", "", "Lamp", NOON + timedelta(hours=11))
    assert "2 May 2026, 01:00" in rows(email(late, zone=ZoneInfo("Europe/Berlin")))[0]
