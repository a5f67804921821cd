"""A wrapper's cells as storage knows them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from hashlib import blake2b
from pathlib import Path
from typing import Any, Self

from pydantic import Field as Key
from pydantic import model_validator

from crawler.extract.cells import Cell, Cells, Defined
from crawler.extract.keys import FeedCycleHours, Patterns, StartUrls
from crawler.extract.wrapper import OF_SITES, Match, Wrapper, digest_of, read_toml
from crawler.items import Kind
from crawler.utils.urls import host_of

HOUR_SECONDS = 3600
SCHEME = "sql"
PHASES = 2**32


def definitions(wrapper: Wrapper) -> list[Defined]:
    """All cells of a wrapper."""
    defined = []
    for name, cell in wrapper.cells.items():
        where = address(name, cell)
        # In [0, 1), and the same for all cells of a page, so that they come due together.
        phase = int.from_bytes(blake2b(where.encode(), digest_size=4).digest(), "little") / PHASES
        every_hours = None if cell.every is None else cell.every / HOUR_SECONDS
        defined.append(Defined(name, host_of(where), every_hours, cell.group, phase))
    return defined


def address(name: str, cell: Cell) -> str:
    """Where a cell is asked for: its page, or its query as `sql://DATABASE/NAME`."""
    return cell.url if cell.url is not None else f"{SCHEME}://{cell.database}/{name}"


def of_databases(wrapper: Wrapper) -> dict[str, int]:
    """Queries at a time of each database, by the host that its cells have."""
    return {
        host_of(f"{SCHEME}://{name}/"): one.connections for name, one in wrapper.databases.items()
    }


def slot(database: str) -> str:
    """The name under which Scrapy's downloader counts a database's queries."""
    return f"{SCHEME}:{database}"


class CellsWrapper(Wrapper):
    """Keys as in `Wrapper`, without those that describe the pages of one site."""

    name: str = "cells"
    start_urls: StartUrls = ()
    item_pages: Patterns = ()
    cells: Cells = Key(min_length=1)

    @model_validator(mode="after")
    def _no_site(self) -> Self:
        if given := [key for key in OF_SITES if key in self.model_fields_set]:
            raise ValueError(f"{given[0]} has no meaning for cells (it describes a site's pages)")
        return self

    def match(self, url: str) -> Match:
        """No page is a target."""
        return Match()


def load_any(path: Path) -> Wrapper:
    """The wrapper in a TOML file: of a site, or of cells alone; WrapperError says what is wrong."""
    return any_wrapper(read_toml(path), str(path))


def any_wrapper(values: Mapping[str, Any], source: str) -> Wrapper:
    """Return the wrapper with these keys, of a site or of cells alone; raises WrapperError."""
    of_cells = "cells" in values and not values.keys() & {"start_urls", "item_pages"}
    return (CellsWrapper if of_cells else Wrapper).of(values, source)


class FeedsWrapper(Wrapper):
    """Keys as in `Wrapper`, without those that describe one site's pages."""

    name: str = "feeds"
    start_urls: StartUrls = ()
    item_pages: Patterns = ()
    max_interval_hours: FeedCycleHours | None = None

    @model_validator(mode="after")
    def _no_site(self) -> Self:
        if given := [key for key in OF_SITES if key in self.model_fields_set]:
            raise ValueError(f"{given[0]} has no meaning for feeds")
        return self

    def is_own(self, url: str) -> bool:
        """Feeds may be anywhere."""
        return True

    def match(self, url: str) -> Match:
        """Pages of posts are items; feeds are imported, not matched."""
        return Match(Kind.ITEM)

    def scheme(self, kind: Kind) -> str:
        """Digest of what decides a content; of posts it is the version of their reading."""
        return self._post_scheme

    @cached_property
    def _post_scheme(self) -> str:
        return digest_of("posts", READING)


# Raised when posts come to be read differently, so that no document is taken for unchanged.
READING = 1
