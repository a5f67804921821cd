"""The one target that a user means by a URL."""

from __future__ import annotations

from crawler.config import Config
from crawler.errors import ConfigError
from crawler.storage import targets
from crawler.storage.client import Database, Document
from crawler.urls import canonical


async def target_of(db: Database, config: Config, url: str, spider: str | None) -> Document:
    """The target with this URL, as its own or as an alias; ConfigError if none or several have it.

    spider: which one is meant where several watch it
    """
    found = await targets.of_url(db, names_of(url, config), spider)
    if not found:
        raise ConfigError(f"{url} is not watched (scrapy targets shows what is)")
    if len(found) > 1:
        names = ", ".join(target["spider"] for target in found)
        raise ConfigError(f"several spiders watch {url}: {names} (--spider NAME)")
    return found[0]


def names_of(url: str, config: Config) -> list[str]:
    """The canonical forms that a URL may be known by, as wrappers strip different parameters."""
    strip = config.strip_parameters
    try:
        return [canonical(url), canonical(url, ()), *([canonical(url, strip)] if strip else [])]
    except ValueError as error:
        raise ConfigError(f"{url}: {error}") from None
