"""Python with the libraries in memory, forked for every module that is to be run.

Loading them takes ten times as long as a short crawl. What is forked is a process of its own, with
streams, environment and end of its own, as `python -m` gives it.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import pkgutil
import runpy
import signal
import socket
import sys
import time
import warnings
from collections.abc import Iterator
from typing import Any

from numba import njit

LARGEST = 1 << 18
# What Scrapy, Twisted and numba load by name or at first use.
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
# Whoever imports it reads the environment.
NOT_YET = ("crawler.settings",)


def load() -> None:
    """Import what most processes need; nothing of it may be at work before the fork."""
    for name in [*BY_NAME, *modules(*OUR_PACKAGES)]:
        importlib.import_module(name)
    for name in modules(*PACKAGES):
        # Of what is on its way out or wants more libraries, Freshet has nothing.
        with contextlib.suppress(ImportError), warnings.catch_warnings(action="ignore"):
            importlib.import_module(name)
    njit(lambda: None)()  # the first use of numba loads the larger half of it
    assert "twisted.internet.reactor" not in sys.modules, "processes would share a reactor"
    gc.freeze()  # else collections in the forked processes would copy all of this memory


def modules(*packages: str) -> Iterator[str]:
    """All modules of the packages."""
    for name in packages:
        path = importlib.import_module(name).__path__
        for module in pkgutil.walk_packages(path, f"{name}."):
            if module.name not in NOT_YET:
                yield module.name


def serve(control: socket.socket) -> dict[str, Any]:
    """Fork for what is asked until nobody can ask; returns in each process what it is to run."""
    # Nobody waits for those who wait.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    while True:
        asked, fds, _, _ = socket.recv_fds(control, LARGEST, 3)
        if not asked:
            sys.exit()
        if os.fork() == 0:
            control.close()
            return forked(json.loads(asked), *fds)
        for fd in fds:
            os.close(fd)


def forked(asked: dict[str, Any], out: int, err: int, reply: int) -> dict[str, Any]:
    """Fork once more: the parent tells the pid and the exit code, the child returns."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    pid = os.fork()
    if pid:
        os.close(out)
        os.close(err)
        os.write(reply, b"%d" % pid)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        os.write(reply, b"%d" % code)
        os._exit(0)
    os.close(reply)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for stream, fd in ((1, out), (2, err)):
        os.dup2(fd, stream)
        os.close(fd)
    return asked


def become(asked: dict[str, Any]) -> None:
    """Run the module as the main program."""
    os.environ.clear()
    os.environ.update(asked["env"])
    time.tzset()
    os.chdir(asked["env"].get("RUN_IN", "."))
    sys.path[1:1] = [path for path in asked["env"].get("PYTHONPATH", "").split(":") if path]
    sys.argv[1:] = asked["args"]
    runpy.run_module(asked["module"], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    with socket.socket(fileno=int(sys.argv[1])) as control:
        load()
        asked = serve(control)
    become(asked)
