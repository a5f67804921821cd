"""`scrapy db`: manage the embedded MongoDB server, and copy the database to another server."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Any

from scrapy.exceptions import UsageError

from crawler.cli.base import FreshetCommand, print_json, refuse_left_over
from crawler.errors import Busy, ConfigError, ServerError
from crawler.ops.progress import working
from crawler.utils.terminal import print_line
from crawler.utils.text import count

COPY = "copy"
ACTIONS = ("start", "stop", "status", "uri", COPY)


class Command(FreshetCommand):
    """Start, stop or show the embedded server, or copy the database."""

    arguments = ("start|stop|status|uri|copy", "[TO_URI]")
    example = "mongosh $(scrapy db uri)"

    def short_desc(self) -> str:
        """Return the description for `scrapy -h`."""
        return (
            "Start, stop or show the embedded MongoDB server; copy the database to another server"
        )

    def execute(self, args: list[str], opts: argparse.Namespace) -> None:
        """Run the action and print its result."""
        action = args[0]
        if action not in ACTIONS:
            raise UsageError(
                f"unknown action {action!r}. Available: {', '.join(ACTIONS)}", print_help=False
            )
        refuse_left_over(args, (action, "TO_URI") if action == COPY else (action,))
        if action == COPY:
            self._copy(args[1], opts)
            return
        result = self._act(action)
        if opts.json:
            print_json(result)
        elif action == "uri":
            print_line(result["uri"])
        elif result["running"]:
            print_line(
                f"running: process {result['pid']}, {result['uri']}, data in {result['folder']}"
            )
        elif result["not_responding"]:
            print_line(str(result["not_responding"]))
        else:
            stopped = "stopped" if result["stopped"] else f"not running; data in {result['folder']}"
            print_line(stopped)
        if action == "status" and not result["running"]:
            self.exitcode = 1

    def _act(self, action: str) -> dict[str, Any]:
        from crawler.storage.client import server_uri, without_password
        from crawler.storage.embedded import EmbeddedServer

        config = self.config
        if action == "uri":
            return {"uri": server_uri(config)}
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
            "not_responding": server.unresponsive() if is_silent else None,
            "stopped": stopped,
            "pid": pid,
            "uri": server.uri,
            "folder": str(server.folder),
            "log": str(server.log),
        }

    def _copy(self, uri: str, opts: argparse.Namespace) -> None:
        from crawler.storage.client import without_password

        with working(self.config, "opening the databases") as progress:
            counts = asyncio.run(self._copy_locked(uri, progress))
        to = without_password(uri)
        if opts.json:
            print_json({"to": to, "documents": sum(counts.values()), "collections": counts})
            return
        copied = f"{count(sum(counts.values()), 'document')} in {count(len(counts), 'collection')}"
        print_line(
            f"copied {copied} to {to}. Set MONGO_URI to this server; the source is unchanged"
        )

    async def _copy_locked(self, uri: str, progress: Callable[[str], None]) -> dict[str, int]:
        """Copy the database while other writers are locked out.

        Returns the number of documents by collection. Raises ServerError if a writer is running.
        """
        from crawler.storage import leases, runs, targets
        from crawler.storage.client import server_uri
        from crawler.storage.copy import copy, target_of
        from crawler.storage.store import opened

        config = self.config
        async with (
            opened(config) as source,
            target_of(uri, config) as target,
            AsyncExitStack() as stack,
        ):
            spiders = sorted({*await runs.spiders(source), *await targets.spiders(source)})
            writers = {f"{leases.CRAWL}{name}": f"{name} is being crawled" for name in spiders}
            for name in (leases.REPLAN, leases.REBUILD, leases.PUSH):
                writers[name] = f"{name} is running"
            try:
                # Held until the end, so that no writer starts on any machine.
                for lease, message in writers.items():
                    await stack.enter_async_context(leases.held(source, config, lease, message))
            except Busy as busy:
                raise ServerError(f"{busy}. Wait until it has finished, or stop it") from None
            return await copy(source, target, server_uri(config), progress)
