"""Escaping of console text, plain lines, JSON, and log records."""

from __future__ import annotations

import ast
import io
import json
import logging
import re
import sys
import time
from pathlib import Path

import pytest
from rich.table import Table
from rich.text import Text

from crawler.utils.terminal import (
    UNSAFE,
    SafeConsole,
    SafeRecord,
    as_json,
    print_line,
    visible,
    without_secrets,
)

ROOT = Path(__file__).resolve().parents[3]
UNSAFE_TEXT = (
    "a\x1b[31mb\x9b2Jc\x07d\re\u202ef\u2066g\u2028h\u2029i\x85j\x7fk\x08l\u200fm\ud800"
    "[/nope] [bold] :smile:"
)
# Modules that write data instead of text for people, or that run before a command exists.
PRINTING_MODULES = {
    "crawler/utils/terminal.py",
    "crawler/ops/kernels.py",
    "crawler/utils/process.py",
    "crawler/cli/duplicates_check.py",
    "crawler/cli/commands/feeds.py",
    "crawler/cli/commands/metrics.py",
}


def test_control_characters_become_visible_escapes() -> None:
    shown = visible(UNSAFE_TEXT)
    assert UNSAFE.search(shown) is None
    assert shown.startswith(r"a\x1b[31mb\x9b2Jc\x07d\re\u202ef")
    assert visible("tab\tline\nGrüße 👨\u200d👩 न\u200dम") == "tab\tline\nGrüße 👨\u200d👩 न\u200dम"
    assert visible("a\u00a0b\tc\n", spaces=True) == "a\\xa0b\\tc\n"


def test_console_ignores_markup_and_escapes_controls() -> None:
    file = io.StringIO()
    console = SafeConsole(file=file, width=400)
    table = Table(UNSAFE_TEXT, "n", title=UNSAFE_TEXT)
    table.add_row(UNSAFE_TEXT, Text(UNSAFE_TEXT, style="red"))
    for item in (UNSAFE_TEXT, Text(UNSAFE_TEXT), table, (UNSAFE_TEXT, [UNSAFE_TEXT])):
        console.print(item)
    assert UNSAFE.search(file.getvalue()) is None
    assert file.getvalue().count("[/nope] [bold] :smile:") >= 7


def test_styles_are_kept_on_a_terminal() -> None:
    file = io.StringIO()
    console = SafeConsole(file=file, force_terminal=True, color_system="standard")
    console.print(Text("x\x9by"), style="red")
    assert file.getvalue() == "\x1b[31mx\\x9by\x1b[0m\n"


def test_json_is_escaped_and_round_trips() -> None:
    text = as_json({UNSAFE_TEXT: [UNSAFE_TEXT]})
    assert UNSAFE.search(text) is None
    assert json.loads(text) == {UNSAFE_TEXT: [UNSAFE_TEXT]}


def test_plain_lines_are_escaped(capsys: pytest.CaptureFixture[str]) -> None:
    print_line(UNSAFE_TEXT)
    print_line(UNSAFE_TEXT, error=True)
    shown = capsys.readouterr()
    assert shown.out == shown.err == visible(UNSAFE_TEXT) + "\n"


def test_log_records_are_escaped_in_any_format() -> None:
    def record(message: str, *given: object, error: bool = False) -> logging.LogRecord:
        raised = sys.exc_info() if error else None
        return SafeRecord("x", logging.INFO, __file__, 1, message, given, raised)

    form = logging.Formatter("%(levelname)s %(message)s")
    assert UNSAFE.search(form.format(record("%s %r", UNSAFE_TEXT, ValueError(UNSAFE_TEXT)))) is None
    assert form.format(record("%d of %s", 3, "a\nb")) == "INFO 3 of a\n  b"
    assert form.format(record("all:\n {1}")) == "INFO all:\n {1}"
    try:
        raise ValueError(UNSAFE_TEXT)
    except ValueError:
        text = form.format(record("failed", error=True))
    assert UNSAFE.search(text) is None
    assert "\nTraceback (most recent call last):\n  File" in text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("http://me:pass@a.test/x is", "http://***@a.test/x is"),
        ("https://token@a.test", "https://***@a.test"),
        ("invalid hostname: me:pass@10.0.0.1", "invalid hostname: ***@10.0.0.1"),
        ("http://a.test/me@b.test http://b.test", "http://a.test/me@b.test http://b.test"),
        (
            "mongodb://u:p@h/?tls=true&tlsCertificateKeyFilePassword=s3cret&appName=x",
            "mongodb://***@h/?tls=true&tlsCertificateKeyFilePassword=***&appName=x",
        ),
        ("mongodb://h/?TLSCertificateKeyFilePassword=s3cret", "TLSCertificateKeyFilePassword=***"),
    ],
)
def test_secrets_are_not_logged(text: str, shown: str, capsys: pytest.CaptureFixture[str]) -> None:
    record = SafeRecord("x", logging.INFO, __file__, 1, "said %s", (text,), None)
    assert record.getMessage().endswith(shown)
    print_line(text, error=True)
    assert capsys.readouterr().err.endswith(f"{shown}\n")
    try:
        raise ValueError(text)
    except ValueError:
        failed = SafeRecord("x", logging.INFO, __file__, 1, "failed", (), sys.exc_info())
    assert shown in logging.Formatter().format(failed)


def test_secrets_are_removed_in_linear_time() -> None:
    began = time.process_time()
    for text in ("://" * 300_000, "a" * 1_000_000, "a:" * 500_000, "a:b" * 300_000 + " "):
        without_secrets(text)
    assert time.process_time() - began < 2


def test_only_listed_modules_print() -> None:
    """Check that only the modules above use print(), a standard stream, or a rich console."""
    modules_found = set()
    for path in (ROOT / "crawler").rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        if not re.search(r"print|Console|json\.dump|sys\.std", text):
            continue
        for node in ast.walk(ast.parse(text)):
            if not isinstance(node, ast.Call):
                continue
            called = ast.unparse(node.func)
            if called in ("print", "Console", "rich.print", "json.dump") or called.startswith(
                ("sys.stdout.write", "sys.stderr.write")
            ):
                modules_found.add(str(path.relative_to(ROOT)))
    assert modules_found <= PRINTING_MODULES
