"""Any site without a Python file: a wrapper from a TOML file or from arguments.

scrapy crawl site -a wrapper=shop.toml
scrapy crawl site -a name=shop -a start_urls=https://… -a list_pages=REGEX -a item_pages=REGEX
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Self

from pydantic import Field, model_validator

from crawler.errors import ConfigError
from crawler.extract.list_wrappers import any_wrapper
from crawler.extract.wrapper import Wrapper, read_toml
from spiders.wrapper import Arguments, WrapperSpider

NEEDED = ("name", "start_urls", "item_pages")
IN_A_FILE = (
    *NEEDED, "list_pages", "not_list_pages", "not_item_pages", "category", "follow_item_links",
)  # fmt: skip


class SiteArguments(Arguments):
    """Either a file, or a name with start URLs and patterns."""

    wrapper: Path | None = Field(None, description="TOML file")
    name: str | None = Field(None, description="name of the spider in the database")
    start_urls: str | None = Field(None, description="URLs, separated by white space")
    list_pages: str | None = Field(None, description="regular expression")
    item_pages: str | None = Field(None, description="regular expression")
    not_list_pages: str | None = Field(None, description="regular expression, excludes list pages")
    not_item_pages: str | None = Field(None, description="regular expression, excludes item pages")
    category: str | None = Field(None, description="regular expression, its group is the category")
    follow_item_links: bool = Field(False, description="follow matching links on item pages too")

    @model_validator(mode="after")
    def _file_or_patterns(self) -> Self:
        given = [name for name in IN_A_FILE if getattr(self, name)]
        if self.wrapper and given:
            raise ValueError(f"wrapper=FILE and {given[0]}= exclude each other")
        if not self.wrapper and (missing := [n for n in NEEDED if not getattr(self, n)]):
            raise ValueError(
                f"{missing[0]} is missing: give wrapper=FILE.toml, or {', '.join(NEEDED)}"
            )
        return self


class SiteSpider(WrapperSpider):
    """The spider for wrappers that are no Python class."""

    name = "site"
    arguments_model: ClassVar[type[Arguments]] = SiteArguments

    @classmethod
    def read_wrapper(cls, arguments: Arguments) -> Wrapper:
        """The wrapper of the file or of the arguments; raises WrapperError."""
        if not isinstance(arguments, SiteArguments):
            raise ConfigError("site: wrong arguments")
        if arguments.wrapper is not None:
            return cls.defined(read_toml(arguments.wrapper), arguments.wrapper)
        values = {
            "name": arguments.name,
            "start_urls": (arguments.start_urls or "").split(),
            "list_pages": arguments.list_pages,
            "item_pages": arguments.item_pages,
            "not_list_pages": arguments.not_list_pages,
            "not_item_pages": arguments.not_item_pages,
            "category": {"pattern": arguments.category} if arguments.category else None,
            "follow_item_links": arguments.follow_item_links,
        }
        return cls.defined({key: value for key, value in values.items() if value}, None)

    @classmethod
    def wrapper_of(cls, values: Mapping[str, Any], source: str) -> Wrapper:
        """The wrapper of a site, or of cells alone."""
        return any_wrapper(values, source)
