"""Users' regular expressions, searched in linear time.

Sites choose the URLs and texts that meet these patterns. RE2 never backtracks, so no text makes a
search long. It lacks look-around, back-references and a few forms of Python's `re`; a pattern with
one of them is refused with its name and the way out.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any, AnyStr, Protocol, cast

import re2
from lxml import etree

MAX_CHARACTERS = 4000
# A search takes time proportional to instructions times characters of the text, and copies its
# groups as it goes: ten milliseconds or so for a URL of 2,000 characters at these bounds.
MAX_INSTRUCTIONS = 5000
MAX_GROUPS = 20
# Of one pattern: its program and what a search caches.
MAX_BYTES = 1024 * 1024
# Patterns that a page's own attributes give to XPath functions are kept no longer.
MAX_CACHED = 128
SHOWN_CHARACTERS = 200

XPATH_NAMESPACE = "urn:freshet:patterns"
# Of the prefix `re` in XPath; libxslt's namers, but not Python's `re` behind them.
XPATH_NAMESPACES = {"re": XPATH_NAMESPACE}

# The forms of Python's `re` that RE2 lacks or reads differently. Escapes and classes come first,
# so that nothing within them is taken for one.
_PARTS = re.compile(
    r"(?P<backreference>\\[1-9]\d?)|(?P<end>\\Z)|(?P<character>\\[uUN])|(?P<byte>\\C)|\\."
    r"|\[\^?\]?(?:\\.|[^\]\\])*+\]"
    r"|(?P<ahead>\(\?[=!])|(?P<behind>\(\?<[=!])|(?P<atomic>\(\?>)|(?P<reference>\(\?P=\w+)"
    r"|(?P<condition>\(\?\()|(?P<comment>\(\?\#)|(?P<flags>\(\?[a-zA-Z]*[axuL][a-zA-Z]*(?=[-:)]))"
    r"|\(\?P?<(?P<name>\w+)>"
    r"|(?P<possessive>(?:[*+?]|\{\d+(?:,\d*)?\})\+)|(?P<atmost>\{,\d+\})",
    re.S,
)
_LACKS = {
    "ahead": ("look-ahead", None),
    "behind": ("look-behind", None),
    "backreference": ("a back-reference", "Write out the alternatives"),
    "reference": ("a back-reference", "Write out the alternatives"),
    "condition": ("a conditional group", "Write out the alternatives: (?:a|b)"),
    "atomic": ("an atomic group", "Use (?:…): searches never backtrack"),
    "possessive": ("a possessive repeat", "Leave out the second +: searches never backtrack"),
    "atmost": ("a repeat without a minimum", "Write the minimum: {{0{}"),
    "comment": ("a comment", "Leave it out"),
    "flags": ("this flag", "Use i, m or s"),
    "end": ("this escape", "Use $"),
    "character": ("this escape", r"Write the character itself, or its code: \x{{E9}}"),
    "byte": ("this escape", "Use . for any character"),
}
# A literal of XPath, a function that takes a pattern, or what separates arguments.
_XPATH_PARTS = re.compile(r"""("[^"]*"|'[^']*')|(\bre:(?:test|match|replace)\s*\()|([(),])""")
# As `string()`, which leaves comments out.
_STRING = etree.XPath("string()")
_REFERENCE = re.compile(r"\\(?:g<(\w+)>|([1-9]\d?))")


class Found(Protocol[AnyStr]):
    """A match: its groups by number or name; 0 is all of it."""

    def __getitem__(self, group: int | str, /) -> AnyStr | None: ...

    def groups(self, default: AnyStr) -> tuple[AnyStr, ...]:
        """All groups from 1 on."""


class Pattern(Protocol):
    """A compiled regular expression. Texts are str or UTF-8, and so are the groups of a match."""

    @property
    def pattern(self) -> str:
        """The pattern as it is written."""

    @property
    def groups(self) -> int:
        """How many groups it has."""

    @property
    def groupindex(self) -> dict[str, int]:
        """The numbers of the groups that have a name."""

    def search(self, text: AnyStr, /) -> Found[AnyStr] | None:
        """The first place where it is found."""

    def findall(self, text: str, /) -> list[str | tuple[str, ...]]:
        """What is found, or its groups, at each place."""

    def sub(self, by: Callable[[Found[str]], str], text: str, count: int = 0, /) -> str:
        """The text with what is found replaced."""


@lru_cache(maxsize=MAX_CACHED)
def compiled(pattern: str, instead: str = "") -> Pattern:
    """Return a user's regular expression, ready to search.

    instead: what to use in place of look-around, for the error

    Raises ValueError, in one line, for what is no regular expression, for one that RE2 cannot
    search and for one that is too large.
    """
    shown = pattern if len(pattern) <= SHOWN_CHARACTERS else f"{pattern[:SHOWN_CHARACTERS]}…"
    bad = f"bad regular expression {shown!r}"
    if len(pattern) > MAX_CHARACTERS:
        raise ValueError(f"{bad}: longer than {MAX_CHARACTERS:,} characters. Use several patterns")
    if problem := _lacking(pattern, instead):
        raise ValueError(f"{bad}: {problem}")
    options = re2.Options()
    options.max_mem = MAX_BYTES
    # Otherwise written to the standard error stream, past the log.
    options.log_errors = False
    try:
        made = re2.compile(pattern, options)
    except re2.error as error:
        said = error.args[0]
        cause = said.decode("utf-8", "replace") if isinstance(said, bytes) else str(said)
        raise ValueError(f"{bad}: {cause}") from None
    except UnicodeEncodeError:
        raise ValueError(f"{bad}: not valid Unicode") from None
    if made.programsize > MAX_INSTRUCTIONS:
        raise ValueError(f"{bad}: too large. Use smaller repeat counts, or several patterns")
    if made.groups > MAX_GROUPS:
        raise ValueError(f"{bad}: more than {MAX_GROUPS} groups. Use (?:…) for groups")
    return cast("Pattern", made)


def _lacking(pattern: str, instead: str) -> str | None:
    """The first form in a pattern that RE2 lacks, and what to use in its place."""
    names: Counter[str] = Counter()
    for part in _PARTS.finditer(pattern):
        if name := part["name"]:
            names[name] += 1
            if names[name] > 1:
                return f"two groups have the name {name!r}. Give each a name of its own"
        elif kind := part.lastgroup:
            what, way_out = _LACKS[kind]
            advice = instead if way_out is None else way_out.format(part[0].removeprefix("{"))
            return f"{what} is not supported: {part[0]}. {advice}".rstrip(" .")
    return None


def patterns_in(xpath: str) -> Iterator[str]:
    """Yield the regular expressions in an XPath expression: literals that `re:` functions take."""
    # Of each open parenthesis the number of the argument; None where it is none of `re:`.
    arguments: list[int | None] = []
    for literal, function, mark in _XPATH_PARTS.findall(xpath):
        if function or mark == "(":
            arguments.append(0 if function else None)
        elif literal:
            if arguments and arguments[-1] == 1:
                yield literal[1:-1]
        elif arguments and mark == ")":
            arguments.pop()
        elif arguments and arguments[-1] is not None:
            arguments[-1] += 1


def _of_flags(pattern: object, flags: object) -> Pattern:
    return compiled(f"(?i){_text(pattern)}" if "i" in _text(flags) else _text(pattern))


def _text(value: object) -> str:
    """An argument of an XPath function as text: of nodes it is the first one's."""
    if isinstance(value, list):
        if not value:
            return ""
        value = value[0]
    if isinstance(value, etree._Element):
        return str(_STRING(value))
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value)


def _test(_: object, text: object, pattern: object, flags: object = "") -> bool:
    return _of_flags(pattern, flags).search(_text(text)) is not None


def _match(_: object, text: object, pattern: object, flags: object = "") -> list[Any]:
    searched = _of_flags(pattern, flags)
    if "g" in _text(flags):
        found = [x if isinstance(x, str) else "".join(x) for x in searched.findall(_text(text))]
    else:
        first = searched.search(_text(text))
        found = [] if first is None else [first[0] or "", *first.groups("")]
    root = etree.Element("matches")
    for one in found:
        etree.SubElement(root, "match").text = one
    return list(root)


def _replace(_: object, text: object, pattern: object, flags: object, replacement: object) -> str:
    template = _text(replacement)

    def by(found: Found[str]) -> str:
        def group(reference: re.Match[str]) -> str:
            name = reference[1] or reference[2]
            return found[int(name) if name.isdigit() else name] or ""

        return _REFERENCE.sub(group, template)

    return _of_flags(pattern, flags).sub(by, _text(text), 0 if "g" in _text(flags) else 1)


etree.FunctionNamespace(XPATH_NAMESPACE).update(
    {"test": _test, "match": _match, "replace": _replace}
)
