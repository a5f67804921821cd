"""Start the site's servers as subprocesses, for tests and benchmarks."""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import IO, Any, Protocol, Self
from urllib.request import ProxyHandler, Request, build_opener

from tests.site import clock
from tests.site.world import START

ROOT = Path(__file__).resolve().parents[2]
# Tests replace `sys.executable`.
PYTHON = sys.executable
# The variable that tells a server the id of the process that uses it.
CLIENT = "SITE_CLIENT"
START_SECONDS = 20.0
STOP_SECONDS = 5.0


class Process(Protocol):
    """A server's process, with the interface of `subprocess.Popen`."""

    @property
    def pid(self) -> int: ...
    @property
    def stdout(self) -> IO[str] | None: ...
    def terminate(self) -> None: ...
    def kill(self) -> None: ...
    def wait(self, timeout: float | None = None) -> int: ...


class Launch(Protocol):
    """Run a module; its stdout is a pipe."""

    def __call__(
        self, module: str, args: Sequence[str], env: Mapping[str, str], stderr: IO[str]
    ) -> Process: ...


def python(
    module: str, args: Sequence[str], env: Mapping[str, str], stderr: IO[str] | int
) -> subprocess.Popen[str]:
    """Start `python -m MODULE` in the project folder; its stdout is a pipe."""
    return subprocess.Popen(
        [PYTHON, "-m", module, *args],
        cwd=env.get("RUN_IN", ROOT),
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=stderr,
        text=True,
    )


# How servers start; the tests start hundreds of servers and replace this with a faster way.
launch: Launch = python


class RunningServer:
    """A context manager around a server process with a request log.

    `url` is the server's address without a trailing slash. Entering raises RuntimeError if the
    server does not start within 20 seconds.
    """

    def __init__(self, module: str, options: Sequence[str]) -> None:
        self._temporary = tempfile.TemporaryDirectory(prefix="site-")
        self.folder = Path(self._temporary.name)
        self.log = self.folder / "requests.jsonl"
        self._module = module
        self._options = ["--log", str(self.log), *options]
        self._process: Process | None = None
        self.url = ""

    def __enter__(self) -> Self:
        errors = self.folder / "errors.txt"
        with errors.open("w", encoding="utf-8") as stderr:
            env = os.environ | {CLIENT: str(os.getpid())}
            self._process = launch(self._module, self._options, env, stderr)
        assert self._process.stdout is not None
        self.url = _first_line(self._process.stdout)
        if not self.url.startswith("http://"):
            reason = errors.read_text(encoding="utf-8")
            self.__exit__()
            raise RuntimeError(f"the server did not start: {reason}")
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()
        self._temporary.cleanup()

    @property
    def pid(self) -> int:
        """Return the process ID of the running server; raises RuntimeError if it is not running."""
        if self._process is None:
            raise RuntimeError("the server is not running")
        return self._process.pid

    def requests(self) -> list[dict[str, Any]]:
        """Return the complete lines of the log so far, oldest first."""
        if not self.log.exists():
            return []
        text = self.log.read_text(encoding="utf-8")
        return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]

    def clear_log(self) -> None:
        """Empty the log."""
        if self.log.exists():
            self.log.write_text("", encoding="utf-8")

    def _stop(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.terminate()
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(STOP_SECONDS)
        if process.stdout is not None:
            process.stdout.close()


class RunningSite(RunningServer):
    """The demo site as a process; its clock stays at `start` until `set_clock`.

    `options` are additional command-line arguments, such as "--practice" or "--log-big".
    """

    def __init__(
        self, *options: str, seed: int = 7, items: int = 200, start: datetime = START
    ) -> None:
        numbers = ["--seed", str(seed), "--items", str(items)]
        super().__init__("tests.site.server", [*numbers, *options])
        self.clock = self.folder / "clock.txt"
        self._options += ["--clock", str(self.clock)]
        self.set_clock(start)

    def set_clock(self, moment: datetime) -> None:
        """Set the site's clock, effective from the next request."""
        clock.write(self.clock, moment)

    def edit(self, path: str) -> int:
        """Edit the page at `path` and return its number of edits so far."""
        request = Request(f"{self.url}/-/edit{path}", data=b"", method="POST")
        with build_opener(ProxyHandler({})).open(request, timeout=10) as response:
            count: int = json.load(response)["edits"]
        return count


class RunningFolder(RunningServer):
    """Folders of static files as hosts, behind one server; `url` serves as an HTTP proxy."""

    def __init__(self, hosts: Mapping[str, Path], validators: bool = False) -> None:
        options = [f"--host={name}={path.resolve()}" for name, path in hosts.items()]
        if validators:
            options.append("--validators")
        super().__init__("tests.site.folder", options)


class RunningQuick(RunningServer):
    """A site that answers faster than a crawler requests; `options` are command-line arguments."""

    def __init__(self, items: int, *options: str) -> None:
        super().__init__("tests.site.quick", ["--items", str(items), *options])
        self.items = items
        self._read = self._answers = 0

    def answers(self) -> int:
        """Return the number of requests in the log; reads only the lines since the last call."""
        if self.log.exists():
            with self.log.open("rb") as log:
                log.seek(self._read)
                text = log.read()
            self._read += len(text)
            self._answers += text.count(b"\n")
        return self._answers

    def clear_log(self) -> None:
        """Empty the log."""
        super().clear_log()
        self._read = self._answers = 0


class RunningHostile(RunningServer):
    """A server that misbehaves in a different way at each path."""

    def __init__(self) -> None:
        super().__init__("tests.site.hostile", [])


class RunningFeeds(RunningServer):
    """Feeds that replay a trace of posts; their clock stays at `start` until `set_clock`."""

    def __init__(self, posts: Path, feeds: Path, start: datetime) -> None:
        super().__init__("tests.site.feeds", ["--posts", str(posts), "--feeds", str(feeds)])
        self.clock = self.folder / "clock.txt"
        self._options += ["--clock", str(self.clock)]
        self.set_clock(start)

    def set_clock(self, moment: datetime) -> None:
        """Set the site's clock, effective from the next request."""
        clock.write(self.clock, moment)


def _first_line(stream: IO[str]) -> str:
    """Return the first line without its newline; empty if no line arrives in time."""
    with selectors.DefaultSelector() as selector:
        selector.register(stream, selectors.EVENT_READ)
        return stream.readline().strip() if selector.select(START_SECONDS) else ""
