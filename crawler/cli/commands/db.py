"""`scrapy db`: manage the embedded MongoDB server."""

from __future__ import annotations

import argparse
from typing import ClassVar

from typing_extensions import TypedDict

from crawler.cli.base import FreshetCommand, print_json, refuse_left_over, usage_error
from crawler.errors import ConfigError
from crawler.utils.terminal import print_line

ACTIONS = ("start", "stop", "status", "uri")


class ServerUri(TypedDict):
    """The address of the database."""

    uri: str
    """MongoDB URI, with its password."""


class ServerState(TypedDict):
    """State of the embedded server."""

    running: bool
    """Whether the server responds."""
    not_responding: str | None
    """Message about a server that is running but does not respond; else null."""
    stopped: bool
    """Whether this command stopped the server."""
    pid: int | None
    """Process id; null if the server is not running."""
    uri: str
    """MongoDB URI."""
    folder: str
    """Folder of the data."""
    log: str
    """The server's log file."""


class Command(FreshetCommand):
    """Start, stop or show the embedded server."""

    arguments = ("start|stop|status|uri",)
    summary = "Start, stop or show the embedded MongoDB server"
    example = "mongosh $(scrapy db uri)"
    documents: ClassVar = {
        "scrapy db start --json": ServerState,
        "scrapy db stop --json": ServerState,
        "scrapy db status --json": ServerState,
        "scrapy db uri --json": ServerUri,
    }

    def execute(self, args: list[str], opts: argparse.Namespace) -> None:
        """Run the action and print its result."""
        action = args[0]
        if action not in ACTIONS:
            raise usage_error(f"unknown action {action!r}. Available: {', '.join(ACTIONS)}")
        refuse_left_over(args, (action,), self.options)
        if action == "uri":
            from crawler.storage.client import server_uri

            address: ServerUri = {"uri": server_uri(self.config)}
            print_json(address) if opts.json else print_line(address["uri"])
            return
        state = self._act(action)
        if opts.json:
            print_json(state)
        elif state["running"]:
            print_line(
                f"running: process {state['pid']}, {state['uri']}, data in {state['folder']}"
            )
        elif state["not_responding"]:
            print_line(state["not_responding"])
        else:
            stopped = "stopped" if state["stopped"] else f"not running; data in {state['folder']}"
            print_line(stopped)
        if action == "status" and not state["running"]:
            self.exitcode = 1

    def _act(self, action: str) -> ServerState:
        """Start, stop or check the embedded server, and return its state."""
        from crawler.storage.client import without_password
        from crawler.storage.embedded import EmbeddedServer

        config = self.config
        if config.mongo_uri is not None:
            raise ConfigError(
                f"MONGO_URI is set ({without_password(config.mongo_uri)}), so the embedded server "
                "is not used. Unset MONGO_URI to use it"
            )
        server = EmbeddedServer.of(config)
        if action == "start":
            server.start()
        stopped = action == "stop" and server.stop()
        answers, pid = server.answers(), server.pid()
        is_silent = pid is not None and not answers
        return {
            "running": answers,
            "not_responding": str(server.unresponsive()) if is_silent else None,
            "stopped": stopped,
            "pid": pid,
            "uri": server.uri,
            "folder": str(server.folder),
            "log": str(server.log),
        }
