"""The record of a build, kept in the output folder: what was written, and of which cells."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ValidationError

from crawler.pages.cells import Asked
from crawler.pages.writing import write

RECORD = ".freshet-pages.json"


def _inside(path: str) -> str:
    if not path or path.startswith("/") or {"", ".", ".."} & set(path.split("/")):
        raise ValueError("not a path within the output folder")
    return path


Inside = Annotated[str, AfterValidator(_inside)]


class Built(BaseModel):
    """A page at its last build.

    cells: what it asked for, and found    written: there is a file of ours
    failed: the file, if there is one, is of an earlier build
    """

    cells: Asked
    written: bool
    failed: bool = False


class Record(BaseModel):
    """All of it. templates: their digest    files: digests of what was copied."""

    version: Literal[1] = 1
    templates: str = ""
    pages: dict[Inside, Built] = {}
    files: dict[Inside, str] = {}

    @classmethod
    def read(cls, out: Path) -> Record:
        """The record in a folder; an empty one where it is missing or broken."""
        try:
            return cls.model_validate_json((out / RECORD).read_bytes())
        except (OSError, ValidationError):
            return cls()

    def keep(self, out: Path) -> None:
        """Write it; raises OSError."""
        write(out / RECORD, self.model_dump_json(indent=1).encode())
