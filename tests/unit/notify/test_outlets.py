"""Messages built from bundles of events, and confirmation of events by later visits."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from crawler.extract.item_values import ValueChange, change_of, values_of
from crawler.items import Event
from crawler.notify.channels import Channel, first_due
from crawler.notify.event_views import view_of
from crawler.notify.messages import message_in
from crawler.notify.rounds import Outlet, add_to, no_deliveries
from crawler.notify.rules import expectation, is_confirmed
from crawler.storage.client import Document
from crawler.storage.outbox import Bundle, Grouping
from crawler.utils.urls import target_id
from tests.unit.channels import channels_in

NOON = datetime(2026, 5, 1, 12, tzinfo=UTC)
PAGE = Grouping.PAGE


def channel(**keys: Any) -> Channel:
    tables = {"team": {"apprise": "json://127.0.0.1"} | keys}
    return channels_in({"channels": tables}, "a test")["team"]


def document(hours: int = 0, event: str = "changed", **data: Any) -> Document:
    return {
        "_id": f"msg_{hours}", "channel": "team", "rule": "all", "event": event, "spider": "shop",
        "target": "https://shop.example/lamp", "at": NOON + timedelta(hours=hours), "data": data,
    }  # fmt: skip


def changed(hours: int, before: object, after: object, **others: object) -> Document:
    values = [{"price": value} | others for value in (before, after)]
    return document(hours, title="Lamp", before=values[0], after=values[1])


def price_changes(before: int, after: int | None) -> ValueChange:
    values = (next(iter(values_of({"price": number})), None) for number in (before, after))
    return change_of("price", *values)


def test_events_of_a_page_are_merged_into_one_change() -> None:
    bundle = Bundle("msg_a", [changed(0, 9, 8), changed(1, 8, 7), changed(2, 7, 6)])
    shown = message_in(bundle, PAGE)
    assert (shown.id, shown.type, shown.at) == ("msg_a", "changed", NOON + timedelta(hours=2))
    (event,) = shown.data["events"]
    assert event["changes"] == [price_changes(9, 6)]
    assert event["values"] == {"price": "6"}


def test_fields_stored_by_only_one_event_are_not_changes() -> None:
    many = [{f"{letter}{number}": 1 for number in range(19)} for letter in "ab"]
    bundle = Bundle("msg_a", [changed(0, 9, 8, **many[0]), changed(1, 8, 7, **many[1])])
    (event,) = message_in(bundle, PAGE).data["events"]
    assert event["changes"] == [price_changes(9, 7)]


def test_finally_gone_page_has_no_values() -> None:
    gone = document(1, "gone", before={"price": 8}, after=None)
    shown = message_in(Bundle("msg_a", [changed(0, 9, 8), gone]), PAGE)
    (event,) = shown.data["events"]
    assert (event["event"], event["values"]) == ("gone", {})
    assert event["changes"] == [price_changes(9, None)]


def test_a_digest_lists_its_events_and_counts_the_others() -> None:
    bundle = Bundle("msg_a", [changed(0, 9, 8), changed(1, 8, 7)], more=3)
    shown = message_in(bundle, Grouping.DIGEST)
    assert (shown.type, len(shown.data["events"]), shown.data["more"]) == ("digest", 2, 3)
    assert "and 3 more" in shown.text


def test_posts_of_a_feed_are_listed() -> None:
    posts = [{"title": "One", "url": "https://blog.example/1"}, {"title": None, "url": None}]
    view = view_of(document(posts=posts, posts_matching=2))
    assert view.reason == "2 posts"
    assert [change["after"] for change in view.changes] == ["One https://blog.example/1", ""]


def found_posts(hours: int, *posts: tuple[str, str], more: int = 0) -> Document:
    shown = [{"title": title, "url": f"https://blog.example/{name}"} for name, title in posts]
    return document(hours, posts=shown, posts_matching=len(posts) + more)


def test_posts_of_several_visits_are_listed_once() -> None:
    visits = [found_posts(0, ("1", "One"), ("2", "Two")), found_posts(1, ("2", "Two (edited)"))]
    (event,) = message_in(Bundle("msg_a", visits), PAGE).data["events"]
    assert event["reason"] == "2 posts"
    shown = [change["after"] for change in event["changes"]]
    assert shown == ["One https://blog.example/1", "Two (edited) https://blog.example/2"]


def test_posts_are_listed_even_if_the_feed_is_gone_afterwards() -> None:
    gone = document(1, "gone", before=None, after=None, reason="status 404")
    shown = message_in(Bundle("msg_a", [found_posts(0, ("1", "One")), gone]), PAGE)
    (event,) = shown.data["events"]
    assert (event["event"], event["reason"]) == ("gone", "status 404; 1 post")
    assert [change["after"] for change in event["changes"]] == ["One https://blog.example/1"]


def test_a_message_lists_a_limited_number_of_posts() -> None:
    many = [found_posts(n, *((f"{n}-{i}", "A") for i in range(20)), more=5) for n in range(2)]
    (event,) = message_in(Bundle("msg_a", many), PAGE).data["events"]
    assert (event["reason"], len(event["changes"])) == ("50 posts", 20)


def test_all_alarms_of_a_site_are_in_the_message() -> None:
    texts = "3 pages lost fields", "field price is silent", "field price is silent"
    alarms = [document(n, "broken", text=text) | {"target": ""} for n, text in enumerate(texts)]
    (event,) = message_in(Bundle("msg_a", alarms), PAGE).data["events"]
    assert event["reason"] == "3 pages lost fields; field price is silent"


def test_site_alarm_uses_the_site_name_as_title() -> None:
    view = view_of(document(0, "silent", text="no change for 9 days") | {"target": ""})
    assert (view.title, view.url, view.reason) == ("shop", "", "no change for 9 days")


def test_links_lead_to_the_web_app_if_its_url_is_known() -> None:
    site = document(0, "silent") | {"target": "", "spider": "a/b"}
    for row, path in ((document(), f"targets/{target_id('shop https://shop.example/lamp')}"),
                      (site, "sites/a%2Fb")):  # fmt: skip
        bundle = Bundle("msg_a", [row])
        shown = message_in(bundle, Grouping.NONE, web_url="https://freshet.example/app")
        link = f"https://freshet.example/app/{path}"
        assert shown.text.endswith(f"\n{link}\n")
        assert shown.data["events"][0]["link"] == link
        assert message_in(bundle, Grouping.NONE).data["events"][0]["link"] is None


@pytest.mark.parametrize(
    ("keys", "grouping"),
    [
        ({}, Grouping.NONE),
        ({"debounce_minutes": 5}, PAGE),
        ({"together": True}, Grouping.RULE),
        ({"together": True, "digest": "day"}, Grouping.DIGEST),
        ({"debounce_minutes": 5, "digest": "day"}, Grouping.DIGEST),
    ],
)
def test_channel_keys_determine_the_grouping(keys: dict[str, Any], grouping: Grouping) -> None:
    assert Outlet("team", channel(**keys)).grouping is grouping


@pytest.mark.parametrize(
    ("keys", "due"),
    [
        ({}, NOON),
        ({"debounce_minutes": 20}, NOON + timedelta(minutes=20)),
        ({"quiet_hours": "11:00-13:00"}, NOON + timedelta(hours=1)),
        ({"digest": "hour", "debounce_minutes": 70}, NOON + timedelta(hours=2)),
    ],
)
def test_channel_keys_determine_the_first_due_time(keys: dict[str, Any], due: datetime) -> None:
    assert first_due(channel(**keys), NOON) == due


SEEN = {"outcome": "changed", "content_hash": "a"}


@pytest.mark.parametrize(
    ("row", "event", "later", "confirmed"),
    [
        (SEEN, Event.CHANGED, {"outcome": "not_modified", "content_hash": "a"}, True),
        (SEEN, Event.NEW, {"outcome": "changed", "content_hash": "b"}, False),
        (SEEN, Event.BACK, {"outcome": "gone", "content_hash": "a"}, False),
        ({"outcome": "gone"}, Event.GONE, {"outcome": "gone"}, True),
        ({"outcome": "gone"}, Event.GONE, {"outcome": "unchanged"}, False),
        ({"outcome": "error"}, Event.FAILING, {"outcome": "blocked"}, True),
        ({"outcome": "error"}, Event.FAILING, {"outcome": "unchanged"}, False),
    ],
)
def test_later_visit_confirms_or_refutes_an_event(
    row: Document, event: Event, later: Document, confirmed: bool
) -> None:
    expected = expectation(row, event)
    assert expected is not None
    assert is_confirmed(expected, later) is confirmed


def test_alarms_and_feed_posts_need_no_confirmation() -> None:
    assert expectation({"event": "silent"}, Event.SILENT) is None
    assert expectation({"outcome": "changed", "posts_new": 1}, Event.CHANGED) is None


def test_the_report_of_a_round_does_not_count_earlier_rounds() -> None:
    sums, reports = no_deliveries(), [no_deliveries(), no_deliveries()]
    for report, n_delivered in zip(reports, (2, 0), strict=True):
        report["channels"] = [
            {
                "channel": "phone", "delivered": n_delivered, "failed": 0, "dead": 0,
                "busy": False, "unavailable": False, "closed_until": None,
            }
        ]  # fmt: skip
        add_to(sums, report)
    assert [each["channels"][0]["delivered"] for each in [*reports, sums]] == [2, 0, 2]
