"""Commands in the test's own process, because starting Python takes longer than most commands."""

from __future__ import annotations

import contextlib
import gc
import io
import json
import os
from typing import Any
from unittest.mock import patch

from scrapy.cmdline import execute

from tests.integration.harness import HIDDEN, PROXIES, ROOT, Freshet, Result
from tests.integration.starter import read_packages_once

# The width without a terminal; a test can override it.
USUAL = {"COLUMNS": "80"}
read_packages_once()


def run(freshet: Freshet, *args: object, hours: float = 0, **env: object) -> Result:
    """Return the result of `freshet(…)` for a command that neither crawls nor keeps running.

    The arguments take the same path through Scrapy. Properties of a process (its locks, nothing
    else on stderr) need a test that starts a process.
    """
    out, err = io.StringIO(), io.StringIO()
    own = freshet.env | {"FRESHET_CLOCK_OFFSET_HOURS": hours} | env
    environ = _around() | {name: str(value) for name, value in own.items()}
    with (
        patch.dict(os.environ, environ, clear=True),
        contextlib.chdir(ROOT),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        code = _code(["scrapy", *map(str, args)])
    return Result(code, out.getvalue(), err.getvalue())


def in_json(freshet: Freshet, *args: object, hours: float = 0, **env: object) -> dict[str, Any]:
    """Run a command with --json, require success, and return the parsed output."""
    done = run(freshet, *args, "--json", hours=hours, **env)
    assert (done.code, done.err) == (0, ""), done.err
    printed: dict[str, Any] = json.loads(done.out)
    return printed


def _code(words: list[str]) -> int:
    try:
        execute(words)
    except SystemExit as end:
        if end.code:
            # A failed command holds its locks until its process ends or its stack frames are freed.
            gc.collect()
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    raise AssertionError("Scrapy always ends with an exit code")


def _around() -> dict[str, str]:
    """Return the machine's environment as a command's process sees it."""
    return USUAL | {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(HIDDEN) and name.lower() not in (*PROXIES, "columns")
    }
