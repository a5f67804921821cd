"""The unit of systemd that runs the service from this checkout."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from crawler.config import PROJECT, Config
from crawler.storage.embedded import EmbeddedServer

TEMPLATE = PROJECT / "deploy" / "freshet.service"


def unit(config: Config, names: Sequence[str]) -> str:
    """The text of the unit. names: of spiders and files, empty for all spiders."""
    words = [str(Path(name).resolve()) if name.endswith(".toml") else name for name in names]
    is_embedded = config.mongo_uri is None
    filled = {
        "PROJECT": _plain(str(PROJECT)),
        "PYTHON": _quoted(sys.executable),
        "NAMES": "".join(f" {_quoted(word)}" for word in words),
        "KILL_MODE": "process" if is_embedded else "mixed",
        "PRIVATE_TMP": "false" if is_embedded and _is_elsewhere(config) else "true",
    }
    lines = [line for line in TEMPLATE.read_text(encoding="utf-8").splitlines() if line[:1] != "#"]
    text = "\n".join(lines).strip() + "\n"
    for name, value in filled.items():
        text = text.replace(f"@{name}@", value)
    return text


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
