"""Files of the output folder: whole or not at all."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from crawler.utils.files import atomic_replace


def write(path: Path, content: bytes) -> None:
    """Put a file in place of what is there; its folder is made. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_replace(path) as draft:
        draft.write_bytes(content)


def is_there(path: Path) -> bool:
    """There is a file that may be looked at."""
    try:
        return path.is_file()
    except OSError:
        return False


def remove(out: Path, name: str) -> None:
    """Delete a file, and the folders in `out` that are empty then; OSErrors pass unnoticed."""
    with suppress(OSError):
        (out / name).unlink(missing_ok=True)
        for folder in (out / name).parents:
            if folder == out:
                return
            folder.rmdir()
