"""Definitions of cells, and the errors of invalid definitions."""

from __future__ import annotations

import datetime as dt
import uuid
from decimal import Decimal
from typing import Any

import pytest

from crawler.config import expanded_url, shows_secret
from crawler.errors import WrapperError
from crawler.extract.list_wrappers import CellsWrapper, definitions
from crawler.fetch.sql import plain

PAGE = "https://weather.example/"
SHOP = {"shop": {"url": "sqlite:///shop.db"}}


def wrapper(cell: dict[str, Any], **more: Any) -> CellsWrapper:
    return CellsWrapper.of({"cells": {"one": cell}, "databases": SHOP} | more, "cells.toml")


@pytest.mark.parametrize(
    ("period", "seconds", "group"),
    [
        ("30s", 30, "dynamic"),
        ("5m", 300, "dynamic"),
        ("20m", 1200, "semi-dynamic"),
        ("2h", 7200, "static"),
        ("1w", 604_800, "static"),
        ("dynamic", 300, "dynamic"),
        ("semi-dynamic", 1800, "semi-dynamic"),
        ("static", 7200, "static"),
    ],
)
def test_periods_map_to_the_papers_groups(period: str, seconds: float, group: str) -> None:
    cell = wrapper({"url": PAGE, "css": "h1", "every": period}).cells["one"]
    assert cell.every == seconds
    assert cell.group == group


@pytest.mark.parametrize(
    ("cell", "message"),
    [
        ({}, "needs either url or database"),
        ({"url": PAGE, "database": "shop", "sql": "SELECT 1"}, "needs either url or database"),
        ({"url": PAGE}, "needs exactly one of css, xpath and jmespath"),
        ({"url": PAGE, "css": "h1", "xpath": "//h1"}, "needs exactly one of"),
        ({"url": PAGE, "css": "h1["}, "bad selector"),
        ({"url": PAGE, "css": "h1", "fields": {"a": "b"}}, "fields cannot be combined with css"),
        ({"url": "ftp://a/", "css": "h1"}, "not an absolute http or https URL"),
        (
            {"url": PAGE, "css": "h1", "sql": "SELECT 1"},
            "'sql' is not allowed in a cell that reads a page",
        ),
        ({"url": PAGE, "css": "h1", "every": "soon"}, "invalid duration: 'soon'"),
        ({"url": PAGE, "css": "h1", "every": "0.5s"}, "period out of range: '0.5s'"),
        ({"url": PAGE, "css": "h1", "every": 5}, "invalid period: 5"),
        ({"database": "shop"}, "sql must be a single SELECT"),
        ({"database": "shop", "sql": "DROP TABLE a"}, "sql must be a single SELECT"),
        ({"database": "shop", "sql": "-- SELECT\nDROP TABLE a"}, "sql must be a single SELECT"),
        # This would take hours if comments could match in several ways.
        ({"database": "shop", "sql": "/**/" * 40 + "DROP"}, "sql must be a single SELECT"),
        (
            {"database": "shop", "sql": "SELECT 1", "css": "h1"},
            "'css' is not allowed in a cell that queries",
        ),
        ({"database": "shop", "sql": "SELECT :a"}, "parameters does not define :a"),
        (
            {"database": "shop", "sql": "SELECT 1", "parameters": {"a": 1}},
            "parameters defines 'a', but sql does not use :a",
        ),
        ({"database": "other", "sql": "SELECT 1"}, r"\[databases.other\] is missing"),
        ({"url": PAGE, "css": "h1", "evry": "5m"}, "evry"),
    ],
)
def test_error_names_the_cell(cell: dict[str, Any], message: str) -> None:
    with pytest.raises(WrapperError, match=message) as raised:
        wrapper(cell)
    assert str(raised.value).startswith("cells.toml: cells.one")


@pytest.mark.parametrize(
    "sql",
    [
        "select 1",
        "  -- why\n SELECT 1",
        "/* a\nb */ WITH a AS (SELECT 1) SELECT * FROM a",
        "VALUES (1)",
        "SELECT '12:30'::time",
    ],
)
def test_read_only_queries_are_accepted(sql: str) -> None:
    assert wrapper({"database": "shop", "sql": sql}).cells["one"].sql == sql


@pytest.mark.parametrize("name", ["a b", "a/b", "", "1a", "a" * 65])
def test_invalid_cell_names_are_rejected(name: str) -> None:
    with pytest.raises(WrapperError, match="invalid name: "):
        CellsWrapper.of({"cells": {name: {"url": PAGE, "css": "h1"}}}, "cells.toml")


def test_definition_without_cells_is_rejected() -> None:
    with pytest.raises(WrapperError, match="cells"):
        CellsWrapper.of({}, "cells.toml")


def test_site_keys_are_not_allowed() -> None:
    with pytest.raises(WrapperError, match="'item_pages' is not allowed in a list of cells"):
        wrapper({"url": PAGE, "css": "h1"}, item_pages="/a/")


def test_cells_of_a_page_share_a_phase() -> None:
    cells = {
        "a": {"url": PAGE, "css": "h1", "every": "5m"},
        "b": {"url": PAGE, "css": "h2", "every": "30m"},
        "c": {"url": f"{PAGE}other", "css": "h2", "every": "30m"},
    }
    a, b, c = definitions(CellsWrapper.of({"cells": cells}, "cells.toml"))
    assert a.phase == b.phase != c.phase
    assert (a.host, a.every_hours) == ("weather.example", 1 / 12)


def test_digest_ignores_periods_and_limits() -> None:
    def cell_digest(**keys: Any) -> str:
        cell = {"database": "shop", "sql": "SELECT 1"} | keys
        return wrapper(cell).cell_digests["one"]

    assert cell_digest() == cell_digest(every="5m") == cell_digest(rows=5)
    assert cell_digest() != cell_digest(sql="SELECT 2")


@pytest.mark.parametrize(
    ("value", "as_plain"),
    [
        (None, None),
        (True, True),
        (Decimal("1.50"), 1.5),
        (Decimal(7), 7),
        (Decimal("0.1234567890123456789"), "0.1234567890123456789"),
        (Decimal("NaN"), "NaN"),
        (float("inf"), "inf"),
        (dt.date(2026, 11, 22), "2026-11-22"),
        (dt.time(12, 30), "12:30:00"),
        (dt.datetime(2026, 11, 22, 12), "2026-11-22T12:00:00"),
        (
            dt.datetime(2026, 11, 22, 12, tzinfo=dt.timezone(dt.timedelta(hours=9))),
            "2026-11-22T03:00:00+00:00",
        ),
        (dt.timedelta(minutes=1), 60.0),
        (b"\x00\xff", "00ff"),
        (uuid.UUID(int=1), "00000000-0000-0000-0000-000000000001"),
        ([1, Decimal("2.5")], [1, 2.5]),
        ({"a": b"\x01"}, {"a": "01"}),
    ],
)
def test_database_values_are_converted_to_json_values(value: Any, as_plain: Any) -> None:
    assert plain(value) == as_plain


def test_variables_expand_to_url_or_encoded_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WHOLE", "postgresql://me:a%40b@h/db")
    monkeypatch.setenv("PART", "a@b/c")
    assert expanded_url("${WHOLE}") == "postgresql://me:a%40b@h/db"
    assert expanded_url("postgresql://me:${PART}@h/db") == "postgresql://me:a%40b%2Fc@h/db"
    assert not shows_secret("postgresql://me:${PART}@h/db")
    assert shows_secret("postgresql://me:a${PART}@h/db")
