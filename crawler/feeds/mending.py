"""Small repairs that make XML of what is nearly XML, so that it is read like the rest."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from html.entities import name2codepoint
from xml.parsers.expat import errors

XML_NAMES = frozenset({"amp", "lt", "gt", "quot", "apos"})
HTML_NAMES = {name: chr(code) for name, code in name2codepoint.items() if name not in XML_NAMES}
MOST_EXPANDED = 1_000_000
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


@dataclass(frozen=True, slots=True)
class Markup:
    """A document about to be parsed: its text from the root on, and the names it may use."""

    text: str
    names: dict[str, str]

    @property
    def head(self) -> str:
        """XML declaration and DOCTYPE."""
        names = ((name, _referred(self.names[name])) for name in self.used())
        declared = "".join(f'<!ENTITY {name} "{value}">' for name, value in names)
        doctype = f"<!DOCTYPE feed [{declared}]>" if declared else ""
        return f"<?xml version='1.0' encoding='utf-8'?>{doctype}\n"

    def used(self) -> list[str]:
        """The names that occur; none where they would make the document grow beyond measure."""
        if not self.names or "&" not in self.text:
            return []
        used = [name for name in REFERENCE.findall(self.text) if name in self.names]
        grown = sum(len(self.names[name]) for name in used)
        return sorted(set(used)) if grown <= MOST_EXPANDED else []


def mended(markup: Markup, message: str) -> Markup | None:
    """The markup without what the message of expat complains of; None where that is not known."""
    mend = MENDS.get(message)
    better = mend(markup) if mend else markup
    return None if better == markup else better


def _with_names_of_html(markup: Markup) -> Markup:
    return Markup(markup.text, HTML_NAMES | markup.names)


def _without_impossible_references(markup: Markup) -> Markup:
    return Markup(NUMBERED.sub(_if_possible, markup.text), markup.names)


def _if_possible(found: re.Match[str]) -> str:
    """A reference to a character that XML knows, else nothing."""
    digits, base = (found[1], 10) if found[1] is not None else (found[2], 16)
    code = int(digits or "0", base) if len(digits) <= MAX_DIGITS else 0
    known = code in (0x9, 0xA, 0xD) or (
        0x20 <= code <= 0x10FFFF and not (0xD800 <= code <= 0xDFFF or 0xFFFE <= code <= 0xFFFF)
    )
    return found[0] if known else ""


def _with_escaped_ampersands(markup: Markup) -> Markup:
    """What follows the last end of a CDATA section is searched apart: no search goes twice."""
    end = markup.text.rfind("]]>") + 3 if "]]>" in markup.text else 0
    head = SECTION_OR_AMPERSAND.sub(_escaped, markup.text[:end])
    return Markup(head + AMPERSAND.sub("&amp;", markup.text[end:]), markup.names)


def _escaped(found: re.Match[str]) -> str:
    return "&amp;" if found[0] == "&" else found[0]


def _referred(text: str) -> str:
    """A text as an entity's value: two characters would be markup again."""
    return "".join(f"&#38;#{ord(c)};" if c in "<&" else f"&#{ord(c)};" for c in text)


MENDS: dict[str, Callable[[Markup], Markup]] = {
    errors.XML_ERROR_UNDEFINED_ENTITY: _with_names_of_html,
    errors.XML_ERROR_BAD_CHAR_REF: _without_impossible_references,
    errors.XML_ERROR_INVALID_TOKEN: _with_escaped_ampersands,
}
