"""Hand the exchanges of a crawl to the archive of its site."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from scrapy import Request
from scrapy.http import Headers, Response
from twisted.web.http import RESPONSES

from crawler.archive.records import Exchange
from crawler.errors import ArchiveError
from crawler.fetch.downloader import RunEnded
from crawler.items import Target

if TYPE_CHECKING:
    from crawler.frontier.session import Session

# Key in request.meta of the last response, an Archiving; absent if the site has no archive.
ARCHIVED = "archived"
# Only these headers of requests are stored: any other may carry a secret.
STORED = (
    b"Accept", b"Accept-Encoding", b"Accept-Language", b"If-Modified-Since", b"If-None-Match",
    b"User-Agent",
)  # fmt: skip


async def archive(session: Session, request: Request, response: Response, head: bytes) -> None:
    """Add a response for a target to the archive, if the site has one.

    head: status line and headers as received; empty if unknown

    Raises RunEnded if the archive cannot be written: the run ends, and the target stays due.
    """
    target = request.meta.get("target")
    if session.archive is None or not isinstance(target, Target):
        return
    parts = urlsplit(request.url)
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    host = parts.netloc.rpartition("@")[2]
    sent = [f"{request.method} {path} HTTP/1.1".encode(), f"Host: {host}".encode()]
    for name in STORED:
        sent += [name + b": " + value for value in request.headers.getlist(name)]
    if not head:
        # Reconstruct the status line and headers from Scrapy's response.
        headers: Headers = response.headers
        phrase = RESPONSES.get(response.status, b"")
        status = f"{response.protocol or 'HTTP/1.1'} {response.status} ".encode() + phrase
        lines = filter(None, (headers.to_string() or b"").split(b"\r\n"))
        head = b"\r\n".join([status, *lines])
    exchange = Exchange(
        response.url, session.clock.now(), response.status, b"\r\n".join(sent), head,
        response.body, str(response.ip_address) if response.ip_address else None,
    )  # fmt: skip
    try:
        request.meta[ARCHIVED] = await session.archive.add(exchange, target.archived)
    except ArchiveError as error:
        session.fail(error)
        raise RunEnded("the archive cannot be written") from None
