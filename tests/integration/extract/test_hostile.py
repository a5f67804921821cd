"""Misbehaving servers affect only their own pages, with bounded memory and time."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tests.conftest import Databases
from tests.integration.harness import Db, Freshet, Pages, Row, visits
from tests.site.hostile import GOOD_PAGES, MISBEHAVIOURS
from tests.site.hostile_moves import PLACES
from tests.site.running import RunningHostile

SECONDS, MEGABYTES = 4, 1
LIMITS = {"FRESHET_RESPONSE_SECONDS": SECONDS, "FRESHET_RESPONSE_MB": MEGABYTES}
# One of these servers took 2 GB before the limits existed.
MAX_MB = 300
# Bytes in flight before a client can abort a response, over three attempts.
MAX_SENT = 30_000_000
SETTINGS = ("-s", "MEMUSAGE_CHECK_INTERVAL_SECONDS=0.5", "-s", "REDIRECT_MAX_TIMES=5")
RESOLVER = """
from scrapy.resolver import CachingThreadedResolver
from twisted.internet.defer import succeed

class Resolver(CachingThreadedResolver):
    def getHostByName(self, name, timeout=()):
        private = name == "rebound.test"
        return succeed("127.0.0.1") if private else super().getHostByName(name, timeout)
"""
TOO_LONG = "body larger than 1048576 bytes (FRESHET_RESPONSE_MB)"
BOMB = "decompresses to more than 1048576 bytes (FRESHET_RESPONSE_MB)"
PARTS = "has more than 2000 compressed parts"
TIMEOUT = "Timeout: no complete response in 4 s (FRESHET_RESPONSE_SECONDS)"
HEAD = "headers larger than 256 kB"
LINE = "header line longer than 16 kB"
TOO_MANY_REDIRECTS = "max redirections reached"
REASONS = {
    "bomb-gzip": BOMB,
    "bomb-deflate": BOMB,
    "bomb-br": BOMB,
    "bomb-zstd": BOMB,
    "bomb-nested": BOMB,
    "bomb-nested-headers": BOMB,
    "bomb-layers": "compressed 3000 times (maximum: 5)",
    "bomb-members": PARTS,
    "bomb-frames": PARTS,
    "bomb-sitemap.xml.gz": BOMB,
    "not-gzip": "cannot be decompressed as gzip: not a gzip file",
    "endless": TOO_LONG,
    "endless-chunked": TOO_LONG,
    "endless-crumbs": "chunk framing larger than the chunks",
    "one-chunk": TOO_LONG,
    "terabytes": TOO_LONG,
    "drip": TIMEOUT,
    "short": "connection closed before the end of the body",
    "length-negative": "invalid HTTP response: Value contains non-decimal digits: b'-5'",
    "length-word": "invalid HTTP response: Value contains non-decimal digits: b'many'",
    "lengths-differ": "invalid HTTP response: Invalid response: conflicting Content-Length headers",
    "chunk-bad": "invalid HTTP response: Chunk-size must be an integer",
    "chunk-cut": "connection closed before the end of the body",
    "chunk-long-line": "invalid HTTP response: Chunk size line exceeds",
    "endless-trailers": "invalid HTTP response: Trailer headers data is too long",
    "unknown-transfer": "invalid HTTP response: b'rot13'",
    "silent": TIMEOUT,
    "drip-head": TIMEOUT,
    "endless-headers": HEAD,
    "huge-header": LINE,
    "folded-header": HEAD,
    "cookies": HEAD,
    "endless-status": LINE,
    "endless-1xx": "more than 100 interim (1xx) responses",
    "no-http": "invalid HTTP response: non-integer status code",
    "closed": "DownloadFailedError",
    "loop": TOO_MANY_REDIRECTS,
    "ever-new": TOO_MANY_REDIRECTS,
    "slow-moves": TIMEOUT,
    "refresh-loop": TOO_MANY_REDIRECTS,
    "refresh-ever-new": TOO_MANY_REDIRECTS,
    "no-location": "status 302",
    "to-long": "redirects to a URL of",
    "to-file": "status 302, redirects to 'file:///etc/passwd'",
    "to-data": "status 302, redirects to 'data:text/html,<h1>data</h1>'",
    "to-ftp": "status 302, redirects to 'ftp://",
    "to-javascript": "javascript:alert(1)",
    "to-nonsense": "Invalid IPv6 URL",
}
# A body is read up to its announced length; a refresh that leads nowhere is ignored.
FINE = ("long", "some-cookies", "refresh-file")
OFF_LIMITS = ("refresh-private", *(f"to-{name}" for name in PLACES))


@dataclass(frozen=True)
class Hostiles:
    """Hold the results of a run over all hostile pages."""

    db: Db
    url: str
    requests: list[Row]
    log: str

    def visit(self, path: str) -> Row:
        """Return the only visit of a page."""
        (row,) = visits(self.db, target=f"{self.url}{path}")
        return row


@pytest.fixture(scope="module")
def server() -> Iterator[RunningHostile]:
    with RunningHostile() as running:
        yield running


@pytest.fixture(scope="module")
def hostiles(
    server: RunningHostile, databases: Databases, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Hostiles]:
    """Run the crawl once for all read-only tests."""
    folder = tmp_path_factory.mktemp("hostile")
    (folder / "resolver_of_hostile.py").write_text(RESOLVER, encoding="utf-8")
    with databases() as (db, uri):
        freshet = Freshet(folder, MONGO_URI=uri, FRESHET_DATA_DIR=folder / "data")
        wrapper = freshet.wrapper(
            "hostile",
            start_urls=[f"{server.url}/", f"{server.url}/many/some-cookies/6"],
            list_pages="sitemap",
            item_pages="/good/|/item/",
            not_item_pages="sitemap",
            fields={"title": "h1"},
        )
        words = (*SETTINGS, "-s", "DNS_RESOLVER=resolver_of_hostile.Resolver")
        result = freshet.crawl(wrapper, *words, PYTHONPATH=folder, **LIMITS)
        yield Hostiles(db, server.url, server.requests(), result.err)


def test_expectations_cover_all_misbehaviors() -> None:
    assert {*REASONS, *FINE, *OFF_LIMITS} == set(MISBEHAVIOURS)


@pytest.mark.soak
@pytest.mark.parametrize("name", REASONS)
def test_misbehavior_fails_its_page_with_logged_reason(hostiles: Hostiles, name: str) -> None:
    visit = hostiles.visit(f"/item/{name}")
    assert visit["outcome"] == "error"
    assert REASONS[name] in visit["reason"]
    assert f"/item/{name}: error: {visit['reason']}" in hostiles.log


@pytest.mark.parametrize("name", OFF_LIMITS)
def test_no_page_leads_into_a_private_network(hostiles: Hostiles, name: str) -> None:
    visit = hostiles.visit(f"/item/{name}")
    assert visit["outcome"] == "blocked"
    assert "is not on the public Internet" in visit["reason"]
    assert "FRESHET_PRIVATE_HOSTS" in visit["reason"]


def test_private_hosts_receive_no_requests(hostiles: Hostiles) -> None:
    assert {row["host"] for row in hostiles.requests} == {hostiles.url.removeprefix("http://")}
    assert not [row for row in hostiles.requests if row["path"] == "/secret"]


def test_reason_includes_private_address_of_host(hostiles: Hostiles) -> None:
    reason = hostiles.visit("/item/to-rebound")["reason"]
    assert re.match(r"rebound\.test:\d+ is not on the public Internet \(127\.0\.0\.1\)", reason)


@pytest.mark.parametrize("name", FINE)
def test_tolerable_misbehavior_is_read(hostiles: Hostiles, name: str) -> None:
    assert hostiles.visit(f"/item/{name}")["outcome"] == "new"


def test_well_behaved_pages_are_read(hostiles: Hostiles) -> None:
    for n in range(GOOD_PAGES):
        assert hostiles.visit(f"/good/{n}")["outcome"] == "new"


def test_many_cookies_do_not_affect_other_pages(hostiles: Hostiles) -> None:
    for n in range(6):
        assert hostiles.visit(f"/item/some-cookies/{n}")["outcome"] == "new"


def test_run_limits_memory_and_downloaded_bytes(hostiles: Hostiles) -> None:
    start, peak = (
        int(re.search(rf"'memusage/{name}': (\d+)", hostiles.log)[1])  # type: ignore[index]
        for name in ("startup", "max")
    )
    assert (peak - start) / 1e6 < MAX_MB
    assert max(row["bytes"] for row in hostiles.requests) < MAX_SENT


def test_log_has_no_tracebacks(hostiles: Hostiles) -> None:
    before, _, after = hostiles.log.partition("Traceback")
    assert not after, before[-500:] + after[:5000]


# Numbers of the pages /good/0 to /good/2 that each address's robots.txt disallows.
ROBOTS = {
    "127.0.0.11": {1},  # 10 MB; a rule beyond the limit is not read
    "127.0.0.12": {1},  # endless
    "127.0.0.14": set(),  # redirect loop
    "127.0.0.15": set(),  # redirects into the private network
    "127.0.0.16": set(),  # garbage
    "127.0.0.17": {1},  # half a megabyte of wildcards
    "127.0.0.18": {1},  # the same on one line
    "127.0.0.19": {1},  # thousands of user agents above thousands of rules
    "127.0.0.20": set(),  # a decompression bomb
}  # fmt: skip
SLOW = "127.0.0.13"
UNREAD = {
    "127.0.0.14": TOO_MANY_REDIRECTS,
    "127.0.0.15": "localhost:{port} is not on the public Internet",
    "127.0.0.20": BOMB,
}


@pytest.fixture(scope="module")
def robots(
    server: RunningHostile, databases: Databases, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Db, str, str]]:
    """Run a crawl of hosts with misbehaving robots.txt; yield the database, log and port."""
    folder = tmp_path_factory.mktemp("robots")
    port = server.url.rpartition(":")[2]
    with databases() as (db, uri):
        freshet = Freshet(folder, MONGO_URI=uri, FRESHET_DATA_DIR=folder / "data")
        urls = [f"http://{address}:{port}/" for address in (*ROBOTS, SLOW)]
        keys = {"start_urls": urls, "item_pages": "/good/", "fields": {"title": "h1"}}
        result = freshet.crawl(freshet.wrapper("robots", **keys), *SETTINGS, **LIMITS)
        yield db, result.err, port


@pytest.mark.parametrize("address", ROBOTS)
def test_readable_part_of_robots_txt_is_obeyed(robots: tuple[Db, str, str], address: str) -> None:
    db, log, port = robots
    url = f"http://{address}:{port}"
    for n in range(GOOD_PAGES):
        (visit,) = visits(db, target=f"{url}/good/{n}")
        assert visit["outcome"] == ("blocked" if n in ROBOTS[address] else "new")
    why = UNREAD.get(address, "").format(port=port)
    message = f"Reading {url}/robots.txt failed, so every URL is allowed: {why}"
    assert (message in log) == (address in UNREAD)


def test_no_page_is_fetched_while_robots_txt_is_slow(robots: tuple[Db, str, str]) -> None:
    db, log, port = robots
    (visit,) = visits(db, target={"$regex": f"^http://{SLOW}:"})
    assert visit["outcome"] == "error"
    assert visit["reason"].startswith(
        f"http://{SLOW}:{port}/robots.txt could not be read ({TIMEOUT}"
    )
    assert visit["reason"] in log


def test_redirects_to_private_hosts_are_blocked_with_proxy(
    freshet: Freshet, database: Db, server: RunningHostile
) -> None:
    server.clear_log()
    start = ["http://other.test/item/to-private", "http://other.test/item/to-localhost"]
    wrapper = freshet.wrapper("proxied", start_urls=start, item_pages="/x/", proxy=server.url)
    freshet.crawl(wrapper, code=1)
    assert [visit["outcome"] for visit in visits(database)] == ["blocked", "blocked"]
    assert {row["host"] for row in server.requests()} == {"other.test"}


def test_setting_allows_private_addresses(freshet: Freshet, server: RunningHostile) -> None:
    server.clear_log()
    start = [f"{server.url}/item/to-localhost"]
    wrapper = freshet.wrapper("open", start_urls=start, item_pages="/x/", robots=False)
    freshet.crawl(wrapper, code=1, FRESHET_PRIVATE_ADDRESSES=1)
    assert "/secret" in {row["path"] for row in server.requests()}


FEED = (
    """<?xml version="1.0"?><rss version="2.0"><channel><title>A feed</title>{}</channel></rss>"""
)
ITEM = "<item><title>{0}</title><guid>{0}</guid><link>{0}</link></item>"


def test_posts_may_link_only_to_private_host_of_their_feed(
    freshet: Freshet, database: Db, server: RunningHostile, pages: Pages
) -> None:
    own, other = f"{pages.url}/post.html", f"{server.url}/good/0"
    elsewhere = pages.url.replace("127.0.0.1", "localhost") + "/post.html"
    pages.item("post.html", "A post that is long enough to be read as one. " * 9)
    pages.file("feed.xml", FEED.format("".join(map(ITEM.format, (own, other, elsewhere)))))
    freshet("feeds", "add", "--no-fetch", f"{pages.url}/feed.xml")
    assert freshet("crawl", "feeds", "-a", "follow=1").code == 0
    results = {visit["target"]: visit["outcome"] for visit in visits(database)}
    assert results[own] == "new"
    assert results[other] == results[elsewhere] == "blocked"


def test_added_page_cannot_name_feed_on_private_host(
    freshet: Freshet, database: Db, pages: Pages
) -> None:
    pages.file("feed.xml", FEED.format(ITEM.format("http://a.example/")))
    hidden = pages.url.replace("127.0.0.1", "localhost") + "/feed.xml"
    link = '<link rel="alternate" type="application/rss+xml" href="{}">'
    pages.file("page.html", link.format(hidden))
    assert freshet("feeds", "add", f"{pages.url}/page.html").code == 1
    assert not [row for row in pages.requests() if row["host"].startswith("localhost")]
