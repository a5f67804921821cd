"""Names that resolve to private networks: allowed only if the user has listed host and port."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.integration.feeds.test_feed_crawl import post, rss, subscribe
from tests.integration.harness import Db, Freshet, Result, visits
from tests.integration.recording import Recorder

# Attackers who run the name server of a domain choose its addresses.
RESOLVER = """
from scrapy.resolver import CachingThreadedResolver
from twisted.internet.defer import succeed

class Resolver(CachingThreadedResolver):
    def getHostByName(self, name, timeout=()):
        ours = name.endswith(".test")
        return succeed("127.0.0.1") if ours else super().getHostByName(name, timeout)
"""
PAGE = "<h1>A page</h1>"


@pytest.fixture
def inside() -> Iterator[Recorder]:
    """Run a server in the private network that an attacker tries to read through Freshet."""
    with Recorder() as server:
        server.answers |= {"/list": '<a href="/item">an item</a>', "/item": PAGE}
        yield server


@pytest.fixture
def resolved(freshet: Freshet) -> Freshet:
    """Resolve all names below `.test` to 127.0.0.1."""
    (freshet.folder / "private_resolver.py").write_text(RESOLVER, encoding="utf-8")
    freshet.env["PYTHONPATH"] = str(freshet.folder)
    return freshet


def crawl(freshet: Freshet, url: str, code: int = 0, listed: str = "", **keys: object) -> Result:
    given: dict[str, object] = {"list_pages": "/list", "item_pages": "/item"}
    given |= {"start_urls": [url], "fields": {"title": "h1"}}
    words = ("-s", "DNS_RESOLVER=private_resolver.Resolver")
    path = freshet.wrapper("shop", **given | keys)
    return freshet.crawl(path, *words, code=code, FRESHET_PRIVATE_HOSTS=listed)


def test_start_urls_do_not_allow_private_hosts(
    resolved: Freshet, database: Db, inside: Recorder
) -> None:
    place = f"intranet.test:{inside.port}"
    result = crawl(resolved, f"http://{place}/list", code=1)
    assert inside.asked == []
    (visit,) = visits(database)
    assert visit["outcome"] == "blocked"
    message = (
        f"{place} is not on the public Internet (127.0.0.1) "
        "(to allow this host and port, add them to FRESHET_PRIVATE_HOSTS)"
    )
    assert visit["reason"] == message
    assert result.err.count(f"WARNING: Request refused: {message}") == 1


@pytest.mark.parametrize("name", ["intranet.test:{}", "other.test:80, Intranet.test:{}"])
def test_listed_host_is_allowed_at_its_port(
    resolved: Freshet, database: Db, inside: Recorder, name: str
) -> None:
    listed = name.format(inside.port)
    crawl(resolved, f"http://intranet.test:{inside.port}/list", listed=listed)
    assert {visit["outcome"] for visit in visits(database)} == {"new"}
    assert inside.headers("/item")


def test_listed_host_is_blocked_at_another_port(
    resolved: Freshet, database: Db, inside: Recorder
) -> None:
    listed = f"intranet.test:{inside.port + 1}, intranet.test:80"
    crawl(resolved, f"http://intranet.test:{inside.port}/list", code=1, listed=listed)
    assert inside.asked == []


def test_allowed_domains_do_not_allow_private_subdomains(
    resolved: Freshet, database: Db, inside: Recorder
) -> None:
    within = f"http://evil.shop.test:{inside.port}/item"
    with Recorder() as shop:
        shop.answers["/list"] = f'<a href="{within}">an item</a>'
        domains = ["127.0.0.1", "shop.test"]
        crawl(resolved, f"{shop.url}/list", code=1, allowed_domains=domains)
    (visit,) = visits(database, target=within)
    assert visit["outcome"] == "blocked"
    assert inside.asked == []


def test_address_in_allowed_domains_allows_no_other_port(
    resolved: Freshet, database: Db, inside: Recorder
) -> None:
    with Recorder() as shop:
        shop.answers["/list"] = f'<a href="{inside.url}/item">an item</a>'
        crawl(resolved, f"{shop.url}/list", code=1, allowed_domains=["127.0.0.1"])
    (visit,) = visits(database, target=f"{inside.url}/item")
    assert visit["outcome"] == "blocked"
    assert inside.asked == []


def test_typed_private_host_must_be_listed(resolved: Freshet, inside: Recorder) -> None:
    place = f"intranet.test:{inside.port}"
    words = ("fetch", f"http://{place}/item", "-s", "DNS_RESOLVER=private_resolver.Resolver")
    failed = resolved(*words)
    assert failed.code == 1
    assert f"{place} is not on the public Internet" in failed.err
    assert inside.asked == []
    assert resolved(*words, FRESHET_PRIVATE_HOSTS=place).out.strip() == PAGE
    assert resolved("fetch", f"{inside.url}/item").out.strip() == PAGE


def test_feed_on_private_host_must_be_listed(
    resolved: Freshet, stored: tuple[Db, str], inside: Recorder
) -> None:
    db, uri = stored
    place = f"news.test:{inside.port}"
    inside.answers["/feed"] = rss(post("a", link=f"http://{place}/item"))
    subscribe(db, uri, f"http://{place}/feed")
    words = ("crawl", "feeds", "-a", "follow=1", "-s", "DNS_RESOLVER=private_resolver.Resolver")
    resolved(*words)
    assert inside.asked == []
    assert [visit["outcome"] for visit in visits(db)] == ["blocked"]
    resolved(*words, hours=48, FRESHET_PRIVATE_HOSTS=place)
    assert inside.headers("/feed")


def test_invalid_private_host_prints_one_line(freshet: Freshet) -> None:
    failed = freshet("targets", FRESHET_PRIVATE_HOSTS="intranet.example")
    assert failed.code == 1
    assert "FRESHET_PRIVATE_HOSTS: 'intranet.example' is not HOST:PORT" in failed.complaint
