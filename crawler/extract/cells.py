"""Cell definitions: a cell is a part of a page, or the result of a database query."""

from __future__ import annotations

import re
from dataclasses import dataclass
from math import sqrt
from typing import Annotated, Any, Self

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

# The three kinds of cells in the paper, with the periods that the overload simulation uses.
STATIC, SEMI_DYNAMIC, DYNAMIC = "static", "semi-dynamic", "dynamic"
PERIODS_SECONDS = {DYNAMIC: 300.0, SEMI_DYNAMIC: 1800.0, STATIC: 7200.0}
MIN_SECONDS, MAX_SECONDS = 1.0, 4 * 7 * 24 * 3600.0
# Read-only statements, possibly after comments.
_READS = re.compile(r"(?>\s+|--[^\n]*\n|/\*.*?\*/)*+(?:select|with|values)\b", re.I | re.S)
_NAME = re.compile(r"[A-Za-z_][\w.-]{0,63}")
Value = str | int | float | bool | None


def checked_period(value: object) -> float:
    """Return the seconds in a period such as `5m`, or of a kind such as `dynamic`.

    Raises ValueError for anything else, and for periods that are too short or too long.
    """
    if not isinstance(value, str):
        raise ValueError(f"invalid period: {value!r}. Examples: 30s, 5m, 2h, 1d, {DYNAMIC}")
    period = PERIODS_SECONDS.get(value) or seconds(value)
    if not MIN_SECONDS <= period <= MAX_SECONDS:
        raise ValueError(f"period out of range: {value!r}. Use a period from 1s to 4w")
    return period


class Source(BaseModel):
    """A database that cells query.

    url:         SQLAlchemy URL; passwords are environment variables (`${VARIABLE}`)
    seconds:     timeout of one query
    rows:        maximum number of rows in one result
    connections: maximum number of concurrent queries
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
    def _expand_url(cls, value: str) -> str:
        if shows_secret(value):
            raise ValueError("keep the password in the environment: …://user:${VARIABLE}@host/name")
        return expanded_url(value)


PageUrl = Annotated[str, AfterValidator(lambda value: canonical(absolute_url(value), ()))]


class Cell(BaseModel):
    """One cell: `url` with a selector or fields, or `database` with `sql`.

    every: period in seconds; None: the planner schedules the cell like any other target
    rows:  maximum number of rows in the result; overrides the limit of the database
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    url: PageUrl | None = Key(
        None, description="URL of the page; cells of one page share one request"
    )
    css: str | None = Key(None, description="CSS selector")
    xpath: str | None = Key(None, description="XPath selector")
    jmespath: str | None = Key(None, description="JMESPath expression, for JSON")
    type: FieldType = Key(FieldType.TEXT, description="type of the value, as for a field")
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

    every: Annotated[float, BeforeValidator(checked_period)] | None = Key(
        None,
        description="period, such as `30s` or `2h`, or `dynamic` (5 min), `semi-dynamic` (30 min), "
        "`static` (2 h); unset: planned",
    )

    @model_validator(mode="after")
    def _check_page_or_query(self) -> Self:
        if (self.url is None) == (self.database is None):
            raise ValueError("needs either url or database")
        if self.url is not None:
            wrong = [key for key in ("sql", "parameters", "rows") if key in self.model_fields_set]
            if wrong:
                raise ValueError(f"{wrong[0]!r} is not allowed in a cell that reads a page")
            single = [key for key in ("css", "xpath", "jmespath") if getattr(self, key) is not None]
            if self.fields and (single or "type" in self.model_fields_set):
                raise ValueError("fields cannot be combined with css, xpath, jmespath or type")
            if not self.fields:
                Field(css=self.css, xpath=self.xpath, jmespath=self.jmespath, type=self.type)
        else:
            self._check_query()
        return self

    def _check_query(self) -> None:
        of_pages = ("css", "xpath", "jmespath", "type", "fields")
        if wrong := [key for key in of_pages if key in self.model_fields_set]:
            raise ValueError(f"{wrong[0]!r} is not allowed in a cell that queries a database")
        if self.sql is None or not _READS.match(self.sql):
            raise ValueError("sql must be a single SELECT, WITH or VALUES statement")
        names = placeholders(self.sql)
        if missing := sorted(names - self.parameters.keys()):
            raise ValueError(f"parameters does not define :{missing[0]}, which sql uses")
        if unused := sorted(self.parameters.keys() - names):
            raise ValueError(f"parameters defines {unused[0]!r}, but sql does not use :{unused[0]}")

    @property
    def selectors(self) -> dict[str, Field]:
        """Return the fields to read from the page by name.

        A cell with a selector of its own has a single field, named `value` or `html`.
        """
        if self.fields:
            return self.fields
        single = Field(css=self.css, xpath=self.xpath, jmespath=self.jmespath, type=self.type)
        return {"html" if self.type is FieldType.HTML else "value": single}

    @property
    def group(self) -> str | None:
        """Return the kind (`static`, …) whose period is nearest; None without a period."""
        return None if self.every is None else group_of(self.every)


def checked_names(value: dict[str, Any]) -> dict[str, Any]:
    """Return cells or databases by name. Raises ValueError for a name that a URL cannot hold."""
    for name in value:
        if not _NAME.fullmatch(name):
            raise ValueError(f"invalid name: {name!r}. Use letters, digits, '_', '.' and '-'")
    return value


Cells = Annotated[dict[str, Cell], AfterValidator(checked_names)]
Sources = Annotated[dict[str, Source], AfterValidator(checked_names)]


@dataclass(frozen=True, slots=True)
class StoredCell:
    """A cell as it is stored.

    host:  host that politeness limits apply to
    phase: offset of the visits within the period, as a share of it in [0, 1)
    """

    name: str
    host: str
    every_hours: float | None
    group: str | None
    phase: float


def group_of(period_seconds: float) -> str:
    """Return the kind of cell whose period is nearest to this one on a logarithmic scale."""
    dynamic, semi, static = PERIODS_SECONDS.values()
    if period_seconds < sqrt(dynamic * semi):
        return DYNAMIC
    return SEMI_DYNAMIC if period_seconds < sqrt(semi * static) else STATIC


def placeholders(sql: str) -> set[str]:
    """Return the names of the parameters (`:name`) in a query."""
    from sqlalchemy import text  # slow to import, and few site definitions have queries

    return set(text(sql).compile().params)
