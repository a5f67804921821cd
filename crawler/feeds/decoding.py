"""The text of a document, whatever encoding it says or has."""

from __future__ import annotations

import codecs
import re

from w3lib.encoding import resolve_encoding

from crawler.words import count

# Longest first: the mark of UTF-32 begins with that of UTF-16.
MARKS = (
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
# How "<?", "{" and the like begin in encodings whose letters take several bytes.
WIDE = (
    (re.compile(rb"[\t-~]\0\0\0"), "utf-32-le"),
    (re.compile(rb"\0\0\0[\t-~]"), "utf-32-be"),
    (re.compile(rb"[\t-~]\0"), "utf-16-le"),
    (re.compile(rb"\0[\t-~]"), "utf-16-be"),
    (re.compile(rb"\x4c\x6f\xa7\x94"), "cp037"),
)
DECLARATION = re.compile(r"<\?xml\s[^<>]{0,200}?encoding\s*=\s*[\"']([\w.:-]{1,40})[\"']", re.I)
CHARSET = re.compile(r";\s*charset\s*=\s*[\"']?([\w.:-]{1,40})", re.I)
# Python's other codecs (idna, punycode, unicode_escape) are no encodings of documents.
ENCODINGS = re.compile(
    r"utf|ascii|iso|latin|cp|windows|koi|gb|hz|big5|euc|shift|mac|johab|tis|ptcp|kz"
)
# All bytes of these are ASCII, so that they look like UTF-8.
ESCAPING = re.compile(r"iso2022|hz")
# What documents without a declaration are in, as a rule.
LIKELY = ("cp949", "cp932", "gb18030", "big5", "euc_jp", "cp1251", "koi8_r", "cp1255", "cp1252")
HEAD_BYTES = 2048
GUESSED_BYTES = 65_536
# So many broken characters for each good one still make a damaged text, not another encoding.
MOST_BROKEN = 0.1


def decoded(body: bytes, content_type: str | None) -> tuple[str, list[str]]:
    """A document as text, without byte order mark, and what was wrong with its encoding.

    content_type: the HTTP header

    What is valid UTF-8 is UTF-8, whatever is said of it: other encodings are never so by chance.
    """
    for mark, name in MARKS:
        if body.startswith(mark):
            return _replaced(body[len(mark) :], name)
    for start, name in WIDE:
        if start.match(body):
            return _replaced(body, name)
    names, problems = _named(body, content_type)
    escaping = [name for name in names if ESCAPING.match(name)]
    for name in [*escaping, "utf-8", *names]:
        try:
            return body.decode(name), problems
        except (UnicodeError, LookupError):
            continue
    return _damaged(body, [name for name in names if name != "utf-8"])


def _named(body: bytes, content_type: str | None) -> tuple[list[str], list[str]]:
    """The encodings that header and document name, the more likely one first; unknown names."""
    declaration = DECLARATION.search(body[:HEAD_BYTES].decode("latin-1"))
    header = CHARSET.search(content_type or "")
    declared = _codec(declaration[1]) if declaration else None
    said = _codec(header[1]) if header else None
    # The header is the server's word, but this one is what servers say without being asked.
    order = (declared, said) if said == "cp1252" else (said, declared)
    unknown = [f"unknown encoding {declaration[1]!r}"] if declaration and not declared else []
    return [name for name in order if name], unknown


def _codec(label: str) -> str | None:
    """Python's name of an encoding, of its superset where browsers read it so."""
    name = resolve_encoding(label)
    return name if name and ENCODINGS.match(name) else None


def _damaged(body: bytes, names: list[str]) -> tuple[str, list[str]]:
    """The text of bytes that are nothing of what they should be."""
    text = body.decode("utf-8", "replace")
    good = sum(not character.isascii() for character in text)
    broken = text.count("\N{REPLACEMENT CHARACTER}")
    if broken <= MOST_BROKEN * good:
        return _replaced(body, "utf-8")
    if names:
        return _replaced(body, names[0])
    name = _guess(body)
    return _replaced(body, name)[0], [f"no encoding declared that fits: read as {name}"]


def _guess(body: bytes) -> str:
    from charset_normalizer import from_bytes  # only for the few documents that declare nothing

    best = from_bytes(body[:GUESSED_BYTES], cp_isolation=list(LIKELY)).best()
    return best.encoding if best else "cp1252"


def _replaced(body: bytes, name: str) -> tuple[str, list[str]]:
    text = body.decode(name, "replace")
    broken = text.count("\N{REPLACEMENT CHARACTER}")
    if not broken or body.count("\N{REPLACEMENT CHARACTER}".encode()) == broken:
        return text, []
    return text, [f"{count(broken, 'character')} not in {name}: replaced"]
