"""`/metrics` of the web app: access and contents."""

from __future__ import annotations

import gc
import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from crawler.storage.outbox import State
from crawler.web.dependencies import PAUSE_SECONDS
from crawler.web.options import WebOptions
from tests.integration.harness import Db, Freshet, Row
from tests.integration.inside import in_json, run
from tests.integration.second_mongod import second_mongod
from tests.integration.web.browser import Browser, Browsers, browsers_of


def bearer(secret: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {secret}"}


def test_metrics_without_users_are_open_to_local_clients(local: Browser) -> None:
    answer = local.get("/metrics")
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    assert "freshet_database_up 1.0" in answer.text.splitlines()
    assert local.request("POST", "/metrics").status_code == 405


def message(number: int, state: str, ended: str | None = None, **more: Any) -> Row:
    at = datetime.now(UTC) - timedelta(hours=2 + number)
    row = {
        "_id": f"msg_{number:032x}", "channel": "team", "rule": "all", "event": "changed",
        "spider": "shop", "target": "https://shop.example/1", "at": at, "state": state,
        "due": at, "attempts": 0,
    }  # fmt: skip
    return row | ({} if ended is None else {ended: at}) | more


def test_metrics_count_notifications_by_state(local: Browser, database: Db) -> None:
    now = datetime.now(UTC)
    database.outbox.insert_many(
        [
            message(0, "waiting"),
            message(1, "waiting", attempts=3, first_at=now, reason="status 503"),
            message(2, "delivered", "delivered_at", attempts=1),
            message(3, "dead", "dead_at", attempts=9, reason="status 410"),
            message(4, "dead", "dead_at", attempts=9, reason="status 410"),
            message(5, "unconfirmed", channel="phone"),
            message(6, "dropped", "dropped_at", channel="phone", reason="the change was undone"),
        ]
    )
    database.visits.insert_many(
        [
            {"spider": "shop", "target": f"https://shop.example/{n}", "at": now - timedelta(0, 60),
             "outcome": "changed", "changed": 1, "event": True, "notify": True}
            for n in range(3)
        ]
    )  # fmt: skip
    lines = dict(
        line.rsplit(" ", 1)
        for line in local.get("/metrics").text.splitlines()
        if line.startswith("freshet_notification_")
    )
    values = {name: float(value) for name, value in lines.items()}
    assert values.pop("freshet_notification_events_pending") == 3
    assert values.pop("freshet_notification_events_oldest_seconds") == pytest.approx(60, abs=30)
    oldest = "freshet_notification_messages_oldest_seconds"
    assert values.pop(f'{oldest}{{channel="team"}}') == pytest.approx(3 * 3600, abs=30)
    assert values.pop(f'{oldest}{{channel="phone"}}') == 0
    numbers = {
        ("team", "waiting"): 2, ("team", "delivered"): 1, ("team", "dead"): 2,
        ("phone", "unconfirmed"): 1, ("phone", "dropped"): 1,
    }  # fmt: skip
    assert values == {
        f'freshet_notification_messages{{channel="{channel}",state="{state}"}}': numbers.get(
            (channel, state), 0
        )
        for channel in ("team", "phone")
        for state in map(str, State)
    } | {
        'freshet_notification_messages_retrying{channel="team"}': 1,
        'freshet_notification_messages_retrying{channel="phone"}': 0,
        'freshet_notification_channel_broken{channel="team"}': 1,
        'freshet_notification_channel_broken{channel="phone"}': 0,
    }


def test_metrics_with_users_require_a_token(
    freshet: Freshet, database: Db, browsers: Browsers
) -> None:
    prometheus = browsers()
    refused = prometheus.get("/metrics")
    assert (refused.status_code, refused.headers["www-authenticate"]) == (
        401, 'Bearer realm="Freshet"',
    )  # fmt: skip
    assert "freshet_" not in refused.text
    assert prometheus.get("/metrics", headers=bearer("freshet_wrong")).status_code == 401
    assert run(freshet, "web", "token", "list").code == 0
    made = in_json(freshet, "web", "token", "add", "vic", "--label", "prometheus")
    answer = prometheus.get("/metrics", headers=bearer(made["secret"]))
    assert answer.status_code == 200
    assert "freshet_database_up 1.0" in answer.text
    assert prometheus.get("/", headers=bearer(made["secret"])).status_code == 403


def test_signed_in_viewer_can_read_metrics(vic: Browser) -> None:
    assert vic.get("/metrics").status_code == 200


# PyMongo does not close the socket of a connection that is cancelled while it opens.
@pytest.mark.soak
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")
def test_unavailable_database_is_reported() -> None:
    options = WebOptions()
    with (
        second_mongod() as (client, uri),
        browsers_of(f"{uri}/web", options, mongo_timeout_seconds=0.5) as make,
    ):
        browser = make(address="127.0.0.1")
        assert "freshet_database_up 1.0" in browser.get("/metrics").text
        client.admin.command(
            "configureFailPoint", "failCommand", mode="alwaysOn",
            data={"failCommands": ["find", "aggregate", "ping"], "closeConnection": True,
                  "failInternalCommands": True},
        )  # fmt: skip
        away = browser.get("/metrics")
        client.admin.command("configureFailPoint", "failCommand", mode="off")
        time.sleep(PAUSE_SECONDS)
        back = browser.get("/metrics")
    assert away.status_code == 200
    assert [line for line in away.text.splitlines() if line[0] != "#"] == [
        "freshet_database_up 0.0"
    ]
    assert "freshet_database_up 1.0" in back.text
    # Collect the sockets while their warnings are ignored.
    gc.collect()
