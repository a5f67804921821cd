"""Why an answer is not read, or an address not asked, in words for the change log."""

from __future__ import annotations

from scrapy.exceptions import IgnoreRequest

# What Scrapy's robots.txt middleware says; redirect loops are IgnoreRequests too.
FORBIDDEN = "Forbidden by robots.txt"


class Misbehaves(IgnoreRequest):
    """An answer that costs more than it may, or is none; `str()` says what is wrong.

    Asked again at once, the server would hardly answer otherwise.
    """


class OffLimits(IgnoreRequest):
    """An address that is not asked; `str()` says why.

    url: what leads there
    """

    def __init__(self, url: str, why: str) -> None:
        super().__init__(why)
        self.url = url
