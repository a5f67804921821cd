"""`scrapy notify`, from a crawl that finds a change to the webhook that reports it."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from crawler.extract.item_values import text_change
from tests.integration.harness import Db, Freshet, Pages
from tests.integration.inside import in_json, run
from tests.integration.notify.webhooks import Hooks, serving, status

FILE = """
[channels.team]
webhook = "http://{}/hook"
secret = "${{TEAM_SECRET}}"
retry_hours = 0

[[rules]]
name = "titles"
events = "changed"
sites = "shop"
when = "title becomes B"
channels = "team"
"""


@pytest.fixture
def hooks() -> Iterator[Hooks]:
    with serving() as server:
        yield server


@pytest.fixture
def file(freshet: Freshet, hooks: Hooks, tmp_path: Path) -> Path:
    """Return `notify.toml` with one channel and one rule."""
    path = tmp_path / "notify.toml"
    path.write_text(FILE.format(hooks.place), encoding="utf-8")
    secret = "whsec_" + base64.b64encode(b"s" * 32).decode()
    freshet.env |= {"FRESHET_NOTIFY_FILE": str(path), "TEAM_SECRET": secret}
    return path


@pytest.fixture
def changed(freshet: Freshet, pages: Pages, file: Path) -> Path:
    """Crawl an item before and after its change."""
    keys = {"item_pages": "/item-", "fields": {"title": "h1"}}
    shop = freshet.wrapper("shop", start_urls=[f"{pages.url}/item-a.html"], **keys)
    pages.item("item-a.html", "A")
    freshet.crawl(shop)
    pages.item("item-a.html", "B")
    freshet.crawl(shop, hours=200)
    return file


def notify(freshet: Freshet, *words: str) -> Any:
    return in_json(freshet, "notify", *words, hours=201)


@pytest.mark.usefixtures("changed")
def test_a_change_is_delivered_once(freshet: Freshet, pages: Pages, hooks: Hooks) -> None:
    before = notify(freshet, "status")
    assert before["oldest_event"] is not None
    (shown,) = notify(freshet, "preview")
    done = notify(freshet, "deliver")
    assert (done["events"], done["messages"]) == (1, 1)
    assert [channel["delivered"] for channel in done["channels"]] == [1]
    ((_, _, body),) = hooks.received
    (event,) = json.loads(body)["data"]["events"]
    assert (event["event"], event["url"]) == ("changed", f"{pages.url}/item-a.html")
    assert event["changes"] == [text_change("title", "A", "B")]
    assert "A → B" in shown["text"]
    assert "nothing to deliver now" in run(freshet, "notify", "deliver", hours=201).out
    assert len(hooks.received) == 1


@pytest.mark.usefixtures("changed")
def test_dead_letter_is_listed_and_retried(freshet: Freshet, hooks: Hooks) -> None:
    hooks.answers = [status(404), status(204)]
    (channel,) = notify(freshet, "deliver")["channels"]
    assert (channel["failed"], channel["dead"]) == (1, 1)
    (letter,) = notify(freshet, "dead")
    assert (letter["channel"], letter["reason"]) == ("team", "HTTP 404")
    doctor = run(freshet, "doctor", "--quick", hours=201).out
    assert "1 dead letter of channel team" in " ".join(doctor.split())
    assert notify(freshet, "retry", letter["id"]) == {"retried": 1}
    assert [each["delivered"] for each in notify(freshet, "deliver")["channels"]] == [1]
    again = run(freshet, "notify", "retry", "--all")
    assert (again.code, again.out) == (1, "")
    assert "no such dead letters" in again.err


@pytest.mark.usefixtures("changed")
def test_the_status_of_a_channel_fits_a_narrow_terminal(
    freshet: Freshet, hooks: Hooks, file: Path
) -> None:
    lasting = file.read_text(encoding="utf-8").replace("retry_hours = 0", "retry_hours = 9")
    file.write_text(lasting, encoding="utf-8")
    hooks.answers = [status(500)]
    notify(freshet, "deliver")
    lines = run(freshet, "notify", "status", COLUMNS=80).out.splitlines()
    assert any(re.fullmatch(r" team +1 +0 +0 +0 +0 +\S+ \S+ *", line) for line in lines), lines
    assert "last failure of team: HTTP 500" in lines


def test_notify_test_reports_the_response(
    freshet: Freshet, database: Db, hooks: Hooks, file: Path
) -> None:
    assert "accepted" in run(freshet, "notify", "test", "team").out
    hooks.answers = [status(403, b"forbidden")]
    refused = run(freshet, "notify", "test", "team")
    assert (refused.code, refused.out) == (1, "")
    assert "team: not delivered: HTTP 403: forbidden" in refused.err
    unknown = run(freshet, "notify", "test", "phone")
    assert "channel not found: 'phone'. Available: team" in unknown.err
    assert database.outbox.count_documents({}) == 0


@pytest.mark.usefixtures("changed")
def test_rule_problems_are_reported(freshet: Freshet, file: Path) -> None:
    written = file.read_text(encoding="utf-8")
    other = '[[rules]]\nname = "b"\nsites = "nowhere"\nchannels = "phone"\n'
    file.write_text(written + other, encoding="utf-8")
    shown = run(freshet, "notify", "preview", "--rule", "b")
    assert "rule 'b': channel not found: 'phone'. Available: team" in shown.err
    assert "rule 'b': site without targets: 'nowhere'" in shown.err
    assert "none of the last 20 events matches" in shown.out
    file.write_text(written.replace("webhook =", "webhok ="), encoding="utf-8")
    misspelled = run(freshet, "notify", "deliver", hours=201)
    assert "channel 'team': webhok: unknown key" in misspelled.err
    assert "no channels" not in misspelled.out
    file.write_text("[chanels.team]\n", encoding="utf-8")
    invalid = run(freshet, "notify", "deliver")
    assert (invalid.code, invalid.out) == (1, "")
    assert f"{file}: unknown key: 'chanels'. Available: channels, rules" in invalid.err


@pytest.mark.usefixtures("changed")
def test_misspelled_fields_and_waiting_messages_are_reported(freshet: Freshet, file: Path) -> None:
    written = file.read_text(encoding="utf-8")
    for condition, end in (
        ("titel changes", "a field 'titel'. Did you mean title?"),
        ("price.amount < 9", "a field 'price.amount'. Fields: title"),
    ):
        rule = f'[[rules]]\nname = "b"\nwhen = "{condition}"\nchannels = "team"\n'
        file.write_text(written + rule, encoding="utf-8")
        shown = run(freshet, "notify", "preview", "--rule", "b").err
        assert "scrapy notify: rule 'b': no page of the last " in shown
        assert shown.endswith(f"{end}\n")
    for condition in ("title changes", "content is present"):
        rule = f'[[rules]]\nname = "b"\nwhen = "{condition}"\nchannels = "team"\n'
        file.write_text(written + rule, encoding="utf-8")
        assert run(freshet, "notify", "preview").err == ""
    file.write_text(written + '[[rules]]\nname = "b"\nchannels = "taem"\n', encoding="utf-8")
    run(freshet, "notify", "deliver", hours=201)
    file.write_text(written, encoding="utf-8")
    assert run(freshet, "notify", "status").err == (
        f"scrapy notify: 1 message to 'taem' cannot be delivered: the channel is not in {file}\n"
    )


def test_empty_output_suggests_the_next_step(
    freshet: Freshet, database: Db, tmp_path: Path
) -> None:
    freshet.env["FRESHET_NOTIFY_FILE"] = str(tmp_path / "none.toml")
    nothing = run(freshet, "notify", "deliver")
    assert (nothing.code, nothing.out) == (1, "")
    assert nothing.complaint == (
        "scrapy notify: no channels, so nothing is sent. Write [channels.NAME] into "
        f"{tmp_path / 'none.toml'}"
    )
    assert "Write [channels.NAME] into" in run(freshet, "notify", "status").out
    assert "Write [[rules]] into" in run(freshet, "notify", "preview").out
    assert run(freshet, "notify", "dead").out == "no dead letters\n"
    assert database.outbox.count_documents({}) == 0
