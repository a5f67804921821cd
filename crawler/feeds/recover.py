"""Repair malformed feed documents: wrong encodings, junk before the root, invalid references.

`decoded` decodes a document, `prolog` finds its root, and `repaired` fixes the error that the
parser reported. Each takes time linear in the length of the document.
"""

from __future__ import annotations

import codecs
import html
import re
from dataclasses import dataclass, field
from html.entities import name2codepoint
from xml.parsers.expat import errors

from w3lib.encoding import resolve_encoding

from crawler.utils.text import count, guessed_encoding

# Errors of expat that `repaired` can fix.
REPAIRABLE = UNDEFINED_NAME, BAD_REFERENCE, BAD_TOKEN = (
    errors.XML_ERROR_UNDEFINED_ENTITY,
    errors.XML_ERROR_BAD_CHAR_REF,
    errors.XML_ERROR_INVALID_TOKEN,
)
# The start of an element. White space, instructions, comments and a DOCTYPE may precede the root.
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
# UTF-32 comes first, because its byte order mark starts with that of UTF-16.
MARKS = (
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
# First bytes of documents in encodings with several bytes per character, and in EBCDIC.
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
# Python's other codecs (idna, punycode, unicode_escape) are not encodings of documents.
ENCODINGS = re.compile(
    r"utf|ascii|iso|latin|cp|windows|koi|gb|hz|big5|euc|shift|mac|johab|tis|ptcp|kz"
)
# These encodings only use ASCII bytes, so that they are valid UTF-8 too.
ESCAPING = re.compile(r"iso2022|hz")
HEAD_BYTES = 2048
# Up to this ratio of invalid to valid non-ASCII characters, a text is damaged UTF-8, not text in
# another encoding.
MAX_BROKEN_SHARE = 0.1
XML_NAMES = frozenset({"amp", "lt", "gt", "quot", "apos"})
HTML_NAMES = {name: chr(code) for name, code in name2codepoint.items() if name not in XML_NAMES}
MAX_EXPANDED = 1_000_000
REFERENCE = re.compile(r"&([A-Za-z_][\w.-]*+);")
# A numeric reference. Possessive quantifiers: a long number without a semicolon is read only once.
NUMBERED = re.compile(r"&#(?:0*+([0-9]*+)|x0*+([0-9a-f]*+))(?<=[0-9a-f]);", re.I)
# Digits of the largest code point, 0x10ffff or 1114111.
MAX_DIGITS = 7
# An ampersand that does not begin a reference.
BARE = r"&(?!(?:#\d++|#x[0-9a-f]++|[a-z_][\w.-]*+);)"
AMPERSAND = re.compile(BARE, re.I)
# The same, or a CDATA section to skip.
SECTION_OR_AMPERSAND = re.compile(rf"<!\[CDATA\[.*?\]\]>|{BARE}", re.S | re.I)


@dataclass(slots=True)
class Prolog:
    """Everything before the root element.

    root:     local name of the root in lower case; empty if there is no root
    at:       index at which the root begins
    entities: plain text of the entities that the DOCTYPE declares, by name
    doctype:  unparsed DOCTYPE
    late:     there is text before the XML declaration
    junk:     there is text or a tag before the document
    """

    root: str = ""
    at: int = 0
    entities: dict[str, str] = field(default_factory=dict)
    doctype: str = ""
    late: bool = False
    junk: bool = False

    @property
    def is_html(self) -> bool:
        """Return True if the document is an HTML page."""
        if self.root in FEED_ROOTS:
            return False
        return self.root in HTML_ROOTS or bool(IS_HTML.match(self.doctype))


def prolog(text: str) -> Prolog:
    """Parse the prolog of a document. Junk that servers write before a feed is skipped."""
    prolog, at = Prolog(), 0
    # `at` increases with each step, so that the loop takes linear time.
    while at >= 0 and (start := text.find("<", at)) >= 0:
        prolog.junk = prolog.junk or bool(text[at:start].strip())
        if name := NAME.match(text, start):
            prolog.root, prolog.at = name[1].rpartition(":")[2].lower(), start
            break
        if text.startswith("<!--", start):
            at = _end_of(text, "-->", start + 4)
        elif text.startswith("<?", start):
            at = _end_of(text, "?>", start + 2)
        # A document has one. The search for its end reads far ahead, so it runs only once.
        elif not prolog.doctype and DOCTYPE.match(text, start):
            at = _end_of_doctype(text, start)
            prolog.doctype = text[start:at] if at >= 0 else ""
            prolog.entities = entities(prolog.doctype)
        else:
            at = start + 1
    # The junk may be a server's warnings in HTML. Unlike real pages, they are followed by a feed.
    is_warning = prolog.junk or (prolog.is_html and prolog.root != "html")
    if is_warning and (later := FEED.search(text, 0, JUNK_CHARACTERS)):
        prolog.junk, prolog.at = True, later.start()
        prolog.root = later[0].rpartition(":")[2].lstrip("<").lower()
    declaration = DECLARATION.search(text, 0, prolog.at)
    prolog.late = declaration is not None and declaration.start() > 0
    return prolog


def _end_of(text: str, mark: str, at: int) -> int:
    """Return the index after the next mark; -1 if there is none."""
    end = text.find(mark, at)
    return end + len(mark) if end >= 0 else -1


def _end_of_doctype(text: str, start: int) -> int:
    """Return the index after the first `>` outside of brackets, quotes and comments."""
    depth = 0
    for part in IN_DOCTYPE.finditer(text, start, start + MAX_DOCTYPE_CHARACTERS):
        depth += {"[": 1, "]": -1}.get(part[0], 0)
        if part[0] == ">" and depth <= 0:
            return part.end()
    return _end_of(text, ">", start)


def entities(doctype: str) -> dict[str, str]:
    """Return the entities that a DOCTYPE declares, as plain text by name.

    Entities that refer to other entities are ignored, because they can grow exponentially.
    """
    texts: dict[str, str] = {}
    for name, double_quoted, single_quoted in ENTITY.findall(doctype):
        value = double_quoted or single_quoted
        if len(value) <= MAX_ENTITY_CHARACTERS and HARMLESS.fullmatch(value):
            texts.setdefault(name, html.unescape(value))
        if len(texts) >= MAX_ENTITIES:
            break
    return texts


def decoded(body: bytes, content_type: str | None) -> tuple[str, list[str]]:
    """Decode a document. Return its text without byte order mark, and the encoding problems.

    content_type: HTTP header

    A document that is valid UTF-8 is UTF-8, whatever it declares: text in other encodings is hardly
    ever valid UTF-8.
    """
    for mark, name in MARKS:
        if body.startswith(mark):
            return _replaced(body[len(mark) :], name)
    for start, name in WIDE:
        if start.match(body):
            return _replaced(body, name)
    declaration = DECLARED_ENCODING.search(body[:HEAD_BYTES].decode("latin-1"))
    header = CHARSET.search(content_type or "")
    declared = codec_of(declaration[1]) if declaration else None
    served = codec_of(header[1]) if header else None
    # The header takes precedence, except for cp1252 (iso-8859-1), a common default of servers.
    likely_first = (declared, served) if served == "cp1252" else (served, declared)
    names = [name for name in likely_first if name]
    problems = [f"unknown encoding {declaration[1]!r}"] if declaration and not declared else []
    escaping = [name for name in names if ESCAPING.match(name)]
    for name in [*escaping, "utf-8", *names]:
        try:
            return body.decode(name), problems
        except (UnicodeError, LookupError):
            continue
    # No declared encoding fits.
    text = body.decode("utf-8", "replace")
    good = sum(not character.isascii() for character in text)
    if text.count("\N{REPLACEMENT CHARACTER}") <= MAX_BROKEN_SHARE * good:
        return _replaced(body, "utf-8")
    if others := [name for name in names if name != "utf-8"]:
        return _replaced(body, others[0])
    name = guessed_encoding(body, "cp1255") or "cp1252"
    return _replaced(body, name)[0], [f"no valid encoding declared: read as {name}"]


def codec_of(label: str) -> str | None:
    """Return Python's name of an encoding, or of the superset that browsers use instead.

    None for codecs that are not encodings of documents, such as hex or zlib.
    """
    name = resolve_encoding(label)
    return name if name and ENCODINGS.match(name) else None


def _replaced(body: bytes, name: str) -> tuple[str, list[str]]:
    text = body.decode(name, "replace")
    broken = text.count("\N{REPLACEMENT CHARACTER}")
    if not broken or body.count("\N{REPLACEMENT CHARACTER}".encode()) == broken:
        return text, []
    return text, [f"{count(broken, 'character')} invalid in {name}: replaced"]


@dataclass(frozen=True, slots=True)
class Markup:
    """A document to parse.

    text:  text from the root on
    names: texts of the entities that the document may use, by name
    """

    text: str
    names: dict[str, str]

    @property
    def head(self) -> str:
        """Return an XML declaration and a DOCTYPE with the entities that the document uses."""
        declared = ""
        for name in self.used():
            # Escape `<` and `&` twice: the value of an entity is parsed again where it is used.
            value = "".join(
                f"&#38;#{ord(c)};" if c in "<&" else f"&#{ord(c)};" for c in self.names[name]
            )
            declared += f'<!ENTITY {name} "{value}">'
        doctype = f"<!DOCTYPE feed [{declared}]>" if declared else ""
        return f"<?xml version='1.0' encoding='utf-8'?>{doctype}\n"

    def used(self) -> list[str]:
        """Return the names of the entities in the text; none if they expand to too much text."""
        if not self.names or "&" not in self.text:
            return []
        used = [name for name in REFERENCE.findall(self.text) if name in self.names]
        expanded = sum(len(self.names[name]) for name in used)
        return sorted(set(used)) if expanded <= MAX_EXPANDED else []


def repaired(markup: Markup, message: str) -> Markup | None:
    """Fix the error that expat reported; None if that is not possible.

    message: expat's error message
    """
    text, names = markup.text, markup.names
    if message == UNDEFINED_NAME:
        names = HTML_NAMES | names
    elif message == BAD_REFERENCE:
        text = NUMBERED.sub(_valid_reference, text)
    elif message == BAD_TOKEN:
        # Replace ampersands outside of CDATA sections. The text after the last section is handled
        # separately: there, each `<![CDATA[` would be searched to the end of the text.
        end = text.rfind("]]>") + 3 if "]]>" in text else 0
        head = SECTION_OR_AMPERSAND.sub(
            lambda match: "&amp;" if match[0] == "&" else match[0], text[:end]
        )
        text = head + AMPERSAND.sub("&amp;", text[end:])
    better = Markup(text, names)
    return None if better == markup else better


def _valid_reference(reference: re.Match[str]) -> str:
    """Return a reference if XML allows its character, else an empty text."""
    digits, base = (reference[1], 10) if reference[1] is not None else (reference[2], 16)
    code = int(digits or "0", base) if len(digits) <= MAX_DIGITS else 0
    is_allowed = code in (0x9, 0xA, 0xD) or (
        0x20 <= code <= 0x10FFFF and not (0xD800 <= code <= 0xDFFF or 0xFFFE <= code <= 0xFFFF)
    )
    return reference[0] if is_allowed else ""
