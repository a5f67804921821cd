"""Crawl a site or a list of cells that is defined in a TOML file or by arguments.

scrapy crawl site -a wrapper=shop.toml
scrapy crawl site -a name=shop -a start_urls=https://… -a list_pages=REGEX -a item_pages=REGEX
scrapy crawl cells -a file=cells.toml
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import traceback
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

from pydantic import Field, model_validator
from scrapy import Spider
from scrapy.settings import BaseSettings
from scrapy.spiderloader import SpiderLoader

from crawler.config import PROJECT, Config
from crawler.errors import ConfigError, FreshetError, WrapperError
from crawler.extract.list_wrappers import CellsWrapper, any_wrapper
from crawler.extract.site_definition import Wrapper
from crawler.extract.stored_definition import Definition, read_toml
from crawler.utils.text import is_spider_name
from spiders.wrapper import Arguments, WrapperSpider

if TYPE_CHECKING:
    from scrapy.crawler import Crawler

logger = logging.getLogger(__name__)
# Names of the arguments for the file of a definition.
FILES = ("wrapper", "file")
# Arguments that are required without a file, and all arguments that are not allowed with one.
REQUIRED = ("name", "start_urls", "item_pages")
KEYS = (
    *REQUIRED, "list_pages", "not_list_pages", "not_item_pages", "category", "follow_item_links",
)  # fmt: skip
DEFAULT_CELLS = PROJECT / "cells.toml"


class Loader(SpiderLoader):
    """Spider loader that also loads sites whose definitions are stored in the database.

    A spider class takes precedence over a stored definition. The database is read only for names
    without a class; `list` returns only classes.
    """

    def __init__(self, settings: BaseSettings) -> None:
        """Import all modules of spiders; raise ConfigError with the place of an error in one."""
        try:
            super().__init__(settings)
        except FreshetError:
            raise
        except Exception as error:
            cause = " ".join((error.msg if isinstance(error, SyntaxError) else str(error)).split())
            raise ConfigError(
                f"{_place_of(error)}: {type(error).__name__}: {cause}. Correct the file, or move "
                "it out of the folder: commands that need a spider import all of them"
            ) from error
        self._settings = settings

    def load(self, spider_name: str) -> type[Spider]:
        """Return the spider class with this name, or one for a stored site; raises KeyError."""
        try:
            return super().load(spider_name)
        except KeyError:
            if (spider := self.load_stored(spider_name)) is None:
                raise
            return spider

    def load_stored(self, name: str) -> type[WrapperSpider] | None:
        """Return a spider class for a stored site; None if there is no such definition."""
        if not is_spider_name(name):
            return None
        definitions = stored_definitions(Config.of(self._settings), [name])
        return spider_of(definitions[name], self._spiders) if name in definitions else None


def _place_of(error: Exception) -> str:
    """Return file and line of an error while a spider's module was imported."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}, line {error.lineno}"
    frames = traceback.extract_tb(error.__traceback__)
    # The import system and Scrapy's loader call the module.
    imported = [i for i, frame in enumerate(frames) if frame.filename.startswith("<frozen")]
    frame = frames[min(max(imported, default=-2) + 1, len(frames) - 1)]
    return f"{frame.filename}, line {frame.lineno}"


def lacks_file(spider: type[Spider]) -> bool:
    """Return whether a spider's site definition file is missing; a broken file is not missing."""
    try:
        if issubclass(spider, WrapperSpider):
            spider.read_wrapper(spider.read_arguments({}))
    except FreshetError as error:
        return str(error).endswith(os.strerror(errno.ENOENT))
    return False


def stored_definitions(config: Config, names: Iterable[str] | None = None) -> dict[str, Definition]:
    """Read definitions from the database by name, all if `names` is None; blocks.

    Raises StorageError or ConfigError.
    """
    from crawler.storage import sites
    from crawler.storage.store import opened

    async def read() -> dict[str, Definition]:
        async with opened(config) as db:
            return await sites.definitions(db, names)

    # In a thread, because `asyncio.run` resets the event loop of the main thread, which a crawl may
    # be about to use.
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(lambda: asyncio.run(read())).result()


def spider_of(
    definition: Definition, spiders: dict[str, type[Spider]]
) -> type[WrapperSpider] | None:
    """Return a spider class for a stored definition; None if `spiders` lacks its reader.

    The file from which the definition was read takes precedence as long as it defines this site.
    """
    spider = spiders.get(definition.reader)
    if spider is None or not issubclass(spider, WrapperSpider):
        return None
    reader: type[WrapperSpider] = spider
    model = reader.arguments_model
    try:
        reader.read_arguments({})
    except ConfigError:
        # The reader's arguments require a definition, which the database has.
        model = Arguments

    class Stored(reader):  # type: ignore[misc, valid-type]
        """Crawls a site with the definition of its last run."""

        name = definition.name
        arguments_model: ClassVar[type[Arguments]] = model
        stored_definition: ClassVar[Definition] = definition

        @classmethod
        def read_wrapper(cls, arguments: Arguments) -> Wrapper:
            """Return the definition in the file of an argument, else the current definition."""
            if any(getattr(arguments, key, None) for key in FILES):
                return reader.read_wrapper(arguments)
            return current(cls.stored_definition, reader)

        def begin(self, crawler: Crawler) -> None:
            """Log if the definition differs from that of the last run, then open the run."""
            used = self.wrapper.definition
            assert used is not None
            stored = type(self).stored_definition
            type(self).stored_definition = used
            if stored.file is not None and used.stored is not None:
                is_file = Path(stored.file).is_file()
                problem = "no longer defines this site" if is_file else "was removed"
                logger.warning(
                    "%s: %s %s; using the site definition stored at %s UTC",
                    used.name, stored.file, problem, f"{used.stored:%Y-%m-%d %H:%M}",
                )  # fmt: skip
            elif stored.file is not None and not used.has_same_keys_as(stored):
                logger.info(
                    "%s: %s was edited since the last run; using the file", used.name, used.file
                )
            super().begin(crawler)

    Stored.__qualname__ = Stored.__name__ = f"Stored_{definition.name}"
    return Stored


def current(definition: Definition, reader: type[WrapperSpider]) -> Wrapper:
    """Return the definition in a site's file, else the stored one; raises WrapperError."""
    path = None if definition.file is None else Path(definition.file)
    if path is not None and path.is_file():
        wrapper = reader.defined(read_toml(path), path)
        if wrapper.name == definition.name:
            return wrapper
    if definition.withheld:
        raise WrapperError(
            f"{definition.name}: site definition not found: {definition.source}. The stored copy "
            f"lacks {definition.withheld[0]}, which may be secret. Restore the definition, and "
            "write secrets as ${VARIABLE}"
        )
    wrapper = reader.wrapper_of(definition.values, f"{definition.name} as stored")
    return wrapper.defined_by(definition)


class SiteArguments(Arguments):
    """Arguments of the site spider: a file, or a name with start URLs and patterns."""

    wrapper: Path | None = Field(None, description="TOML file with the site definition")
    name: str | None = Field(None, description="name of the site in the database")
    start_urls: str | None = Field(None, description="start URLs, separated by spaces")
    list_pages: str | None = Field(
        None, description="regular expression that URLs of list pages match"
    )
    item_pages: str | None = Field(
        None, description="regular expression that URLs of item pages match"
    )
    not_list_pages: str | None = Field(
        None, description="regular expression for URLs that are not list pages"
    )
    not_item_pages: str | None = Field(
        None, description="regular expression for URLs that are not item pages"
    )
    category: str | None = Field(
        None, description="regular expression whose group is the category in a URL"
    )
    follow_item_links: bool = Field(False, description="also follow matching links on item pages")

    @model_validator(mode="after")
    def _file_or_patterns(self) -> Self:
        given = [name for name in KEYS if getattr(self, name)]
        if self.wrapper and given:
            raise ValueError(f"wrapper=FILE and {given[0]}= cannot be combined")
        if not self.wrapper and (missing := [n for n in REQUIRED if not getattr(self, n)]):
            raise ValueError(
                f"missing argument: {missing[0]}. Set wrapper=FILE.toml, or {', '.join(REQUIRED)}"
            )
        return self


class SiteSpider(WrapperSpider):
    """Crawls sites that are not defined as Python classes."""

    name = "site"
    arguments_model: ClassVar[type[Arguments]] = SiteArguments

    @classmethod
    def read_wrapper(cls, arguments: Arguments) -> Wrapper:
        """Return the definition in the file or in the arguments; raises WrapperError."""
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
        """Create the definition of a site, or of a list of cells."""
        return any_wrapper(values, source)


class CellsArguments(Arguments):
    """Arguments of the cells spider (`-a`)."""

    file: Path | None = Field(None, description="TOML file with cells; unset: cells.toml")


class CellsSpider(WrapperSpider):
    """Fetches due cells of sites and databases.

    Without `file`, it reads cells.toml in the project folder, or the class attributes if a subclass
    defines `cells`.
    """

    name = "cells"
    arguments_model: ClassVar[type[Arguments]] = CellsArguments
    wrapper_model: ClassVar[type[Wrapper]] = CellsWrapper

    @classmethod
    def read_wrapper(cls, arguments: Arguments) -> Wrapper:
        """Return the definition in the file, else in the class; raises WrapperError."""
        path = arguments.file if isinstance(arguments, CellsArguments) else None
        if path is None and "cells" not in vars(cls):
            path = DEFAULT_CELLS
        if path is not None:
            return cls.defined(read_toml(path), path)
        return cls.read_attributes()
