"""Site definitions without a site: lists of cells and lists of feeds."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b
from pathlib import Path
from typing import Any, Self

from pydantic import Field as Key
from pydantic import model_validator

from crawler.extract.cells import Cell, Cells, StoredCell
from crawler.extract.keys import FeedCycleHours, Patterns, StartUrls
from crawler.extract.site_definition import SITE_KEYS, Match, Wrapper, digest_of
from crawler.extract.stored_definition import read_toml, secrets_of
from crawler.items import Kind
from crawler.utils.urls import host_of

HOUR_SECONDS = 3600
SCHEME = "sql"
PHASES = 2**32
# Increase this number whenever the same feed document yields different posts than before.
# Otherwise unchanged documents would be skipped, and their posts would keep the old form.
READING = 1
POST_DIGEST = digest_of("posts", READING)


def definitions(wrapper: Wrapper) -> list[StoredCell]:
    """Return the cells of a site definition in the form in which they are stored."""
    defined = []
    for name, cell in wrapper.cells.items():
        where = address(name, cell)
        # All cells of a page share a phase, so that one request serves all of them.
        phase = int.from_bytes(blake2b(where.encode(), digest_size=4).digest(), "little") / PHASES
        every_hours = None if cell.every is None else cell.every / HOUR_SECONDS
        defined.append(StoredCell(name, host_of(where), every_hours, cell.group, phase))
    return defined


def address(name: str, cell: Cell) -> str:
    """Return the URL of a cell: that of its page, or `sql://DATABASE/NAME` for a query."""
    return cell.url if cell.url is not None else f"{SCHEME}://{cell.database}/{name}"


def connections_by_host(wrapper: Wrapper) -> dict[str, int]:
    """Return the maximum number of concurrent queries by database (the host of its cells)."""
    return {
        host_of(f"{SCHEME}://{name}/"): source.connections
        for name, source in wrapper.databases.items()
    }


def slot(database: str) -> str:
    """Return the name of a database's download slot in Scrapy."""
    return f"{SCHEME}:{database}"


class CellsWrapper(Wrapper):
    """A list of cells: the keys of `Wrapper` without those that describe the pages of a site."""

    name: str = "cells"
    start_urls: StartUrls = ()
    item_pages: Patterns = ()
    cells: Cells = Key(min_length=1)

    @model_validator(mode="after")
    def _check_keys(self) -> Self:
        if given := [key for key in SITE_KEYS if key in self.model_fields_set]:
            raise ValueError(
                f"{given[0]!r} is not allowed in a list of cells: it describes the pages of a site"
            )
        return self

    def match(self, url: str) -> Match:
        """Match nothing: cells do not follow links."""
        return Match()


def load_any(path: Path) -> Wrapper:
    """Load the definition of a site, or a list of cells, from a TOML file. Raises WrapperError."""
    return any_wrapper(read_toml(path), str(path))


def any_wrapper(values: Mapping[str, Any], source: str) -> Wrapper:
    """Build the definition of a site, or a list of cells, from its keys. Raises WrapperError.

    source: file or place of the definition, for errors
    """
    has_only_cells = "cells" in values and not values.keys() & {"start_urls", "item_pages"}
    return (CellsWrapper if has_only_cells else Wrapper).of(values, source)


class FeedsWrapper(Wrapper):
    """A list of feeds: the keys of `Wrapper` without those that describe the pages of a site."""

    name: str = "feeds"
    start_urls: StartUrls = ()
    item_pages: Patterns = ()
    max_interval_hours: FeedCycleHours | None = None
    credentials_for: StartUrls = Key(
        (),
        description="URLs of hosts (with scheme and port) whose feeds receive `headers` and "
        "`cookies`; required if one of these may be secret",
    )

    @model_validator(mode="before")
    @classmethod
    def _check_credentials(cls, values: Any) -> Any:
        # Here, because the values have not been expanded yet. Whoever adds a feed, or the author of
        # an imported list, must not choose a host that receives a secret.
        if isinstance(values, Mapping) and not values.get("credentials_for"):
            for key, name in secrets_of(values):
                raise ValueError(
                    f"{key}.{name} may be secret. Set credentials_for = ['https://HOST/'] to the "
                    "hosts of the feeds that receive it"
                )
        return values

    @model_validator(mode="after")
    def _check_keys(self) -> Self:
        keys = (key for key in SITE_KEYS if key != "ignore")
        if given := [key for key in keys if key in self.model_fields_set]:
            raise ValueError(f"{given[0]!r} is not allowed in a list of feeds")
        return self

    def is_own(self, url: str) -> bool:
        """Return True: feeds and their posts may be on any host."""
        return True

    def match(self, url: str) -> Match:
        """Treat every URL as the page of a post: feeds are imported, not discovered by links."""
        return Match(Kind.ITEM)

    def selector_digest(self, kind: Kind) -> str:
        """Return the digest of the version of the feed parser, and of what it leaves out."""
        return digest_of([POST_DIGEST, *self.ignore]) if self.ignore else POST_DIGEST
