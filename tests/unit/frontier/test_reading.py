"""Spiders turn every response into a fetch."""

from __future__ import annotations

import asyncio
import gc
import gzip
import weakref
from datetime import timedelta
from typing import Any

import pytest
from scrapy import Request
from scrapy.exceptions import IgnoreRequest
from scrapy.http import HtmlResponse, Response
from scrapy.utils.test import get_crawler
from twisted.internet import error as network
from twisted.python.failure import Failure

from crawler.fetch.downloader import ConditionalGetMiddleware, NotRequested, PolitenessMiddleware
from crawler.items import Fetched, Kind, Outcome, Skipped, Target, Validators
from schedules.history import History
from spiders.feeds import FeedsSpider
from spiders.wrapper import Arguments, WrapperSpider

LIST = "https://shop.example/category/tea/"
ITEM = "https://shop.example/item/1"


class Shop(WrapperSpider):
    """A small shop."""

    name = "shop"
    start_urls = ["https://shop.example/"]
    list_pages = r"/category/(?P<category>[^/]+)/"
    item_pages = r"/item/"
    fields = {"title": "h1", "tags": {"css": "li", "type": "list"}}


def spider(of: type[WrapperSpider] = Shop, **settings: Any) -> WrapperSpider:
    """Return a spider whose session is not open, so that nothing is stored."""
    return of.from_crawler(get_crawler(of, settings))


def response(
    body: str | bytes = "<h1>Tea</h1>", url: str = ITEM, status: int = 200, **kwargs: Any
) -> HtmlResponse:
    """Return a UTF-8 response to the request for a URL."""
    raw = body.encode() if isinstance(body, str) else body
    return HtmlResponse(url, status=status, body=raw, encoding="utf-8", **kwargs)


def read(answer: Response, of: WrapperSpider | None = None, **state: Any) -> Fetched:
    """Return the fetch that the spider builds from a response to the request for a target."""
    crawling = of or spider()
    url = state.pop("url", answer.url)
    kind = state.pop("kind", Kind.LIST if "/category/" in url else Kind.ITEM)
    answer.request = crawling.request(Target("shop", url, kind, **state))
    answer.request.headers["If-None-Match"] = '"1"'
    return asyncio.run(anext(aiter(crawling.parse_target(answer))))


def test_item_page_yields_its_fields() -> None:
    fetched = read(response("<h1>Tea</h1><li>green</li>"))
    assert fetched.content == {"title": "Tea", "tags": ["green"]}
    assert (fetched.outcome, fetched.links, fetched.status) == (None, None, 200)
    assert fetched.size == len("<h1>Tea</h1><li>green</li>")


@pytest.mark.parametrize("url", [ITEM, LIST])
def test_page_is_freed_with_its_last_reference(url: str) -> None:
    answer = response("<h1>Tea</h1><a href='/item/2'>Mate</a>", url)
    page = weakref.ref(answer)
    gc.disable()
    try:
        fetched = read(answer)
        del answer
        assert page() is None
    finally:
        gc.enable()
    assert fetched.outcome is None


def test_item_page_with_an_invalid_base_url_is_read() -> None:
    assert read(response('<base href="//[x"><h1>Tea</h1>')).content == {"title": "Tea", "tags": []}


def test_list_page_yields_links_with_its_category() -> None:
    fetched = read(response('<a href="/item/1">Tea</a>', LIST))
    assert fetched.content is None
    assert [(link.url, link.category) for link in fetched.links or ()] == [(ITEM, "tea")]


def test_list_page_may_be_a_gzipped_sitemap() -> None:
    body = gzip.compress(f"<urlset><url><loc>{ITEM}</loc></url></urlset>".encode())
    answer = Response(LIST, body=body, headers={"Content-Type": "application/gzip"})
    assert [link.url for link in read(answer).links or ()] == [ITEM]


def test_list_page_without_selected_links_is_valid() -> None:
    fetched = read(response("<p>nothing new</p>", LIST))
    assert (fetched.outcome, fetched.links) == (None, ())


def test_item_page_links_are_followed_if_enabled() -> None:
    class Following(Shop):
        follow_item_links = True

    body = '<h1>Tea</h1><a href="/item/1#top">itself</a><a href="/item/2">next</a>'
    fetched = read(response(body), spider(Following))
    assert [link.url for link in fetched.links or ()] == ["https://shop.example/item/2"]


@pytest.mark.parametrize(
    ("status", "outcome"),
    [
        (304, Outcome.NOT_MODIFIED),
        (404, Outcome.GONE),
        (410, Outcome.GONE),
        (403, Outcome.BLOCKED),
        (429, Outcome.BLOCKED),
        (500, Outcome.ERROR),
        (302, Outcome.ERROR),
    ],
)
def test_status_outcome_skips_parsing(status: int, outcome: Outcome) -> None:
    fetched = read(response(status=status))
    assert (fetched.outcome, fetched.content) == (outcome, None)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("", "empty page"),
        ("<p>soon</p>", "none of the fields found: title, tags"),
        (b"<h1>\0</h1>", "not a text page: binary content"),
    ],
)
def test_page_without_fields_is_an_error_with_a_reason(body: str, reason: str) -> None:
    fetched = read(response(body))
    assert (fetched.outcome, fetched.reason) == (Outcome.ERROR, reason)


def test_exception_in_user_code_fails_only_that_page() -> None:
    class Wrong(Shop):
        def read_item(self, response: Any) -> dict[str, Any]:
            raise KeyError("price")

    fetched = read(response(), spider(Wrong))
    assert (fetched.outcome, fetched.reason) == (Outcome.ERROR, "KeyError: 'price'")


@pytest.mark.parametrize(
    ("final", "outcome"),
    [
        ("https://shop.example/item/2", None),
        ("https://www.shop.example/item/1", None),
        ("https://shop.example/", Outcome.GONE),
        (LIST, Outcome.GONE),
        ("https://other.example/item/1", Outcome.ERROR),
    ],
    ids=["another item", "www", "start URL", "list page", "another site"],
)
def test_redirect_target_determines_the_items_outcome(final: str, outcome: Outcome | None) -> None:
    fetched = read(response(url=final), url=ITEM)
    assert (fetched.outcome, fetched.final_url) == (outcome, final)


def test_redirected_list_page_is_read() -> None:
    fetched = read(response('<a href="/item/1">Tea</a>', f"{LIST}green/"), url=LIST)
    assert (fetched.outcome, fetched.final_url) == (None, f"{LIST}green/")
    assert [link.url for link in fetched.links or ()] == [ITEM]


def test_fetch_contains_validators() -> None:
    fetched = read(response(headers={"ETag": '"1"'}))
    assert fetched.validators == Validators('"1"')


@pytest.mark.parametrize(
    ("error", "outcome", "reason"),
    [
        (network.ConnectionRefusedError(), Outcome.ERROR, "ConnectionRefusedError"),
        (network.DNSLookupError("no such host"), Outcome.ERROR, "no such host"),
        (IgnoreRequest("Forbidden by robots.txt"), Outcome.BLOCKED, "Forbidden by robots.txt"),
    ],
    ids=["refused", "no host", "robots.txt"],
)
def test_failed_download_has_an_outcome(error: Exception, outcome: Outcome, reason: str) -> None:
    (fetched,) = spider().parse_failure(failure(error))
    assert isinstance(fetched, Fetched)
    assert fetched.outcome is outcome
    assert fetched.reason is not None
    assert reason in fetched.reason
    assert "\n" not in fetched.reason
    assert "IgnoreRequest" not in fetched.reason


def test_unsent_request_is_skipped() -> None:
    (skipped,) = spider().parse_failure(failure(NotRequested("the cap is used up")))
    assert isinstance(skipped, Skipped)
    assert skipped.reason == "the cap is used up"


@pytest.mark.parametrize(
    ("url", "elsewhere"), [("https://new.example/item/1", True), (f"{ITEM}0", False)]
)
def test_unsent_request_may_be_to_another_host(url: str, elsewhere: bool) -> None:
    unsent = failure(NotRequested("the host is paused"))
    unsent.request = unsent.request.replace(url=url)  # type: ignore[attr-defined]
    (skipped,) = spider().parse_failure(unsent)
    assert isinstance(skipped, Skipped)
    assert skipped.elsewhere is elsewhere


def failure(error: Exception) -> Failure:
    """Return a failed download of the item."""
    failed = Failure(error)
    failed.request = spider().request(Target("shop", ITEM, Kind.ITEM))  # type: ignore[attr-defined]
    return failed


ITEM_DIGEST = Shop.read_wrapper(Arguments()).selector_digest(Kind.ITEM)
STORED_VALIDATORS = Validators('"1"', "Wed, 01 May 2024 12:00:00 GMT")


def outgoing(target: Target, **meta: Any) -> Request:
    """Return the request for a target as it is sent."""
    crawling = spider()
    request = crawling.request(target)
    request.meta.update(meta)
    ConditionalGetMiddleware(crawling.session).process_request(request)
    return request


def known_item(**changed: Any) -> Target:
    """Return an item that was read with the current site definition."""
    usual = {"validators": STORED_VALIDATORS, "content_hash": "h1", "selector_digest": ITEM_DIGEST}
    return Target("shop", ITEM, Kind.ITEM, **(usual | changed))


@pytest.mark.parametrize(("kind", "days"), [(Kind.LIST, 7), (Kind.ITEM, 28)], ids=["list", "item"])
def test_page_that_never_changes_is_requested_without_validators_at_times(
    kind: Kind, days: int
) -> None:
    now = spider().clock.now()
    for age, is_conditional in ((days - 1, True), (days + 1, False)):
        since = int((now - timedelta(days=age)).timestamp() // 60)
        page = known_item(history=History.begin(since), visited_at=now - timedelta(days=2))
        page.kind, page.selector_digest = kind, Shop.read_wrapper(Arguments()).selector_digest(kind)
        assert ("If-None-Match" in outgoing(page).headers) is is_conditional


def test_known_page_is_requested_with_validators() -> None:
    headers = outgoing(known_item()).headers
    assert headers["If-None-Match"] == b'"1"'
    assert headers["If-Modified-Since"] == b"Wed, 01 May 2024 12:00:00 GMT"


@pytest.mark.parametrize(
    "target",
    [
        known_item(content_hash=None),
        known_item(selector_digest="of another wrapper"),
        known_item(validators=Validators()),
    ],
    ids=["never read", "site definition edited", "no validators"],
)
def test_request_is_unconditional_if_content_is_required(target: Target) -> None:
    headers = outgoing(target).headers
    assert "If-None-Match" not in headers
    assert "If-Modified-Since" not in headers


@pytest.mark.parametrize(
    ("final", "sent"), [(None, False), (ITEM, True), ("https://shop.example/item/2", False)]
)
def test_validators_are_sent_only_to_their_url(final: str | None, sent: bool) -> None:
    redirected = outgoing(
        known_item(final_url=final), redirect_urls=["https://shop.example/item/0"]
    )
    assert ("If-None-Match" in redirected.headers) is sent


def test_request_over_the_host_cap_is_not_sent() -> None:
    crawling = spider(FRESHET_HOST_REQUESTS=1)
    middleware = PolitenessMiddleware(crawling.session)
    asyncio.run(middleware.process_request(Request(ITEM)))
    with pytest.raises(NotRequested, match=r"shop\.example: request limit reached"):
        asyncio.run(middleware.process_request(Request(LIST)))
    asyncio.run(middleware.process_request(Request("https://other.example/")))


@pytest.mark.parametrize(
    "secrets", [{}, {"headers": {"X-Key": "k"}}, {"cookies": {"region": "eu"}}]
)
def test_feed_with_credentials_does_not_move_to_another_host(
    secrets: dict[str, dict[str, str]],
) -> None:
    class Feeds(FeedsSpider):
        headers, cookies = secrets.get("headers"), secrets.get("cookies")
        credentials_for = ("https://blog.example/",) if secrets else ()

    def moved_to(final: str) -> str | None:
        crawling = spider(Feeds)
        request = crawling.request(Target("feeds", "https://blog.example/rss", Kind.FEED))
        request.meta["redirect_reasons"] = [301]
        answer = Response(final, body=b"<rss><channel/></rss>", request=request)

        async def fetched() -> Fetched:
            return await anext(aiter(crawling.parse_feed(answer)))

        return asyncio.run(fetched()).moved_to

    assert moved_to("https://blog.example/feed") == "https://blog.example/feed"
    other = "https://other.example/feed"
    assert moved_to(other) == (None if secrets else other)
