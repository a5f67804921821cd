"""Patterns proposed for four real sites, from their home pages and a few linked pages.

Requires a folder with the sites as `NAME.tar.xz` and their patterns in `sites.json`. The variable
REAL_SITES contains its path. The texts belong to their publishers and are not part of this project.
"""

from __future__ import annotations

import json
import os
import re
import tarfile
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from scrapy.http import HtmlResponse

from crawler.extract.proposals import LinkPage, Proposal, anchors_of, propose, worth_fetching
from crawler.utils.regex import compiled
from tests.integration.frontier.test_real_sites import SITES, Site

REAL_SITES = os.environ.get("REAL_SITES")
pytestmark = pytest.mark.skipif(
    not REAL_SITES, reason="REAL_SITES is not set to a folder with the four real sites"
)
FIRST = 3
MIN_PRECISION = 0.95


class Files:
    """The pages of a site by URL."""

    def __init__(self, site: Site, folder: Path) -> None:
        self.host = site.host
        with tarfile.open(Path(str(REAL_SITES)) / f"{site.archive}.tar.xz") as archive:
            archive.extractall(folder, filter="data")
        self.root = folder / site.archive
        self.files = [str(path.relative_to(self.root)) for path in self.root.rglob("*.html")]
        self._pages: dict[str, LinkPage | None] = {}

    def url(self, file: str) -> str:
        return f"https://{self.host}/{file.removesuffix('index.html')}"

    def file(self, url: str) -> str:
        path = unquote(urlsplit(url).path).strip("/")
        return path if path.endswith(".html") else f"{path}/index.html".lstrip("/")

    def page(self, url: str) -> LinkPage | None:
        file = self.file(url)
        if file not in self._pages:
            path = self.root / file
            self._pages[file] = None
            if path.is_file():
                response = HtmlResponse(url, body=path.read_bytes(), encoding="utf-8")
                self._pages[file] = LinkPage(url, anchors_of(response))
        return self._pages[file]

    def precision(self, proposal: Proposal, wanted: re.Pattern[str]) -> float:
        """Return the share of wanted pages among all pages that a proposal selects."""
        selected = [file for file in self.files if selects(proposal, self.url(file))]
        return sum(bool(wanted.search(file)) for file in selected) / max(1, len(selected))

    def reached(self, lists: Proposal, items: Proposal) -> set[str]:
        """Return the items that a crawl from the home page finds."""
        found: set[str] = set()
        open_urls, seen = [f"https://{self.host}/"], set()
        while open_urls:
            if (file := self.file(url := open_urls.pop())) in seen:
                continue
            seen.add(file)
            for anchor in ((page := self.page(url)) and page.anchors) or ():
                if selects(items, anchor.url):
                    found.add(self.file(anchor.url))
                elif selects(lists, anchor.url):
                    open_urls.append(anchor.url)
        return found


def selects(proposal: Proposal, url: str) -> bool:
    if not compiled(proposal.pattern).search(url):
        return False
    return not (proposal.exclude and compiled(proposal.exclude).search(url))


@pytest.mark.parametrize("site", SITES, ids=lambda site: site.host)
def test_correct_patterns_are_among_first_three_proposals(site: Site, tmp_path: Path) -> None:
    files = Files(site, tmp_path)
    described = json.loads((Path(str(REAL_SITES)) / "sites.json").read_text(encoding="utf-8"))
    patterns = next(entry for entry in described if entry["site"] == site.archive)
    is_list, is_item = re.compile(patterns["list_pattern"]), re.compile(patterns["item_pattern"])
    home = files.page(f"https://{site.host}/")
    assert home
    pages = [home]
    for _ in range(2):
        pages += filter(None, map(files.page, worth_fetching(pages, 4)))
    proposals = propose(pages)
    items = [
        proposal
        for proposal in proposals.items[:FIRST]
        if files.precision(proposal, is_item) >= MIN_PRECISION
    ]
    lists = [
        proposal
        for proposal in proposals.lists[:FIRST]
        if files.precision(proposal, is_list) >= MIN_PRECISION
    ]
    found = {
        file
        for wanted in lists
        for file in files.reached(wanted, items[0])
        if is_item.search(file) and (files.root / file).is_file()
    }
    assert len(found) >= 0.99 * site.items
