"""Print tables, lines and log records without control characters that a terminal would interpret.

All text that commands print and all log records go through `visible`, because titles, URLs, reasons
and headers come from untrusted servers. Other modules only write data files
(tests/unit/utils/test_terminal.py checks that).

While a command runs, a live status line shows its current step, with log lines above it.
"""

from __future__ import annotations

import io
import json
import logging
import os
import re
import sys
import unicodedata
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from schedules import on_compiling

# Width for files and pipes, larger than any table.
UNBOUNDED_WIDTH = 10_000
# Control characters (C0 without tab and newline, DEL, C1), bidirectional controls, line and
# paragraph separators, and unpaired surrogates, which streams cannot encode.
UNSAFE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)
# User names and passwords in URLs, and secret options in MongoDB connection strings.
SECRET = re.compile(
    r"(?<=://)[^\s/?#@]*+@"
    r"|\b(?!mailto:)[\w.%+-]{1,64}+:[^\s/?#@:]{1,128}+@(?=[\w\[])"
    r"|\b(tlsCertificateKeyFilePassword|proxyPassword|authMechanismProperties)=[^\s&#'\"]*+",
    re.IGNORECASE,
)
# A newline after which a line of a log message could look like a separate record.
LINE_START = re.compile(r"\n(?=\S)")
COMPILING = "{what}: compiling the planner's kernels, once per machine: {count}"


def visible(text: str, *, spaces: bool = False) -> str:
    r"""Replace UNSAFE characters with escapes such as `\x1b` or `\u202e`.

    spaces: also escape tabs, special spaces and zero-width characters, to show differences
    """
    if spaces:
        return "".join(x if x.isprintable() or x == "\n" else _escape(x) for x in text)
    return UNSAFE.sub(lambda match: _escape(match[0]), text)


def _escape(character: str) -> str:
    return character.encode("unicode_escape").decode()


def without_secrets(text: str) -> str:
    """Replace user names, passwords and secret options in URLs with `***`."""
    return SECRET.sub(lambda match: f"{match[1]}=***" if match[1] else "***@", text)


def printable(text: str) -> str:
    """Collapse a text to one line. Remove format characters (Cf); other unsafe ones become spaces.

    Use it for text to read, such as titles and passages, in which escapes would be distracting.
    """
    hidden: dict[str | int, str | int | None] = {
        x: "" if unicodedata.category(x) == "Cf" else " " for x in set(text) if not x.isprintable()
    }
    return " ".join(text.translate(str.maketrans(hidden)).split())


def as_json(value: Any, *, indent: int | None = None) -> str:
    r"""Return a value as JSON: times in ISO 8601, ids as text, UNSAFE characters as `\u001b`."""

    def plain(other: object) -> str:
        iso = getattr(other, "isoformat", None)
        return str(iso()) if iso else str(other)

    return escaped_json(json.dumps(value, indent=indent, ensure_ascii=False, default=plain))


def escaped_json(text: str) -> str:
    r"""Replace UNSAFE characters in JSON with equivalent escapes such as `\u001b`."""
    return UNSAFE.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


class SafeConsole(Console):
    """A rich console that prints text literally: no markup, emoji codes or UNSAFE characters."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options, highlight=False, markup=False, emoji=False)

    def render_str(self, text: str, **options: Any) -> Text:
        """Convert a string to a Text, with its escapes included in the width of columns."""
        return super().render_str(visible(text), **options)

    def on_broken_pipe(self) -> None:
        """Raise the BrokenPipeError; rich would exit with 1, although `| head` is no failure."""
        raise BrokenPipeError

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Render any object, and escape the text of its segments."""
        for segment in super().render(renderable, options):
            if segment.control:
                yield segment
            else:
                yield Segment(visible(segment.text), segment.style)


def stdout(*, soft_wrap: bool = False) -> SafeConsole:
    """Return a console on stdout with the width of the terminal.

    Without a terminal, output is not truncated or wrapped unless COLUMNS sets a width.
    """
    is_unbounded = not sys.stdout.isatty() and "COLUMNS" not in os.environ
    return SafeConsole(soft_wrap=soft_wrap, width=UNBOUNDED_WIDTH if is_unbounded else None)


def print_line(text: str, *, error: bool = False) -> None:
    """Print text to stdout, or to stderr with secrets removed."""
    if error:
        print(visible(without_secrets(text)), file=sys.stderr)
    else:
        print(visible(text))


def shortened(text: str) -> Text:
    """Return a table cell that is shortened with an ellipsis if its column is too narrow.

    The column itself must not be `no_wrap`, or rich would shrink columns of numbers as well.
    """
    return Text(visible(text), no_wrap=True, overflow="ellipsis")


class SafeRecord(logging.LogRecord):
    """A log record without UNSAFE characters and secrets, for any handler and formatter.

    In messages, all lines but the first are indented, so that no line looks like a separate record.
    Tracebacks are not indented.
    """

    _traceback: str | None = None

    def getMessage(self) -> str:  # noqa: N802
        """Return the message with its arguments merged in."""
        return LINE_START.sub("\n  ", visible(without_secrets(super().getMessage())))

    @property
    def exc_text(self) -> str | None:
        """Return the traceback, which the first formatter stores here for the others."""
        return self._traceback

    @exc_text.setter
    def exc_text(self, text: str | None) -> None:
        self._traceback = None if text is None else visible(without_secrets(text))


def guard_logs() -> None:
    """Use SafeRecord for all further log records of this process."""
    logging.setLogRecordFactory(SafeRecord)


def escape_unencodable() -> None:
    r"""Print characters that the locale's encoding lacks as escapes such as `\u2013`."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.encoding.lower() != "utf-8":
            stream.reconfigure(errors="backslashreplace")


def complain(command: str, error: object) -> None:
    """Print an error to stderr as `scrapy COMMAND: ERROR`."""
    print_line(f"scrapy {command}: {error}", error=True)


@contextmanager
def working(is_shown: bool, what: str) -> Iterator[Callable[[str], None]]:
    """Show a live status line; yield a function that changes its text.

    is_shown: whether the user enabled it (FRESHET_PROGRESS)

    Shows nothing unless stderr is a terminal.
    """
    if not (is_shown and sys.stderr.isatty()):
        yield lambda what: None
        return
    console = SafeConsole(stderr=True)
    shown, count = what, 0

    def say(what: str) -> None:
        nonlocal shown
        shown = what
        status.update(Text(what))

    def compile_one() -> None:
        nonlocal count
        count += 1
        status.update(Text(COMPILING.format(what=shown, count=count)))

    with logs_above(console), console.status(Text(what)) as status, on_compiling(compile_one):
        yield say


@contextmanager
def logs_above(console: Console) -> Iterator[None]:
    """Print log lines above the console's live display instead of in the middle of it.

    Handlers keep the stream that they were created with, so rich's redirection of sys.stderr does
    not affect them.
    """
    moved = [
        (handler, handler.stream)
        for handler in logging.root.handlers
        if isinstance(handler, logging.StreamHandler) and handler.stream is sys.stderr
    ]
    for handler, _ in moved:
        handler.setStream(_Above(console))
    try:
        yield
    finally:
        for handler, stream in moved:
            handler.setStream(stream)


class _Above(io.TextIOBase):
    """A stream that prints above the live display of a console."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def write(self, text: str) -> int:
        """Print text unwrapped: a long line that the terminal wraps can be copied as one line."""
        if text:
            self._console.print(Text(text.removesuffix("\n")), soft_wrap=True)
        return len(text)
