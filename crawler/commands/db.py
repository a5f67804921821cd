"""`scrapy db`: the embedded MongoDB server, and a copy of the database on another."""

from __future__ import annotations

import argparse
import asyncio
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from scrapy.exceptions import UsageError

from crawler.clock import Clock
from crawler.command import FreshetCommand, print_json, refuse_left_over
from crawler.config import Config
from crawler.errors import ConfigError, ServerError
from crawler.locks import Busy, only_one
from crawler.terminal import print_line
from crawler.words import count
from crawler.working import working

if TYPE_CHECKING:
    from crawler.storage.client import Database
    from crawler.storage.copying import Say

COPY = "copy"
ACTIONS = ("start", "stop", "status", "uri", COPY)
# Whoever else writes holds one of these, or that of a spider.
WRITERS = ("replan", "duplicates-rebuild", "feeds-push")


class Command(FreshetCommand):
    """Start, stop or find the embedded server; copy the database."""

    arguments = ("start|stop|status|uri|copy", "[TO_URI]")
    example = "mongosh $(scrapy db uri)"

    def short_desc(self) -> str:
        """One line for `scrapy -h`."""
        return "Start, stop or find the embedded MongoDB server; copy the database to another"

    def execute(self, args: list[str], opts: argparse.Namespace) -> None:
        """Do what was asked for and say it."""
        if args[0] not in ACTIONS:
            raise UsageError(f"{args[0]!r} is none of {', '.join(ACTIONS)}", print_help=False)
        refuse_left_over(args, (args[0], "TO_URI") if args[0] == COPY else (args[0],))
        if args[0] == COPY:
            self._copy(args[1], opts)
            return
        result = _act(args[0], self.config)
        if opts.json:
            print_json(result)
        elif args[0] == "uri":
            print_line(result["uri"])
        else:
            print_line(_in_words(result))
        if args[0] == "status" and not result["running"]:
            self.exitcode = 1

    def _copy(self, uri: str, opts: argparse.Namespace) -> None:
        from crawler.storage.client import without_password

        with working(self.config, "opening the databases") as say, ExitStack() as locks:
            counts = asyncio.run(_copied(self.config, uri, locks, say))
        to = without_password(uri)
        if opts.json:
            print_json({"to": to, "documents": sum(counts.values()), "collections": counts})
            return
        copied = f"{count(sum(counts.values()), 'document')} in {count(len(counts), 'collection')}"
        print_line(f"copied to {to}: {copied}; set MONGO_URI to it, the data here stay as they are")


async def _copied(config: Config, uri: str, locks: ExitStack, say: Say) -> dict[str, int]:
    """Copy while nobody writes; how many documents, by collection."""
    from crawler.storage.client import server_uri
    from crawler.storage.copying import copy, target_of
    from crawler.storage.store import opened

    async with opened(config) as source, target_of(uri, config) as target:
        try:
            await _keep_others_out(source, config, locks)
        except Busy as busy:
            raise ServerError(f"{busy}: let it end, or stop it first") from None
        return await copy(source, target, server_uri(config), say)


async def _keep_others_out(db: Database, config: Config, locks: ExitStack) -> None:
    """Hold all locks of this machine; raises Busy where a pass is at work, here or elsewhere."""
    from crawler.storage import runs
    from crawler.storage.standing import standing

    now = Clock(config.clock_offset_hours).now()
    for name in WRITERS:
        locks.callback(only_one(config, name, f"{name} is at work").release)
    for spider in await runs.spiders(db):
        busy = f"{spider} is being crawled"
        locks.callback(only_one(config, f"crawl-{spider}", busy).release)
        last = await standing(db, spider, now)
        is_shared = config.mongo_uri is not None or config.redis_url is not None
        if is_shared and last is not None and last.may_be_at_work(now):
            raise Busy(f"{spider} is being crawled on another machine, or was cut off just now")


def _act(action: str, config: Config) -> dict[str, Any]:
    from crawler.storage.client import server_uri, without_password
    from crawler.storage.embedded import EmbeddedServer

    if action == "uri":
        return {"uri": server_uri(config)}
    if config.mongo_uri is not None:
        raise ConfigError(
            f"MONGO_URI is set ({without_password(config.mongo_uri)}): no embedded server is used"
        )
    server = EmbeddedServer.of(config)
    if action == "start":
        server.start()
    stopped = action == "stop" and server.stop()
    return {
        "running": server.answers(),
        "stopped": stopped,
        "pid": server.pid(),
        "uri": server.uri,
        "folder": str(server.folder),
        "log": str(server.log),
    }


def _in_words(result: dict[str, Any]) -> str:
    if result["running"]:
        return f"running: process {result['pid']}, {result['uri']}, data in {result['folder']}"
    return "stopped" if result["stopped"] else f"not running; data in {result['folder']}"
