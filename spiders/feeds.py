"""Crawl all imported feeds (RSS, Atom and JSON Feed): `scrapy crawl feeds`.

Import feeds with `scrapy feeds import FILE`. Define weights, visiting hours and politeness as class
attributes here, or in a file: `-a wrapper=feeds.toml`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, ClassVar
from zoneinfo import ZoneInfo

from pydantic import Field
from scrapy import Request
from scrapy.http import Response, TextResponse

from crawler.errors import StorageError
from crawler.extract.content import fill_safely
from crawler.extract.list_wrappers import FeedsWrapper
from crawler.extract.response import fresh_hours, moved_to, status_outcome
from crawler.extract.site_definition import Wrapper
from crawler.extract.stored_definition import read_toml
from crawler.feeds.discovery import hubs_of_headers
from crawler.feeds.known_posts import after_edits, with_offset, without_random
from crawler.fetch.places import PLACE_KEYS, OwnPlaces
from crawler.frontier.run import Run
from crawler.items import SEEN, Fetched, Kind, KnownFeed, KnownPost, NoFeed, Outcome, Target
from crawler.storage import feeds, targets, websub
from crawler.storage.websub import Delivery
from crawler.utils.sandbox import LimitExceeded, TimeLimitExceeded, time_limit
from crawler.utils.text import count
from spiders.probe import reader_of, readers
from spiders.wrapper import DUPLICATE_COLUMNS, Arguments, WrapperSpider

BATCH = 100
# Larger documents are parsed in a subprocess, so that they do not block the reactor.
BIG_BYTES = 100_000


async def pushed_documents(run: Run) -> AsyncIterator[tuple[Target, Delivery]]:
    """Yield WebSub deliveries with their feeds, oldest first; delete those without a feed.

    A delivery of a feed waits until the visit of the feed's previous delivery is stored.
    """
    in_flight = run.in_flight
    while not in_flight.has_ended:
        batch = await run.patience.read(lambda: websub.oldest_deliveries(run.db, run.spider, BATCH))
        if not batch:
            return
        for push in batch:
            key = f"{run.spider} {push.url}"
            while key in in_flight and not in_flight.has_ended:
                await in_flight.until_released(in_flight.releases)
            target = await run.patience.read(partial(targets.of_key, run.db, key))
            if in_flight.has_ended:
                return
            if target is None:
                await websub.delete_deliveries(run.db, [push.id])
                continue
            in_flight.take(key)
            yield target, push
        # Otherwise the next query would return the deliveries in flight again.
        while in_flight and not in_flight.has_ended:
            await in_flight.until_released(in_flight.releases)


# Columns of posts in CSV files.
POST_COLUMNS = (
    "url", "feed", "guid", "categories", "outcome", "at", "published", "title", "main_text",
    "author", "tags", "enclosures", *DUPLICATE_COLUMNS,
)  # fmt: skip


class FeedsArguments(Arguments):
    """Arguments of the feeds spider (`-a`)."""

    follow: bool = Field(False, description="also fetch the page of each new post")
    wrapper: Path | None = Field(
        None, description="TOML file with politeness, visiting hours and weights"
    )


class FeedsSpider(WrapperSpider):
    """Fetches due feeds, and processes deliveries of WebSub hubs."""

    name = "feeds"
    arguments_model: ClassVar[type[Arguments]] = FeedsArguments
    wrapper_model: ClassVar[type[Wrapper]] = FeedsWrapper

    @classmethod
    def read_wrapper(cls, arguments: Arguments) -> Wrapper:
        """Return the definition in the file, else in the class; raises WrapperError."""
        if isinstance(arguments, FeedsArguments) and arguments.wrapper is not None:
            return cls.defined(read_toml(arguments.wrapper), arguments.wrapper)
        return cls.read_attributes()

    @property
    def csv_columns(self) -> tuple[str, ...]:
        """Return the columns of posts in CSV; empty, those of the first one, with their pages."""
        return () if self.follow else POST_COLUMNS

    @property
    def follow(self) -> bool:
        """Return whether to fetch the pages of new posts."""
        return isinstance(self.arguments, FeedsArguments) and self.arguments.follow

    @cached_property
    def readers(self) -> list[WrapperSpider]:
        """Spiders of the project's site definitions, which extract the pages of their sites."""
        return readers(self.crawler.settings)

    async def start(self) -> AsyncIterator[Any]:
        """Yield deliveries, then requests for due feeds and pages."""
        run = self.session.run
        try:
            # Only the worker that prepares the run processes deliveries; the others wait for it.
            if run.state.prepares:
                async for target, push in pushed_documents(run):
                    yield await self._delivered(target, push)
        except Exception as error:  # noqa: BLE001 - Scrapy would log it, and end successfully
            run.fail(error)
            return
        async for request in super().start():
            yield request
        if run.state.error is None and not await run.patience.read(
            lambda: targets.count(run.db, run.spider)
        ):
            self.logger.warning(
                "No feeds found. Add some: scrapy feeds import FILE, or scrapy feeds add URL"
            )

    def request(self, target: Target) -> Request:
        """Create the request for a feed, or for the page of a post."""
        request = super().request(target)
        return request.replace(callback=self.parse_feed) if target.kind is Kind.FEED else request

    async def parse_feed(self, response: Response) -> AsyncIterator[Fetched]:
        """Convert a response to a Fetched, to compare with what is stored of the feed."""
        fetched = await self._read_document(response)
        await self._compare(fetched)
        yield fetched

    async def _read_document(self, response: Response) -> Fetched:
        """Convert a response to a Fetched; an exception fails only this feed."""
        fetched = self.fetched(response, response.meta["target"])
        fetched.fresh_hours = fresh_hours(response)
        fetched.moved_to = self._moved_to(response, fetched)
        if decided := status_outcome(response):
            fetched.outcome, fetched.reason = decided
        else:
            kind = (response.headers.get("Content-Type") or b"").decode("latin-1")
            await self._read_feed(fetched, response.body, response.url, kind)
            links = [value.decode("latin-1") for value in response.headers.getlist("Link")]
            if (document := fetched.document) is not None and links:
                # Hubs in Link headers take precedence over hubs in the document.
                hubs, topic = hubs_of_headers(links, response.url)
                hubs = tuple(dict.fromkeys((*hubs, *document.hubs)))
                fetched.document = replace(document, hubs=hubs, topic=topic or document.topic)
        return fetched

    async def _compare(self, fetched: Fetched) -> None:
        """Read what is stored of a feed; request it again if its edits may be random.

        An exception fails only this feed. Raises StorageError.
        """
        fill_safely(fetched)
        if fetched.outcome is not None and fetched.outcome not in SEEN:
            return
        try:
            fetched.known = await self._known(fetched)
        except StorageError:
            raise
        except Exception as error:
            self.logger.exception("Comparing %s failed", fetched.target.url)
            reason = f"cannot be compared: {type(error).__name__}: {error}"
            fetched.outcome, fetched.reason = Outcome.ERROR, reason[:300]

    async def _known(self, fetched: Fetched) -> KnownFeed:
        run, target = self.session.run, fetched.target
        read, db = run.patience.read, run.db
        monitor = await read(lambda: feeds.monitor(db, target))
        fetched.posts = with_offset(fetched, monitor)
        stored: Mapping[str, KnownPost] | None = None
        if fetched.push is not None or fetched.content_hash != target.content_hash:
            stored = await read(lambda: feeds.known_posts(db, target, fetched.posts, monitor))
        if not stored or fetched.push is not None:
            return KnownFeed(replace(monitor, edited_visits=0), stored)
        monitor, is_doubtful = after_edits(monitor, fetched.posts, stored)
        if is_doubtful and self.second_requests is not None:
            second = await self.second_requests.send(fetched, self._read_document)
            if second is not None:
                fetched.posts, random = without_random(fetched.posts, second.posts, stored)
                if random:
                    self.logger.info(
                        "%s: edits of %s not stored, because the text differs between two "
                        "requests in a row", target.url, count(random, "post"),
                    )  # fmt: skip
        return KnownFeed(monitor, stored)

    def _moved_to(self, response: Response, fetched: Fetched) -> str | None:
        """Return the feed's new URL; None without one.

        Also None if the stored URL receives the headers and cookies of the definition, and the new
        one would not.
        """
        new = moved_to(response, fetched.final_url)
        own = OwnPlaces.of(self.wrapper.model_dump(include=PLACE_KEYS))
        if new and own and own.cover(fetched.target.url) and not own.cover(new):
            return None
        return new

    async def _delivered(self, target: Target, push: Delivery) -> Fetched:
        fetched = Fetched(target, self.clock.now(), self.wrapper.selector_digest(target.kind))
        fetched.push, fetched.pushed_at, fetched.size = push.id, push.at, len(push.body)
        fetched.compared = self.wrapper.compared
        await self._read_feed(fetched, push.body, target.url, push.content_type)
        await self._compare(fetched)
        return fetched

    async def _read_feed(self, fetched: Fetched, body: bytes, url: str, kind: str) -> None:
        # Imported here, because it is slow and every command loads every spider.
        from crawler.feeds.parser import read

        fetched.follow = self.follow
        zone, ignore = self._zone_of(fetched.target.url), self.wrapper.ignore
        reading = partial(read, body, url, kind, fetched.at, zone=zone, ignore=ignore)
        try:
            if len(body) >= BIG_BYTES:
                fetched.document = await self.sandbox.run(reading)
            else:
                with time_limit(self.config.read_seconds):
                    fetched.document = reading()
        except NoFeed as problem:
            fetched.outcome, fetched.reason = Outcome.ERROR, f"not a feed: {problem}"
        except (TimeLimitExceeded, LimitExceeded) as problem:
            fetched.outcome, fetched.reason = Outcome.ERROR, str(problem)
        except Exception as error:
            self.logger.exception("Reading %s failed", url)
            fetched.outcome = Outcome.ERROR
            fetched.reason = f"{type(error).__name__}: {error}"[:300]

    def _zone_of(self, url: str) -> ZoneInfo | None:
        """Return the time zone of a feed: as defined for the feeds, or for the site at its host."""
        if "timezone" in self.wrapper.model_fields_set:
            return self.wrapper.zone
        for reader in self.readers:
            if "timezone" in reader.wrapper.model_fields_set and reader.wrapper.is_own(url):
                return reader.wrapper.zone
        return None

    def read_item(self, response: TextResponse) -> dict[str, Any]:
        """Extract the page of a post with the definition of its site, else its main text."""
        reader = reader_of(response.url, self.readers)
        return reader.read_item(response) if reader else super().read_item(response)
