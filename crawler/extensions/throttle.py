"""AutoThrottle that takes a 304 for what it is: a good answer."""

from __future__ import annotations

from scrapy.core.downloader import Slot
from scrapy.extensions import throttle
from scrapy.http import Response


class AutoThrottle(throttle.AutoThrottle):
    """Scrapy's own, for passes that are answered with 304.

    It never lowers the delay after a status other than 200: a pass over an unchanged site would
    stay at the first delay for ever.
    """

    def _adjust_delay(self, slot: Slot, latency: float, response: Response) -> None:
        if response.status == 304:
            response = response.replace(status=200)
        super()._adjust_delay(slot, latency, response)
