"""Four real sites, crawled from their home pages by URL patterns only.

Requires a folder with the sites as `NAME.tar.xz` and their patterns in `sites.json`. The variable
REAL_SITES contains its path. The texts belong to their publishers and are not part of this project.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.integration.harness import Db, Freshet
from tests.site.running import RunningFolder

REAL_SITES = os.environ.get("REAL_SITES")
pytestmark = pytest.mark.skipif(
    not REAL_SITES, reason="REAL_SITES is not set to a folder with the four real sites"
)


@dataclass(frozen=True)
class Site:
    """A site: its archive, its host, and the number of items that a crawl must find.

    slashless: its links have no trailing slash
    """

    archive: str
    host: str
    items: int
    slashless: bool = False


SITES = [
    Site("RobustPerception__robustperception.github.io", "www.robustperception.io", 301, True),
    Site("LuisGC__luisgc.github.io", "luiyo.net", 249),
    Site("Anymo123__Anymo123.github.io", "anymo123.github.io", 1397),
    Site("MlgFix__mlgfix-static", "mlgfix.com", 120),
]


def url_pattern(path_pattern: str, *, slashless: bool) -> str:
    """Convert a pattern for file paths into a pattern for URLs, where `index.html` is optional."""
    pattern = path_pattern.removeprefix("^").replace(r"index\.html", r"(?:index\.html)?")
    if slashless:
        pattern = re.sub(r"(?<!wp-)/(?=\)|\(|$|\|)|/(?=\(\?:index)", "/?", pattern)
    return r"^https?://[^/]+/" + pattern


@pytest.fixture(params=SITES, ids=lambda site: site.host)
def site(request: pytest.FixtureRequest) -> Site:
    found: Site = request.param
    return found


def test_crawl_finds_all_items_of_real_site(
    freshet: Freshet, database: Db, site: Site, tmp_path: Path
) -> None:
    folder = Path(str(REAL_SITES))
    subprocess.run(["tar", "xf", folder / f"{site.archive}.tar.xz"], cwd=tmp_path, check=True)
    described = json.loads((folder / "sites.json").read_text(encoding="utf-8"))
    patterns = next(entry for entry in described if entry["site"] == site.archive)
    # The items of one site are all pages except some: `^(?!some)rest`.
    excluded, rest = re.fullmatch(r"\^(?:\(\?!(.+?)\))?(.*)", patterns["item_pattern"]).groups()
    lists, items, others = (
        url_pattern(pattern, slashless=site.slashless)
        for pattern in (patterns["list_pattern"], rest, f"(?:{excluded or '$none'})")
    )
    host = site.host.removeprefix("www.")
    with RunningFolder({host: tmp_path / site.archive}, validators=True) as server:
        arguments = [
            "-a", "name=real",
            "-a", f"start_urls=http://{site.host}/",
            "-a", f"list_pages={lists}",
            "-a", f"item_pages={items}",
            "-a", f"not_item_pages={others}",
        ]  # fmt: skip
        first = freshet("crawl", "site", *arguments, http_proxy=server.url)
        counts = json.loads(freshet("targets", "real", "--json").out)
        full = freshet("crawl", "site", *arguments, "-a", "full=1", http_proxy=server.url)
    assert counts["kinds"]["item"] == site.items
    accuracy = re.search(r"accuracy ([\d.]+)%", first.err)
    assert accuracy
    assert float(accuracy[1]) >= 99.9
    assert " 0 changed, 0 unchanged" in full.err, "all responses are 304"
    assert database.visits.count_documents({"changed": 1}) == 0
