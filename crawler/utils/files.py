"""Files that are replaced atomically: readers see the old content or the new, never a part."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def atomic_replace(path: Path) -> Iterator[Path]:
    """Yield a temporary file next to `path` that replaces it when the block ends.

    The temporary file has the suffix of `path`. If the block fails, it is deleted and `path` stays
    as it was. Raises OSError.
    """
    draft = path.with_name(f".{path.stem}.{os.getpid()}{path.suffix}")
    try:
        yield draft
        with draft.open("rb") as written:
            os.fsync(written.fileno())
        draft.replace(path)
    finally:
        with suppress(OSError):
            draft.unlink(missing_ok=True)
