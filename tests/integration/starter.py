"""Python process with the libraries loaded, which forks a process for every module to run.

Loading the libraries takes ten times as long as a short crawl. Each forked process has its own
streams, environment and exit code, as with `python -m`.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import gc
import importlib
import io
import json
import os
import pkgutil
import runpy
import selectors
import signal
import socket
import sys
import time
import warnings
from collections.abc import Iterator
from typing import Any, NoReturn

from crawler.ops.kernels import PARTS

LARGEST = 1 << 18
# Modules that Scrapy, Twisted, matplotlib and numba load by name or at first use.
BY_NAME = (
    "itemadapter.adapter",
    "matplotlib.backends.backend_agg",
    "matplotlib.backends.backend_svg",
    "matplotlib.figure",
    "matplotlib.ticker",
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
    """Exit a process without freeing its memory, because freeing would copy the shared pages.

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
    read_packages_once()
    for name in [*BY_NAME, *modules(*OUR_PACKAGES)]:
        importlib.import_module(name)
    for name in modules(*PACKAGES):
        # Freshet uses neither deprecated modules nor those that need more libraries.
        with contextlib.suppress(ImportError), warnings.catch_warnings(action="ignore"):
            importlib.import_module(name)
    use_caches()
    # Their first use loads the larger half of numba, and their machine code from its cache.
    for kernels in PARTS.values():
        kernels()
    assert "twisted.internet.reactor" not in sys.modules, "processes would share a reactor"
    gc.freeze()  # else garbage collection in the forked processes would copy all of this memory
    gc.enable()


def read_packages_once() -> None:
    """Cache the entry points and versions of packages, which Scrapy reads in each command."""
    from scrapy import cmdline  # after ENDING has been registered
    from scrapy.settings import Settings
    from scrapy.utils import log

    cmdline.entry_points = functools.cache(cmdline.entry_points)
    cmdline.entry_points(group="scrapy.commands")
    usual = Settings().getlist("LOG_VERSIONS")
    versions, read_versions = log.get_versions(usual), log.get_versions
    log.get_versions = lambda names: versions if names == usual else read_versions(names)


def use_caches() -> None:
    """Run a short command, so that the processes find what Python caches at its first use."""
    with (
        contextlib.redirect_stdout(io.StringIO()),
        contextlib.redirect_stderr(io.StringIO()),
        contextlib.suppress(SystemExit),
    ):
        importlib.import_module("scrapy.cmdline").execute(["scrapy", "version"])
    for name in NOT_YET:
        sys.modules.pop(name, None)


def modules(*packages: str) -> Iterator[str]:
    """Yield the names of all modules of the packages."""
    for name in packages:
        path = importlib.import_module(name).__path__
        for module in pkgutil.walk_packages(path, f"{name}."):
            if module.name not in NOT_YET:
                yield module.name


class Server:
    """Fork a process per request and send back its pid, then its exit code.

    Ends when standard input is closed, and then kills the tied processes.
    """

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        self._selector = selectors.DefaultSelector()
        self._selector.register(listener, selectors.EVENT_READ, self._accept)
        self._selector.register(sys.stdin, selectors.EVENT_READ, self._end)
        self._tied: dict[socket.socket, int] = {}

    def serve(self) -> dict[str, Any]:
        """Return the request in each forked process."""
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        while True:
            for key, _ in self._selector.select():
                # An earlier event of the same round may have closed the file.
                is_open = self._selector.get_map().get(key.fd) is key
                if is_open and (request := key.data()):
                    return request

    def _end(self) -> NoReturn:
        for pid in self._tied.values():
            os.kill(pid, signal.SIGKILL)
        sys.exit()

    def _accept(self) -> None:
        connection, _ = self._listener.accept()
        receive = functools.partial(self._receive, connection)
        self._selector.register(connection, selectors.EVENT_READ, receive)

    def _receive(self, connection: socket.socket) -> dict[str, Any] | None:
        """Fork for a request, or handle the end of the client."""
        try:
            data, fds, _, _ = socket.recv_fds(connection, LARGEST, 3)
        except ConnectionResetError:  # the client ended without reading the last number
            data, fds = b"", []
        if not data:
            if connection in self._tied:
                os.kill(self._tied.pop(connection), signal.SIGKILL)
            self._close(connection)
            return None
        request: dict[str, Any] = json.loads(data)
        pid = os.fork()
        if pid == 0:
            self._leave(fds)
            if request["tied"]:
                # A process cannot join a group of another session.
                with contextlib.suppress(PermissionError):
                    os.setpgid(0, request["group"])
            return request
        for fd in fds:
            os.close(fd)
        if request["tied"]:
            self._tied[connection] = pid
        ended = os.pidfd_open(pid)
        report = functools.partial(self._report, connection, pid, ended)
        self._selector.register(ended, selectors.EVENT_READ, report)
        _send(connection, pid)
        return None

    def _report(self, connection: socket.socket, pid: int, ended: int) -> None:
        """Send the exit code, unless the client has disconnected."""
        self._selector.unregister(ended)
        os.close(ended)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        self._tied.pop(connection, None)
        if connection.fileno() >= 0:
            _send(connection, code)
            self._close(connection)

    def _close(self, connection: socket.socket) -> None:
        self._selector.unregister(connection)
        connection.close()

    def _leave(self, fds: list[int]) -> None:
        """Close the server's files in a forked process, and set the streams of the process."""
        # Unregistering would also remove them from the server's selector, which is shared.
        others = [key.fileobj for key in self._selector.get_map().values()]
        self._selector.close()
        for other in others:
            if isinstance(other, int):
                os.close(other)
            elif other is not sys.stdin:
                other.close()
        signal.signal(signal.SIGINT, signal.default_int_handler)
        for stream, fd in enumerate(fds):
            os.dup2(fd, stream)
            os.close(fd)


def _send(connection: socket.socket, number: int) -> None:
    # The client may have been killed in the meantime.
    with contextlib.suppress(ConnectionError):
        connection.send(b"%d" % number)


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
        request = Server(listener).serve()
    become(request)
