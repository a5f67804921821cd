"""URLs that are pushed to Redis for a site, as for the spiders of scrapy-redis.

The values are those that scrapy-redis reads: a URL, or JSON with `url`. A URL that the site
definition selects becomes a target that is due in the run; one that is a target already becomes due
again. Values are removed after that, so a crash loses none.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Sequence
from contextlib import suppress
from importlib.resources import files
from typing import Any

from scrapy.http import FormRequest
from scrapy.settings import BaseSettings
from scrapy_redis.defaults import REDIS_ENCODING, START_URLS_KEY

from crawler.config import Config
from crawler.errors import ConfigError, FreshetError, StorageError, Unreachable
from crawler.extract.links import Traps
from crawler.frontier.run import Run
from crawler.items import Link
from crawler.storage import listings, target_queries
from crawler.storage.listings import Patterns
from crawler.storage.redis import RedisRetry, open_redis, user_errors
from crawler.utils.urls import host_of, is_http, without_userinfo

logger = logging.getLogger(__name__)
SCRIPT = files("crawler.frontier") / "lua" / "pushed.lua"
# Maximum number of values that are read at a time, and maximum bytes of each.
MAX_VALUES, MAX_BYTES = 200, 65_536
# Maximum number of refusals that a process logs in a run, and of characters of each value.
MAX_LOGGED, MAX_CHARACTERS = 20, 200
# Names of counts.
PUSHED, REFUSED = "pushed", "pushed refused"
# The commands that remove a value, by the type of the key.
REMOVE = {b"list": ("LREM", 1), b"set": ("SREM",), b"zset": ("ZREM",)}
# Maximum time that a service waits for Redis.
WAIT_SECONDS = 1.0


def key_of(settings: BaseSettings, site: str) -> str:
    """Return the Redis key of the URLs that are pushed for a site."""
    key: str = settings.get("REDIS_START_URLS_KEY") or START_URLS_KEY
    return key.replace("%(name)s", site)


class PushedUrls:
    """Makes pushed URLs due in a run, or refuses them with a reason."""

    def __init__(self, run: Run, steady: RedisRetry) -> None:
        settings = run.crawler.settings
        self._run, self._steady, self._key = run, steady, key_of(settings, run.spider)
        self._encoding: str = settings.get("REDIS_ENCODING") or REDIS_ENCODING
        try:
            "x".encode(self._encoding)
        except LookupError as error:
            raise ConfigError(f"REDIS_ENCODING: {error}") from None
        self._server: Any = steady.client
        self._script = self._server.register_script(SCRIPT.read_text())
        self._patterns: Patterns | None = None
        self._is_unreadable = False

    async def take(self) -> bool:
        """Make the next pushed URLs due, or refuse them; return whether there may be more."""
        if self._is_unreadable:
            return False
        args = [MAX_VALUES, MAX_BYTES, MAX_CHARACTERS]
        try:
            kind, values, beginnings = await self._steady.ask(
                lambda: self._script(keys=[self._key], args=args)
            )
        except Unreachable:
            raise
        except StorageError as error:
            self._end(str(error))
            return False
        if kind not in (*REMOVE, b"none"):
            self._end(f"it is a {kind.decode()}, not a list, set or sorted set")
        for value in beginnings:
            self._refuse(value, f"longer than {MAX_BYTES:,} bytes")
        urls: dict[str, bytes] = {}
        for value in values:
            try:
                urls[self._url(value)] = value
            except (ValueError, TypeError, RecursionError) as error:
                self._refuse(value, str(error))
        if values:
            refused = await self._run.patience.read(lambda: self._make_due(list(urls)))
            for url, reason in refused.items():
                self._refuse(urls[url], reason)
            self._run.state.counts[PUSHED] += len(urls) - len(refused)
            await self._steady.ask(lambda: self._remove(kind, values))
        return len(values) + len(beginnings) == MAX_VALUES

    def _url(self, value: bytes) -> str:
        """Return the canonical URL in a value; raises an error with the reason if it has none."""
        url, others = value.decode(self._encoding).strip(), {}
        if url.startswith("{"):
            try:
                others = json.loads(url)
            except ValueError as error:
                raise ValueError(f"invalid JSON: {error}") from None
            url, method = others.pop("url", None), others.pop("method", "GET")
            # No target keeps it.
            others.pop("meta", None)
            if str(method).upper() != "GET":
                raise ValueError(f"method {method}: pages are requested with GET")
        if not isinstance(url, str) or not is_http(url):
            raise ValueError("no http(s) URL")
        if others:
            # In scrapy-redis, all other keys are the query.
            url = FormRequest(url, method="GET", formdata=others).url
        if len(url) > (longest := self._run.config.url_characters):
            raise ValueError(f"longer than {longest:,} characters (FRESHET_URL_CHARACTERS)")
        return self._run.wrapper.canonical(without_userinfo(url))

    async def _make_due(self, urls: Sequence[str]) -> dict[str, str]:
        """Make canonical URLs due; return the reason of each one that is refused."""
        run = self._run
        if self._patterns is None:
            self._patterns = Patterns(run.db, Traps(run.wrapper))
            await self._patterns.open()
        keys = await target_queries.keys_of(run.db, run.spider, urls)
        refused: dict[str, str] = {}
        links = []
        for url in urls:
            match = run.wrapper.match(url)
            if url in keys:
                continue
            # A list of feeds or cells has no patterns.
            if match.kind is not None and match.pattern is not None:
                links.append(Link(url, match.kind, match.category, pattern=match.pattern))
            elif not run.wrapper.is_own(url):
                refused[url] = f"{host_of(url)} is not a host of this site (allowed_domains)"
            else:
                which = "both match" if match.both else "neither matches"
                refused[url] = f"list_pages or item_pages must match it, but {which}"
        now, started = run.clock.now(), run.started
        added, _ = await listings.discover(run.db, links, self._patterns, 0, now, started)
        refused |= {link.url: "over a cap of the site" for link in links if link not in added}
        due = await target_queries.make_due(run.db, list(keys.values()), started)
        refused |= {url: "muted, or retired" for url, key in keys.items() if key not in due}
        return refused

    async def _remove(self, kind: bytes, values: Iterable[bytes]) -> None:
        name, *more = REMOVE[kind]
        async with self._server.pipeline(transaction=False) as pipe:
            for value in values:
                pipe.execute_command(name, self._key, *more, value)
            await pipe.execute()

    def _refuse(self, value: bytes, reason: str) -> None:
        """Count a value that is refused; log the first ones."""
        counts = self._run.state.counts
        counts[REFUSED] += 1
        if counts[REFUSED] <= MAX_LOGGED:
            more = "; more are not logged" if counts[REFUSED] == MAX_LOGGED else ""
            shown = value[:MAX_CHARACTERS].decode(errors="replace")
            logger.warning(
                "Pushed URL refused by %s: %r: %s%s", self._run.spider, shown, reason, more
            )

    def _end(self, reason: str) -> None:
        """Stop reading."""
        self._is_unreadable = True
        logger.warning(
            "%s: pushed URLs in %s are not read: %s", self._run.spider, self._key, reason
        )


async def sites_with_urls(config: Config, settings: BaseSettings, sites: Sequence[str]) -> set[str]:
    """Return the sites for which URLs were pushed; none while Redis is unavailable."""
    with suppress(FreshetError):
        client: Any = await open_redis(config.redis_url or "", WAIT_SECONDS, retry_seconds=0)
        try:
            with user_errors(client):
                async with client.pipeline(transaction=False) as pipe:
                    for site in sites:
                        pipe.type(key_of(settings, site))
                    kinds = await pipe.execute()
        finally:
            await client.aclose()
        return {site for site, kind in zip(sites, kinds, strict=True) if kind in REMOVE}
    return set()
