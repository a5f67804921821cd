"""Python process with the libraries loaded, which forks a process for every module to run.

Loading the libraries takes ten times as long as a short crawl. Each forked process has its own
streams, environment and exit code, as with `python -m`.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import json
import os
import pkgutil
import runpy
import select
import signal
import socket
import sys
import time
import warnings
from collections.abc import Iterator
from typing import Any, NoReturn

from crawler.ops.kernels import PARTS

LARGEST = 1 << 18
# Modules that Scrapy, Twisted and numba load by name or at first use.
BY_NAME = (
    "itemadapter.adapter",
    "scrapy.cmdline",
    "scrapy.crawler",
    "scrapy.dupefilters",
    "scrapy.logformatter",
    "scrapy.pqueues",
    "scrapy.squeues",
    "scrapy.statscollectors",
    "sqlite3",
    "tldextract",
    "twisted.internet.asyncioreactor",
    "twisted.internet.epollreactor",
    "twisted.web.server",
)
PACKAGES = (
    "scrapy.commands",
    "scrapy.core",
    "scrapy.downloadermiddlewares",
    "scrapy.extensions",
    "scrapy.spidermiddlewares",
)
OUR_PACKAGES = ("crawler", "pipelines", "schedules", "spiders")
# This module reads the environment when it is imported.
NOT_YET = ("crawler.settings",)


class Ending:
    """End of a process without clearing its memory, which would first copy all of it.

    Registered before everything else, so that it runs last: threads have ended and the exit
    handlers of the libraries and of the command have run.
    """

    pid = 0
    code = 1

    def __call__(self) -> None:
        """End the process, unless it only forks others."""
        if os.getpid() == self.pid:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(self.code)


ENDING = Ending()


def load() -> None:
    """Import the modules that most processes need, without starting threads before the fork."""
    gc.disable()  # nearly all objects of the imports stay
    for name in [*BY_NAME, *modules(*OUR_PACKAGES)]:
        importlib.import_module(name)
    for name in modules(*PACKAGES):
        # Freshet uses neither deprecated modules nor those that need more libraries.
        with contextlib.suppress(ImportError), warnings.catch_warnings(action="ignore"):
            importlib.import_module(name)
    # Their first use loads the larger half of numba, and their machine code from its cache.
    for kernels in PARTS.values():
        kernels()
    assert "twisted.internet.reactor" not in sys.modules, "processes would share a reactor"
    gc.freeze()  # else garbage collection in the forked processes would copy all of this memory
    gc.enable()


def modules(*packages: str) -> Iterator[str]:
    """Yield the names of all modules of the packages."""
    for name in packages:
        path = importlib.import_module(name).__path__
        for module in pkgutil.walk_packages(path, f"{name}."):
            if module.name not in NOT_YET:
                yield module.name


def serve(listener: socket.socket) -> dict[str, Any]:
    """Fork a process per connection until standard input ends; return the request in each one."""
    # Ignoring SIGCHLD reaps the intermediate processes.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    while True:
        if sys.stdin in select.select([listener, sys.stdin], [], [])[0]:
            sys.exit()
        connection, _ = listener.accept()
        with connection:
            if os.fork() == 0:
                listener.close()
                return forked(connection)


def forked(connection: socket.socket) -> dict[str, Any]:
    """Receive the request and fork again: the child returns, the parent reports on it.

    The parent sends the pid and the exit code.
    """
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    data, fds, _, _ = socket.recv_fds(connection, LARGEST, 3)
    if not data:
        os._exit(1)
    request: dict[str, Any] = json.loads(data)
    pid = os.fork()
    if pid:
        for fd in fds:
            os.close(fd)
        # The process that asked may have been killed in the meantime.
        with contextlib.suppress(BrokenPipeError):
            connection.send(b"%d" % pid)
            if request["tied"]:
                kill_after(connection, pid)
            connection.send(b"%d" % os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        os._exit(0)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for stream, fd in enumerate(fds):
        os.dup2(fd, stream)
        os.close(fd)
    return request


def kill_after(connection: socket.socket, pid: int) -> None:
    """Wait for the end of a process; kill it if the connection ends first."""
    ended = os.pidfd_open(pid)
    if ended not in select.select([connection, ended], [], [])[0]:
        os.kill(pid, signal.SIGKILL)
    os.close(ended)


def become(request: dict[str, Any]) -> NoReturn:
    """Run the module as the main program."""
    ENDING.pid = os.getpid()
    os.environ.clear()
    os.environ.update(request["env"])
    time.tzset()
    os.chdir(request["env"].get("RUN_IN", "."))
    sys.path[1:1] = [path for path in request["env"].get("PYTHONPATH", "").split(":") if path]
    sys.argv[1:] = request["args"]
    # Loaded before the fork, it would be the module and the main program.
    sys.modules.pop(request["module"], None)
    try:
        runpy.run_module(request["module"], run_name="__main__", alter_sys=True)
    except SystemExit as end:
        ENDING.code = end.code if isinstance(end.code, int) else int(end.code is not None)
        raise
    ENDING.code = 0
    sys.exit()


if __name__ == "__main__":
    atexit.register(ENDING)
    # The processes start others with the launcher as well.
    sys.executable = sys.argv[2]
    with socket.socket(fileno=int(sys.argv[1])) as listener:
        load()
        request = serve(listener)
    become(request)
