"""WARC 1.1 records of HTTP exchanges, and the lines of their indexes (CDXJ).

Each record is a separate gzip member. Headers are written byte for byte as the server sent them.
Libraries would parse them and write them again, which changes spaces and the spelling of names.

An index has one line per archived response, sorted by URL and time. A URL's key is its SURT: the
reversed host, `)`, path and query, in the form that replay tools look up. Those tools also unify
some session ids, which is not done here: such a URL has its own key.
"""

from __future__ import annotations

import hashlib
import json
import re
import zlib
from base64 import b32encode
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote_from_bytes, unquote_to_bytes, urlsplit
from uuid import uuid4

from crawler.utils.urls import PORTS

# Takes a fifth of the time of level 6 for a page of 5 kB, and 8 % more bytes.
LEVEL = 1
GZIP_BITS = 31
REVISIT = "http://netpreserve.org/warc/1.1/revisit/"
NOT_MODIFIED, SAME_PAYLOAD = REVISIT + "server-not-modified", REVISIT + "identical-payload-digest"
HTTP_REQUEST = "application/http; msgtype=request"
HTTP_RESPONSE = "application/http; msgtype=response"
# Content type of a revisit record in an index.
REVISIT_TYPE = "warc/revisit"
CONTENT_TYPE = re.compile(rb"^content-type[ \t]*:(.*)$", re.IGNORECASE | re.MULTILINE)
# The body is stored without chunked framing, so this header of the response is renamed.
MOVED_HEADER = b"transfer-encoding"
PREFIX = b"X-Crawler-"
END = b"\r\n\r\n"
# Characters that tools leave unescaped in a key.
PLAIN = "!\"$&'()*+,-./:;<=>?@[\\]^_`{|}~"
# Texts without escapes or characters that need one.
UNCHANGED = re.compile(f"[A-Za-z0-9_{re.escape(PLAIN)}-]*", re.ASCII)
DIGITS = "%Y%m%d%H%M%S"
WWW = re.compile(r"www\d*\.")
# Fields that each line of an index must have.
FIELDS = frozenset(("url", "mime", "status", "digest", "length", "offset", "filename"))
# Repeated escapes, such as %2525, are resolved at most this many times.
MAX_ESCAPES = 5


@dataclass(frozen=True, slots=True)
class Archived:
    """A response in the archive of its site.

    file:           name of the WARC file
    offset, length: of the compressed record in the file, in bytes
    url:            URL of the response, after redirects
    digest:         digest of the body as received
    is_revisit:     the record refers to an earlier one with the same body
    """

    file: str
    offset: int
    length: int
    at: datetime
    url: str
    digest: str
    is_revisit: bool = False


@dataclass(frozen=True, slots=True)
class Exchange:
    """A request and its response.

    at:      time of the response
    request: request line and headers that may be stored, without the empty line at the end
    head:    status line and headers as the server sent them, without the empty line at the end
    body:    body as sent, after transfer decoding and before content decoding
    address: IP address of the server; None if unknown
    """

    url: str
    at: datetime
    status: int
    request: bytes
    head: bytes
    body: bytes
    address: str | None = None

    @property
    def size(self) -> int:
        """Return the size of head and body in bytes."""
        return len(self.head) + len(self.body)


@dataclass(frozen=True, slots=True)
class Entry:
    """An archived response before it is written.

    data:        compressed records: the request, the headers of a 304 response, the response
    offset:      bytes of `data` before the response
    digest:      digest of the body, with the name of its algorithm
    is_revisit:  the body is that of an earlier record, and is not stored again
    mime, status: for the index
    """

    data: bytes
    offset: int
    url: str
    at: datetime
    digest: str
    is_revisit: bool
    mime: str
    status: int


def entry_of(exchange: Exchange, earlier: Archived | None) -> Entry:
    """Compress an exchange; leave out its body if the last full record, `earlier`, has the same.

    earlier: a record of the same target that still exists; None if there is none
    """
    digest = sha1_of(exchange.body)
    profile = None
    if earlier is not None and earlier.url == exchange.url:
        if exchange.status == 304:
            profile, digest = NOT_MODIFIED, earlier.digest
        elif exchange.body and digest == earlier.digest and exchange.status == 200:
            profile = SAME_PAYLOAD
    lines = (
        PREFIX + line if line.partition(b":")[0].strip().lower() == MOVED_HEADER else line
        for line in exchange.head.split(b"\r\n")
    )
    head = b"\r\n".join(lines) + END
    block = head + exchange.body
    if profile:
        # Replay tools would show a 304 response as a page without a body. If the record has no
        # block, they show the original. The headers of a 304 response therefore get another record.
        block = b"" if profile == NOT_MODIFIED else head
    record, request = _new_id(), _new_id()
    common = [("WARC-Target-URI", exchange.url), ("WARC-Date", iso_time(exchange.at))]
    if exchange.address:
        common.append(("WARC-IP-Address", exchange.address))
    # No digest of the block: the checksum of the gzip member covers the headers, too.
    fields = [
        ("WARC-Type", "revisit" if profile else "response"), ("WARC-Record-ID", record), *common,
        ("WARC-Payload-Digest", digest),
    ]  # fmt: skip
    if profile and earlier is not None:
        fields += [
            ("WARC-Profile", profile),
            ("WARC-Refers-To-Target-URI", earlier.url),
            ("WARC-Refers-To-Date", iso_time(earlier.at)),
        ]
    of_request = [
        ("WARC-Type", "request"), ("WARC-Record-ID", request), *common,
        ("WARC-Concurrent-To", record),
    ]  # fmt: skip
    sent = record_of(of_request, HTTP_REQUEST, exchange.request + END)
    if profile == NOT_MODIFIED:
        of_headers = [
            ("WARC-Type", "metadata"), ("WARC-Record-ID", _new_id()), *common,
            ("WARC-Concurrent-To", record),
        ]  # fmt: skip
        sent += record_of(of_headers, HTTP_RESPONSE, head)
    data = sent + record_of(fields, HTTP_RESPONSE, block)
    found = CONTENT_TYPE.search(exchange.head)
    mime = REVISIT_TYPE if profile else mime_of(found[1].decode("latin-1") if found else None)
    return Entry(
        data, len(sent), exchange.url, exchange.at, digest, profile is not None, mime,
        exchange.status,
    )  # fmt: skip


def file_info(name: str, at: datetime, software: str) -> bytes:
    """Return the compressed first record of a file."""
    text = f"software: {software}\r\nformat: WARC File Format 1.1\r\n"
    fields = [
        ("WARC-Type", "warcinfo"), ("WARC-Record-ID", _new_id()), ("WARC-Date", iso_time(at)),
        ("WARC-Filename", name),
    ]  # fmt: skip
    return record_of(fields, "application/warc-fields", text.encode())


def record_of(fields: Iterable[tuple[str, str]], kind: str, block: bytes) -> bytes:
    """Return a compressed record with these WARC fields. kind: content type of the block."""
    # A line break in a value would begin another field.
    lines = [f"{name}: {value}".replace("\r", "%0D").replace("\n", "%0A") for name, value in fields]
    lines += [f"Content-Type: {kind}", f"Content-Length: {len(block)}"]
    head = "WARC/1.1\r\n" + "\r\n".join(lines)
    data = head.encode("utf-8", "replace") + END + block + END
    return zlib.compress(data, LEVEL, GZIP_BITS)


def iso_time(at: datetime) -> str:
    """Return a time as a WARC date with milliseconds."""
    # strftime takes several times as long.
    return at.astimezone(UTC).isoformat(timespec="milliseconds")[:23] + "Z"


def sha1_of(data: bytes) -> str:
    """Return the digest of data in the form that archives use."""
    return f"sha1:{b32encode(hashlib.sha1(data, usedforsecurity=False).digest()).decode()}"


def _new_id() -> str:
    return f"<urn:uuid:{uuid4()}>"


def mime_of(content_type: str | None) -> str:
    """Return the media type of a header as indexes have it; `unk` if it is missing."""
    return (content_type or "").partition(";")[0].strip().lower()[:100] or "unk"


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
    text = at.astimezone(UTC).isoformat()[:19]
    return text.replace("-", "").replace("T", "").replace(":", "")


def line_time(line: Line) -> datetime:
    """Return the time of a line."""
    return datetime.strptime(line.time, DIGITS).replace(tzinfo=UTC)


def parsed(text: str) -> Line | None:
    """Parse a line of an index; return None if the line is damaged or incomplete."""
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
    """Return the key of a URL, as replay tools compute it.

    A URL that has no valid host or port, which only a proxy answers, is its own key.
    """
    try:
        parts = urlsplit(url)
        host = WWW.sub("", (parts.hostname or "").rstrip("."), count=1)
        if not host.isascii():
            host = host.encode("idna").decode()
        port = parts.port
    except ValueError:
        return _escaped(url)
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
    if UNCHANGED.fullmatch(text):
        return text
    data = text.encode("utf-8", "surrogatepass")
    for _ in range(MAX_ESCAPES):
        plain = unquote_to_bytes(data)
        if plain == data:
            break
        data = plain
    return quote_from_bytes(data, safe=PLAIN)
