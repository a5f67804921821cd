"""A typed layer over Twisted's request: one HTTP request with its answer, and the request log."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import format_datetime, parsedate_to_datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from twisted.web.server import Request

HTML = "text/html; charset=utf-8"


@dataclass(frozen=True)
class Answer:
    """A complete answer; `etag` has no quotes and `date` is the site's time."""

    body: bytes
    content_type: str = HTML
    status: int = 200
    etag: str | None = None
    last_modified: datetime | None = None
    date: datetime | None = None
    headers: Sequence[tuple[str, str]] = ()


class Exchange:
    """A request and its answer; accepts targets in origin form and in absolute form (proxy)."""

    def __init__(self, request: Request) -> None:
        self.request: Any = request  # Most of Twisted's methods have no type annotations.
        self.method: str = request.method.decode("latin-1")
        uri = request.uri.decode("latin-1")
        host = self.header("host") or ""
        if not uri.startswith("/"):
            parts = urlsplit(uri)
            host = parts.netloc
            uri = parts._replace(scheme="", netloc="").geturl() or "/"
        self.host = host.lower()
        self.target = uri
        self.path = uri.partition("?")[0]

    @property
    def hostname(self) -> str:
        """Return the requested host without its port."""
        return self.host.partition(":")[0]

    @property
    def conditional(self) -> bool:
        """Return whether the request has a validator."""
        return bool(self.header("if-none-match") or self.header("if-modified-since"))

    def header(self, name: str) -> str | None:
        """Return the last value of a request header, or None."""
        value: bytes | None = self.request.getHeader(name.encode())
        return None if value is None else value.decode("latin-1")

    def start(self, status: int, headers: Sequence[tuple[str, str]]) -> None:
        """Set the status and headers; without Content-Length, the body is sent in chunks."""
        self.request.setResponseCode(status)
        for name, value in headers:
            if name.lower() == "date":
                self.request.setHeader(name, value)
            else:
                self.request.responseHeaders.addRawHeader(name, value)

    def write(self, data: bytes) -> None:
        """Send part of the body."""
        self.request.write(data)

    def finish(self) -> None:
        """Complete the answer, unless the client has disconnected."""
        if not self.request._disconnected:
            self.request.finish()

    def drop(self) -> None:
        """Close the connection and leave the answer incomplete."""
        self.request.channel.loseConnection()

    def send(self, answer: Answer) -> None:
        """Send a whole answer, or 304 if the request's validators match it."""
        headers = list(answer.headers)
        if answer.etag is not None:
            headers.append(("ETag", f'"{answer.etag}"'))
        if answer.last_modified is not None:
            headers.append(("Last-Modified", http_date(answer.last_modified)))
        if answer.date is not None:
            headers.append(("Date", http_date(answer.date)))
        if answer.status == 200 and self._unchanged(answer):
            self.start(304, headers)
        else:
            headers.append(("Content-Type", answer.content_type))
            headers.append(("Content-Length", str(len(answer.body))))
            self.start(answer.status, headers)
            self.write(answer.body)
        self.finish()

    def _unchanged(self, answer: Answer) -> bool:
        tags = self.header("if-none-match")
        if tags is not None:
            return answer.etag is not None and etag_matches(tags, answer.etag)
        since = self.header("if-modified-since")
        if since is None or answer.last_modified is None:
            return False
        try:
            return answer.last_modified.replace(microsecond=0) <= _parse_date(since)
        except ValueError:
            return False


def etag_matches(tags: str, etag: str) -> bool:
    """Return whether an If-None-Match value contains the ETag (weak comparison)."""
    names = [tag.strip().removeprefix("W/") for tag in tags.split(",")]
    return "*" in names or f'"{etag}"' in names


def http_date(moment: datetime) -> str:
    """Return a time as an HTTP date."""
    return format_datetime(moment.astimezone(UTC), usegmt=True)


def _parse_date(text: str) -> datetime:
    moment = parsedate_to_datetime(text)
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


class RequestLog:
    """Append a JSON line for each finished request; does nothing without a path.

    Each line has `at` (Unix time in seconds), `method`, `host`, `path` (with its query), `status`
    (0 if nothing was sent), `bytes` (length of the body sent), `conditional`, and `complete` (false
    if the connection was lost first).
    """

    def __init__(self, path: Path | None) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        self._file = None if path is None else os.open(path, flags, 0o644)

    def watch(self, exchange: Exchange) -> None:
        """Write the line when the answer is complete or the connection is lost."""
        if self._file is None:
            return
        at = time.time()
        done = exchange.request.notifyFinish()
        done.addCallbacks(
            lambda _: self._write(exchange, at, True), lambda _: self._write(exchange, at, False)
        )

    def _write(self, exchange: Exchange, at: float, complete: bool) -> None:
        request = exchange.request
        row = {
            "at": at,
            "method": exchange.method,
            "host": exchange.host,
            "path": exchange.target,
            "status": request.code if request.startedWriting else 0,
            "bytes": request.sentLength,
            "conditional": exchange.conditional,
            "complete": complete,
        }
        if self._file is not None:
            os.write(self._file, json.dumps(row).encode() + b"\n")
