"""Search users' regular expressions in linear time.

Sites control the URLs and texts that these patterns are matched against. RE2 never backtracks, so
hostile texts cannot slow down a search. RE2 does not support look-around, back-references and some
other syntax of Python's `re`: patterns that use it are rejected with an error that names the
construct and an alternative.
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
# A search takes time proportional to instructions times characters, and copies its groups on the
# way. At these limits, a URL of 2,000 characters takes about 10 ms.
MAX_INSTRUCTIONS = 5000
MAX_GROUPS = 20
# Memory for the program of one pattern and the states that its searches cache.
MAX_BYTES = 1024 * 1024
# XPath functions can take patterns from attributes of a page, so the cache must be bounded.
MAX_CACHED = 128
SHOWN_CHARACTERS = 200

XPATH_NAMESPACE = "urn:freshet:patterns"
# Binds the prefix `re` in XPath to this module's functions. They have the names of the EXSLT
# functions that libxslt provides, which use Python's `re`.
XPATH_NAMESPACES = {"re": XPATH_NAMESPACE}

# Syntax of Python's `re` that RE2 does not support or interprets differently. Alternatives for
# escapes and character classes come first, so that their contents are not mistaken for syntax.
_PARTS = re.compile(
    r"(?P<backreference>\\[1-9]\d?)|(?P<end>\\Z)|(?P<character>\\[uUN])|(?P<byte>\\C)|\\."
    r"|\[\^?\]?(?:\\.|[^\]\\])*+\]"
    r"|(?P<ahead>\(\?[=!])|(?P<behind>\(\?<[=!])|(?P<atomic>\(\?>)|(?P<reference>\(\?P=\w+)"
    r"|(?P<condition>\(\?\()|(?P<comment>\(\?\#)|(?P<flags>\(\?[a-zA-Z]*[axuL][a-zA-Z]*(?=[-:)]))"
    r"|\(\?P?<(?P<name>\w+)>"
    r"|(?P<possessive>(?:[*+?]|\{\d+(?:,\d*)?\})\+)|(?P<atmost>\{,\d+\})",
    re.S,
)
_UNSUPPORTED = {
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
# A string literal of XPath, a function that takes a pattern, or a delimiter of arguments.
_XPATH_PARTS = re.compile(r"""("[^"]*"|'[^']*')|(\bre:(?:test|match|replace)\s*\()|([(),])""")
# Unlike `itertext()`, `string()` leaves out comments.
_STRING = etree.XPath("string()")
_REFERENCE = re.compile(r"\\(?:g<(\w+)>|([1-9]\d?))")


class PatternMatch(Protocol[AnyStr]):
    """A match. Its groups are indexed by number or name; group 0 is the whole match."""

    def __getitem__(self, group: int | str, /) -> AnyStr | None: ...

    def groups(self, default: AnyStr) -> tuple[AnyStr, ...]:
        """Return all groups from 1 on; `default` replaces groups that did not match."""


class Pattern(Protocol):
    """A compiled regular expression. It searches str or UTF-8 and returns the same type."""

    @property
    def pattern(self) -> str:
        """Return the pattern as the user wrote it."""

    @property
    def groups(self) -> int:
        """Return the number of groups."""

    @property
    def groupindex(self) -> dict[str, int]:
        """Return the numbers of the named groups."""

    def search(self, text: AnyStr, /) -> PatternMatch[AnyStr] | None:
        """Return the first match."""

    def findall(self, text: str, /) -> list[str | tuple[str, ...]]:
        """Return all matches, or their groups if the pattern has groups."""

    def sub(self, by: Callable[[PatternMatch[str]], str], text: str, count: int = 0, /) -> str:
        """Replace the first `count` matches, or all if `count` is 0."""


@lru_cache(maxsize=MAX_CACHED)
def compiled(pattern: str, instead: str = "") -> Pattern:
    """Compile a user's regular expression.

    instead: advice for patterns with look-around, added to the error

    Raises ValueError with a message of one line if the pattern is invalid, uses unsupported
    syntax, or is too large.
    """
    shown = pattern if len(pattern) <= SHOWN_CHARACTERS else f"{pattern[:SHOWN_CHARACTERS]}…"
    # As it was written: repr() doubles backslashes.
    written = repr(shown).replace("\\\\", "\\")
    bad = f"bad regular expression {written}"
    if len(pattern) > MAX_CHARACTERS:
        raise ValueError(f"{bad}: longer than {MAX_CHARACTERS:,} characters. Use several patterns")
    if problem := _unsupported_syntax(pattern, instead):
        raise ValueError(f"{bad}: {problem}")
    options = re2.Options()
    options.max_mem = MAX_BYTES
    # RE2 would print errors directly to stderr, bypassing the log.
    options.log_errors = False
    try:
        regex = re2.compile(pattern, options)
    except re2.error as error:
        message = error.args[0]
        cause = message.decode("utf-8", "replace") if isinstance(message, bytes) else str(message)
        # RE2 repeats the pattern or a part of it at the end of some messages.
        cause = cause.removesuffix(f": {pattern}")
        raise ValueError(f"{bad}: {cause}") from None
    except UnicodeEncodeError:
        raise ValueError(f"{bad}: not valid Unicode") from None
    if regex.programsize > MAX_INSTRUCTIONS:
        raise ValueError(f"{bad}: too large. Use smaller repeat counts, or several patterns")
    if regex.groups > MAX_GROUPS:
        raise ValueError(f"{bad}: more than {MAX_GROUPS} groups. Use (?:…) for groups")
    return cast("Pattern", regex)


def _unsupported_syntax(pattern: str, instead: str) -> str | None:
    """Return an error for the first construct that RE2 does not support, with an alternative."""
    names: Counter[str] = Counter()
    for part in _PARTS.finditer(pattern):
        if name := part["name"]:
            names[name] += 1
            if names[name] > 1:
                return f"two groups have the name {name!r}. Use unique names"
        elif kind := part.lastgroup:
            construct, hint = _UNSUPPORTED[kind]
            advice = instead if hint is None else hint.format(part[0].removeprefix("{"))
            return f"{construct} is not supported: {part[0]}. {advice}".rstrip(" .")
    return None


def patterns_in(xpath: str) -> Iterator[str]:
    """Yield the literal patterns that an XPath expression passes to `re:` functions."""
    # Index of the current argument in each open parenthesis; None outside of `re:` functions.
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


def _compiled_with_flags(pattern: object, flags: object) -> Pattern:
    return compiled(f"(?i){_text(pattern)}" if "i" in _text(flags) else _text(pattern))


def _text(value: object) -> str:
    """Convert an argument of an XPath function to text; of a node set, use the first node."""
    if isinstance(value, list):
        if not value:
            return ""
        value = value[0]
    if isinstance(value, etree._Element):
        return str(_STRING(value))
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value)


def _match(_: object, text: object, pattern: object, flags: object = "") -> list[Any]:
    regex = _compiled_with_flags(pattern, flags)
    if "g" in _text(flags):
        matches = [x if isinstance(x, str) else "".join(x) for x in regex.findall(_text(text))]
    else:
        first = regex.search(_text(text))
        matches = [] if first is None else [first[0] or "", *first.groups("")]
    root = etree.Element("matches")
    for match in matches:
        etree.SubElement(root, "match").text = match
    return list(root)


def _replace(_: object, text: object, pattern: object, flags: object, replacement: object) -> str:
    template = _text(replacement)

    def by(match: PatternMatch[str]) -> str:
        def group(reference: re.Match[str]) -> str:
            name = reference[1] or reference[2]
            return match[int(name) if name.isdigit() else name] or ""

        return _REFERENCE.sub(group, template)

    count = 0 if "g" in _text(flags) else 1
    return _compiled_with_flags(pattern, flags).sub(by, _text(text), count)


etree.FunctionNamespace(XPATH_NAMESPACE).update({
    "test": lambda _, text, pattern, flags="": (
        _compiled_with_flags(pattern, flags).search(_text(text)) is not None
    ),
    "match": _match,
    "replace": _replace,
})  # fmt: skip
