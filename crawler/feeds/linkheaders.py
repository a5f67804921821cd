"""HTTP's Link headers (RFC 8288), as far as they name a feed's hubs and its topic."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from urllib.parse import urljoin

# More than any honest server sends.
MOST_VALUES = 20
MOST_CHARACTERS = 16_384
MOST_HUBS = 10

_PARAMETER = re.compile(r'\s*;\s*([^\s=;,"<>]+)\s*(?:=\s*("(?:[^"\\]|\\.)*"|[^\s;,"]*))?')
_ESCAPED = re.compile(r"\\(.)")


def hubs_of_headers(values: Iterable[str], base: str = "") -> tuple[tuple[str, ...], str | None]:
    """The hubs, each once, and the topic (`rel="self"`), None where none is named.

    values: the Link headers of one response, each with any number of links
    base:   the response's URL, to which links may be relative

    Links of another page (`anchor`) do not count. What cannot be read is passed over.
    """
    hubs: dict[str, None] = {}
    topic: str | None = None
    for written, relations in _links(values):
        if (target := _resolved(base, written)) is None:
            continue
        if "hub" in relations and len(hubs) < MOST_HUBS:
            hubs[target] = None
        if "self" in relations and topic is None:
            topic = target
    return tuple(hubs), topic


def _resolved(base: str, url: str) -> str | None:
    try:
        return urljoin(base, url)
    except ValueError:
        return None


def _links(values: Iterable[str]) -> Iterator[tuple[str, list[str]]]:
    for _, value in zip(range(MOST_VALUES), values, strict=False):
        text, position = value[:MOST_CHARACTERS], 0
        while (start := text.find("<", position)) >= 0 and (end := text.find(">", start)) >= 0:
            parameters, position = _parameters(text, end + 1)
            target = text[start + 1 : end].strip()
            if target and "anchor" not in parameters:
                yield target, parameters.get("rel", "").lower().split()


def _parameters(text: str, position: int) -> tuple[dict[str, str], int]:
    """The parameters of a link by name, the first of each, and where they end."""
    parameters: dict[str, str] = {}
    while found := _PARAMETER.match(text, position):
        parameters.setdefault(found[1].lower(), _unquoted(found[2] or ""))
        position = found.end()
    return parameters, position


def _unquoted(text: str) -> str:
    return _ESCAPED.sub(r"\1", text[1:-1]) if text.startswith('"') else text
