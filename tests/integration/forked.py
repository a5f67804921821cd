"""Modules run as `python -m` runs them, in processes that `starter` forks."""

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

# Elsewhere the system's libraries do not bear a fork.
CAN_FORK = sys.platform == "linux"


class Forked:
    """A module at work, with as much of `subprocess.Popen` as the tests use; its output is text."""

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
        asked = {"module": module, "args": list(args), "env": dict(env)}
        socket.send_fds(_starter()[0], [json.dumps(asked).encode()], [out, err, reply.fileno()])
        os.close(out)
        os.close(err)
        reply.close()
        self.pid = self._told()
        self._drains: list[_Drain] = []

    def poll(self) -> int | None:
        """The exit code, if the process has ended."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self.wait(0)
        return None

    def wait(self, timeout: float | None = None) -> int:
        """The exit code, once the process has ended."""
        if self.returncode is None:
            self._reply.settimeout(timeout)
            try:
                self.returncode = self._told()
            except (TimeoutError, BlockingIOError):
                raise subprocess.TimeoutExpired(self.args, timeout or 0) from None
            self._reply.close()
        return self.returncode

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """What is still to come from the pipes, once the process has ended."""
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
            # It may have ended just now, and its code is on the way.
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self) -> None:
        """Ask it to end."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """End it."""
        self.send_signal(signal.SIGKILL)

    def _told(self) -> int:
        """The pid at first, then the exit code."""
        told = self._reply.recv(32)
        assert told, "no process can be started; why stands on stderr"
        return int(told)


class _Drain(threading.Thread):
    """Reads a pipe to its end."""

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
    """A module at work in the project folder; its stdout, and stderr if not given, are pipes."""
    # What is preloaded has no effect on a fork.
    start = Forked if CAN_FORK and "LD_PRELOAD" not in env else running.python
    return start(module, args, env, stderr)


def end() -> None:
    """Nobody wants a process any more."""
    if _starter.cache_info().currsize:
        control, process = _starter()
        control.close()
        process.wait()
        _starter.cache_clear()


@cache
def _starter() -> tuple[socket.socket, subprocess.Popen[bytes]]:
    """Who is asked for processes, started when the first is wanted."""
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
    """Where to read, and where to write."""
    read, write = os.pipe()
    return os.fdopen(read, encoding="utf-8"), write
