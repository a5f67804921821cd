"""CDXJ indexes: one line per archived response, sorted by URL and time.

A URL's key is its SURT: the reversed host, `)`, path and query, in the form that replay tools look
up. Those tools also unify some session ids, which is not done here: such a URL has its own key.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote_from_bytes, unquote_to_bytes, urlsplit

from crawler.archive.records import Entry

# Characters that tools leave unescaped in a key.
PLAIN = "!\"$&'()*+,-./:;<=>?@[\\]^_`{|}~"
PORTS = {"http": 80, "https": 443}
DIGITS = "%Y%m%d%H%M%S"
WWW = re.compile(r"www\d*\.")
# Of each line.
FIELDS = frozenset(("url", "mime", "status", "digest", "length", "offset", "filename"))
# Repeated escapes, such as %2525, are resolved this often at most.
MAX_ESCAPES = 5


class Line(NamedTuple):
    """A line of an index.

    time:   time of the response, 14 digits
    fields: url, mime, status, digest, length, offset and filename
    """

    key: str
    time: str
    fields: dict[str, Any]

    def __str__(self) -> str:
        return f"{self.key} {self.time} {json.dumps(self.fields, ensure_ascii=True)}\n"


def line_of(entry: Entry, filename: str, offset: int, length: int) -> Line:
    """Return the line of a response. offset, length: in bytes, of its record in the file."""
    fields = {
        "url": entry.url, "mime": entry.mime, "status": str(entry.status), "digest": entry.digest,
        "length": str(length), "offset": str(offset), "filename": filename,
    }  # fmt: skip
    return Line(surt(entry.url), digits(entry.at), fields)


def digits(at: datetime) -> str:
    """Return a time as the 14 digits of an index."""
    return at.astimezone(UTC).strftime(DIGITS)


def line_time(line: Line) -> datetime:
    """Return the time of a line."""
    return datetime.strptime(line.time, DIGITS).replace(tzinfo=UTC)


def parsed(text: str) -> Line | None:
    """Return the line of an index in a text; None if the line is damaged or incomplete."""
    parts = text.split(" ", 2)
    if len(parts) != 3 or not text.endswith("\n"):
        return None
    try:
        fields = json.loads(parts[2])
        line = Line(parts[0], parts[1], fields)
        line_time(line)
        is_valid = (
            fields.keys() >= FIELDS and int(fields["offset"]) >= 0 and int(fields["length"]) > 0
        )
    except (ValueError, AttributeError, TypeError, RecursionError):
        return None
    return line if is_valid else None


def read_lines(path: Path) -> Iterator[Line]:
    """Yield the lines of an index up to the first damaged one; nothing if the file is missing."""
    try:
        file = path.open(encoding="ascii", errors="replace")
    except FileNotFoundError:
        return
    with file:
        for text in file:
            if (line := parsed(text)) is None:
                return
            yield line


def surt(url: str) -> str:
    """Return the key of a URL, as replay tools compute it."""
    parts = urlsplit(url)
    host = WWW.sub("", (parts.hostname or "").rstrip("."), count=1)
    if not host.isascii():
        host = host.encode("idna", "ignore").decode()
    port = parts.port
    shown_port = f":{port}" if port is not None and port != PORTS.get(parts.scheme) else ""
    path = re.sub(r"//+", "/", _escaped(parts.path).lower()) or "/"
    path = path[:-1] if path.endswith("/") and len(path) > 1 else path
    query = ""
    if parts.query:
        arguments = _escaped(parts.query).lower().split("&")
        query = "?" + "&".join(sorted(arguments, key=lambda text: tuple(text.split("=", 1))))
    return f"{','.join(reversed(host.split('.')))}{shown_port}){path}{query}"


def _escaped(text: str) -> str:
    """Return a part of a URL with the escapes that are needed, and no others."""
    data = text.encode("utf-8", "surrogatepass")
    for _ in range(MAX_ESCAPES):
        plain = unquote_to_bytes(data)
        if plain == data:
            break
        data = plain
    return quote_from_bytes(data, safe=PLAIN)
