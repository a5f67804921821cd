"""scrapy-redis's filter of duplicates with Scrapy's own fingerprints.

scrapy-redis asks Redis with a call that keeps the whole crawl waiting. Here the fingerprint goes
with the request, and one script does both: look whether it is new, and let the request wait.
"""

from __future__ import annotations

from scrapy import Request
from scrapy.crawler import Crawler
from scrapy_redis.dupefilter import RFPDupeFilter


class DupeFilter(RFPDupeFilter):  # type: ignore[misc]
    """Knows a request's fingerprint as the settings make it (REQUEST_FINGERPRINTER_CLASS).

    scrapy-redis has one of its own, which knows nothing of them.
    """

    def __init__(self, crawler: Crawler) -> None:
        super().__init__(None, "", debug=crawler.settings.getbool("DUPEFILTER_DEBUG"))
        assert crawler.request_fingerprinter is not None
        self._fingerprinter = crawler.request_fingerprinter

    def request_fingerprint(self, request: Request) -> str:
        """The fingerprint as text; empty where the request may come again."""
        return "" if request.dont_filter else self._fingerprinter.fingerprint(request).hex()
