r"""Read the JSON-LD scripts of a page, and repair the usual mistakes of templates.

These are comments, HTML comments and CDATA marks, trailing commas, escapes that JSON does not have
(`\'`), several values in one script, and HTML references in place of quotation marks.
"""

from __future__ import annotations

import html
import json
import re
from contextlib import suppress
from typing import Any

from crawler.extract.plain_text import ENDLESS_REFERENCE

MAX_CHARACTERS = 500_000
MAX_VALUES = 50
_DECODER = json.JSONDecoder(strict=False)
# Texts and comments may be unclosed. They then extend to the end, which keeps the search linear.
# Before Python 3.11.5, possessive groups with alternatives may end too early.
_TOKEN = re.compile(
    r'(?P<text>"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z))'
    r"|(?P<left_out>//[^\n]*+|/\*.*?(?:\*/|\Z)|<!--|-->|<!\[CDATA\[|\]\]>)"
    r'|[^"/<\]-]++|.',
    re.S,
)
_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|.)", re.S)
_VALID_ESCAPES = frozenset('"\\/bfnrtu')
_EXTRA_COMMA = re.compile(r",(?=\s{0,100}[}\]])")
_QUOTES_ESCAPED = re.compile(r"[^{\[]{0,200}[{\[]\s{0,100}(?:[{\[]\s{0,100})?&(?:quot|#34|#x22);")
_BEGINNING = re.compile(r"[{\[]")
_BETWEEN = re.compile(r"[\s,;]*")


def script_values(script: str) -> list[Any]:
    """Return the values in a JSON-LD script; none if it cannot be read."""
    text = script[:MAX_CHARACTERS].strip()
    with suppress(ValueError, RecursionError):
        return [json.loads(text, strict=False)]
    if _QUOTES_ESCAPED.match(text):
        text = html.unescape(ENDLESS_REFERENCE.sub("", text))
    return _values(_repaired(text))


def _repaired(text: str) -> str:
    parts: list[str] = []
    between: list[str] = []
    for token in _TOKEN.finditer(text):
        if token["text"] is None:
            between.append(" " if token["left_out"] else token[0])
            continue
        parts += [_EXTRA_COMMA.sub("", "".join(between)), _ESCAPE.sub(_escape, token[0])]
        between = []
    return "".join([*parts, _EXTRA_COMMA.sub("", "".join(between))])


def _escape(match: re.Match[str]) -> str:
    # `\u` needs four digits.
    is_valid = match[1][0] in _VALID_ESCAPES and match[1] != "u"
    return match[0] if is_valid else match[1]


def _values(text: str) -> list[Any]:
    values: list[Any] = []
    beginning = _BEGINNING.search(text)
    at = beginning.start() if beginning else len(text)
    while at < len(text) and len(values) < MAX_VALUES:
        try:
            value, at = _DECODER.raw_decode(text, at)
        except (ValueError, RecursionError):
            break
        values.append(value)
        between = _BETWEEN.match(text, at)
        at = between.end() if between else at
    return values
