"""The wrapper of a list of cells: manners, hours, databases, and the cells themselves."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from pydantic import Field as Key
from pydantic import model_validator

from crawler.cell import Cells
from crawler.keys import Patterns, StartUrls
from crawler.wrapper import OF_SITES, Match, Wrapper, read_toml


class CellsWrapper(Wrapper):
    """Keys as in `Wrapper`, without those that describe the pages of one site."""

    name: str = "cells"
    start_urls: StartUrls = ()
    item_pages: Patterns = ()
    cells: Cells = Key(min_length=1)

    @model_validator(mode="after")
    def _no_site(self) -> Self:
        if given := [key for key in OF_SITES if key in self.model_fields_set]:
            raise ValueError(f"{given[0]} has no meaning for cells (it describes a site's pages)")
        return self

    def match(self, url: str) -> Match:
        """No page is a target."""
        return Match()


def load_any(path: Path) -> Wrapper:
    """The wrapper in a TOML file: of a site, or of cells alone; WrapperError says what is wrong."""
    return any_wrapper(read_toml(path), str(path))


def any_wrapper(values: Mapping[str, Any], source: str) -> Wrapper:
    """Return the wrapper with these keys, of a site or of cells alone; raises WrapperError."""
    of_cells = "cells" in values and not values.keys() & {"start_urls", "item_pages"}
    return (CellsWrapper if of_cells else Wrapper).of(values, source)
