"""A wrapper's cells as storage knows them."""

from __future__ import annotations

from hashlib import blake2b

from crawler.cell import Cell, Defined
from crawler.urls import host_of
from crawler.wrapper import Wrapper

HOUR_SECONDS = 3600
SCHEME = "sql"
PHASES = 2**32


def definitions(wrapper: Wrapper) -> list[Defined]:
    """All cells of a wrapper."""
    return [_defined(name, cell) for name, cell in wrapper.cells.items()]


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


def _defined(name: str, cell: Cell) -> Defined:
    where = address(name, cell)
    return Defined(
        name=name,
        host=host_of(where),
        every_hours=None if cell.every is None else cell.every / HOUR_SECONDS,
        group=cell.group,
        phase=_phase(where),
    )


def _phase(where: str) -> float:
    """In [0, 1); the same for all cells of a page, so that they come due together."""
    return int.from_bytes(blake2b(where.encode(), digest_size=4).digest(), "little") / PHASES
