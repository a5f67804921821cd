"""Crawl the cells of a TOML file: `scrapy crawl cells -a file=cells.toml`.

Without `file`, the spider reads cells.toml in the project folder, or the class attributes if a
subclass defines `cells`.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from pydantic import Field

from crawler.config import PROJECT
from crawler.extract.list_wrappers import CellsWrapper
from crawler.extract.site_definition import Wrapper, read_toml
from spiders.wrapper import Arguments, WrapperSpider

DEFAULT_FILE = PROJECT / "cells.toml"


class CellsArguments(Arguments):
    """Arguments of the cells spider (`-a`)."""

    file: Path | None = Field(None, description="TOML file with cells; unset: cells.toml")


class CellsSpider(WrapperSpider):
    """Fetches due cells of sites and databases."""

    name = "cells"
    arguments_model: ClassVar[type[Arguments]] = CellsArguments

    @classmethod
    def read_wrapper(cls, arguments: Arguments) -> Wrapper:
        """Return the definition in the file, or of the class; raises WrapperError."""
        path = arguments.file if isinstance(arguments, CellsArguments) else None
        if path is None and "cells" not in vars(cls):
            path = DEFAULT_FILE
        if path is not None:
            return cls.defined(read_toml(path), path)
        values = {
            key: value
            for key in CellsWrapper.model_fields
            if (value := getattr(cls, key, None)) is not None
        }
        return CellsWrapper.of(values, inspect.getsourcefile(cls) or cls.__name__)

    @classmethod
    def wrapper_of(cls, values: Mapping[str, Any], source: str) -> Wrapper:
        """Create the definition of a list of cells."""
        return CellsWrapper.of(values, source)
