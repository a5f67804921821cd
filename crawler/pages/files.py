"""Answers to requests for files of the output folder; knows nothing of sockets."""

from __future__ import annotations

import hashlib
import mimetypes
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote, unquote

from crawler.addresses import is_local

INDEX = "index.html"
ALWAYS = {
    "Server": "Freshet",
    "X-Content-Type-Options": "nosniff",
    "Content-Security-Policy": (
        "default-src 'self'; img-src * data:; style-src 'self' 'unsafe-inline'"
    ),
    "Cache-Control": "no-cache",
}
TEXTS = re.compile(r"text/.*|application/(json|javascript)")


@dataclass(frozen=True, slots=True)
class Answer:
    """Status, body, and headers beside those that every answer has."""

    status: int
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Asked:
    """A request. hosts: all its Host headers    etag: If-None-Match."""

    method: str
    path: str
    hosts: tuple[str, ...]
    etag: str = ""


def answer(root: Path, asked: Asked) -> Answer:
    """Answer from the folder `root`, whose path is resolved."""
    if len(asked.hosts) != 1 or not is_local(asked.hosts[0]):
        return _said(403, "only for this machine; say localhost")
    if asked.method not in ("GET", "HEAD"):
        return Answer(405, headers={"Allow": "GET, HEAD"})
    path = unquote(asked.path.partition("?")[0])
    parts = path.split("/")
    hidden = any(part.startswith(".") or "\\" in part or "\0" in part for part in parts)
    if not path.startswith("/") or hidden:
        return NOT_FOUND
    try:
        return _file(root, "/".join(parts[1:]), asked.etag)
    except (OSError, ValueError, RuntimeError):
        return NOT_FOUND


def _file(root: Path, name: str, etag: str) -> Answer:
    place = (root / name.lstrip("/")).resolve()
    if not place.is_relative_to(root):
        return NOT_FOUND
    if place.is_dir():
        if name and not name.endswith("/"):
            return Answer(301, headers={"Location": f"{quote(place.name)}/"})
        place /= INDEX
    elif name.endswith("/"):
        return NOT_FOUND
    body = place.read_bytes()
    own = f'"{hashlib.sha256(body).hexdigest()[:20]}"'
    headers = {"ETag": own, "Content-Type": _kind(place.name)}
    return Answer(304, headers=headers) if own == etag else Answer(200, body, headers)


def _kind(name: str) -> str:
    found = mimetypes.guess_type(name)[0] or "application/octet-stream"
    return f"{found}; charset=utf-8" if TEXTS.fullmatch(found) else found


def _said(status: int, text: str) -> Answer:
    return Answer(status, f"{text}\n".encode(), {"Content-Type": "text/plain; charset=utf-8"})


NOT_FOUND = _said(404, "no such page")
