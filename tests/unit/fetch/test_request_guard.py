"""Private networks: the requests that may reach them."""

from __future__ import annotations

from ipaddress import ip_address

import pytest
from scrapy import Request

from crawler.errors import OffLimits
from crawler.fetch.guard import MAX_LOGGED_HOSTS, ON_BEHALF_OF, TYPED, Guard, Named
from crawler.items import Kind, Target

INTRANET = "http://intranet:8080/list"
PRIVATE, PUBLIC, METADATA = map(ip_address, ("10.0.0.5", "1.1.1.1", "169.254.169.254"))


def guard(*urls: str, listed: tuple[str, ...] = (), is_open: bool = False) -> Guard:
    return Guard(Named.of(urls, listed), is_open=is_open)


def request(url: str, target: Target | None = None) -> Request:
    return Request(url, meta={"target": target} if target else {})


def test_unlisted_host_must_be_public() -> None:
    policy = guard(INTRANET).policy(request("http://elsewhere/"))
    assert policy.allowed([PRIVATE, PUBLIC]) == [PUBLIC]
    assert policy.allowed([PRIVATE]) == []
    assert policy.refused == [PRIVATE]


def test_host_name_in_a_url_must_be_public() -> None:
    policy = guard(INTRANET).policy(request(INTRANET))
    assert policy.allowed([PRIVATE]) == []
    feed = Target("feeds", INTRANET, Kind.FEED)
    assert guard().policy(request(feed.url, feed)).allowed([PRIVATE]) == []
    typed = Request(INTRANET, meta={TYPED: INTRANET})
    assert guard().policy(typed).allowed([PRIVATE]) == []


def test_listed_host_may_be_private_only_at_its_port() -> None:
    listed = guard(listed=("intranet:8080",))
    for url in ("http://intranet:9200/", "http://intranet/", "http://a.intranet:8080/"):
        assert listed.policy(request(url)).allowed([PRIVATE]) == []


def test_listed_host_may_be_private_but_not_a_metadata_server() -> None:
    policy = guard(listed=("intranet:8080",)).policy(request("http://intranet:8080/item"))
    assert policy.allowed([PRIVATE]) == [PRIVATE]
    assert policy.allowed([METADATA]) == []


def test_address_in_a_start_url_is_always_allowed() -> None:
    url = "http://0.0.0.0:8000/"
    assert guard(url).policy(request(url)).allowed([ip_address("0.0.0.0")])


def test_open_guard_allows_all_addresses() -> None:
    opened = guard(is_open=True)
    opened.policy(request("http://169.254.169.254/"))
    assert opened.policy(request("http://elsewhere/")).allowed([METADATA]) == [METADATA]


@pytest.mark.parametrize("url", ["http://10.0.0.5/", "http://0x7f.1/", "http://localhost:1/"])
def test_literal_private_addresses_are_rejected_immediately(url: str) -> None:
    with pytest.raises(OffLimits) as refused:
        guard(INTRANET).policy(request(url))
    assert refused.value.url == url


def test_feed_allows_its_address_for_itself_and_its_posts() -> None:
    feed = Target("feeds", "http://10.0.0.5/feed", Kind.FEED)
    post = Target(
        "feeds", "http://10.0.0.5/post", Kind.ITEM, post="feeds http://10.0.0.5/feed id 1"
    )
    stranger = Target("feeds", "http://10.0.0.5/x", Kind.ITEM, post="feeds http://a.example/feed 1")
    for target in (feed, post):
        guard().policy(request(target.url, target))
    with pytest.raises(OffLimits):
        guard().policy(request(stranger.url, stranger))
    with pytest.raises(OffLimits):
        guard().policy(request("http://10.0.0.6/", feed))


def test_robots_txt_request_inherits_permissions() -> None:
    feed = Target("feeds", "http://10.0.0.5/feed", Kind.FEED)
    robots = Request("http://10.0.0.5/robots.txt", meta={ON_BEHALF_OF: request(feed.url, feed)})
    guard().policy(robots)


def test_typed_url_allows_its_address_for_one_request() -> None:
    typed = Request("http://10.0.0.5/", meta={TYPED: "http://10.0.0.5/"})
    guard().policy(typed)
    with pytest.raises(OffLimits):
        guard().policy(typed.replace(url="http://10.0.0.6/"))


def test_refused_hosts_are_logged_once_up_to_a_limit(
    caplog: pytest.LogCaptureFixture,
) -> None:
    first = guard()
    for _ in range(2):
        for n in range(MAX_LOGGED_HOSTS + 50):
            first.log(OffLimits(f"http://10.0.0.{n}/", f"10.0.0.{n} is refused"))
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == len(set(lines)) == MAX_LOGGED_HOSTS + 1
    assert lines[-1] == f"More hosts refused; only the first {MAX_LOGGED_HOSTS} are logged"
