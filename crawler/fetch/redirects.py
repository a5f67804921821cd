"""Redirects by status and by meta refresh: without loops, and without passwords."""

from __future__ import annotations

from typing import Any
from urllib.parse import urldefrag

from scrapy import Request
from scrapy.downloadermiddlewares import redirect
from scrapy.exceptions import IgnoreRequest
from scrapy.http import Response, TextResponse

from crawler.utils.urls import without_userinfo

# Number of redirects that may lead back to the same URL.
MAX_RETURNS = 2


def checked(redirected: Request, request: Request) -> Request:
    """Return the request for a redirect, without user name and password.

    Raises IgnoreRequest if it leads to the same URL for the third time. A first redirect to the
    same URL may set the cookie that the page requires.
    """
    redirected = redirected.replace(url=without_userinfo(redirected.url))
    urls = [*earlier_urls(request), urldefrag(request.url)[0]]
    if urls.count(urldefrag(redirected.url)[0]) > MAX_RETURNS:
        raise IgnoreRequest("max redirections reached (they are a loop)")
    return redirected


def earlier_urls(request: Request) -> list[str]:
    """Return the URLs from which a request was redirected, without fragments."""
    return [urldefrag(url)[0] for url in request.meta.get("redirect_urls", ())]


class RedirectMiddleware(redirect.RedirectMiddleware):
    """Follows redirects, and stops in a loop before REDIRECT_MAX_TIMES redirects."""

    def _redirect(self, redirected: Request, request: Request, reason: Any) -> Request:
        return super()._redirect(checked(redirected, request), request, reason)


class MetaRefreshMiddleware(redirect.MetaRefreshMiddleware):
    """Follows meta refreshes.

    Pages that refresh themselves, such as front pages of news sites, are not requested again.
    """

    def process_response(self, request: Request, response: Response) -> Request | Response:  # type: ignore[override] # Scrapy passes no spider
        """Return a request for the page to which a response refreshes, or the response."""
        if isinstance(response, TextResponse):
            try:
                response.text  # noqa: B018 - decodes the page
            except (LookupError, UnicodeError):
                # Python has codecs that are not encodings of text, such as rot13.
                response = response.replace(encoding="utf-8")
        result = super().process_response(request, response)
        if isinstance(result, Request) and urldefrag(result.url)[0] == urldefrag(response.url)[0]:
            # The first refresh may need the cookie that the page sets.
            is_first = urldefrag(request.url)[0] not in earlier_urls(request)
            return result if is_first and b"Set-Cookie" in response.headers else response
        return result

    def _redirect(self, redirected: Request, request: Request, reason: Any) -> Request:
        return super()._redirect(checked(redirected, request), request, reason)
