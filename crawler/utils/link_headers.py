"""Parse HTTP Link headers (RFC 8288)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from crawler.utils.urls import joined

# Limits on Link headers, higher than any legitimate server needs.
MAX_HEADERS = 20
MAX_HEADER_CHARACTERS = 16_384
_PARAMETER = re.compile(r'\s*;\s*([^\s=;,"<>]+)\s*(?:=\s*("(?:[^"\\]|\\.)*"|[^\s;,"]*))?')
_ESCAPED = re.compile(r"\\(.)")


def links_of_headers(values: Iterable[str], base: str = "") -> Iterator[tuple[str, list[str]]]:
    """Yield the links of Link headers: absolute URL, and relations in lower case.

    values: values of the Link headers of one response, each with any number of links
    base:   URL of the response, for relative links

    Links with an `anchor` are skipped: they belong to another page. So are invalid links.
    """
    for _, value in zip(range(MAX_HEADERS), values, strict=False):
        text, position = value[:MAX_HEADER_CHARACTERS], 0
        while (start := text.find("<", position)) >= 0 and (end := text.find(">", start)) >= 0:
            # If a parameter is repeated, the first value counts (RFC 8288).
            parameters: dict[str, str] = {}
            position = end + 1
            while parameter := _PARAMETER.match(text, position):
                name, content = parameter[1].lower(), parameter[2] or ""
                if content.startswith('"'):
                    content = _ESCAPED.sub(r"\1", content[1:-1])
                parameters.setdefault(name, content)
                position = parameter.end()
            reference = text[start + 1 : end].strip()
            target = joined(base, reference)
            if reference and target and "anchor" not in parameters:
                yield target, parameters.get("rel", "").lower().split()
