"""The one target that a user means by a URL, or those that may be meant."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from urllib.parse import urlsplit

from crawler.config import Config
from crawler.errors import ConfigError
from crawler.storage import lookup, targets
from crawler.storage.client import Database, Document
from crawler.utils.urls import bare, canonical, host_of, is_http, variants

TARGETS = ("targets",)
MAX_NEAR = 3
# Two URLs that are less alike are two pages.
LEAST_ALIKE = 0.8


async def target_of(
    db: Database, config: Config, url: str, spider: str | None, among: Sequence[str] = TARGETS
) -> Document:
    """The target with this URL, as its own or as an alias; ConfigError if none or several have it.

    spider: which one is meant where several watch it
    among:  collections whose URLs the error may name instead
    """
    found = await targets.of_url(db, names_of(url, config), spider)
    if not found:
        raise await unknown(db, url, among)
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


async def unknown(db: Database, url: str, collections: Sequence[str]) -> ConfigError:
    """Return the error that a URL is not known, with the nearest ones that are.

    collections: where it was looked for, `targets` or `posts`
    """
    found = await nearest(db, url, collections)
    if found:
        return ConfigError(f"URL not found: {url}. Did you mean {' or '.join(found)}?")
    return ConfigError(
        f"URL not found: {url}. scrapy targets --urls --match {host_of(url) or 'PART'} lists known "
        "URLs"
    )


async def nearest(db: Database, url: str, collections: Sequence[str]) -> list[str]:
    """Return the known URLs that are most like this one, MAX_NEAR at most; by index lookups."""
    if not is_http(url):
        return []
    asked = urlsplit(canonical(url))
    host = asked.netloc.removeprefix("www.")
    origins = [f"{scheme}://{www}{host}" for scheme in ("https", "http") for www in ("", "www.")]
    # Both what follows this path in the index, and what its folder begins with.
    paths = dict.fromkeys((asked.path, asked.path.rstrip("/").rpartition("/")[0] + "/"))
    around = [origin + path for origin in origins for path in paths]
    urls = variants(canonical(url))
    return closest(url, await lookup.near(db, collections, [canonical(url), *urls], around))


def closest(url: str, known: Iterable[str]) -> list[str]:
    """Return those of `known` that are most like a URL, the best first, MAX_NEAR at most."""
    # Slow to import, and needed only where something is wrong.
    from rapidfuzz.distance import Indel

    host, _, path = bare(url).partition("/")
    places = {one: bare(one).partition("/") for one in known}
    alike = {
        one: Indel.normalized_similarity(path, its_path)
        for one, (its_host, _, its_path) in places.items()
        if its_host == host
    }
    good = [one for one, share in alike.items() if share >= LEAST_ALIKE]
    return sorted(good, key=lambda one: (-alike[one], one))[:MAX_NEAR]
