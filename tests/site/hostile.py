"""A server that deliberately misbehaves, in a different way at each path `/item/<name>`.

`/` lists all of them, `/many/<name>/<n>` links the same path n times, and `/good/<n>` are
well-behaved pages. The path after the name is passed on as `rest`. `/mixed/<hostile>/` is a site of
1,000 honest pages with `hostile` hostile ones among them. The server uses raw sockets, because no
HTTP library would send such answers.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import socket
import time
from collections.abc import Iterable
from pathlib import Path
from urllib.parse import unquote

from tests.site import (
    hostile_bodies,
    hostile_bombs,
    hostile_heads,
    hostile_mixed,
    hostile_moves,
    hostile_pages,
    hostile_robots,
)
from tests.site.hostile_link import Link, Misbehaviour

HOME = "127.0.0.1"
GOOD_PAGES = 3
HEAD_BYTES = 65_536
MISBEHAVIOURS: dict[str, Misbehaviour] = (
    hostile_bombs.ALL | hostile_bodies.ALL | hostile_heads.ALL | hostile_moves.ALL
)
KNOWN = MISBEHAVIOURS | hostile_pages.ALL | hostile_mixed.CHANGING


class Hostile:
    """Answer the requests of each connection, one after the other."""

    def __init__(self, log: Path | None) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        self._log = None if log is None else os.open(log, flags, 0o644)
        self._mixed = hostile_mixed.MixedSite()

    async def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve until the client disconnects or an answer ends the connection."""
        try:
            while head := await _head(reader):
                link = Link(head, writer)
                at = time.time()
                try:
                    await self._answer(link)
                finally:
                    self._write(link, at)
                if link.ended:
                    break
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    async def _answer(self, link: Link) -> None:
        if link.path == "/robots.txt":
            await hostile_robots.ALL[link.address](link, "")
        elif link.path == "/":
            await link.page(_list(MISBEHAVIOURS))
        elif link.path.startswith("/many/"):
            _, _, name, count = link.path.split("/")
            await link.page(_list(f"{name}/{n}" for n in range(int(count))))
        elif link.path.startswith("/mixed/"):
            await self._mixed.answer(link)
        elif link.path.startswith("/item/"):
            name, _, rest = unquote(link.path.removeprefix("/item/")).partition("/")
            await KNOWN.get(name, hostile_moves.missing)(link, rest)
        else:
            await link.page(f"<h1>{link.path}</h1><p>A page that behaves.</p>")

    def _write(self, link: Link, at: float) -> None:
        row = {"at": at, "host": link.host, "path": link.target, "bytes": link.sent}
        if self._log is not None:
            os.write(self._log, json.dumps(row).encode() + b"\n")


async def _head(reader: asyncio.StreamReader) -> str:
    """Return the request line and headers; empty if the client has disconnected."""
    try:
        return (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    except (asyncio.IncompleteReadError, asyncio.LimitOverrunError):
        return ""


def _list(names: Iterable[str]) -> str:
    good = [f"/good/{n}" for n in range(GOOD_PAGES)]
    paths = [*good, *(f"/item/{name}" for name in names)]
    return "".join(f'<p><a href="{path}">{path}</a></p>' for path in paths)


def sockets() -> list[socket.socket]:
    """Bind one free port on all addresses of the server."""
    first = _bound(HOME, 0)
    port = first.getsockname()[1]
    others = [address for address in hostile_robots.ALL if address != HOME]
    return [first, *(_bound(address, port) for address in others)]


def _bound(address: str, port: int) -> socket.socket:
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind((address, port))
    return listener


async def serve(log: Path | None) -> None:
    """Listen, print the address on one line, and serve until the process is terminated."""
    hostile = Hostile(log)
    bound = sockets()
    for one in bound:
        await asyncio.start_server(hostile.connected, sock=one, limit=HEAD_BYTES)
    print(f"http://{HOME}:{bound[0].getsockname()[1]}", flush=True)
    await asyncio.Event().wait()


def main() -> None:
    """Serve until SIGTERM."""
    options = argparse.ArgumentParser(prog="python -m tests.site.hostile", description=__doc__)
    options.add_argument("--log", type=Path, help="request log, one JSON line per request")
    asyncio.run(serve(options.parse_args().log))


if __name__ == "__main__":
    main()
