"""Modules run as with `python -m`, in processes that `starter` forks."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from functools import cache
from typing import IO, TextIO

from tests.site import running

# On other platforms, the system libraries do not support forks.
CAN_FORK = sys.platform == "linux"


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
        self._reply, reply = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        request = {"module": module, "args": list(args), "env": dict(env)}
        socket.send_fds(_starter()[0], [json.dumps(request).encode()], [out, err, reply.fileno()])
        os.close(out)
        os.close(err)
        reply.close()
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
            self._reply.settimeout(timeout)
            try:
                self.returncode = self._receive()
            except (TimeoutError, BlockingIOError):
                raise subprocess.TimeoutExpired(self.args, timeout or 0) from None
            self._reply.close()
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
        reply = self._reply.recv(32)
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
    """Run a module in the project folder; its stdout is a pipe, and its stderr unless given."""
    # LD_PRELOAD has no effect on a fork.
    start = Forked if CAN_FORK and "LD_PRELOAD" not in env else running.python
    return start(module, args, env, stderr)


def end() -> None:
    """Stop the starter, after all processes have been started."""
    if _starter.cache_info().currsize:
        control, process = _starter()
        control.close()
        process.wait()
        _starter.cache_clear()


@cache
def _starter() -> tuple[socket.socket, subprocess.Popen[bytes]]:
    """Start the process that forks the others, at first use."""
    mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        command = [sys.executable, "-m", "tests.integration.starter", str(theirs.fileno())]
        process = subprocess.Popen(
            command,
            cwd=running.ROOT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
        )
    return mine, process


def _pipe() -> tuple[TextIO, int]:
    """Open a pipe; return its read end and its write end."""
    read, write = os.pipe()
    return os.fdopen(read, encoding="utf-8"), write
