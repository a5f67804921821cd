"""The JSON output of every command has a type and conforms to the schema of that type."""

from __future__ import annotations

import argparse
import io
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from scrapy.commands import ScrapyCommand
from scrapy.utils.misc import walk_modules_iter
from scrapy.utils.project import get_project_settings

from crawler.cli.base import ActionsCommand, FreshetCommand, adapter_of, schema_of
from crawler.storage import outbox, users
from crawler.storage.alarms import Silence, record_silences
from crawler.storage.client import Database
from crawler.storage.embedded import EmbeddedServer
from crawler.storage.runs import DeadLetter, add_dead_letter
from crawler.storage.users import Role, Scope
from tests.conftest import Databases
from tests.integration.claiming import edited, text
from tests.integration.databases import read_cells
from tests.integration.dedup.test_duplicates_crawl import article, site
from tests.integration.feeds.test_feed_crawl import crawl, post, rss, subscribe
from tests.integration.harness import Db, Freshet, Pages
from tests.integration.inside import run
from tests.integration.known_pages import on
from tests.integration.notify.webhooks import serving

pytestmark = pytest.mark.usefixtures("warm")
CELL = '[cells.heading]\nurl = "{}/front.html"\ncss = "h1"\nevery = "5m"\n'
NOTIFY = """
[[rules]]
name = "all"
channels = "hook"

[channels.hook]
apprise = "json://{}"
"""
TRACE = ["--from", "2024-01-01", "--split", "2024-01-05", "--to", "2024-01-15"]
DEAD = ("https://shop.example/x", "https://shop.example/y", "https://shop.example/z")
# Arguments after `scrapy`, by the example lines of the commands. Words in braces are replaced.
COMMANDS = {
    "scrapy archive export NAME FILE --json": "archive export copies {folder}/copies.wacz",
    "scrapy archive list --json": "archive list",
    "scrapy archive verify NAME --json": "archive verify copies",
    "scrapy backup FILE --json": "backup {folder}/backup.zip",
    "scrapy cells --json": "cells",
    "scrapy changes --json": "changes",
    "scrapy cron --json": "cron",
    "scrapy cron --systemd --json": "cron --systemd",
    "scrapy db start --json": "db start",
    "scrapy db status --json": "db status",
    "scrapy db stop --json": "db stop",
    "scrapy db uri --json": "db uri",
    "scrapy deadletters drop URL --json": f"deadletters drop {DEAD[0]}",
    "scrapy deadletters list --json": "deadletters list",
    "scrapy deadletters retry URL --json": f"deadletters retry {DEAD[1]}",
    "scrapy doctor --json": "doctor --quick --deep",
    "scrapy duplicates check FILE --json": "duplicates check {folder}/texts.jsonl",
    "scrapy duplicates check FILE --output FILE --json": (
        "duplicates check {folder}/texts.jsonl --output {folder}/flags.jsonl"
    ),
    "scrapy duplicates explain URL_A URL_B --json": (
        "duplicates explain {site}/item-a.html {site}/item-b.html"
    ),
    "scrapy duplicates list --cluster ID --json": "duplicates list --cluster {cluster}",
    "scrapy duplicates list --json": "duplicates list",
    "scrapy duplicates rebuild --json": "duplicates rebuild",
    "scrapy explain URL --json": "explain {site}/item-a.html",
    "scrapy export visits FOLDER --json": "export all {folder}/export",
    "scrapy feeds add URL --json": "feeds add https://blog.example/feed --no-fetch",
    "scrapy feeds export --json": "feeds export",
    "scrapy feeds export FILE --json": "feeds export {folder}/exported.opml",
    "scrapy feeds import FILE --json": "feeds import {folder}/feeds.txt",
    "scrapy feeds list --json": "feeds list",
    "scrapy feeds push --callback URL --for 3600 --json": (
        "feeds push --callback https://public.example/push --port 0 --for 0.1"
    ),
    "scrapy feeds remove URL --yes --json": "feeds remove {site}/feed.xml --dry-run",
    "scrapy forget URL --yes --json": "forget {site}/item-a.html --dry-run",
    "scrapy history URL --diff 1 2 --json": "history {site}/item-c.html --diff 1 2",
    "scrapy history URL --json": "history {site}/item-a.html",
    "scrapy import FILE --json": "import {folder}/watches.json --dry-run",
    "scrapy learn NAME --json": "learn copies --budget 720/day",
    "scrapy metrics --json": "metrics",
    "scrapy notify dead --json": "notify dead",
    "scrapy notify deliver --json": "notify deliver",
    "scrapy notify preview --json": "notify preview",
    "scrapy notify retry --all --json": "notify retry --all",
    "scrapy notify status --json": "notify status",
    "scrapy notify test CHANNEL --json": "notify test hook",
    "scrapy plan --changes --json": "plan copies --changes",
    "scrapy plan --json": "plan",
    "scrapy prune --keep-versions 10 --json": "prune --keep-versions 10 --dry-run",
    "scrapy refresh run --for 1h --json": "refresh run {folder}/copies.toml --for 0.1s",
    "scrapy replan --json": "replan --dry-run",
    "scrapy reread NAME --json": "reread copies",
    "scrapy restore FILE --json": "restore {folder}/whole.zip --replace --yes",
    "scrapy search WORD --json": "search a --any --since 30d --all",
    "scrapy silence --json": "silence",
    "scrapy simulate feeds --posts FILE --visits 3x --json": (
        "simulate feeds --posts {folder}/posts.csv --feeds {folder}/feeds.csv --visits 3x"
    ),
    "scrapy simulate overload --json": "simulate overload {folder}/mix.toml",
    "scrapy simulate pages --changes FILE --budget 100 --json": (
        "simulate pages --changes {folder}/changes.csv --budget 9"
    ),
    "scrapy targets --json": "targets",
    "scrapy targets --urls --json": "targets --urls",
    "scrapy targets limits URL --json": "targets limits {site}/item-b.html --min 6h --max 2d",
    "scrapy targets mute URL --json": "targets mute {site}/item-b.html",
    "scrapy targets recheck URL --json": "targets recheck {site}/item-a.html",
    "scrapy targets unmute URL --json": "targets unmute {site}/item-b.html",
    "scrapy web run --json": "web run --port 0",
    "scrapy web token add NAME --json": "web token add anna",
    "scrapy web token list --json": "web token list",
    "scrapy web token revoke ID --json": "web token revoke {token}",
    "scrapy web user add NAME --json": "web user add carla --password-stdin",
    "scrapy web user list --json": "web user list",
    "scrapy web user passwd NAME --json": "web user passwd anna --password-stdin",
    "scrapy web user remove NAME --json": "web user remove berta --yes",
    "scrapy web user role NAME ROLE --json": "web user role anna viewer",
    "scrapy wrapper check FILE URL --json": (
        "wrapper check {folder}/copies.toml {site}/list.html {site}/item-a.html"
    ),
}
# More documents of the same types: feeds, cells, posts of feeds, alternative options.
VARIANTS = {
    "explain {site}/feed.xml": "scrapy explain URL --json",
    "explain cell:heading": "scrapy explain URL --json",
    "history {site}/item-gone.html": "scrapy history URL --json",
    "history {site}/item-b.html --source {site}/feed.xml": "scrapy history URL --json",
    "history cell:heading": "scrapy history URL --json",
    "history {site}/feed.xml": "scrapy history URL --json",
    "replan --kind pages --policy adaptive --dry-run": "scrapy replan --json",
    "plan feeds": "scrapy plan --json",
    "search --since 30d": "scrapy search WORD --json",
    "doctor --quick": "scrapy doctor --json",
}
# Commands that run a reactor, and therefore need a process of their own.
OWN_PROCESS = ("feeds push", "refresh run", "wrapper check")


@dataclass(frozen=True)
class Sandbox:
    """Run commands on a populated database. words: values of the words in braces."""

    freshet: Freshet
    words: Mapping[str, str]
    mongo: EmbeddedServer

    def output(self, command: str) -> str:
        """Return the output of a command with `--json`."""
        args = [word.format_map(self.words) for word in command.split()]
        args += TRACE if command.startswith(("simulate pages", "simulate feeds")) else []
        env: dict[str, object] = {}
        if command in ("db start", "db status"):
            env = {"MONGO_URI": "", "FRESHET_DATA_DIR": self.mongo.folder}
        elif command == "db stop":
            env = {"MONGO_URI": "", "FRESHET_DATA_DIR": self.freshet.folder / "empty"}
        if command.startswith("web run"):
            process = self.freshet.start(*args, "--json")
            assert process.stdout is not None
            line = process.stdout.readline()
            process.terminate()
            process.communicate()
            return line
        if command.startswith(OWN_PROCESS):
            done = self.freshet(*args, "--json", **env)
        else:
            with patch("sys.stdin", io.StringIO("a long password\n")):
                done = run(self.freshet, *args, "--json", **env)
        assert done.code == 0 or command.startswith("doctor"), done.err
        return done.out


@pytest.fixture(scope="module")
def sandbox(
    databases: Databases, mongo: EmbeddedServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Sandbox]:
    folder = tmp_path_factory.mktemp("json")
    with (
        databases() as (db, uri), databases() as (_, free), Pages() as pages, serving() as hooks,
    ):  # fmt: skip
        env: dict[str, object] = {
            "MONGO_URI": uri, "FRESHET_DATA_DIR": folder / "data",
            "FRESHET_DUPLICATES": "characters", "FRESHET_PRIVATE_ADDRESSES": True,
            "FRESHET_NOTIFY_FILE": folder / "notify.toml",
        }  # fmt: skip
        with Freshet(folder, **env) as freshet:
            write_files(folder)
            (folder / "notify.toml").write_text(NOTIFY.format(hooks.place), encoding="utf-8")
            crawl_all(freshet, pages, db, uri)
            cluster = db.posts.find_one({"duplicate_of": {"$type": "string"}})
            assert cluster is not None
            token = add_users(uri)
            assert run(freshet, "backup", folder / "whole.zip").code == 0
            words = {
                "token": token, "site": pages.url, "folder": str(folder), "free": free,
                "cluster": str(cluster["cluster"]),
            }  # fmt: skip
            yield Sandbox(freshet, words, mongo)


def add_users(uri: str) -> str:
    """Add two users of the web app and a token; return the token's id."""
    now = datetime.now(UTC)

    async def work(db: Database) -> str:
        for name in ("anna", "berta"):
            await users.add(db, name, Role.EDITOR, "hash", now)
        _, token = await users.add_token(db, "anna", "", [Scope.READ], now, None)
        return token["id"]

    token: str = on(uri, work)
    return token


def write_files(folder: Path) -> None:
    """Write files of texts, feeds, traces and cells."""
    rows = [{"id": number, "text": text(number % 3)} for number in range(5)]
    changes = [f"{page},2024-01-{day:02}T00:00:00Z" for day in range(1, 15) for page in "pq"]
    posts = [f"f,2024-01-{day:02}T06:00:00Z" for day in range(1, 15)]
    contents = {
        "texts.jsonl": [*map(json.dumps, rows)],
        "feeds.txt": ["https://a.example/feed", "ftp://b.example/feed"],
        "pages.csv": ["page_id,source_id,until_utc", "p,s,", "q,s,"],
        "changes.csv": ["page_id,commit_time_utc", *changes],
        "posts.csv": ["feed_id,posted_at_utc", *posts],
        "feeds.csv": ["feed_id,window_size_S,weight", "f,10,1"],
        "watches.json": ['{"watching": {"a": {"url": "https://a.example/", "proxy": "p"}}}'],
        "mix.toml": ["hours = 2", "[[cells]]", "period = 300"],
    }
    for name, lines in contents.items():
        (folder / name).write_text("\n".join(lines), encoding="utf-8")


def crawl_all(freshet: Freshet, pages: Pages, db: Db, uri: str) -> None:
    """Crawl a site that changes, a feed and a cell, and plan their visits."""
    texts = {"a": text(1), "b": edited(text(1), 3), "c": text(2), "gone": text(4)}
    for name, words in texts.items():
        article(pages, name, words)
    wrapper = site(freshet, pages, *texts, archive=True)
    freshet.crawl(wrapper, hours=-26)
    article(pages, "c", text(3))
    pages.remove("item-gone.html")
    freshet.crawl(wrapper)
    pages.file("feed.xml", rss(post("a"), post("b", link=f"{pages.url}/item-b.html")))
    subscribe(db, uri, f"{pages.url}/feed.xml", categories=["tea"])
    crawl(freshet)
    pages.file("front.html", "<h1>Today</h1>")
    read_cells(freshet, CELL.format(pages.url))
    assert run(freshet, "replan").code == 0
    for url in DEAD:
        letter = DeadLetter(f"copies {url}", "copies", url, datetime.now(UTC), 5, "a worker")
        on(uri, lambda there, letter=letter: add_dead_letter(there, letter))
    now = datetime.now(UTC)
    on(uri, lambda there: add_dead_message(there, now))
    silent = Silence("copies", DEAD[2], now, now, 0.001, "no change for too long")
    on(uri, lambda there: record_silences(there, ["copies"], [silent], now, {"copies": None}))


async def add_dead_message(db: Database, now: datetime) -> None:
    """Store a dead-lettered notification."""
    message = {
        "_id": "msg_dead", "channel": "hook", "rule": "all", "event": "changed",
        "spider": "copies", "target": DEAD[0], "at": now, "data": {},
    }  # fmt: skip
    await outbox.insert(db, [message], now)
    bundle = outbox.Bundle("msg_dead", [message | {"attempts": 0}])
    await outbox.record_failure(db, bundle, "HTTP 404", None, now)


def commands() -> Iterator[tuple[str, ScrapyCommand]]:
    for module in walk_modules_iter("crawler.cli.commands"):
        kind = getattr(module, "Command", None)
        if kind is not None:
            command: ScrapyCommand = kind()
            command.settings = get_project_settings()
            yield module.__name__.rpartition(".")[2], command


@cache
def json_types() -> dict[str, Any]:
    """Return the types of all JSON outputs, by example line."""
    types: dict[str, Any] = {}
    for _, command in commands():
        if isinstance(command, FreshetCommand):
            types |= command.json_types()
    return types


def test_every_command_with_json_has_a_type_for_each_action() -> None:
    for name, command in commands():
        parser = argparse.ArgumentParser(conflict_handler="resolve")
        command.add_options(parser)
        has_json = "--json" in parser._option_string_actions
        assert has_json == isinstance(command, FreshetCommand), name
        if isinstance(command, FreshetCommand):
            lines = list(command.json_types())
            actions = command.actions if isinstance(command, ActionsCommand) else [""]
            for action in actions:
                begins = [f"scrapy {name} {action}".strip()]
                # The name of the default action may be left out.
                if isinstance(command, ActionsCommand) and action == command.default_action:
                    begins.append(f"scrapy {name} --")
                assert any(line.startswith(tuple(begins)) for line in lines), begins
            assert all(line.startswith(f"scrapy {name} ") for line in lines)
            assert all(line.endswith(" --json") for line in lines)


def test_every_output_is_tested() -> None:
    assert COMMANDS.keys() == json_types().keys()


@pytest.mark.parametrize("line", COMMANDS)
def test_every_field_is_described(line: str) -> None:
    schema = schema_of(json_types()[line])
    documents = [schema, *schema.get("$defs", {}).values()]
    for document in documents:
        for name, field in document.get("properties", {}).items():
            # The description of a document's type is not repeated in a field with the same one.
            assert "description" in field or "$ref" in field, (line, document["title"], name)
    assert any(document.get("properties") for document in documents)


@pytest.mark.parametrize("command", [*COMMANDS.values(), *VARIANTS])
def test_the_output_is_valid(sandbox: Sandbox, command: str) -> None:
    lines = VARIANTS | {words: line for line, words in COMMANDS.items()}
    adapter = adapter_of(json_types()[lines[command]])
    out = sandbox.output(command)
    if command == "duplicates check {folder}/texts.jsonl":
        # One document per line.
        out = ",".join(out.splitlines())
    assert adapter.validate_json(f"[{out}]")[0], "the output is not empty"


def test_an_unknown_or_missing_field_is_invalid(sandbox: Sandbox) -> None:
    adapter = adapter_of(json_types()["scrapy targets --json"])
    counts = json.loads(sandbox.output("targets"))
    assert adapter.validate_json(json.dumps([counts]))
    for changed in (counts | {"more": 1}, counts | {"due": "1"}, {"due": 1}):
        with pytest.raises(ValueError, match="validation error"):
            adapter.validate_json(json.dumps([changed]))
