"""Why an answer is not read, or an address not asked, in words for the change log."""

from __future__ import annotations

from scrapy.exceptions import IgnoreRequest

# What Scrapy's robots.txt middleware says; redirect loops are IgnoreRequests too.
FORBIDDEN = "Forbidden by robots.txt"
# How a user allows a refused host; an address to which names must not lead.
WAY_OUT = "to allow this host and port, add them to FRESHET_PRIVATE_HOSTS"
LITERAL_WAY_OUT = "write the address in start_urls, or set FRESHET_PRIVATE_ADDRESSES=1"
# Ends of reasons that are logged for the host, and not for each of its pages.
OF_THE_HOST = (FORBIDDEN, f"({WAY_OUT})", f"({LITERAL_WAY_OUT})")


class Misbehaves(IgnoreRequest):
    """An answer that costs more than it may, or is none; `str()` says what is wrong.

    Asked again at once, the server would hardly answer otherwise.
    """


class TooLarge(Misbehaves):
    """A body that unpacks to more than it may."""

    def __init__(self, limit_bytes: int) -> None:
        super().__init__(f"unpacks to more than {limit_bytes} bytes (FRESHET_RESPONSE_MB)")


class OffLimits(IgnoreRequest):
    """An address that is not asked; `str()` says why.

    url: what leads there
    """

    def __init__(self, url: str, why: str) -> None:
        super().__init__(why)
        self.url = url
