"""The units of systemd that run the service, and further workers, from this checkout."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from crawler.config import PROJECT, Config
from crawler.storage.embedded import EmbeddedServer

SERVICE, WORKER = "freshet.service", "freshet@.service"


def unit(config: Config, names: Sequence[str], template: str = SERVICE) -> str:
    """The text of a unit.

    names:    of spiders, files and folders; empty for all spiders
    template: SERVICE, or WORKER for one that neither replans nor prunes
    """
    # A unit runs in the project folder.
    words = [
        f"{Path(name).resolve()}{os.sep if name.endswith(os.sep) else ''}"
        if name.endswith((os.sep, ".toml"))
        else name
        for name in names
    ]
    is_embedded, needs_tmp = config.mongo_uri is None, False
    if is_embedded:
        # Where the path of its data is long, the server's socket is in /tmp.
        server = EmbeddedServer.of(config)
        needs_tmp = server.socket.parent != server.folder
    # systemd ignores those that are missing.
    folders = [PROJECT, config.data_dir.expanduser().absolute()]
    if config.metrics_dir is not None:
        folders.append(config.metrics_dir.expanduser().absolute())
    writable = dict.fromkeys(_quoted(f"-{folder}") for folder in folders)
    filled = {
        "PROJECT": _plain(str(PROJECT)),
        "PYTHON": _quoted(sys.executable),
        "NAMES": "".join(f" {_quoted(word)}" for word in words),
        "KILL_MODE": "process" if is_embedded else "mixed",
        "PRIVATE_TMP": "false" if needs_tmp else "true",
        "WRITABLE": " ".join([*writable, "-%C/freshet"]),
    }
    written = (PROJECT / "deploy" / template).read_text(encoding="utf-8")
    lines = [line for line in written.splitlines() if line[:1] != "#"]
    text = "\n".join(lines).strip() + "\n"
    for name, value in filled.items():
        text = text.replace(f"@{name}@", value)
    return text


def _plain(text: str) -> str:
    """Text in which systemd finds no specifiers."""
    return text.replace("%", "%%")


def _quoted(word: str) -> str:
    """A word of a command line, which systemd unquotes and expands."""
    word = _plain(word).replace("\\", "\\\\").replace('"', '\\"').replace("$", "$$")
    return f'"{word}"' if set(word) & set(" '\"\\;\t") else word
