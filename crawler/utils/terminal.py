"""What is shown to people: tables, lines and log lines, without anything a terminal would act on.

All text that commands print and all log lines go through `visible`: titles, URLs, reasons and
headers come from other people's servers. Other modules only print files of data
(tests/unit/utils/test_terminal.py).
"""

from __future__ import annotations

import json
import logging
import os
import re
import sys
import unicodedata
from collections.abc import Iterable
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

# For files and pipes: no line of a table is as long.
UNBOUNDED_WIDTH = 10_000
# Control characters (C0 without tab and newline, DEL, C1), bidirectional controls, separators of
# lines and paragraphs, and halves of surrogate pairs, which no stream can encode.
UNSAFE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)
# Users and passwords in URLs, and options of MongoDB's connection strings that are secrets.
SECRET = re.compile(
    r"(?<=://)[^\s/?#@]*+@"
    r"|\b(?!mailto:)[\w.%+-]{1,64}+:[^\s/?#@:]{1,128}+@(?=[\w\[])"
    r"|\b(tlsCertificateKeyFilePassword|proxyPassword|authMechanismProperties)=[^\s&#'\"]*+",
    re.IGNORECASE,
)
# A newline in a log message after which a line could look like another record.
LINE_START = re.compile(r"\n(?=\S)")


def visible(text: str, *, blanks: bool = False) -> str:
    r"""Return a text with escapes (`\x1b`, `\u202e`) in place of UNSAFE characters.

    blanks: also of tabs, special blanks and characters of no width, where each difference counts
    """
    if blanks:
        return "".join(x if x.isprintable() or x == "\n" else _escape(x) for x in text)
    return UNSAFE.sub(lambda found: _escape(found[0]), text)


def _escape(character: str) -> str:
    return character.encode("unicode_escape").decode()


def without_secrets(text: str) -> str:
    """Return a text with `***` in place of users, passwords and secret options of URLs."""
    return SECRET.sub(lambda found: f"{found[1]}=***" if found[1] else "***@", text)


def printable(text: str) -> str:
    """Return one line: unsafe characters and white space become one blank, Cf characters nothing.

    For texts that are read, such as titles and passages, where escapes would be in the way.
    """
    hidden: dict[str | int, str | int | None] = {
        x: "" if unicodedata.category(x) == "Cf" else " " for x in set(text) if not x.isprintable()
    }
    return " ".join(text.translate(str.maketrans(hidden)).split())


def as_json(value: Any, *, indent: int | None = None) -> str:
    r"""Return a value as JSON: times as ISO 8601, ids as text, UNSAFE characters as `\u001b`."""
    return escaped_json(json.dumps(value, indent=indent, ensure_ascii=False, default=_plain))


def escaped_json(text: str) -> str:
    r"""Return JSON with its UNSAFE characters as `\u001b`, which means the same."""
    return UNSAFE.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def _plain(value: object) -> str:
    iso = getattr(value, "isoformat", None)
    return str(iso()) if iso else str(value)


class SafeConsole(Console):
    """A console that takes text as it is: no markup, no emoji names, nothing unsafe."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options, highlight=False, markup=False, emoji=False)

    def render_str(self, text: str, **options: Any) -> Text:
        """Make a Text; here escapes still count for the widths of columns."""
        return super().render_str(visible(text), **options)

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Render whatever is printed, Text objects included."""
        for segment in super().render(renderable, options):
            if segment.control:
                yield segment
            else:
                yield Segment(visible(segment.text), segment.style)


def stdout(*, soft_wrap: bool = False) -> SafeConsole:
    """Return a console on stdout, as wide as the terminal.

    Without a terminal nothing is cut or wrapped, unless COLUMNS gives a width.
    """
    is_free = not sys.stdout.isatty() and "COLUMNS" not in os.environ
    return SafeConsole(soft_wrap=soft_wrap, width=UNBOUNDED_WIDTH if is_free else None)


def print_line(text: str, *, error: bool = False) -> None:
    """Print lines on stdout, or, without secrets, on stderr."""
    if error:
        print(visible(without_secrets(text)), file=sys.stderr)
    else:
        print(visible(text))


def shortened(text: str) -> Text:
    """Return a table cell that ends in an ellipsis where its column is too narrow.

    Its column must not be `no_wrap`, or rich would narrow the columns of numbers as well.
    """
    return Text(visible(text), no_wrap=True, overflow="ellipsis")


class SafeRecord(logging.LogRecord):
    """A log record without unsafe characters and secrets, for any handler and formatter.

    Lines of a message after the first one are indented, so that none looks like another record.
    Lines of tracebacks stay.
    """

    _traceback: str | None = None

    def getMessage(self) -> str:  # noqa: N802
        """Return the message with its arguments."""
        return LINE_START.sub("\n  ", visible(without_secrets(super().getMessage())))

    @property
    def exc_text(self) -> str | None:
        """The traceback, which a formatter makes and keeps here."""
        return self._traceback

    @exc_text.setter
    def exc_text(self, text: str | None) -> None:
        self._traceback = None if text is None else visible(without_secrets(text))


def guard_logs() -> None:
    """Make all log records of this process from now on SafeRecords."""
    logging.setLogRecordFactory(SafeRecord)


def complain(command: str, error: object) -> None:
    """One line on stderr: which command, what is wrong."""
    print_line(f"scrapy {command}: {error}", error=True)
