"""Helpers of the integration tests: Freshet as a user runs it, site definitions, editable pages."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from pymongo.database import Database

from tests.integration.forked import Process, python
from tests.site.running import RunningFolder, RunningServer

ROOT = Path(__file__).resolve().parents[2]
LIMIT_SECONDS = 60
Row = dict[str, Any]
Db = Database[Row]
# Hide these variables of the machine: a test sees only the settings that it sets.
HIDDEN = ("FRESHET_", "MONGO_URI", "REDIS_URL", "SCRAPY_")
# Comparing posts loads machine code first: 0.5 s for each of a thousand crawls.
USUAL = {"FRESHET_THROTTLE_START_SECONDS": "0", "FRESHET_DUPLICATES": "off"}
PROXIES = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")


@dataclass(frozen=True)
class Result:
    """The exit code and the output of a command."""

    code: int
    out: str
    err: str

    @property
    def complaint(self) -> str:
        """Return the text on stderr, which must be a single line."""
        lines = self.err.splitlines()
        assert len(lines) == 1, self.err
        return lines[0]


class Freshet:
    """Run `scrapy …` in the project folder, with its own database and data folder.

    Pass environment variables as keyword arguments: `freshet("crawl", "books",
    FRESHET_COMMIT_SIZE=3)`. `hours` moves Freshet's clock. Posts are not compared by default.
    """

    def __init__(self, folder: Path, **env: object) -> None:
        self.folder = folder
        self.env = USUAL | _texts(env)
        self._started: list[Process] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Kill commands that are still running, for example after a failed test."""
        for process in self._started:
            if process.returncode is None:
                process.kill()
                process.communicate()

    def __call__(self, *args: object, hours: float = 0, **env: object) -> Result:
        """Run a command to its end."""
        process = self.start(*args, hours=hours, **env)
        out, err = process.communicate(timeout=LIMIT_SECONDS)
        return Result(process.returncode, out, err)

    def start(self, *args: object, hours: float = 0, **env: object) -> Process:
        """Start a command and return while it is running; `communicate` waits for its end."""
        own = self.env | {"FRESHET_CLOCK_OFFSET_HOURS": str(hours)} | _texts(env)
        process = python("scrapy", list(map(str, args)), _clean() | own)
        self._started.append(process)
        return process

    def crawl(
        self, wrapper: Path, *args: object, hours: float = 0, code: int = 0, **env: object
    ) -> Result:
        """Crawl once with a site definition in TOML; code: expected exit code, 1 without items."""
        words = ("crawl", "site", "-a", f"wrapper={wrapper}", *args)
        result = self(*words, hours=hours, **env)
        assert result.code == code, result.err
        return result

    def crawl_spider(self, code: str, name: str, *args: object, **env: object) -> Result:
        """Run a crawl with the spider class that `code` defines."""
        module = f"spiders_of_{self.folder.name.replace('-', '_')}"
        (self.folder / f"{module}.py").write_text(code, encoding="utf-8")
        words = ("crawl", name, "-s", f"SPIDER_MODULES={module}", *args)
        # Python would reuse the bytecode after an edit of the same length within the same second.
        shutil.rmtree(self.folder / "__pycache__", ignore_errors=True)
        result = self(*words, PYTHONPATH=str(self.folder), **env)
        assert result.code == 0, result.err
        return result

    def wrapper(self, name: str, **keys: object) -> Path:
        """Write a site definition in TOML, without delays unless `throttle` is given."""
        path = self.folder / f"{name}.toml"
        lines = [f"{key} = {_toml(value)}" for key, value in wrapper_keys(name, keys).items()]
        path.write_text("\n".join(lines), encoding="utf-8")
        return path


def wrapper_keys(name: str, keys: dict[str, object]) -> dict[str, object]:
    """Return the keys of a site definition with the defaults of the tests."""
    return {"name": name, "throttle": False, "concurrency": 16} | keys


class Pages(RunningFolder):
    """A site of HTML files that a test writes and removes, with ETags if `validators` is true."""

    def __init__(self, validators: bool = True) -> None:
        self._home = tempfile.TemporaryDirectory(prefix="pages-")
        self.home = Path(self._home.name)
        super().__init__({"127.0.0.1": self.home, "other.test": self.home}, validators)

    def __enter__(self) -> Self:
        return super().__enter__()

    def __exit__(self, *exception: object) -> None:
        super().__exit__(*exception)
        self._home.cleanup()

    def item(self, path: str, text: str, links: Iterable[str] = ()) -> None:
        """Write an item page with `text` as heading."""
        self._write(path, f"<h1>{text}</h1>{_anchors(links)}")

    def list(self, path: str, links: Iterable[str], category: str = "") -> None:
        """Write a list page."""
        self._write(path, f"<h2>{category}</h2>{_anchors(links)}")

    def file(self, path: str, text: str) -> None:
        """Write a file without changes."""
        place = self.home / path.lstrip("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text, encoding="utf-8")

    def remove(self, path: str) -> None:
        """Remove a page, so that requests for it return 404."""
        (self.home / path.lstrip("/")).unlink()

    def _write(self, path: str, body: str) -> None:
        self.file(path, f"<!DOCTYPE html><html><body><main>{body}</main></body></html>")


def asked(server: RunningServer) -> Counter[str]:
    """Count the requests of each path, without robots.txt."""
    paths = Counter(request["path"] for request in server.requests())
    del paths["/robots.txt"]
    return paths


def visits(db: Db, **query: object) -> list[Row]:
    """Return rows of the change log, oldest first."""
    return list(db.visits.find(query).sort("at"))


def outcomes(db: Db, **query: object) -> Counter[str]:
    """Count the outcomes in the change log."""
    return Counter(visit["outcome"] for visit in visits(db, **query))


def target(db: Db, url: str) -> Row:
    """Return the only target with this URL."""
    (row,) = db.targets.find({"url": url})
    return row


def urls(rows: Iterable[Row], key: str = "url") -> set[str]:
    """Return the URLs of documents; fail if two documents have the same URL."""
    listed = [row[key] for row in rows]
    assert len(listed) == len(set(listed)), "a URL occurs twice"
    return set(listed)


def _anchors(links: Iterable[str]) -> str:
    return "".join(f'<p><a href="{link}">{link}</a></p>' for link in links)


def _clean() -> dict[str, str]:
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(HIDDEN) and name.lower() not in PROXIES
    }


def _texts(env: dict[str, object]) -> dict[str, str]:
    return {name: str(value) for name, value in env.items()}


def _toml(value: object) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {_toml(entry)}" for key, entry in value.items()) + " }"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_toml, value)) + "]"
    return json.dumps(value)  # TOML and JSON write strings, numbers and booleans the same way
