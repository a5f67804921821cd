"""Cells as they are described: a part of a page by selector, or the result of a database query."""

from __future__ import annotations

import re
from dataclasses import dataclass
from math import sqrt
from typing import Annotated, Any, Self

import lxml.html
from lxml import etree
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    field_validator,
    model_validator,
)
from pydantic import Field as Key

from crawler.config import expanded_url, shows_secret
from crawler.extract.fields import Field, FieldType
from crawler.extract.keys import Fields, absolute_url
from crawler.utils.time import seconds
from crawler.utils.urls import canonical

# The paper's three kinds; here with the periods that the simulation of overload has too.
STATIC, SEMI_DYNAMIC, DYNAMIC = "static", "semi-dynamic", "dynamic"
PERIODS_SECONDS = {DYNAMIC: 300.0, SEMI_DYNAMIC: 1800.0, STATIC: 7200.0}
LEAST_SECONDS, MOST_SECONDS = 1.0, 4 * 7 * 24 * 3600.0
# A comment may stand before it.
_READS = re.compile(r"(?:\s|--[^\n]*\n|/\*.*?\*/)*(?:select|with|values)\b", re.I | re.S)
_NAME = re.compile(r"[A-Za-z_][\w.-]{0,63}")
Value = str | int | float | bool | None


def _period(value: object) -> object:
    if not isinstance(value, str):
        raise ValueError(f"{value!r} is no period such as 30s, 5m, 2h, 1d or {DYNAMIC}")
    found = PERIODS_SECONDS.get(value) or seconds(value)
    if not LEAST_SECONDS <= found <= MOST_SECONDS:
        raise ValueError(f"{value!r} is not between 1s and 4w")
    return found


class Source(BaseModel):
    """A database that cells are queried from.

    url:         of SQLAlchemy; passwords stand in the environment, as ${VARIABLE}
    seconds:     longest time of one query     rows: most rows of one result
    connections: queries at a time
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    url: str = Key(
        repr=False,
        description="SQLAlchemy URL, `postgresql://…` or `sqlite:///…`; passwords as ${VARIABLE}",
    )
    seconds: float = Key(10.0, gt=0, le=3600, description="timeout of a query, in seconds")
    rows: int = Key(1000, ge=1, le=100_000, description="maximum rows of a result")
    connections: int = Key(1, ge=1, le=16, description="maximum concurrent queries")

    @field_validator("url")
    @classmethod
    def _no_secret(cls, value: str) -> str:
        if shows_secret(value):
            raise ValueError("keep the password in the environment: …://user:${VARIABLE}@host/name")
        return expanded_url(value)


PageUrl = Annotated[str, AfterValidator(lambda value: canonical(absolute_url(value), ()))]


class Cell(BaseModel):
    """One cell: `url` with a selector or fields, or `database` with `sql`.

    every: period; None: planned like any other target
    rows:  most rows of the result, where the database's limit does not suit
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    url: PageUrl | None = Key(
        None, description="URL of the page; cells of one page share one request"
    )
    css: str | None = Key(None, description="CSS selector")
    xpath: str | None = Key(None, description="XPath selector")
    jmespath: str | None = Key(None, description="JMESPath expression, for JSON")
    type: FieldType = Key(FieldType.TEXT, description="type of the value, as of a field")
    fields: Fields = Key({}, description="several values by name, instead of a selector")

    database: str | None = Key(None, description="name of a database, instead of `url`")
    sql: str | None = Key(
        None, description="query: one SELECT, WITH or VALUES statement; parameters as `:name`"
    )
    parameters: dict[str, Value | tuple[Value, ...]] = Key(
        {}, description="parameters of the query by name; a list of values is for `IN :name`"
    )
    rows: int | None = Key(
        None,
        ge=1,
        le=100_000,
        description="maximum rows of the result; unset: limit of the database",
    )

    every: Annotated[float, BeforeValidator(_period)] | None = Key(
        None,
        description="period, such as `30s` or `2h`, or `dynamic` (5 min), `semi-dynamic` (30 min), "
        "`static` (2 h); unset: planned",
    )

    @model_validator(mode="after")
    def _either(self) -> Self:
        if (self.url is None) == (self.database is None):
            raise ValueError("needs either url or database")
        if self.url is not None:
            wrong = [key for key in ("sql", "parameters", "rows") if key in self.model_fields_set]
            if wrong:
                raise ValueError(f"{wrong[0]!r} is not allowed in a cell that reads a page")
            single = [key for key in ("css", "xpath", "jmespath") if getattr(self, key) is not None]
            if self.fields and (single or "type" in self.model_fields_set):
                raise ValueError("fields cannot be combined with a selector of the cell's own")
            if not self.fields:
                Field(css=self.css, xpath=self.xpath, jmespath=self.jmespath, type=self.type)
        else:
            _check_of_query(self)
        return self

    @property
    def selectors(self) -> dict[str, Field]:
        """What is read from the page, by name; `value` or `html` where it is one thing."""
        if self.fields:
            return self.fields
        one = Field(css=self.css, xpath=self.xpath, jmespath=self.jmespath, type=self.type)
        return {"html" if self.type is FieldType.HTML else "value": one}

    @property
    def group(self) -> str | None:
        """The paper's kind whose period is nearest; None where there is no period."""
        return None if self.every is None else group_of(self.every)


Cells = dict[str, Cell]
Sources = dict[str, Source]


@dataclass(frozen=True, slots=True)
class Defined:
    """A cell as storage knows it. host: what politeness is kept towards; phase: in [0, 1)."""

    name: str
    host: str
    every_hours: float | None
    group: str | None
    phase: float


def group_of(period_seconds: float) -> str:
    """The paper's kind of cells with this period: the nearest by its logarithm."""
    dynamic, semi, static = PERIODS_SECONDS.values()
    if period_seconds < sqrt(dynamic * semi):
        return DYNAMIC
    return SEMI_DYNAMIC if period_seconds < sqrt(semi * static) else STATIC


def checked_names(value: dict[str, Any]) -> dict[str, Any]:
    """Cells or databases whose names can be a part of an address; ValueError names another."""
    for name in value:
        if not _NAME.fullmatch(name):
            raise ValueError(f"{name!r} cannot be a name (letters, digits, _ . -)")
    return value


def _check_of_query(cell: Cell) -> None:
    of_pages = ("css", "xpath", "jmespath", "type", "fields")
    if wrong := [key for key in of_pages if key in cell.model_fields_set]:
        raise ValueError(f"{wrong[0]} has no meaning for the result of a query")
    if cell.sql is None or not _READS.match(cell.sql):
        raise ValueError("sql has to be one SELECT (or WITH, VALUES)")
    names = placeholders(cell.sql)
    if missing := sorted(names - cell.parameters.keys()):
        raise ValueError(f"sql names :{missing[0]}, which parameters does not")
    if unused := sorted(cell.parameters.keys() - names):
        raise ValueError(f"parameters names {unused[0]!r}, which sql does not (:{unused[0]})")


def placeholders(sql: str) -> set[str]:
    """Names of the parameters in a query."""
    from sqlalchemy import text  # slow to import, and few wrappers have queries

    return set(text(sql).compile().params)


def with_whole_links(markup: str, base_url: str) -> str:
    """A part of a page whose links and pictures lead to where they led on it."""
    try:
        part = lxml.html.fragment_fromstring(markup, create_parent=False)
        part.make_links_absolute(base_url, resolve_base_href=False, handle_failures="ignore")
    except (etree.ParserError, ValueError):
        return markup
    whole: str = lxml.html.tostring(part, encoding="unicode", with_tail=False)
    return whole
