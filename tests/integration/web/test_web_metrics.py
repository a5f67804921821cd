"""`/metrics` of the web app: who may read it, and with what."""

from __future__ import annotations

import gc
import time

import pytest

from crawler.web.database import PAUSE_SECONDS
from crawler.web.options import WebOptions
from tests.integration.harness import Db, Freshet
from tests.integration.inside import in_json, run
from tests.integration.second_mongod import second_mongod
from tests.integration.web.browser import Browser, Browsers, browsers_of

pytestmark = pytest.mark.mongo


def bearer(secret: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {secret}"}


def test_without_users_this_machine_may_read_them(local: Browser) -> None:
    answer = local.get("/metrics")
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    assert "freshet_database_up 1.0" in answer.text.splitlines()
    assert local.request("POST", "/metrics").status_code == 405


def test_with_users_a_token_is_needed(freshet: Freshet, database: Db, browsers: Browsers) -> None:
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


def test_a_signed_in_viewer_may_read_them(vic: Browser) -> None:
    assert vic.get("/metrics").status_code == 200


# PyMongo does not close the socket of a connection that is cancelled while it opens.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")
def test_a_database_that_is_away_is_reported() -> None:
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
    # Collect the sockets now, while their warnings are ignored.
    gc.collect()
