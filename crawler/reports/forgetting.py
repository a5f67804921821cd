"""Deletion of all data of a URL or of a spider, for `scrapy forget` and the web app."""

from __future__ import annotations

from crawler.config import Config
from crawler.errors import ConfigError
from crawler.items import CELL
from crawler.storage import retention, targets
from crawler.storage.client import Database
from crawler.storage.dedup.index import as_stored
from crawler.storage.target_queries import names_of, unknown
from crawler.utils.time import Clock
from crawler.utils.urls import is_http


async def forget(db: Database, config: Config, url_or_name: str, *, really: bool) -> dict[str, int]:
    """Return the number of documents to delete by collection, and delete them if `really`.

    Raises ConfigError if there are none.
    """
    async with as_stored(db, config) as registry:
        now = Clock(config.clock_offset_hours).now()
        if url_or_name.startswith(CELL):
            counts = await retention.forget_url(db, registry, url_or_name, now, really=really)
        elif is_http(url_or_name):
            # A URL may be stored without some of its parameters. These differ between sites.
            for url in dict.fromkeys([url_or_name, *names_of(url_or_name, config)]):
                counts = await retention.forget_url(db, registry, url, now, really=really)
                if any(counts.values()):
                    break
        else:
            counts = await retention.forget_spider(db, registry, url_or_name, now, really=really)
        if any(counts.values()):
            return counts
        if is_http(url_or_name):
            raise await unknown(db, url_or_name, ("targets", "posts"))
        spiders = ", ".join(await targets.spiders(db)) or "none"
        raise ConfigError(f"no data stored for {url_or_name!r}. Sites with targets: {spiders}")
