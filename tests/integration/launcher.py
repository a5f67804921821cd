"""A Python interpreter for the processes that Freshet starts in tests, for `sys.executable`.

`-m MODULE` with a module of Freshet, the demo or the benchmarks, and a worker of pytest-xdist, is
run in a fork of the starter, with the streams and the process group of this process, which relays
signals and the exit code. Everything else is run by the interpreter itself. Runs without the
project's packages and imports little, because a test may start ten of it.
"""

import json
import os
import signal
import socket
import sys
from pathlib import Path

# The path of the starter's socket.
SOCKET = "TEST_STARTER"
# The starter loads all libraries before its first response.
START_SECONDS = 120
PACKAGES = ("scrapy", "crawler", "spiders")
OF_TESTS = ("tests.bench", "tests.site.demo", "tests.site.runs")
# How pytest-xdist starts a worker, which reads its program from standard input.
OF_WORKER = ["-u", "-c", "import sys;exec(eval(sys.stdin.readline()))"]
WORKER = "tests.integration.worker"
RELAYED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


def main(words: list[str]) -> None:
    """Run the interpreter with these words."""
    if words == OF_WORKER and can_fork():
        relay(WORKER, [sys.executable])
    if is_forked(words) and can_fork():
        relay(words[1], words[2:])
    os.execv(sys.executable, [sys.executable, *words])


def is_forked(words: list[str]) -> bool:
    """Return whether the words run a module whose libraries the starter has loaded."""
    return (
        len(words) > 1
        and words[0] == "-m"
        and (words[1].partition(".")[0] in PACKAGES or words[1] in OF_TESTS)
    )


def can_fork() -> bool:
    """Return whether a fork of the starter would do the same as the interpreter."""
    return (
        SOCKET in os.environ
        # It has no effect on a fork.
        and "LD_PRELOAD" not in os.environ
        # A module is found in the current folder first.
        and Path(__file__).parents[2].samefile(Path.cwd())
    )


def relay(module: str, args: list[str]) -> None:
    """Run the module in a fork, and exit with its exit code or signal."""
    pid = 0
    waiting: list[int] = []

    def send(number: int, _: object) -> None:
        if pid:
            os.kill(pid, number)
        else:
            waiting.append(number)

    for number in RELAYED:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, send)
    env = dict(os.environ)
    request = {"module": module, "args": args, "env": env, "tied": True, "group": os.getpgrp()}
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as starter:
        starter.settimeout(START_SECONDS)
        starter.connect(os.environ[SOCKET])
        socket.send_fds(starter, [json.dumps(request).encode()], [0, 1, 2])
        pid = int(starter.recv(32))
        for number in waiting:
            os.kill(pid, number)
        # Only the fork holds the streams, so that the other ends of the pipes detect its end.
        for stream in range(3):
            os.close(stream)
        starter.settimeout(None)
        code = int(starter.recv(32))
    if code < 0:
        signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


if __name__ == "__main__":
    main(sys.argv[1:])
