"""Any site without a Python file: a wrapper from a TOML file or from arguments.

scrapy crawl site -a wrapper=shop.toml
scrapy crawl site -a name=shop -a start_urls=https://… -a list_pages=REGEX -a item_pages=REGEX
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

from pydantic import Field, model_validator
from scrapy import Spider
from scrapy.settings import BaseSettings
from scrapy.spiderloader import SpiderLoader

from crawler.config import Config
from crawler.errors import ConfigError, WrapperError
from crawler.extract.definition import Definition
from crawler.extract.list_wrappers import any_wrapper
from crawler.extract.wrapper import Wrapper, read_toml
from crawler.utils.text import is_spider_name
from spiders.wrapper import Arguments, WrapperSpider

if TYPE_CHECKING:
    from scrapy.crawler import Crawler

logger = logging.getLogger(__name__)
# Arguments that name the file of a definition.
FILES = ("wrapper", "file")
# Without a file; and what a file has in their place.
NEEDED = ("name", "start_urls", "item_pages")
IN_A_FILE = (
    *NEEDED, "list_pages", "not_list_pages", "not_item_pages", "category", "follow_item_links",
)  # fmt: skip


class Loader(SpiderLoader):
    """Scrapy's spider loader, which also loads sites by the definitions in the database.

    A spider class wins over a definition of its name. The database is read for names that no class
    has, and for nothing else; `list` names the classes only.
    """

    def __init__(self, settings: BaseSettings) -> None:
        super().__init__(settings)
        self._settings = settings

    def load(self, spider_name: str) -> type[Spider]:
        """The spider class of this name, or one for a stored site; KeyError if there is neither."""
        try:
            return super().load(spider_name)
        except KeyError:
            if (spider := self.load_stored(spider_name)) is None:
                raise
            return spider

    def load_stored(self, name: str) -> type[WrapperSpider] | None:
        """A spider class for a stored site; None where no definition of this name is stored."""
        if not is_spider_name(name):
            return None
        definitions = stored_definitions(Config.of(self._settings), [name])
        return spider_of(definitions[name], self._spiders) if name in definitions else None


def stored_definitions(config: Config, names: Iterable[str] | None = None) -> dict[str, Definition]:
    """The definitions in the database by name, all if `names` is None (blocking).

    Raises StorageError or ConfigError.
    """
    from crawler.storage import sites
    from crawler.storage.store import opened

    async def read() -> dict[str, Definition]:
        async with opened(config) as db:
            return await sites.definitions(db, names)

    # `asyncio.run` takes the main thread's event loop away, on which a crawl may be about to run.
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(lambda: asyncio.run(read())).result()


def spider_of(
    definition: Definition, spiders: dict[str, type[Spider]]
) -> type[WrapperSpider] | None:
    """A spider class that runs a stored definition; None where its reader is not in `spiders`.

    The file that the definition was read from wins while it is there and still defines this site.
    """
    spider = spiders.get(definition.reader)
    if spider is None or not issubclass(spider, WrapperSpider):
        return None
    reader: type[WrapperSpider] = spider
    model = reader.arguments_model
    try:
        reader.read_arguments({})
    except ConfigError:
        # The reader's own ask for a definition.
        model = Arguments

    class Stored(reader):  # type: ignore[misc, valid-type]
        """A site as its last run had it."""

        name = definition.name
        arguments_model: ClassVar[type[Arguments]] = model
        stored_definition: ClassVar[Definition] = definition

        @classmethod
        def read_wrapper(cls, arguments: Arguments) -> Wrapper:
            """The wrapper of a file that is named, else of its own file, else of what is stored."""
            if any(getattr(arguments, key, None) for key in FILES):
                return reader.read_wrapper(arguments)
            return current(cls.stored_definition, reader)

        def begin(self, crawler: Crawler) -> None:
            """Log which definition is used where that is not what the last run used."""
            used = self.wrapper.definition
            assert used is not None
            _log_change(type(self).stored_definition, used)
            type(self).stored_definition = used
            super().begin(crawler)

    Stored.__qualname__ = Stored.__name__ = f"Stored_{definition.name}"
    return Stored


def current(definition: Definition, reader: type[WrapperSpider]) -> Wrapper:
    """The wrapper that a site has now; raises WrapperError where neither source can be used."""
    path = None if definition.file is None else Path(definition.file)
    if path is not None and path.is_file():
        wrapper = reader.defined(read_toml(path), path)
        if wrapper.name == definition.name:
            return wrapper
    if definition.withheld:
        raise WrapperError(
            f"{definition.name}: {definition.source} is gone, and the value of "
            f"{definition.withheld[0]} is not stored, as it may be secret. Put the file back, or "
            "write such values as ${VARIABLE}"
        )
    wrapper = reader.wrapper_of(definition.values, f"{definition.name} as stored")
    return wrapper.defined_by(definition)


def _log_change(stored: Definition, used: Definition) -> None:
    """Log what became of the file of a stored definition; nothing where it is as it was."""
    if stored.file is None:
        return
    if used.stored is None:
        if not used.has_same_keys_as(stored):
            logger.info(
                "%s: %s was edited since the last run, using the file", used.name, used.file
            )
        return
    lost = "no longer defines this site" if Path(stored.file).is_file() else "is gone"
    logger.warning(
        "%s: %s %s, using the site definition stored at %s UTC",
        used.name, stored.file, lost, f"{used.stored:%Y-%m-%d %H:%M}",
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
