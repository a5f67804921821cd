"""Archives are replayed byte for byte by pywb, an independent replay tool.

pywb needs older versions of packages than Freshet, so it has its own environment, `.venv/replay`,
which `make venv-replay` installs.
"""

from __future__ import annotations

import gzip
import http.client
import json
import os
import re
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit
from zipfile import ZipFile

import pytest

from tests.integration.archived_shop import Shop, definition, folder, records
from tests.integration.harness import ROOT, Db, Freshet, visits
from tests.integration.inside import in_json

pytestmark = pytest.mark.soak

ENVIRONMENT = Path(os.environ.get("REPLAY_ENVIRONMENT", ROOT / ".venv/replay"))
ITEMS = 8
START_SECONDS = 40


@contextmanager
def replaying(home: Path) -> Iterator[int]:
    """Run pywb on the collections in a folder, and yield its port."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    program = [ENVIRONMENT / "bin/python", ENVIRONMENT / "bin/wayback"]
    command = [*program, "-d", home, "-b", "127.0.0.1", "-p", str(port)]
    log = (home / "pywb.log").open("wb")
    with log, subprocess.Popen(command, cwd=home, stdout=log, stderr=log) as server:
        try:
            for _ in range(START_SECONDS * 10):
                with socket.socket() as probe:
                    if probe.connect_ex(("127.0.0.1", port)) == 0:
                        break
                assert server.poll() is None, (home / "pywb.log").read_text()
                time.sleep(0.1)
            yield port
        finally:
            server.terminate()
            server.wait(10)


def unpack(wacz: Path, home: Path) -> None:
    """Make a collection `shop` of the WARC files and the index of a WACZ file."""
    collection = home / "collections/shop"
    (collection / "indexes").mkdir(parents=True)
    with ZipFile(wacz) as package:
        for name in package.namelist():
            if name.startswith("archive/"):
                package.extract(name, collection)
        index = gzip.decompress(package.read("indexes/index.cdx.gz"))
    (collection / "indexes/index.cdxj").write_bytes(index)


def replayed(port: int, url: str, at: str) -> tuple[int, dict[str, str], bytes]:
    """Return status, headers and body of a page as pywb replays it."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    connection.request("GET", f"/shop/{at}id_/{url}", headers={"Accept-Encoding": "gzip"})
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    return answer.status, {name.lower(): value for name, value in answer.getheaders()}, body


@pytest.mark.skipif(
    not (ENVIRONMENT / "bin/wayback").exists(),
    reason="pywb is not installed. Run make venv-replay",
)
def test_pywb_replays_an_exported_archive_byte_for_byte(
    freshet: Freshet, database: Db, shop: str, tmp_path: Path
) -> None:
    Shop.titles.update({f"/item/{n}": f"Tea {n}" for n in range(ITEMS)})
    Shop.titles |= {"/item/with/long/path?b=2&a=Tea%20cup": "Odd", "/item/moved": "-"}
    Shop.titles["/item/new"] = "New"
    wrapper = definition(freshet, shop)
    freshet.crawl(wrapper)
    Shop.etags = False
    Shop.titles["/item/0"] = "Coffee"
    freshet.crawl(wrapper, hours=25)
    report = in_json(freshet, "archive", "export", "shop", tmp_path / "shop.wacz", hours=26)
    assert (report["warc_files"], report["pages"]) == (1, ITEMS + 3)
    unpack(tmp_path / "shop.wacz", tmp_path)
    fetched = 0
    with replaying(tmp_path) as port:
        for visit in visits(database):
            url, record = visit.get("final_url", visit["target"]), visit["archived"]
            place = folder(freshet) / record["file"]
            kind, _, warc, stored, body = records(place, record["offset"])[0]
            at = re.sub(r"\D", "", warc.get_header("WARC-Date"))[:14]
            if kind == "revisit":
                stored, body = next(
                    other[3:]
                    for other in records(place)
                    if other[0] == "response"
                    and other[1] == url
                    and other[2].get_header("WARC-Date") == warc.get_header("WARC-Refers-To-Date")
                )
            status, headers, shown = replayed(port, url, at)
            assert (status, shown) == (200, body), url
            for name in ("content-type", "content-encoding"):
                assert headers.get(name) == stored.get_header(name)
            fetched += 1
        status, headers, _ = replayed(port, f"{shop}/item/moved", at)
        assert status == 301
        assert urlsplit(headers["location"]).path.endswith("/item/new")
    assert fetched >= 20


def test_a_wacz_file_lists_its_members_with_checksums(
    freshet: Freshet, shop: str, tmp_path: Path
) -> None:
    Shop.titles.update({f"/item/{n}": f"Tea {n}" for n in range(ITEMS)})
    freshet.crawl(definition(freshet, shop), FRESHET_ARCHIVE_FILE_MB=0.003)
    report = in_json(freshet, "archive", "export", "shop", tmp_path / "shop.wacz", hours=1)
    assert report["responses"] == ITEMS + 1
    assert report["warc_files"] > 1
    with ZipFile(tmp_path / "shop.wacz") as package:
        assert package.testzip() is None
        described = json.loads(package.read("datapackage.json"))
        named = {row["path"]: row["bytes"] for row in described["resources"]}
        others = set(package.namelist()) - {"datapackage.json", "datapackage-digest.json"}
        assert named.keys() == others
        assert all(package.getinfo(name).file_size == size for name, size in named.items())
        lines = gzip.decompress(package.read("indexes/index.cdx.gz")).decode().splitlines()
        assert lines == sorted(lines)
        pages = package.read("pages/pages.jsonl").decode().splitlines()
        assert len(lines) == ITEMS + 1
        assert len(pages) == ITEMS + 2, "the first line describes the list"
