"""robots.txt: Scrapy's own middleware, with a mend for many requests to a new host at once."""

from __future__ import annotations

from scrapy import Request
from scrapy.downloadermiddlewares.robotstxt import RobotsTxtMiddleware
from scrapy.robotstxt import RobotParser
from scrapy.utils.httpobj import urlparse_cached
from twisted.internet.defer import Deferred


class RobotsMiddleware(RobotsTxtMiddleware):
    """Obeys robots.txt for every request that waits for it.

    In Scrapy 2.19 all of them wait for one Deferred, whose value only the first one gets: to the
    others robots.txt looks as if it were missing, and what it forbids is fetched.
    """

    async def robot_parser(self, request: Request) -> RobotParser | None:
        """The rules of the request's host, once they are there; None where it has none."""
        await super().robot_parser(request)
        parser = self._parsers[urlparse_cached(request).netloc]
        return None if isinstance(parser, Deferred) else parser
