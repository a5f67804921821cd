"""What has been collected of each site: nothing at all, or items without one of their fields."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from crawler.config import Config
from crawler.doctor.findings import Finding, ok, warning
from crawler.doctor.wrappers import Site
from crawler.extract.wrapper import Wrapper
from crawler.items import Kind
from crawler.storage import posts, runs, targets
from crawler.storage.client import Database
from crawler.storage.posts import Filled
from crawler.utils.text import count

ITEMS, FIELDS = "items", "fields"
# Fewer posts may all lack a field by chance.
MIN_POSTS = 3


async def check(db: Database, sites: Sequence[Site], config: Config) -> list[Finding]:
    """What the newest posts of each site have; nothing for feeds and for lists of cells."""
    found: list[Finding] = []
    for site in sites:
        wrapper = site.wrapper.completed(config)
        if not wrapper.item_pages:
            continue
        if not await targets.has_items(db, wrapper.name):
            if await runs.has_ended(db, wrapper.name):
                found.append(_none(site))
        elif names := wrapper.field_names:
            read = await posts.filled(db, wrapper.name, wrapper.scheme(Kind.ITEM), names)
            found += of_fields(wrapper, read, site.job.word)
    return found


def of_fields(wrapper: Wrapper, read: Mapping[str, Filled], word: str) -> Iterator[Finding]:
    """What is to be said of fields. read: the newest posts, by field; word: names the site."""
    most = max((one.read for one in read.values()), default=0)
    missing = [name for name, one in read.items() if one.read >= MIN_POSTS and not one.found]
    for name in missing:
        field = wrapper.fields.get(name)
        selector = f" (selector {field.selector})" if field else ""
        said = f"{name}: not found in any of the newest {count(read[name].read, 'item')}{selector}"
        todo = f"correct the selector: scrapy wrapper check {word} URL"
        yield warning(FIELDS, said, todo if field else "", of=wrapper.name)
    if most and not missing:
        yield ok(FIELDS, f"each is found in the newest {count(most, 'item')}", of=wrapper.name)


def _none(site: Site) -> Finding:
    todo = f"scrapy wrapper check {site.job.word} {next(iter(site.wrapper.starts))}"
    return warning(
        ITEMS, "none collected so far, though runs have ended", todo, of=site.wrapper.name
    )
