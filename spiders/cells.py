"""Cells of many sites and databases, described in a file: `scrapy crawl cells -a file=cells.toml`.

Without `file` it is cells.toml of the folder, or what stands here as class attributes.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from pydantic import Field

from crawler.config import PROJECT
from crawler.extract.list_wrappers import CellsWrapper
from crawler.extract.wrapper import Wrapper, read_toml
from spiders.wrapper import Arguments, WrapperSpider

USUAL = PROJECT / "cells.toml"


class CellsArguments(Arguments):
    """What `-a` may say."""

    file: Path | None = Field(None, description="TOML file with the cells; cells.toml if unset")


class CellsSpider(WrapperSpider):
    """Reads the cells that are due."""

    name = "cells"
    arguments_model: ClassVar[type[Arguments]] = CellsArguments

    @classmethod
    def read_wrapper(cls, arguments: Arguments) -> Wrapper:
        """The wrapper of the file, or of the class; raises WrapperError."""
        path = arguments.file if isinstance(arguments, CellsArguments) else None
        if path is None and "cells" not in vars(cls):
            path = USUAL
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
        """The wrapper of a list of cells."""
        return CellsWrapper.of(values, source)
