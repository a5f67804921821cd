"""WARC 1.1 records of HTTP exchanges, each compressed as a gzip member of its own.

Headers are written byte for byte as the server sent them. Libraries would parse them and write them
again, which changes spaces and the spelling of names.
"""

from __future__ import annotations

import hashlib
import zlib
from base64 import b32encode
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from uuid import uuid4

from crawler.items import Archived

# A fifth of the time of level 6 for a page of 5 kB, for 8 % more bytes.
LEVEL = 1
GZIP_BITS = 31
REVISIT = "http://netpreserve.org/warc/1.1/revisit/"
NOT_MODIFIED, SAME_PAYLOAD = REVISIT + "server-not-modified", REVISIT + "identical-payload-digest"
HTTP_REQUEST = "application/http; msgtype=request"
HTTP_RESPONSE = "application/http; msgtype=response"
# Content type of a revisit record in an index.
REVISIT_TYPE = "warc/revisit"
# Of the response as it came: its body is stored without the framing of chunks.
MOVED_HEADER = b"transfer-encoding"
PREFIX = b"X-Crawler-"
END = b"\r\n\r\n"


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
    """Compress an exchange; without its body if `earlier`, the last full record, has the same.

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
        # Replay tools would show a 304 response as it is, a page without a body. Without a block,
        # they show the original, so that the headers of a 304 response get their own record.
        block = b"" if profile == NOT_MODIFIED else head
    record, request = _new_id(), _new_id()
    common = [("WARC-Target-URI", exchange.url), ("WARC-Date", iso_time(exchange.at))]
    if exchange.address:
        common.append(("WARC-IP-Address", exchange.address))
    fields = [
        ("WARC-Type", "revisit" if profile else "response"), ("WARC-Record-ID", record), *common,
        ("WARC-Payload-Digest", digest), ("WARC-Block-Digest", sha1_of(block)),
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
    mime = REVISIT_TYPE if profile else _mime_of(exchange.head)
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
    packer = zlib.compressobj(LEVEL, zlib.DEFLATED, GZIP_BITS)
    parts = packer.compress(head.encode("utf-8", "replace") + END + block + END)
    return parts + packer.flush()


def iso_time(at: datetime) -> str:
    """Return a time as a WARC date with milliseconds."""
    return f"{at.astimezone(UTC):%Y-%m-%dT%H:%M:%S}.{at.microsecond // 1000:03}Z"


def sha1_of(data: bytes) -> str:
    """Return the digest of data in the form that archives use."""
    return f"sha1:{b32encode(hashlib.sha1(data, usedforsecurity=False).digest()).decode()}"


def _new_id() -> str:
    return f"<urn:uuid:{uuid4()}>"


def _mime_of(head: bytes) -> str:
    for line in head.split(b"\r\n")[1:]:
        name, _, value = line.partition(b":")
        if name.strip().lower() == b"content-type":
            mime = value.partition(b";")[0].strip().lower()
            return mime.decode("latin-1")[:100] or "unk"
    return "unk"
