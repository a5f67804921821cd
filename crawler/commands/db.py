"""`scrapy db`: the embedded MongoDB server."""

from __future__ import annotations

import argparse
from typing import Any

from scrapy.exceptions import UsageError

from crawler.command import FreshetCommand, print_json
from crawler.config import Config
from crawler.errors import ConfigError
from crawler.storage.client import server_uri, without_password
from crawler.storage.embedded import EmbeddedServer

ACTIONS = ("start", "stop", "status", "uri")


class Command(FreshetCommand):
    """Start, stop or find the embedded server."""

    arguments = ("start|stop|status|uri",)
    example = "mongosh $(scrapy db uri)"

    def short_desc(self) -> str:
        """One line for `scrapy -h`."""
        return "Start, stop or find the embedded MongoDB server"

    def execute(self, args: list[str], opts: argparse.Namespace) -> None:
        """Do what was asked for and say it."""
        if args[0] not in ACTIONS:
            raise UsageError(f"{args[0]!r} is none of {', '.join(ACTIONS)}", print_help=False)
        result = _act(args[0], self.config)
        if opts.json:
            print_json(result)
        elif args[0] == "uri":
            print(result["uri"])
        else:
            print(_in_words(result))
        if args[0] == "status" and not result["running"]:
            self.exitcode = 1


def _act(action: str, config: Config) -> dict[str, Any]:
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
