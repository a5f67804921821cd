"""The sources of a hundred cells, as in the paper: six kinds of changing content.

Auctions, group purchases and films are in PostgreSQL, exchange rates in SQLite, weather and news on
a website.
"""

from __future__ import annotations

import random
import sqlite3
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import psycopg

AUCTIONS, RATES, PURCHASES, FILMS = 9, 8, 17, 25
NEWS_PAGES, WEATHER_PAGES, OF_NEWS, OF_WEATHER = 4, 5, 4, 5
# Periods of the paper's groups relative to the shortest: 300, 1,800 and 7,200 s.
DYNAMIC, SEMI_DYNAMIC, STATIC = 1.0, 6.0, 24.0
TICK_SECONDS = 0.2
WORDS = ["rain", "wind", "sun", "fog", "snow", "storm", "calm", "frost", "heat", "cloud"]


@dataclass(frozen=True, slots=True)
class Kind:
    """Cells of one kind. period: seconds; cost: additional seconds that a query waits."""

    name: str
    source: str
    group: str
    count: int
    period: float
    cost: float = 0.0


def kinds(shortest_seconds: float, load: float) -> list[Kind]:
    """Return the hundred cells. load: of the PostgreSQL server, whose queries cost 1, 2 and 4."""
    unit = AUCTIONS / DYNAMIC + PURCHASES * 2 / SEMI_DYNAMIC + FILMS * 4 / STATIC
    cost, period = load * shortest_seconds / unit, shortest_seconds
    return [
        Kind("auction", "pg", "dynamic", AUCTIONS, period * DYNAMIC, cost),
        Kind("rate", "lite", "dynamic", RATES, period * DYNAMIC),
        Kind("purchase", "pg", "semi-dynamic", PURCHASES, period * SEMI_DYNAMIC, 2 * cost),
        Kind("news", "site", "semi-dynamic", NEWS_PAGES * OF_NEWS, period * SEMI_DYNAMIC),
        Kind("film", "pg", "static", FILMS, period * STATIC, 4 * cost),
        Kind("weather", "site", "static", WEATHER_PAGES * OF_WEATHER, period * STATIC),
    ]


TABLES = (
    "CREATE TABLE bids (auction int, item text, bid numeric(10, 2))",
    "INSERT INTO bids SELECT a, 'lot ' || i, 10 + i FROM generate_series(1, 9) a, "
    "generate_series(1, 5) i",
    "CREATE TABLE purchases (offer int, buyers int, price numeric(10, 2))",
    "INSERT INTO purchases SELECT o, 1, 100 FROM generate_series(1, 17) o",
    "CREATE TABLE films (film int, hall text, seats int)",
    "INSERT INTO films SELECT f, 'hall ' || h, 200 FROM generate_series(1, 25) f, "
    "generate_series(1, 3) h",
)
# Simulates a slow query.
WAIT = "WITH w AS MATERIALIZED (SELECT pg_sleep(:wait))"
SQL = {
    "auction": f"{WAIT} SELECT item, bid FROM w, bids WHERE auction = :n ORDER BY item",
    "purchase": f"{WAIT} SELECT buyers, price FROM w, purchases WHERE offer = :n",
    "film": f"{WAIT} SELECT hall, seats FROM w, films WHERE film = :n ORDER BY hall",
    "rate": "SELECT currency, rate FROM rates WHERE pair = :n",
}
CHANGES = {
    "auction": "UPDATE bids SET bid = bid + 1 WHERE auction = %s",
    "purchase": "UPDATE purchases SET buyers = buyers + 1, price = price * 0.99 WHERE offer = %s",
    "film": "UPDATE films SET seats = seats - 1 WHERE film = %s",
}


def page(kind: str, number: int, values: list[str]) -> str:
    """Return a page of the site; each cell is a separate paragraph."""
    parts = "".join(f'<p id="c{i}">{value}</p>' for i, value in enumerate(values))
    return f"<!DOCTYPE html><title>{kind} {number}</title><h1>{kind} {number}</h1>{parts}"


class Changing:
    """Creates all sources, and changes them as a Poisson process in a thread."""

    def __init__(self, home: Path, postgres_url: str, file: Path, cells: list[Kind]) -> None:
        self._home, self._url, self._file, self._kinds = home, postgres_url, file, cells
        self._random = random.Random(7)
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._work)

    def __enter__(self) -> Changing:
        with psycopg.connect(self._url, autocommit=True) as connection:
            for statement in TABLES:
                connection.execute(statement)
        with sqlite3.connect(self._file) as file:
            file.execute("CREATE TABLE rates (pair int, currency text, rate real)")
            rows = [(n, f"C{n:02}", 1.0) for n in range(1, RATES + 1)]
            file.executemany("INSERT INTO rates VALUES (?, ?, ?)", rows)
        file.close()
        for kind in self._kinds:
            if kind.source == "site":
                for number in range(1, _pages(kind) + 1):
                    self._write(kind, number)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    def _work(self) -> None:
        last = time.monotonic()
        with psycopg.connect(self._url, autocommit=True) as connection:
            while not self._done.wait(TICK_SECONDS):
                now = time.monotonic()
                for kind in self._kinds:
                    for number in range(1, _pages(kind) + 1):
                        if self._random.random() < (now - last) / kind.period:
                            self._change(connection, kind, number)
                last = now

    def _change(self, connection: psycopg.Connection, kind: Kind, number: int) -> None:
        if kind.source == "pg":
            connection.execute(CHANGES[kind.name].encode(), (number,))
        elif kind.source == "site":
            self._write(kind, number)
        else:
            with sqlite3.connect(self._file, timeout=10) as file:
                file.execute("UPDATE rates SET rate = rate * 1.001 WHERE pair = ?", (number,))
            file.close()

    def _write(self, kind: Kind, number: int) -> None:
        some = [self._random.choice(WORDS) for _ in range(max(OF_NEWS, OF_WEATHER))]
        path = self._home / f"{kind.name}{number}.html"
        fresh = path.with_suffix(".new")
        fresh.write_text(page(kind.name, number, some), encoding="utf-8")
        fresh.replace(path)


def cells_toml(cells: list[Kind], site: str, postgres_url: str, file: Path) -> str:
    """Return the file that describes the cells."""
    lines = [
        'name = "market"', "throttle = false", "concurrency = 4",
        "[databases.pg]", f'url = "{postgres_url}"', "seconds = 30",
        "[databases.lite]", f'url = "sqlite:///{file}"',
    ]  # fmt: skip
    for kind in cells:
        for number in range(1, kind.count + 1):
            lines += [f"[cells.{kind.name}{number:02}]", f'every = "{kind.period:g}s"']
            lines += _source(kind, number, site)
    return "\n".join(lines)


def _source(kind: Kind, number: int, site: str) -> list[str]:
    if kind.source == "site":
        page, part = divmod(number - 1, kind.count // _pages(kind))
        return [f'url = "{site}/{kind.name}{page + 1}.html"', f'css = "#c{part}"']
    wait = f", wait = {kind.cost:.4f}" if kind.cost else ""
    return [
        f'database = "{kind.source}"',
        f'sql = "{SQL[kind.name]}"',
        f"parameters = {{ n = {number}{wait} }}",
    ]


def _pages(kind: Kind) -> int:
    """Return the number of independently changing objects: pages of the site, or rows."""
    return {"news": NEWS_PAGES, "weather": WEATHER_PAGES}.get(kind.name, kind.count)
