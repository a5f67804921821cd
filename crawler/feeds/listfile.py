"""A file that lists feeds: OPML, or a URL a line; its encoding is found out."""

from __future__ import annotations

import codecs
import io
import re
from collections.abc import Iterator
from typing import BinaryIO

from crawler.config import Config
from crawler.errors import ConfigError
from crawler.feeds import opml
from crawler.feeds.lists import FeedList, Gathering, NoList

LARGEST_MB = 256
BYTES_IN_MB = 1024 * 1024
CHUNK_BYTES = 65_536
# What is longer is no URL, and is not kept in memory.
LONGEST_LINE = 65_536
BYTE_ORDER_MARKS = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
DECLARED = re.compile(rb"""<\?xml[^>]{0,200}?encoding\s*=\s*["']([\w.:-]{1,40})""")
# Encodings that lists without a declaration still have.
LIKELY = ["cp949", "cp932", "gb18030", "big5", "euc_jp", "cp1251", "koi8_r", "cp1252"]
# What a document is by its first tag.
KINDS = (
    (re.compile(r"<(?:\w+:)?opml\b", re.I), "OPML without a feed in it"),
    (re.compile(r"<(?:rss|feed|rdf:RDF)\b", re.I), "a feed, no list (scrapy feeds add URL)"),
    (re.compile(r"<(?:!doctype\s+)?html\b", re.I), "an HTML page, no OPML"),
)
NO_TEXT = "neither OPML nor a list of URLs"


def read_list(file: BinaryIO, name: str, config: Config) -> FeedList:
    """What a seekable file lists; `name` stands in the messages.

    Raises ConfigError for a file that is too large, is something else, or lists nothing.
    """
    if file.seek(0, io.SEEK_END) > LARGEST_MB * BYTES_IN_MB:
        raise ConfigError(f"{name}: larger than {LARGEST_MB} MB; import it in parts")
    encoding, problem = encoding_of(file)
    try:
        taken = _taken(file, encoding, config)
    except NoList as error:
        raise ConfigError(f"{name}: {error}") from None
    taken.problems += [problem] if problem else []
    found = taken.result()
    if not (found.feeds or found.refused):
        why = f" ({found.problems[0]})" if found.problems else ""
        raise ConfigError(f"{name}: no feeds in it{why}")
    return found


def _taken(file: BinaryIO, encoding: str, config: Config) -> Gathering:
    head = next(_decoded(file, encoding), "").lstrip()
    if head.startswith("<"):
        taken, count = opml.read(lambda: _decoded(file, encoding), lambda: Gathering(config))
        if not count:
            raise NoList(_kind(head))
        return taken
    if head.startswith(("{", "[")) or "\0" in head:
        raise NoList(NO_TEXT)
    return _lines(_decoded(file, encoding), Gathering(config))


def _kind(head: str) -> str:
    found = [(match.start(), kind) for sign, kind in KINDS if (match := sign.search(head))]
    return min(found)[1] if found else NO_TEXT


def _lines(chunks: Iterator[str], taken: Gathering) -> Gathering:
    """A URL a line; what follows `#` at the start of a word is a comment."""
    for number, line in enumerate(_by_line(chunks), 1):
        url, *rest = line.split(maxsplit=1) or ("#",)
        if url.startswith("#"):
            continue
        if rest and not rest[0].startswith("#"):
            taken.refuse(f"line {number}", line.strip(), None, "more than a URL")
        else:
            taken.take(f"line {number}", url)
    return taken


def _by_line(chunks: Iterator[str]) -> Iterator[str]:
    rest = ""
    for chunk in chunks:
        *lines, rest = (rest + chunk).replace("\r\n", "\n").split("\n")
        yield from lines
        rest = rest[:LONGEST_LINE]
    yield rest


def encoding_of(file: BinaryIO) -> tuple[str, str | None]:
    """How a file is encoded, and what is wrong about it if something is.

    What reads as UTF-8 is UTF-8, whatever is declared: no other text looks like it by chance.
    """
    file.seek(0)
    head = file.read(4096)
    for mark, name in BYTE_ORDER_MARKS:
        if head.startswith(mark):
            return name, None
    declared = _declared(head)
    if _bad_at(file, "utf-8") is None:
        seven_bits = declared is not None and declared.startswith(("iso2022", "utf_7", "hz"))
        return (declared if seven_bits else "utf-8") or "utf-8", None
    if declared not in (None, "utf-8") and _bad_at(file, str(declared)) is None:
        return str(declared), None
    guessed = _guess(file)
    return guessed, f"not in {declared or 'utf-8'} as it should be: read as {guessed}"


def _declared(head: bytes) -> str | None:
    """The declared encoding by Python's name; None where it is unknown or none is declared."""
    found = DECLARED.search(head)
    try:
        return codecs.lookup(found[1].decode("ascii")).name if found else None
    except LookupError:
        return None


def _bad_at(file: BinaryIO, encoding: str) -> int | None:
    """Where in the file about, in bytes, it is not in this encoding; None if all of it is."""
    decoder = codecs.getincrementaldecoder(encoding)()
    file.seek(0)
    at = 0
    try:
        while chunk := file.read(CHUNK_BYTES):
            decoder.decode(chunk)
            at += len(chunk)
        decoder.decode(b"", final=True)
    except UnicodeError:
        return at
    return None


def _guess(file: BinaryIO) -> str:
    from charset_normalizer import from_bytes  # slow to import, and seldom needed

    file.seek(_bad_at(file, "utf-8") or 0)
    best = from_bytes(file.read(CHUNK_BYTES), cp_isolation=LIKELY).best()
    return best.encoding if best else "cp1252"


def _decoded(file: BinaryIO, encoding: str) -> Iterator[str]:
    """The text from its start, in pieces."""
    decoder = codecs.getincrementaldecoder(encoding)(errors="replace")
    file.seek(0)
    while chunk := file.read(CHUNK_BYTES):
        if text := decoder.decode(chunk):
            yield text
    if text := decoder.decode(b"", final=True):
        yield text
