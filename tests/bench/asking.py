"""The maximum speed of a site: `python -m tests.bench.asking URL ITEMS` prints pages per second.

The client has 16 connections and reads as little of each response as possible.
"""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from urllib.parse import urlsplit

from tests.site.running import ROOT

CONNECTIONS = 16
END = b"\r\n\r\n"
LENGTH = re.compile(rb"content-length: *(\d+)", re.I)


def pages_per_second(url: str, items: int) -> float:
    """Return the pages per second of a client that only reads, measured in a subprocess."""
    command = [sys.executable, "-m", "tests.bench.asking", url, str(items)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return float(done.stdout)


async def _ask(host: str, port: int, paths: Iterator[str]) -> None:
    reader, writer = await asyncio.open_connection(host, port)
    for path in paths:
        writer.write(f"GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
        head = await reader.readuntil(END)
        length = LENGTH.search(head)
        assert length is not None, head
        await reader.readexactly(int(length[1]))
    writer.close()


async def _main(url: str, items: int) -> float:
    address = urlsplit(url)
    assert address.hostname is not None
    assert address.port is not None
    paths = (f"/item/{n}.html" for n in range(1, items + 1))
    begun = time.monotonic()
    each = [_ask(address.hostname, address.port, paths) for _ in range(CONNECTIONS)]
    await asyncio.gather(*each)
    return items / (time.monotonic() - begun)


if __name__ == "__main__":
    print(f"{asyncio.run(_main(sys.argv[1], int(sys.argv[2]))):.0f}")
