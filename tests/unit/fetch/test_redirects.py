"""Meta refreshes are followed as in Scrapy."""

from __future__ import annotations

import pytest
from scrapy import Request
from scrapy.downloadermiddlewares import redirect
from scrapy.http import HtmlResponse
from scrapy.settings import Settings
from scrapy.utils.test import get_crawler

from crawler.fetch import redirects

URL = "https://example.org/a"
REFRESHES = [
    '<meta http-equiv="refresh" content="0; url=/b">',
    '<META HTTP-EQUIV="ReFresh" CONTENT="0;URL=/b">',
    '<noscript><meta http-equiv="refresh" content="0; url=/b"></noscript>',
    '<meta http-equiv="refresh" content="500; url=/b">',
    "<p>refresh</p>",
    "<p>nothing</p>",
    "x" * 4090 + '<meta http-equiv="refresh" content="0; url=/b">',
]


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16", "cp1252"])
@pytest.mark.parametrize("markup", REFRESHES)
def test_meta_refreshes_are_followed_as_in_scrapy(markup: str, encoding: str) -> None:
    def result(kind: type[redirect.MetaRefreshMiddleware]) -> tuple[type, str]:
        request = Request(URL)
        response = HtmlResponse(URL, body=markup.encode(encoding), encoding=encoding)
        middleware = kind(Settings())
        middleware.crawler = get_crawler()
        answer = middleware.process_response(request, response)
        return type(answer), answer.url

    assert result(redirects.MetaRefreshMiddleware) == result(redirect.MetaRefreshMiddleware)
