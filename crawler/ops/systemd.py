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
    words = [_absolute(name) for name in names]
    is_embedded = config.mongo_uri is None
    filled = {
        "PROJECT": _plain(str(PROJECT)),
        "PYTHON": _quoted(sys.executable),
        "NAMES": "".join(f" {_quoted(word)}" for word in words),
        "KILL_MODE": "process" if is_embedded else "mixed",
        "PRIVATE_TMP": "false" if is_embedded and _is_elsewhere(config) else "true",
        "WRITABLE": _writable(config),
    }
    written = (PROJECT / "deploy" / template).read_text(encoding="utf-8")
    lines = [line for line in written.splitlines() if line[:1] != "#"]
    text = "\n".join(lines).strip() + "\n"
    for name, value in filled.items():
        text = text.replace(f"@{name}@", value)
    return text


def _writable(config: Config) -> str:
    """The folders that a unit writes to; those that are not there are ignored by systemd."""
    folders = [PROJECT, config.data_dir.expanduser().absolute()]
    if config.metrics_dir is not None:
        folders.append(config.metrics_dir.expanduser().absolute())
    named = dict.fromkeys(_quoted(f"-{folder}") for folder in folders)
    return " ".join([*named, "-%C/freshet"])


def _absolute(name: str) -> str:
    """A name as a unit has it, which runs in the project folder."""
    if name.endswith(os.sep):
        return f"{Path(name).resolve()}{os.sep}"
    return str(Path(name).resolve()) if name.endswith(".toml") else name


def _is_elsewhere(config: Config) -> bool:
    """Whether the embedded server's socket is not in the data folder, whose path is long then."""
    server = EmbeddedServer.of(config)
    return server.socket.parent != server.folder


def _plain(text: str) -> str:
    """Text in which systemd finds no specifiers."""
    return text.replace("%", "%%")


def _quoted(word: str) -> str:
    """A word of a command line, which systemd unquotes and expands."""
    word = _plain(word).replace("\\", "\\\\").replace('"', '\\"').replace("$", "$$")
    return f'"{word}"' if set(word) & set(" '\"\\;\t") else word
