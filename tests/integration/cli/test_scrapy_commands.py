"""Scrapy's own commands in this project, with spiders, URLs and invalid input."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.integration.harness import ROOT, Db, Freshet, Pages, Result
from tests.site.running import RunningHostile

QUIET = ("-L", "WARNING")
CLOSED_PORT = "http://127.0.0.1:9/"
REFUSED = "on the public Internet (to allow this host and port, add them to FRESHET_PRIVATE_HOSTS)"
SITE = """
from spiders.wrapper import WrapperSpider

class Site(WrapperSpider):
    name = "here"
    start_urls = ["{url}/"]
    item_pages = r"/item/"
    fields = {{"title": "h1"}}
    headers = {{"X-Asked-By": "here"}}
"""
PLAIN = """
import scrapy

class Plain(scrapy.Spider):
    name = "plain"
    start_urls = ["{url}/"]

    def parse(self, response):
        '''Read a page.

        @url {url}/
        @returns requests 1 1
        '''
        yield from response.follow_all(css="a", callback=self.parse)
"""


@pytest.fixture
def home(pages: Pages) -> Pages:
    """Create a list page and an item."""
    pages.list("index.html", ["/item/1.html"])
    pages.item("item/1.html", "One")
    return pages


@pytest.fixture
def here(freshet: Freshet, home: Pages) -> tuple[str, ...]:
    """Return options that add a spider for the home site to the project."""
    module = f"here_{freshet.folder.name.replace('-', '_')}"
    (freshet.folder / f"{module}.py").write_text(SITE.format(url=home.url), encoding="utf-8")
    freshet.env["PYTHONPATH"] = str(freshet.folder)
    return ("-s", f"SPIDER_MODULES=spiders,{module}", *QUIET)


def expect(result: Result, code: int = 0) -> Result:
    assert result.code == code, result.err
    assert "Traceback" not in result.err
    return result


def test_a_shell_evaluates_code_without_a_page(freshet: Freshet) -> None:
    assert expect(freshet("shell", "-c", "6 * 7", *QUIET)).out == "42\n"
    shown = expect(freshet("shell", "--spider", "books", "-c", "spider.name", *QUIET))
    assert shown.out == "books\n"


def test_shell_fetches_page_of_typed_url(freshet: Freshet, home: Pages) -> None:
    title = "response.css('h1::text').get()"
    url = f"{home.url}/item/1.html"
    assert expect(freshet("shell", url, "-c", title, *QUIET)).out == "One\n"
    again = f"fetch('{url}') or {title}"
    assert expect(freshet("shell", "-c", again, *QUIET)).out == "One\n"


def test_shell_opens_page_of_file(freshet: Freshet, home: Pages) -> None:
    page = home.home / "item" / "1.html"
    shown = expect(freshet("shell", page, "-c", "response.css('h1::text').get()", *QUIET))
    assert shown.out == "One\n"


def test_commands_choose_spider_by_url(
    freshet: Freshet, database: Db, home: Pages, here: tuple[str, ...]
) -> None:
    url = f"{home.url}/item/1.html"
    assert expect(freshet("shell", url, "-c", "spider.name", *here)).out == "here\n"
    sent = expect(freshet("fetch", url, "--headers", *here)).out
    assert "> X-Asked-By: here" in sent
    parsed = expect(freshet("parse", url, "--nocolour", *here)).out
    assert f"[{{'title': 'One', 'url': '{url}'}}]" in parsed
    listed = expect(freshet("parse", f"{home.url}/", "--nocolour", *here)).out
    assert f"[<GET {url}>]" in listed
    both = expect(freshet("parse", f"{home.url}/", "-d", "2", "--nocolour", *here)).out
    assert "'title': 'One'" in both
    # Commands that only display pages are not crawl runs and store nothing.
    assert not database.runs.count_documents({})
    assert not database.targets.count_documents({})


def test_parse_reports_why_nothing_was_found(
    freshet: Freshet, home: Pages, here: tuple[str, ...]
) -> None:
    home.item("about.html", "About")
    about = f"{home.url}/about.html"
    failed = expect(freshet("parse", about, *here), 1)
    assert f"{about} matches no pattern of here" in failed.err
    assert f"scrapy parse: {about}: here found neither items nor links" in failed.err
    gone = expect(freshet("parse", f"{home.url}/item/2.html", *here), 1)
    assert "gone: 404" in gone.err
    strange = expect(freshet("parse", CLOSED_PORT, *QUIET), 1)
    assert (
        strange.complaint
        == f"scrapy parse: no spider for {CLOSED_PORT}. Name one with --spider NAME"
    )


def test_fetch_prints_page_of_local_server(freshet: Freshet, home: Pages) -> None:
    fetched = expect(freshet("fetch", f"{home.url}/item/1.html", "--nolog"))
    assert "<h1>One</h1>" in fetched.out
    assert not fetched.err
    site_args = ("-a", "name=x", "-a", f"start_urls={home.url}/", "-a", "item_pages=/item/")
    fetched = expect(freshet("fetch", "--spider", "site", *site_args, f"{home.url}/", "--nolog"))
    assert "/item/1.html" in fetched.out


@pytest.mark.parametrize("command", ["fetch", "view", "shell", "parse"])
def test_refused_connection_is_an_error(
    freshet: Freshet, home: Pages, here: tuple[str, ...], command: str
) -> None:
    words = [command, CLOSED_PORT, "--spider", "here", *here]
    failed = expect(freshet(*words, *(["-c", "response"] if command == "shell" else [])), 1)
    assert f"scrapy {command}: {CLOSED_PORT}: " in failed.err
    assert "Connection refused" in failed.err


def test_fetch_reports_page_forbidden_by_robots_txt(freshet: Freshet, home: Pages) -> None:
    home.file("robots.txt", "User-agent: *\nDisallow: /item/")
    failed = expect(freshet("fetch", f"{home.url}/item/1.html", "--nolog"), 1)
    assert failed.complaint.endswith("Forbidden by robots.txt")


def test_typed_url_allows_only_its_own_host(freshet: Freshet) -> None:
    """Refuse a redirect to a private host, which the server chose and not the user."""
    with RunningHostile() as hostile:
        failed = expect(freshet("fetch", f"{hostile.url}/item/to-private", *QUIET), 1)
    port = hostile.url.rpartition(":")[2]
    assert f"WARNING: Request refused: 10.0.0.1:{port} is not {REFUSED}" in failed.err


def test_refused_host_is_logged_once(freshet: Freshet, home: Pages) -> None:
    """Log a refused host once; the change log has each page that links to it."""
    links = [f"http://127.0.0.{n}:9/item/{page}" for n in (2, 3) for page in range(4)]
    code = PLAIN.format(url=home.url)
    home.list("index.html", links)
    module = freshet.folder / "of_plain.py"
    module.write_text(code, encoding="utf-8")
    done = expect(freshet("runspider", module, *QUIET))
    refused = [line for line in done.err.splitlines() if "Request refused" in line]
    assert len(refused) == 2
    for line, host in zip(sorted(refused), ("127.0.0.2:9", "127.0.0.3:9"), strict=True):
        assert line.endswith(f"WARNING: Request refused: {host} is not {REFUSED}")


@pytest.mark.parametrize("command", ["shell", "fetch", "view", "parse", "check"])
def test_unknown_spider_prints_one_line(freshet: Freshet, command: str) -> None:
    words = ["nope"] if command == "check" else ["--spider", "nope", CLOSED_PORT]
    failed = expect(freshet(command, *words, *QUIET), 1)
    available = "books, cells, feeds, quotes, site"
    expected = f"scrapy {command}: spider not found: 'nope'. Available: {available}"
    assert failed.complaint == expected


@pytest.mark.parametrize("command", ["fetch", "view", "parse"])
def test_invalid_url_prints_usage(freshet: Freshet, command: str) -> None:
    assert f"scrapy {command} [options] <url>" in expect(freshet(command, "nowhere", *QUIET), 2).out
    broken = expect(freshet(command, "http://[broken", "--nolog"), 1)
    assert broken.complaint.startswith(f"scrapy {command}: http://[broken: not a valid URL")


def test_view_opens_a_browser(freshet: Freshet, home: Pages) -> None:
    shown = freshet.folder / "shown.txt"
    browser = freshet.folder / "browser"
    browser.write_text(f'#!/bin/sh\ncat "${{1#file://}}" > {shown}\n', encoding="utf-8")
    browser.chmod(0o755)
    expect(freshet("view", f"{home.url}/item/1.html", *QUIET, BROWSER=browser))
    assert "<h1>One</h1>" in shown.read_text(encoding="utf-8")
    failed = expect(freshet("view", f"{home.url}/", "--nolog", BROWSER="/nonexistent", PATH=""), 1)
    assert failed.complaint == "scrapy view: no browser found. Set BROWSER, or use `scrapy fetch`"


def test_check_runs_contracts_and_reports_missing_ones(
    freshet: Freshet, database: Db, home: Pages
) -> None:
    module = f"plain_{freshet.folder.name.replace('-', '_')}"
    (freshet.folder / f"{module}.py").write_text(PLAIN.format(url=home.url), encoding="utf-8")
    own = ("-s", f"SPIDER_MODULES={module}")
    checked = expect(freshet("check", *own, PYTHONPATH=freshet.folder))
    assert re.search(r"Ran \d+ contracts?", checked.err)
    assert "no spider has contracts" not in checked.err
    assert "parse" in expect(freshet("check", "-l", *own, PYTHONPATH=freshet.folder)).out
    assert "scrapy wrapper check NAME URL" in expect(freshet("check")).err
    assert not database.runs.count_documents({})


@pytest.mark.soak
def test_bench_reaches_its_own_server(freshet: Freshet) -> None:
    limits = ("-s", "CLOSESPIDER_PAGECOUNT=20", "-s", "LOGSTATS_INTERVAL=0.02")
    done = expect(freshet("bench", *limits))
    crawled = [int(n) for n in re.findall(r"Crawled (\d+) pages", done.err)]
    assert max(crawled) > 10


def test_runspider_runs_a_file(freshet: Freshet, database: Db, home: Pages) -> None:
    site, plain = freshet.folder / "of_here.py", freshet.folder / "of_plain.py"
    site.write_text(SITE.format(url=home.url), encoding="utf-8")
    plain.write_text(PLAIN.format(url=home.url), encoding="utf-8")
    items = freshet.folder / "items.jsonl"
    expect(freshet("runspider", site, "-O", items))
    assert json.loads(items.read_text(encoding="utf-8"))["title"] == "One"
    assert database.runs.count_documents({"spider": "here"}) == 1
    expect(freshet("runspider", plain, *QUIET))
    wrong = expect(freshet("runspider", site, "-a", "nope=1"), 1)
    assert wrong.complaint == "scrapy runspider: -a nope: unknown key. Available: full, limit"


def test_crawl_of_a_plain_spider_reports_that_nothing_is_stored(
    freshet: Freshet, home: Pages
) -> None:
    result = freshet.crawl_spider(PLAIN.format(url=home.url), "plain", *QUIET)
    assert result.complaint.startswith("scrapy crawl: plain is a plain Scrapy spider")


def test_runspider_reports_problems_of_file(freshet: Freshet) -> None:
    empty, broken = freshet.folder / "of_none.py", freshet.folder / "of_broken.py"
    empty.write_text("x = 1\n", encoding="utf-8")
    broken.write_text("import nonexistent\n", encoding="utf-8")
    for path, problem in (
        (empty, "no spider in this file. Define a spider class with a name"),
        (broken, "cannot be loaded: No module named 'nonexistent'"),
    ):
        failed = expect(freshet("runspider", path, *QUIET), 1)
        assert failed.complaint == f"scrapy runspider: {path}: {problem}"
    missing = expect(freshet("runspider", "nope.py", *QUIET), 1)
    assert missing.complaint == "scrapy runspider: file not found: 'nope.py'"


def test_the_other_commands_work_in_the_project(freshet: Freshet, tmp_path: Path) -> None:
    assert expect(freshet("list")).out.split() == ["books", "cells", "feeds", "quotes", "site"]
    assert expect(freshet("settings", "--get", "BOT_NAME")).out == "freshet\n"
    assert expect(freshet("version")).out.startswith("Scrapy ")
    shown = tmp_path / "shown.txt"
    editor = tmp_path / "editor"
    editor.write_text(f'#!/bin/sh\necho "$1" > {shown}\n', encoding="utf-8")
    editor.chmod(0o755)
    expect(freshet("edit", "books", EDITOR=editor))
    assert Path(shown.read_text(encoding="utf-8").strip()) == ROOT / "spiders" / "books.py"
    assert expect(freshet("edit", "nope"), 1).complaint == "Spider not found: nope"
    expect(freshet("startproject", "another", tmp_path / "another"))
    assert (tmp_path / "another" / "scrapy.cfg").is_file()
    assert "wrapper" in expect(freshet("genspider", "-l")).out.split()
