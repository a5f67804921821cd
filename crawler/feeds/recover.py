"""Read feed documents that break the rules: wrong encodings, junk before the root, bad references.

`decoded` makes text of bytes, `prolog` finds the root of a document, and `repaired` removes what the
parser complained of. Each takes time in proportion to the document's length.
"""

from __future__ import annotations

import codecs
import html
import re
from dataclasses import dataclass, field
from html.entities import name2codepoint
from xml.parsers.expat import errors

from w3lib.encoding import resolve_encoding

from crawler.utils.text import count

# What expat complains of, and `repaired` knows a way out of.
REPAIRABLE = UNDEFINED_NAME, BAD_REFERENCE, BAD_TOKEN = (
    errors.XML_ERROR_UNDEFINED_ENTITY,
    errors.XML_ERROR_BAD_CHAR_REF,
    errors.XML_ERROR_INVALID_TOKEN,
)
# Before the root: white space, instructions, comments; the DOCTYPE is read with its brackets.
NAME = re.compile(r"<([A-Za-z_][\w.:-]*+)")
IS_HTML = re.compile(r"<!DOCTYPE\s+html", re.I)
DOCTYPE = re.compile(r"<!DOCTYPE", re.I)
FEED = re.compile(r"<(?:[\w.-]{1,40}:)?(?:rss|feed|rdf)(?=[\s>])", re.I)
DECLARATION = re.compile(r"<\?xml\s", re.I)
JUNK_CHARACTERS = 65_536
FEED_ROOTS = frozenset({"rss", "feed", "rdf"})
HTML_ROOTS = frozenset({
    "html", "head", "title", "meta", "link", "body", "script", "style", "noscript", "div", "p",
    "a", "b", "br", "hr", "h1", "h2", "h3", "font", "table", "center", "img", "span", "pre",
    "iframe", "form", "ul",
})  # fmt: skip
IN_DOCTYPE = re.compile(r"""<!--.*?-->|"[^"]*"|'[^']*'|[\[\]>]""", re.S)
MAX_DOCTYPE_CHARACTERS = 16_384
ENTITY = re.compile(r"""<!ENTITY\s+([A-Za-z_][\w.-]*)\s+(?:"([^"<>%]*)"|'([^'<>%]*)')\s*>""")
HARMLESS = re.compile(r"(?:[^&]|&#\w{1,8};)*+")
MAX_ENTITY_CHARACTERS = 200
MAX_ENTITIES = 500
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
DECLARED_ENCODING = re.compile(
    r"<\?xml\s[^<>]{0,200}?encoding\s*=\s*[\"']([\w.:-]{1,40})[\"']", re.I
)
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
MAX_BROKEN_SHARE = 0.1
XML_NAMES = frozenset({"amp", "lt", "gt", "quot", "apos"})
HTML_NAMES = {name: chr(code) for name, code in name2codepoint.items() if name not in XML_NAMES}
MAX_EXPANDED = 1_000_000
REFERENCE = re.compile(r"&([A-Za-z_][\w.-]*+);")
# A reference by number. Possessive: a long number without its end is read only once.
NUMBERED = re.compile(r"&#(?:0*+([0-9]*+)|x0*+([0-9a-f]*+))(?<=[0-9a-f]);", re.I)
# Digits of the largest character, 0x10ffff or 1114111.
MAX_DIGITS = 7
# An ampersand that begins no reference.
BARE = r"&(?!(?:#\d++|#x[0-9a-f]++|[a-z_][\w.-]*+);)"
AMPERSAND = re.compile(BARE, re.I)
# The same, or what is to be stepped over to find one.
SECTION_OR_AMPERSAND = re.compile(rf"<!\[CDATA\[.*?\]\]>|{BARE}", re.S | re.I)


@dataclass(slots=True)
class Prolog:
    """What stands before the root.

    root:     its local name, lower case; empty where there is none
    at:       where the root begins
    entities: what the DOCTYPE says of names, as plain text
    doctype:  the DOCTYPE as it stands
    late:     something stands before the XML declaration
    junk:     text or tags stand before it all
    """

    root: str = ""
    at: int = 0
    entities: dict[str, str] = field(default_factory=dict)
    doctype: str = ""
    late: bool = False
    junk: bool = False

    @property
    def is_html(self) -> bool:
        """Whether this is a page for people."""
        if self.root in FEED_ROOTS:
            return False
        return self.root in HTML_ROOTS or bool(IS_HTML.match(self.doctype))


def prolog(text: str) -> Prolog:
    """Find what a text of markup begins with; what servers write before a feed is stepped over."""
    prolog, at = Prolog(), 0
    # Every step is longer than the one before, or the last one.
    while at >= 0 and (start := text.find("<", at)) >= 0:
        prolog.junk = prolog.junk or bool(text[at:start].strip())
        if name := NAME.match(text, start):
            prolog.root, prolog.at = name[1].rpartition(":")[2].lower(), start
            break
        if text.startswith("<!--", start):
            at = _behind(text, "-->", start + 4)
        elif text.startswith("<?", start):
            at = _behind(text, "?>", start + 2)
        elif DOCTYPE.match(text, start):
            at = _end_of_doctype(text, start)
            prolog.doctype = text[start:at] if at >= 0 else ""
            prolog.entities = entities(prolog.doctype)
        else:
            at = start + 1
    # A server's warnings in HTML; a real page has its own root and no feed in it.
    is_warning = prolog.junk or (prolog.is_html and prolog.root != "html")
    if is_warning and (later := FEED.search(text, 0, JUNK_CHARACTERS)):
        prolog.junk, prolog.at = True, later.start()
        prolog.root = later[0].rpartition(":")[2].lstrip("<").lower()
    declaration = DECLARATION.search(text, 0, prolog.at)
    prolog.late = declaration is not None and declaration.start() > 0
    return prolog


def _behind(text: str, mark: str, at: int) -> int:
    """Return where the text goes on behind a mark; -1 where there is none."""
    end = text.find(mark, at)
    return end + len(mark) if end >= 0 else -1


def _end_of_doctype(text: str, start: int) -> int:
    """Its end is the first `>` outside of brackets, quotes and comments."""
    depth = 0
    for part in IN_DOCTYPE.finditer(text, start, start + MAX_DOCTYPE_CHARACTERS):
        depth += {"[": 1, "]": -1}.get(part[0], 0)
        if part[0] == ">" and depth <= 0:
            return part.end()
    return _behind(text, ">", start)


def entities(doctype: str) -> dict[str, str]:
    """Names that a DOCTYPE declares and their plain text; none that refers to another."""
    texts: dict[str, str] = {}
    for name, double_quoted, single_quoted in ENTITY.findall(doctype):
        value = double_quoted or single_quoted
        if len(value) <= MAX_ENTITY_CHARACTERS and HARMLESS.fullmatch(value):
            texts.setdefault(name, html.unescape(value))
        if len(texts) >= MAX_ENTITIES:
            break
    return texts


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
    declaration = DECLARED_ENCODING.search(body[:HEAD_BYTES].decode("latin-1"))
    header = CHARSET.search(content_type or "")
    declared = _codec(declaration[1]) if declaration else None
    served = _codec(header[1]) if header else None
    # The header is the server's word, but this one is what servers say without being asked.
    likely_first = (declared, served) if served == "cp1252" else (served, declared)
    names = [name for name in likely_first if name]
    problems = [f"unknown encoding {declaration[1]!r}"] if declaration and not declared else []
    escaping = [name for name in names if ESCAPING.match(name)]
    for name in [*escaping, "utf-8", *names]:
        try:
            return body.decode(name), problems
        except (UnicodeError, LookupError):
            continue
    # The bytes are nothing of what they should be.
    text = body.decode("utf-8", "replace")
    good = sum(not character.isascii() for character in text)
    if text.count("\N{REPLACEMENT CHARACTER}") <= MAX_BROKEN_SHARE * good:
        return _replaced(body, "utf-8")
    if others := [name for name in names if name != "utf-8"]:
        return _replaced(body, others[0])
    from charset_normalizer import from_bytes  # only for the few documents that declare nothing

    best = from_bytes(body[:GUESSED_BYTES], cp_isolation=list(LIKELY)).best()
    name = best.encoding if best else "cp1252"
    return _replaced(body, name)[0], [f"no encoding declared that fits: read as {name}"]


def _codec(label: str) -> str | None:
    """Python's name of an encoding, of its superset where browsers read it so."""
    name = resolve_encoding(label)
    return name if name and ENCODINGS.match(name) else None


def _replaced(body: bytes, name: str) -> tuple[str, list[str]]:
    text = body.decode(name, "replace")
    broken = text.count("\N{REPLACEMENT CHARACTER}")
    if not broken or body.count("\N{REPLACEMENT CHARACTER}".encode()) == broken:
        return text, []
    return text, [f"{count(broken, 'character')} not in {name}: replaced"]


@dataclass(frozen=True, slots=True)
class Markup:
    """A document about to be parsed: its text from the root on, and the names it may use."""

    text: str
    names: dict[str, str]

    @property
    def head(self) -> str:
        """XML declaration and DOCTYPE."""
        declared = ""
        for name in self.used():
            # As an entity's value, two characters would be markup again.
            value = "".join(
                f"&#38;#{ord(c)};" if c in "<&" else f"&#{ord(c)};" for c in self.names[name]
            )
            declared += f'<!ENTITY {name} "{value}">'
        doctype = f"<!DOCTYPE feed [{declared}]>" if declared else ""
        return f"<?xml version='1.0' encoding='utf-8'?>{doctype}\n"

    def used(self) -> list[str]:
        """The names that occur; none where they would make the document grow beyond measure."""
        if not self.names or "&" not in self.text:
            return []
        used = [name for name in REFERENCE.findall(self.text) if name in self.names]
        grown = sum(len(self.names[name]) for name in used)
        return sorted(set(used)) if grown <= MAX_EXPANDED else []


def repaired(markup: Markup, message: str) -> Markup | None:
    """The markup without what the message of expat complains of; None where that is not known."""
    text, names = markup.text, markup.names
    if message == UNDEFINED_NAME:
        names = HTML_NAMES | names
    elif message == BAD_REFERENCE:
        text = NUMBERED.sub(_if_possible, text)
    elif message == BAD_TOKEN:
        # What follows the last end of a CDATA section is searched apart: no search goes twice.
        end = text.rfind("]]>") + 3 if "]]>" in text else 0
        head = SECTION_OR_AMPERSAND.sub(
            lambda match: "&amp;" if match[0] == "&" else match[0], text[:end]
        )
        text = head + AMPERSAND.sub("&amp;", text[end:])
    better = Markup(text, names)
    return None if better == markup else better


def _if_possible(reference: re.Match[str]) -> str:
    """Keep a reference to a character that XML allows, else nothing."""
    digits, base = (reference[1], 10) if reference[1] is not None else (reference[2], 16)
    code = int(digits or "0", base) if len(digits) <= MAX_DIGITS else 0
    is_allowed = code in (0x9, 0xA, 0xD) or (
        0x20 <= code <= 0x10FFFF and not (0xD800 <= code <= 0xDFFF or 0xFFFE <= code <= 0xFFFF)
    )
    return reference[0] if is_allowed else ""
