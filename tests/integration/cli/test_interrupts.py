"""Ctrl-C ends a command with one line, not with a traceback."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time

import pytest

from tests.integration.harness import ROOT
from tests.site.running import PYTHON

# Commands import much, on a machine that others use, too.
LIMIT_SECONDS = 120


@pytest.mark.soak
@pytest.mark.parametrize("command", ["changes", "replan", "export all /nonexistent/folder"])
def test_interrupted_command_prints_one_line(command: str) -> None:
    words = [PYTHON, "-m", "scrapy", *command.split()]
    # The command waits for a server that never answers, so that it cannot end before.
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        env = os.environ | {
            "MONGO_URI": f"mongodb://127.0.0.1:{port}/x", "FRESHET_MONGO_TIMEOUT_SECONDS": "60",
        }  # fmt: skip
        with subprocess.Popen(
            words, cwd=ROOT, env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        ) as process:
            silent.settimeout(LIMIT_SECONDS)
            connection, _ = silent.accept()
            time.sleep(0.2)
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=LIMIT_SECONDS)
            connection.close()
    assert (out, err) == ("", f"scrapy {command.split(maxsplit=1)[0]}: interrupted\n")
    assert process.returncode == -signal.SIGINT
