"""The embedded MongoDB server, where no other is named."""

from __future__ import annotations

from crawler.config import Config
from crawler.doctor.findings import Finding, failed, ok
from crawler.errors import StorageError
from crawler.storage.embedded import EmbeddedServer

CHECK = "embedded server"


def check(config: Config, *, start: bool) -> tuple[Finding, bool]:
    """What is found, and whether the server answers; it is started where that is wanted."""
    server = EmbeddedServer.of(config)
    try:
        if start:
            server.start()
    except StorageError as error:
        return failed(CHECK, str(error)), False
    pid = server.pid()
    if server.answers():
        return ok(CHECK, f"process {pid} answers, data in {server.folder}"), True
    if pid is not None:
        what, _, todo = server.unresponsive().partition(": ")
        return failed(CHECK, what, todo), False
    return ok(CHECK, f"not running, the next command starts it; data in {server.folder}"), False
