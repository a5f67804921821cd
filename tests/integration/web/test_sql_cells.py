"""Cells from queries on real databases, and their failures."""

from __future__ import annotations

import socket
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.integration.databases import Postgres, base, postgres, read_cells, sqlite
from tests.integration.harness import Db, Freshet

pytestmark = pytest.mark.soak
RATES = (
    "DROP TABLE IF EXISTS rates",
    "CREATE TABLE rates (currency text, rate numeric(12, 4), day date)",
    "INSERT INTO rates VALUES ('EUR', 1, '2026-11-22'), ('USD', 1.0832, '2026-11-22')",
)


@pytest.fixture(scope="module")
def server() -> Iterator[Postgres]:
    with postgres() as started:
        started.run(*RATES)
        yield started


@pytest.fixture
def rates(server: Postgres) -> Postgres:
    server.run(*RATES)
    return server


def database_of(name: str, url: str, **limits: object) -> str:
    lines = [f"{key} = {value}" for key, value in limits.items()]
    return "\n".join([f"[databases.{name}]", f'url = "{url}"', *lines, ""])


def cell(name: str, database: str, sql: str, **keys: str) -> str:
    lines = [f"{key} = {value}" for key, value in keys.items()]
    head = [f"[cells.{name}]", f'database = "{database}"', f'sql = """{sql}"""', 'every = "5m"']
    return "\n".join([*head, *lines, ""])


@pytest.fixture
def file_url(tmp_path: Path) -> str:
    return sqlite(tmp_path / "shop.db", *RATES)


def test_query_results_of_both_databases_become_cells(
    freshet: Freshet, database: Db, rates: Postgres, file_url: str
) -> None:
    sql = "SELECT currency, rate, day FROM rates WHERE currency <> :base"
    parameters = '{ base = "EUR" }'
    read_cells(
        freshet,
        database_of("pg", rates.url)
        + database_of("lite", file_url)
        + cell("of_pg", "pg", sql, parameters=parameters)
        + cell("of_lite", "lite", sql, parameters=parameters)
        + cell("few", "pg", "SELECT 1 AS n WHERE 'a' IN :names", parameters='{ names = ["a"] }'),
    )
    cells = base(database)
    rows = [{"currency": "USD", "rate": 1.0832, "day": "2026-11-22"}]
    columns = ["currency", "rate", "day"]
    assert cells["of_pg"]["content"] == {"columns": columns, "rows": rows}
    assert cells["of_lite"]["content"] == {"columns": columns, "rows": rows}
    assert cells["few"]["content"] == {"columns": ["n"], "rows": [{"n": 1}]}
    assert all(row["execution_seconds"] > 0 for row in cells.values())


def test_text_in_a_wrong_encoding_is_stored(freshet: Freshet, database: Db, file_url: str) -> None:
    sql = "SELECT CAST(x'74656120ff' AS TEXT) AS name"
    read_cells(freshet, database_of("lite", file_url) + cell("tea", "lite", sql))
    assert base(database)["tea"]["content"]["rows"] == [{"name": "tea \ufffd"}]


def test_changed_table_is_logged_as_a_change(
    freshet: Freshet, database: Db, rates: Postgres
) -> None:
    text = database_of("pg", rates.url) + cell("usd", "pg", "SELECT rate FROM rates ORDER BY 1")
    read_cells(freshet, text)
    read_cells(freshet, text, hours=0.25)
    rates.run("UPDATE rates SET rate = 1.1 WHERE currency = 'USD'")
    read_cells(freshet, text, hours=0.5)
    outcomes = [row["outcome"] for row in database.visits.find().sort("at")]
    assert outcomes == ["new", "unchanged", "changed"]
    assert base(database)["usd"]["content"]["rows"] == [{"rate": 1}, {"rate": 1.1}]
    assert "\n+rate: 1.1\n" in freshet("history", "cell:usd", "--diff").out


@pytest.mark.parametrize("statement", ["DELETE FROM rates RETURNING *", "INSERT INTO rates"])
def test_statements_other_than_select_are_refused(
    freshet: Freshet, statement: str, file_url: str
) -> None:
    path = freshet.folder / "cells.toml"
    path.write_text(database_of("lite", file_url) + cell("bad", "lite", statement))
    result = freshet("crawl", "cells", "-a", f"file={path}")
    assert result.code == 1
    assert "cells.bad: sql must be a single SELECT" in result.complaint


def test_query_with_hidden_writes_fails_in_the_database(
    freshet: Freshet, database: Db, rates: Postgres, file_url: str
) -> None:
    rates.run(
        "CREATE OR REPLACE FUNCTION sly() RETURNS bigint LANGUAGE sql AS "
        "'WITH gone AS (DELETE FROM rates RETURNING *) SELECT count(*) FROM gone'"
    )
    read_cells(
        freshet,
        database_of("pg", rates.url)
        + cell("sly", "pg", "SELECT sly()")
        + cell("ok", "pg", "SELECT 1 AS n"),
    )
    cells = base(database)
    assert "read-only transaction" in cells["sly"]["error"]
    assert cells["ok"]["error"] is None


def test_slow_query_times_out_and_others_are_read(
    freshet: Freshet, database: Db, rates: Postgres, file_url: str
) -> None:
    endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT max(i) FROM n"
    began = time.monotonic()
    read_cells(
        freshet,
        database_of("pg", rates.url, seconds=0.5)
        + database_of("lite", file_url, seconds=0.5)
        + cell("slow", "pg", "SELECT pg_sleep(60)")
        + cell("endless", "lite", endless)
        + cell("quick", "pg", "SELECT 1 AS n")
        + cell("quick_too", "lite", "SELECT 1 AS n"),
    )
    cells = base(database)
    assert "statement timeout" in cells["slow"]["error"]
    assert "interrupted" in cells["endless"]["error"]
    assert cells["quick"]["content"]["rows"] == cells["quick_too"]["content"]["rows"] == [{"n": 1}]
    assert time.monotonic() - began < 20


def test_hanging_database_is_skipped_and_others_are_read(
    freshet: Freshet, database: Db, rates: Postgres, file_url: str
) -> None:
    text = (
        database_of("pg", rates.url, seconds=1)
        + database_of("lite", file_url)
        + "".join(cell(f"held{i}", "pg", "SELECT rate FROM rates") for i in range(5))
        + cell("free", "lite", "SELECT 1 AS n")
    )
    read_cells(freshet, text)
    with rates.stopped():
        began = time.monotonic()
        read_cells(freshet, text, hours=0.25)
        assert time.monotonic() - began < 20
    cells = base(database)
    failed = [name for name, row in cells.items() if row["error"]]
    assert len(failed) == 1
    assert "timeout" in cells[failed[0]]["error"]
    assert cells[failed[0]]["content"]["rows"] == [{"rate": 1}, {"rate": 1.0832}]
    assert cells["free"]["requested"] == cells["free"]["refreshed"] + 2
    read_cells(freshet, text, hours=0.5)
    assert not any(row["error"] for row in base(database).values())


def test_silent_database_server_times_out(freshet: Freshet, database: Db, file_url: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"postgresql://me@127.0.0.1:{silent.getsockname()[1]}/db"
        read_cells(
            freshet,
            database_of("mute", url, seconds=1)
            + database_of("lite", file_url)
            + cell("mute", "mute", "SELECT 1")
            + cell("free", "lite", "SELECT 1 AS n"),
        )
    cells = base(database)
    assert "timeout" in cells["mute"]["error"] or "no answer" in cells["mute"]["error"]
    assert cells["free"]["error"] is None


@contextmanager
def cutting(server: Postgres) -> Iterator[None]:
    """Terminate each of Freshet's queries as soon as it runs."""
    done = threading.Event()

    def cut() -> None:
        while not done.wait(0.05):
            server.run(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE query LIKE 'FETCH%' AND now() - query_start > interval '0.3 s'"
            )

    thread = threading.Thread(target=cut)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def test_queries_of_a_database_run_one_at_a_time(
    freshet: Freshet, database: Db, rates: Postgres
) -> None:
    slow = [cell(f"slow{i}", "pg", "SELECT 1 AS n FROM pg_sleep(0.3)") for i in range(4)]
    read_cells(freshet, database_of("pg", rates.url) + "".join(slow))
    durations = sorted(row["execution_seconds"] for row in base(database).values())
    assert durations[0] >= 0.3
    assert durations[2] < 0.6


def test_ended_run_sends_no_more_queries(freshet: Freshet, database: Db, rates: Postgres) -> None:
    slow = [cell(f"slow{i}", "pg", "SELECT 1 AS n FROM pg_sleep(1)") for i in range(8)]
    text = database_of("pg", rates.url) + "".join(slow)
    read_cells(freshet, text, "-s", "CLOSESPIDER_TIMEOUT=1.5")
    read = [row for row in base(database).values() if row["requested"]]
    assert 1 <= len(read) <= 3
    assert all(row["error"] is None for row in base(database).values())


def test_dropped_connection_fails_one_cell_and_is_reopened(
    freshet: Freshet, database: Db, rates: Postgres
) -> None:
    with cutting(rates):
        read_cells(
            freshet,
            database_of("pg", rates.url)
            + cell("cut", "pg", "SELECT pg_sleep(5)")
            + cell("after", "pg", "SELECT 1 AS n"),
        )
    cells = base(database)
    assert "terminat" in cells["cut"]["error"]
    assert cells["after"]["content"]["rows"] == [{"n": 1}]


def test_result_sizes_are_limited(freshet: Freshet, database: Db, rates: Postgres) -> None:
    million = "SELECT i, repeat('x', 1000) AS t FROM generate_series(1, 1000000) AS i"
    read_cells(
        freshet,
        database_of("pg", rates.url, rows=100)
        + cell("many", "pg", million)
        + cell("wide", "pg", "SELECT repeat('x', 30000000) AS t")
        + cell("few", "pg", "SELECT 1 AS n"),
    )
    cells = base(database)
    assert "more than 100 rows" in cells["many"]["error"]
    assert "bytes" in cells["wide"]["error"]
    assert cells["few"]["error"] is None


def test_changed_columns_are_an_error_until_the_cell_is_edited(
    freshet: Freshet, database: Db, rates: Postgres
) -> None:
    head = database_of("pg", rates.url)
    text = head + cell("all", "pg", "SELECT * FROM rates") + cell("one", "pg", "SELECT 1 AS n")
    named = cell("named", "pg", "SELECT rate FROM rates")
    read_cells(freshet, text + named)
    rates.run("ALTER TABLE rates RENAME COLUMN rate TO price")
    read_cells(freshet, text + named, hours=0.25)
    cells = base(database)
    assert cells["all"]["error"].startswith("columns changed from currency, rate, day to ")
    assert cells["all"]["content"]["rows"][0]["rate"] == 1
    assert 'column "rate" does not exist' in cells["named"]["error"]
    assert cells["one"]["error"] is None
    edited = text.replace("SELECT * FROM", "SELECT currency, price FROM")
    read_cells(freshet, edited, hours=0.5)
    assert base(database)["all"]["content"]["columns"] == ["currency", "price"]
    assert base(database)["all"]["error"] is None


def test_duplicate_column_names_are_refused(freshet: Freshet, database: Db, file_url: str) -> None:
    text = database_of("lite", file_url) + cell("twice", "lite", "SELECT 1 AS n, 2 AS n")
    read_cells(freshet, text, code=1)
    assert "duplicate column name: 'n'" in base(database)["twice"]["error"]


def test_locked_file_fails_only_its_cells(
    freshet: Freshet, database: Db, tmp_path: Path, file_url: str, rates: Postgres
) -> None:
    with sqlite3.connect(tmp_path / "shop.db", isolation_level=None) as other:
        other.execute("BEGIN EXCLUSIVE")
        read_cells(
            freshet,
            database_of("lite", file_url, seconds=0.5)
            + database_of("pg", rates.url)
            + cell("locked", "lite", "SELECT * FROM rates")
            + cell("free", "pg", "SELECT 1 AS n"),
        )
    other.close()
    cells = base(database)
    assert "locked" in cells["locked"]["error"]
    assert cells["free"]["error"] is None


SECRET = "hunter2@x/%"


def test_passwords_are_not_printed_or_stored(
    freshet: Freshet, database: Db, rates: Postgres
) -> None:
    url = "postgresql://me:${SHOP_PASSWORD}@127.0.0.1:9/db"
    text = database_of("away", url, seconds=2) + cell("away", "away", "SELECT 1")
    result = read_cells(freshet, text, "-L", "DEBUG", code=1, SHOP_PASSWORD=SECRET)
    assert "OperationalError" in base(database)["away"]["error"]
    everything = result.out + result.err
    for name in database.list_collection_names():
        everything += str(list(database[name].find()))
    assert "hunter2" not in everything


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("postgresql://me:hunter2@h/db", "keep the password in the environment"),
        ("postgresql://me:${UNSET_VARIABLE}@h/db", "UNSET_VARIABLE is not set"),
        ("postgresql://h/db?password=hunter2", "keep the password in the environment"),
    ],
)
def test_a_url_with_a_secret_is_refused(freshet: Freshet, url: str, message: str) -> None:
    path = freshet.folder / "cells.toml"
    path.write_text(database_of("pg", url) + cell("one", "pg", "SELECT 1"))
    result = freshet("crawl", "cells", "-a", f"file={path}")
    assert result.code == 1
    assert message in result.complaint
    assert "hunter2" not in result.complaint


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("oracle://h/db", "unsupported kind of database: 'oracle'"),
        ("nonsense", "invalid URL"),
        ("postgresql+pg8000://h/db", "driver not installed"),
        ("sqlite://", "missing file name"),
    ],
)
def test_unusable_database_fails_only_its_cells(
    freshet: Freshet, database: Db, url: str, message: str, file_url: str
) -> None:
    text = database_of("odd", url) + database_of("lite", file_url)
    read_cells(freshet, text + cell("odd", "odd", "SELECT 1") + cell("ok", "lite", "SELECT 1 AS n"))
    cells = base(database)
    assert message in cells["odd"]["error"]
    assert cells["ok"]["error"] is None
