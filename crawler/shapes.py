"""Shapes of URLs: many links in a few lines, such as `/tag/{word}/` for thirty of them."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

DIGITS = re.compile(r"\d+")
NUMBER, WORD, REST = "{number}", "{word}", "{…}"
SEPARATORS = re.compile(r"[-_.,;:+~=!]")
EXTENSION = re.compile(r"\.[A-Za-z]\w{0,4}$")
# Parts of a path and parameters of a query beyond these are not told apart.
MAX_PARTS, MAX_PARAMETERS = 8, 4
# This many different texts in one place are parts of a shape each; more are a `{word}`.
MAX_SIBLINGS = 8
# From this many on, texts that hardly repeat are a `{word}`.
MIN_WORDS = 3
Parts = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Shape:
    """URLs that differ in words and numbers only.

    text:    a path with `{word}` and `{number}`; with the host where the URLs have several
    count:   how many URLs
    example: the first of them
    """

    text: str
    count: int
    example: str


def shapes(urls: Iterable[str]) -> list[Shape]:
    """The shapes of some URLs, the most frequent first; URLs that cannot be read are left out.

    Takes time linear in the text of the URLs.
    """
    groups: dict[tuple[str, int, str, str], list[tuple[Parts, str]]] = defaultdict(list)
    for url in urls:
        try:
            split = urlsplit(url)
        except ValueError:
            continue
        parts = _parts(split.path)
        groups[split.netloc, len(parts), _end(parts), _query(split.query)].append((parts, url))
    several = len({host for host, *_ in groups}) > 1
    found = [
        Shape(f"{host if several else ''}/{'/'.join(parts)}{query}", len(members), members[0])
        for (host, count, _, query), rows in groups.items()
        for parts, members in _grouped(rows, count)
    ]
    return sorted(found, key=lambda shape: -shape.count)


def _parts(path: str) -> Parts:
    """Parts of a path, with `{number}` for digits."""
    parts = [DIGITS.sub(NUMBER, part) for part in path.split("/", MAX_PARTS + 1)[1:]]
    return tuple(parts[:MAX_PARTS]) + ((REST,) if len(parts) > MAX_PARTS else ())


def _end(parts: Parts) -> str:
    """How a path ends: with a slash, with an extension such as `.html`, or in another way."""
    last = parts[-1] if parts else ""
    return last and (found[0] if (found := EXTENSION.search(last)) else WORD)


def _query(query: str) -> str:
    """The query with `{number}` and `{word}` for values."""
    if not query:
        return ""
    found = []
    for parameter in query.split("&", MAX_PARAMETERS)[:MAX_PARAMETERS]:
        name, equals, value = parameter.partition("=")
        shown = (NUMBER if value.isdigit() else WORD) if value else ""
        found.append(f"{DIGITS.sub(NUMBER, name)}{equals}{shown}")
    more = "&…" if query.count("&") >= MAX_PARAMETERS else ""
    return f"?{'&'.join(found)}{more}"


def _grouped(rows: list[tuple[Parts, str]], count: int) -> list[tuple[Parts, list[str]]]:
    """URLs by shape. rows: parts and URL of each; count: parts that all of them have."""
    groups: list[tuple[Parts, list[tuple[Parts, str]]]] = [((), rows)]
    for place in range(count):
        refined = []
        for before, members in groups:
            by_text: dict[str, list[tuple[Parts, str]]] = defaultdict(list)
            for member in members:
                by_text[member[0][place]].append(member)
            if _vary(by_text, len(members)):
                refined.append(((*before, _word(list(by_text))), members))
            else:
                refined += [((*before, text), some) for text, some in by_text.items()]
        groups = refined
    return [(parts, [url for _, url in members]) for parts, members in groups]


def _vary(texts: Iterable[str], of: int) -> bool:
    """Whether different texts in one place of `of` URLs stand for any text."""
    different = len(list(texts))
    return different > MAX_SIBLINGS or (different >= MIN_WORDS and different * 2 > of)


def _word(texts: Sequence[str]) -> str:
    """`{word}` between what all texts begin and end with, cut at separators."""
    start = _common_start(texts)
    ends = [found.end() for found in SEPARATORS.finditer(start)]
    start = start[: ends[-1]] if ends else ""
    end = _common_start([text[len(start) :][::-1] for text in texts])[::-1]
    first = SEPARATORS.search(end)
    return f"{start}{WORD}{end[first.start() :] if first else ''}"


def _common_start(texts: Sequence[str]) -> str:
    low, high = min(texts), max(texts)
    pairs = enumerate(zip(low, high, strict=False))
    return low[: next((i for i, (a, b) in pairs if a != b), min(len(low), len(high)))]
