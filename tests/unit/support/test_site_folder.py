"""Folders of static files as hosts: mapping, proxying, rewriting, and validators."""

from __future__ import annotations

from collections.abc import Iterator
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.site.exchange import Answer
from tests.site.folder import FolderSite, host_folder
from tests.site.running import RunningFolder

HOST = "river.example"
PAGE = f"""<a href="https://{HOST}/a/">a</a> <a href="https://www.{HOST}">w</a>
<a href="https://{HOST}.evil/">e</a> <a href="https://other.example/">o</a>"""
SERVED = f"""<a href="http://{HOST}/a/">a</a> <a href="http://www.{HOST}">w</a>
<a href="https://{HOST}.evil/">e</a> <a href="https://other.example/">o</a>"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with a few files, and with a secret file outside of it."""
    root = tmp_path / "root"
    (root / "a").mkdir(parents=True)
    (root / "empty").mkdir()
    (root / "index.html").write_text(PAGE, encoding="utf-8")
    (root / "a" / "index.html").write_text("inner", encoding="utf-8")
    (root / "with space.txt").write_text(PAGE, encoding="utf-8")
    (tmp_path / "secret.html").write_text("secret", encoding="utf-8")
    return root


@pytest.fixture
def running(folder: Path) -> Iterator[RunningFolder]:
    """Serve the folder with validators."""
    with RunningFolder({HOST: folder}, validators=True) as server:
        yield server


def ask(folder: Path, path: str, host: str = HOST) -> Answer:
    """Return the answer of a site without validators."""
    return FolderSite({HOST: folder}, validators=False).answer(host, path)


def get(server: RunningFolder, target: str, **headers: str) -> tuple[HTTPResponse, bytes]:
    """Fetch a path or, by proxy, an absolute URL; `_` in header names stands for `-`."""
    connection = HTTPConnection(urlsplit(server.url).netloc, timeout=10)
    connection.request("GET", target, headers={k.replace("_", "-"): v for k, v in headers.items()})
    response = connection.getresponse()
    body = response.read()
    connection.close()
    return response, body


def test_https_links_of_mapped_hosts_become_http(folder: Path) -> None:
    assert ask(folder, "/").body.decode() == SERVED
    assert ask(folder, "/index.html").body.decode() == SERVED
    assert ask(folder, "/", f"www.{HOST}").body.decode() == SERVED


def test_other_files_are_served_unchanged(folder: Path) -> None:
    answer = ask(folder, "/with%20space.txt")
    assert (answer.body.decode(), answer.content_type) == (PAGE, "text/plain")


def test_a_folder_without_slash_redirects(folder: Path) -> None:
    answer = ask(folder, "/a")
    assert (answer.status, list(answer.headers)) == (301, [("Location", "/a/")])
    assert ask(folder, "/a/").body == b"inner"


@pytest.mark.parametrize("path", [
    "/b", "/b/", "/index.html/", "/empty/", "/robots.txt", "/%00", "/../secret.html",
    "/%2e%2e/secret.html", "/a/../../secret.html",
])  # fmt: skip
def test_missing_files_are_404(folder: Path, path: str) -> None:
    assert ask(folder, path).status == 404


def test_other_hosts_are_not_served(folder: Path) -> None:
    assert ask(folder, "/", "other.example").status == 404


def test_robots_comes_from_the_folder(folder: Path) -> None:
    (folder / "robots.txt").write_text("User-agent: *\n", encoding="ascii")
    assert ask(folder, "/robots.txt").body == b"User-agent: *\n"


def test_validators_are_an_option(folder: Path) -> None:
    assert ask(folder, "/").etag is None
    assert FolderSite({HOST: folder}, validators=True).answer(HOST, "/").etag


def test_the_proxy_and_the_origin_serve_the_same(running: RunningFolder) -> None:
    response, body = get(running, f"http://{HOST}/?page=1")
    assert (response.status, body.decode()) == (200, SERVED)
    etag = response.headers["ETag"]
    response, body = get(running, "/", Host=f"www.{HOST}", If_None_Match=etag)
    assert (response.status, body) == (304, b"")
    rows = [(row["host"], row["path"], row["status"]) for row in running.requests()]
    assert rows == [(HOST, "/?page=1", 200), (f"www.{HOST}", "/", 304)]


def test_a_host_option_needs_a_folder(folder: Path) -> None:
    assert host_folder(f"{HOST}={folder}") == (HOST, folder)
    with pytest.raises(ValueError, match="existing folder"):
        host_folder(f"{HOST}={folder}/none")
