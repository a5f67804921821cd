"""Modules run as with `python -m`, in processes that `starter` forks.

All test processes of a run share a starter, and another one for processes with a wrong clock. Each
starts at the first connection to its socket, whose path is in the environment. In tests,
`sys.executable` is `launcher`, so that the processes that Freshet starts are forked as well; the
interpreter itself is `running.PYTHON`.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, TextIO

from tests.faults.clocks import SHIFT, library
from tests.integration import launcher
from tests.site import running

# On other platforms, the system libraries do not support forks.
CAN_FORK = sys.platform == "linux"
# The path of the socket of the starter for processes with a wrong clock.
OF_CLOCKS = "TEST_STARTER_OF_CLOCKS"


class Forked:
    """A running module, with the methods of `subprocess.Popen` that the tests use, in text mode."""

    def __init__(
        self, module: str, args: Sequence[str], env: Mapping[str, str], stderr: IO[str] | int
    ) -> None:
        self.args = [module, *args]
        self.returncode: int | None = None
        self.stdout, out = _pipe()
        self.stderr: TextIO | None = None
        if isinstance(stderr, int):
            self.stderr, err = _pipe()
        else:
            err = os.dup(stderr.fileno())
        self._starter = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._starter.settimeout(launcher.START_SECONDS)
        # The library that shifts the clock has no effect on a fork of a process without it.
        variable = OF_CLOCKS if SHIFT in env else launcher.SOCKET
        self._starter.connect(os.environ[variable])
        request = {"module": module, "args": list(args), "env": dict(env), "tied": False}
        with Path(os.devnull).open("rb") as nothing:
            fds = [nothing.fileno(), out, err]
            socket.send_fds(self._starter, [json.dumps(request).encode()], fds)
        os.close(out)
        os.close(err)
        self.pid = self._receive()
        self._drains: list[_Drain] = []

    def poll(self) -> int | None:
        """Return the exit code, or None while the process is running."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self.wait(0)
        return None

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the process to end and return its exit code."""
        if self.returncode is None:
            self._starter.settimeout(timeout)
            try:
                self.returncode = self._receive()
            except (TimeoutError, BlockingIOError):
                raise subprocess.TimeoutExpired(self.args, timeout or 0) from None
            self._starter.close()
        return self.returncode

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """Wait for the process to end and return the rest of its output."""
        streams = [stream for stream in (self.stdout, self.stderr) if stream]
        self._drains = self._drains or [_Drain(stream) for stream in streams]
        for drain in self._drains:
            drain.join(timeout)
            if drain.is_alive():
                raise subprocess.TimeoutExpired(self.args, timeout or 0)
        self.wait(timeout)
        out, err = ([drain.text for drain in self._drains] + [""])[:2]
        return out, err

    def send_signal(self, number: int) -> None:
        """Send a signal, unless the process has ended."""
        if self.poll() is None:
            # The process may have just ended, before its exit code arrived.
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self) -> None:
        """Send SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL."""
        self.send_signal(signal.SIGKILL)

    def _receive(self) -> int:
        """Receive the pid (first call) or the exit code (second call)."""
        reply = self._starter.recv(32)
        assert reply, "cannot start a process; see stderr"
        return int(reply)


class _Drain(threading.Thread):
    """Read a pipe to its end."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__(daemon=True)
        self.stream = stream
        self.text = ""
        self.start()

    def run(self) -> None:
        with self.stream:
            self.text = self.stream.read()


Process = Forked | subprocess.Popen[str]


def python(
    module: str,
    args: Sequence[str],
    env: Mapping[str, str],
    stderr: IO[str] | int = subprocess.PIPE,
) -> Process:
    """Run a module in the project folder; stdout is a pipe, as is stderr unless given."""
    start = Forked if CAN_FORK else running.python
    return start(module, args, env, stderr)


class Starter:
    """A starter of a run of tests, from `listen` to `end` in the process that began the run.

    variable: name of the variable that has the path of its socket
    """

    def __init__(self, variable: str) -> None:
        self._variable = variable
        self._folder = Path(tempfile.mkdtemp(prefix="starter-"))
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._end, self._ended = os.pipe()
        self._thread = threading.Thread(target=self._start, daemon=True)

    def listen(self) -> None:
        """Put the path of the socket into the environment, and wait for the first connection."""
        path = str(self._folder / "socket")
        self._listener.bind(path)
        self._listener.listen(64)
        program = self._folder / "python"
        words = shlex.join([running.PYTHON, "-IS", str(Path(launcher.__file__))])
        program.write_text(f'#!/bin/sh\nexec {words} "$@"\n', encoding="utf-8")
        program.chmod(0o755)
        os.environ[self._variable] = path
        self._thread.start()

    def end(self) -> None:
        """Stop the starter, after all processes have been started."""
        del os.environ[self._variable]
        os.close(self._ended)
        self._thread.join()
        self._listener.close()
        os.close(self._end)
        shutil.rmtree(self._folder)

    def _start(self) -> None:
        if self._end in select.select([self._listener, self._end], [], [])[0]:
            return
        command = [running.PYTHON, "-m", "tests.integration.starter"]
        is_of_clocks = self._variable == OF_CLOCKS
        preloaded = {"LD_PRELOAD": str(library(self._folder))} if is_of_clocks else {}
        # Its standard input ends with this process.
        subprocess.run(
            [*command, str(self._listener.fileno()), _executable()],
            cwd=running.ROOT,
            env=os.environ | preloaded,
            stdin=self._end,
            stdout=subprocess.DEVNULL,
            pass_fds=[self._listener.fileno()],
            check=False,
        )
        # Without a starter, as when a module cannot be imported, tests fail at once.
        self._listener.close()


def begin() -> None:
    """Replace `sys.executable`; the first process of a run also listens for the others."""
    if CAN_FORK:
        # Worker processes inherit the environment.
        if launcher.SOCKET not in os.environ:
            for variable in (launcher.SOCKET, OF_CLOCKS):
                _of_this_process.append(Starter(variable))
                _of_this_process[-1].listen()
        sys.executable = _executable()


def end() -> None:
    """Restore `sys.executable`, and stop the starter that this process has started."""
    sys.executable = running.PYTHON
    while _of_this_process:
        _of_this_process.pop().end()


_of_this_process: list[Starter] = []


def _executable() -> str:
    """Return the path of the launcher of this run."""
    return str(Path(os.environ[launcher.SOCKET]).with_name("python"))


def _pipe() -> tuple[TextIO, int]:
    """Open a pipe; return its read end and its write end."""
    read, write = os.pipe()
    return os.fdopen(read, encoding="utf-8"), write
