"""Commands within the test's own process: most of a short command's time is Python's start."""

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

# As wide as where no terminal is; a test may say otherwise.
USUAL = {"COLUMNS": "80"}


def run(freshet: Freshet, *args: object, hours: float = 0, **env: object) -> Result:
    """What `freshet(…)` would give, for a command that neither crawls nor stays at work.

    The same words take the same way through Scrapy; what is particular to a process (locks, that
    nothing else stands on stderr) is for tests that start one.
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
    """What a command that ends well prints as JSON."""
    done = run(freshet, *args, "--json", hours=hours, **env)
    assert (done.code, done.err) == (0, ""), done.err
    printed: dict[str, Any] = json.loads(done.out)
    return printed


def _code(words: list[str]) -> int:
    try:
        execute(words)
    except SystemExit as end:
        if end.code:
            # A command that failed has its locks until its process ends, or its frames do.
            gc.collect()
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    raise AssertionError("Scrapy always ends with an exit code")


def _around() -> dict[str, str]:
    """The machine's variables, as a command's process sees them."""
    return USUAL | {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(HIDDEN) and name.lower() not in (*PROXIES, "columns")
    }
