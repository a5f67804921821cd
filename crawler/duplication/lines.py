"""Lines of `scrapy duplicates check`: a text to compare in, what it is out. Pure."""

from __future__ import annotations

import json
from codecs import BOM_UTF8
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from crawler.utils.time import in_milliseconds

LONGEST_LINE_BYTES = 64_000_000
LONGEST_ID_BYTES = LONGEST_SOURCE_BYTES = 1000
SHOWN_CHARACTERS = 40
# So many seconds are the year 5138; more are milliseconds.
MOST_SECONDS = 1e11
ENDS = b"\n"


@dataclass(frozen=True, slots=True)
class Line:
    """A line that can be compared.

    key:     its id as JSON, so that `1` and `"1"` are two and each is printed as it came
    created: None where the line does not say
    source:  whose boilerplate the text may have; None where the line does not say
    """

    key: str
    text: str
    created: datetime | None = None
    source: str | None = None


@dataclass(frozen=True, slots=True)
class Bad:
    """A line that cannot be compared, and why."""

    number: int
    problem: str


class Lines:
    """Cuts chunks of bytes into numbered lines; a line that does not end is dropped, not kept."""

    def __init__(self, longest_bytes: int = LONGEST_LINE_BYTES) -> None:
        self._longest = longest_bytes
        self._rest: list[bytes] = []
        self._size = self._number = 0

    def of(self, chunk: bytes) -> Iterator[Line | Bad]:
        """The lines that this chunk ends."""
        *ended, rest = chunk.split(ENDS)
        for part in ended:
            self._keep(part)
            yield from self.end()
        self._keep(rest)

    def end(self) -> Iterator[Line | Bad]:
        """The line that has come so far."""
        self._number += 1
        raw, too_long = b"".join(self._rest), self._size > self._longest
        self._rest, self._size = [], 0
        if too_long:
            yield Bad(self._number, f"longer than {self._longest:,} bytes")
        elif raw.removeprefix(BOM_UTF8).strip():
            yield read(raw, self._number)

    def _keep(self, part: bytes) -> None:
        self._size += len(part)
        if self._size > self._longest:
            self._rest = []
        elif part:
            self._rest.append(part)


def read(raw: bytes, number: int) -> Line | Bad:
    """What a line says."""
    try:
        return _read(raw)
    except UnicodeDecodeError:
        return Bad(number, "not UTF-8 (iconv -f latin1 -t utf-8 FILE makes it so)")
    except RecursionError:
        return Bad(number, "JSON nested too deep")
    except ValueError as error:
        return Bad(number, str(error))


class _Number(str):
    """A number as it is written."""


def _read(raw: bytes) -> Line:
    text = raw.decode("utf-8-sig")
    try:
        given = json.loads(text, parse_int=_Number, parse_float=_Number, parse_constant=_refuse)
    except ValueError:
        raise ValueError("no JSON") from None
    if not isinstance(given, dict):
        raise ValueError('no object such as {"id": 1, "text": "…"}')
    compared = given.get("text")
    if not isinstance(compared, str) or isinstance(compared, _Number):
        raise ValueError("text is missing" if compared is None else "text is no string")
    created, source = _created(given.get("created")), _source(given.get("source"))
    return Line(_key(given.get("id")), compared, created, source)


def _refuse(name: str) -> None:
    raise ValueError(name)


def _key(id_: Any) -> str:
    if id_ is None:
        raise ValueError("id is missing")
    if not isinstance(id_, str):
        raise ValueError("id is no string and no number")
    key = str(id_) if isinstance(id_, _Number) else json.dumps(id_, ensure_ascii=False)
    try:
        size = len(key.encode())
    except UnicodeEncodeError:  # half of a surrogate pair
        key = json.dumps(id_)
        size = len(key)
    if size > LONGEST_ID_BYTES:
        raise ValueError(f"id is longer than {LONGEST_ID_BYTES:,} bytes")
    return key


def _source(given: Any) -> str | None:
    if given is None:
        return None
    if not isinstance(given, str) or isinstance(given, _Number):
        raise ValueError("source is no string")
    if len(given.encode("utf-8", "replace")) > LONGEST_SOURCE_BYTES:
        raise ValueError(f"source is longer than {LONGEST_SOURCE_BYTES:,} bytes")
    return given.encode("utf-8", "replace").decode()


def _created(given: Any) -> datetime | None:
    if given is None:
        return None
    try:
        if isinstance(given, _Number):
            return in_milliseconds(_moment(float(given)))
        moment = datetime.fromisoformat(given.strip())
        return in_milliseconds(moment.replace(tzinfo=moment.tzinfo or UTC).astimezone(UTC))
    except (ValueError, OverflowError, AttributeError, OSError):
        shown = str(given)[:SHOWN_CHARACTERS]
        raise ValueError(f"created is no ISO 8601 time and no Unix time: {shown!r}") from None


def _moment(seconds: float) -> datetime:
    if abs(seconds) >= MOST_SECONDS:
        seconds /= 1000
    return datetime.fromtimestamp(seconds, UTC)


def written(
    key: str, duplicate_of: str | None, similarity: float | None, replaces: str | None
) -> str:
    """What a text is, as a line of JSON."""
    alike = "null" if similarity is None else f"{similarity:.4g}"
    line = f'{{"id": {key}, "duplicate_of": {duplicate_of or "null"}, "similarity": {alike}'
    return f'{line}, "replaces": {replaces}}}\n' if replaces else f"{line}}}\n"
