"""`scrapy web` in a subprocess on a free port."""

from __future__ import annotations

import signal
import socket

from tests.integration.harness import Freshet

READY = "serving http://"


class Served:
    """A running web app: starts on creation, ends with `stop`. service: whether it crawls."""

    def __init__(
        self, freshet: Freshet, *words: object, service: bool = False, **env: object
    ) -> None:
        own = () if service else ("--no-service",)
        self.process = freshet.start("web", "--port", "0", *own, *words, **env)
        stderr = self.process.stderr
        assert stderr
        while READY not in (line := stderr.readline()):
            assert line, "the command has ended"
        self.url = line.partition("serving ")[2].strip()
        self.port = int(self.url.split(":")[2].split("/")[0])

    def connect(self) -> socket.socket:
        """Open a connection; each operation on it takes at most 20 seconds."""
        made = socket.create_connection(("127.0.0.1", self.port), timeout=20)
        made.settimeout(20)
        return made

    def stop(self) -> tuple[int | None, str]:
        """Send SIGTERM; return the exit code and the rest of stderr."""
        self.process.send_signal(signal.SIGTERM)
        _, err = self.process.communicate(timeout=20)
        return self.process.returncode, err
