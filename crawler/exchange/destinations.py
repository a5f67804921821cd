"""Folders and object stores that exports are written to.

Every file is whole or absent: it is written under another name, which no pattern such as
`*.parquet` matches, and then renamed. In a folder, renaming is atomic. On an object store, the
driver copies the complete object to its name, and a copy of an object is atomic.
"""

from __future__ import annotations

import os
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

from crawler.errors import ConfigError
from crawler.utils.files import file_errors
from crawler.utils.terminal import without_secrets

# End of the names of unfinished files.
DRAFT = ".draft"
SCHEME = "://"
# A disk syncs several files about as fast as one.
MAX_MOVES = 8


class Destination(ABC):
    """A place for files. Paths are relative, with `/`.

    name:      for messages, without passwords
    max_moves: maximum number of threads that may `put` files at the same time
    """

    name: str
    max_moves: int

    @abstractmethod
    def read(self, path: str) -> bytes | None:
        """Return the content of a file; None if there is none. Raises ConfigError."""

    @abstractmethod
    @contextmanager
    def opened(self, path: str) -> Iterator[BinaryIO]:
        """Open a file for reading. Raises ConfigError."""

    @abstractmethod
    def put(self, draft: Path, path: str) -> None:
        """Replace a file with a complete local one, which is deleted. Raises ConfigError."""

    @abstractmethod
    def sizes(self, folder: str) -> dict[str, int]:
        """Return the bytes of all files below a folder by path. Raises ConfigError."""

    @abstractmethod
    def remove(self, path: str) -> None:
        """Delete a file, if it exists. Raises ConfigError."""

    @abstractmethod
    @contextmanager
    def draft(self, path: str) -> Iterator[Path]:
        """Yield the name of a local file to write and `put`; delete the file if it still exists."""

    def write(self, path: str, content: bytes) -> None:
        """Replace a file. Raises ConfigError."""
        with self.draft(path) as draft:
            with file_errors(str(draft)):
                draft.write_bytes(content)
            self.put(draft, path)


def destination_of(address: str) -> Destination:
    """Return the destination for a folder, or for a URL such as `s3://bucket/freshet`.

    Raises ConfigError if the URL needs a driver that is not installed.
    """
    if SCHEME not in address:
        return _Folder(Path(address).expanduser())
    if address.startswith(local := f"file{SCHEME}"):
        return _Folder(Path(address.removeprefix(local)))
    return _Remote(address)


class _Folder(Destination):
    def __init__(self, root: Path) -> None:
        self._root, self.name, self.max_moves = root, str(root), MAX_MOVES

    def read(self, path: str) -> bytes | None:
        with file_errors(str(self._root / path)), suppress(FileNotFoundError):
            return (self._root / path).read_bytes()
        return None

    @contextmanager
    def opened(self, path: str) -> Iterator[BinaryIO]:
        with file_errors(str(self._root / path)), (self._root / path).open("rb") as file:
            yield file

    def put(self, draft: Path, path: str) -> None:
        with file_errors(str(self._root / path)):
            with draft.open("rb") as written:
                os.fsync(written.fileno())
            draft.replace(self._root / path)

    def sizes(self, folder: str) -> dict[str, int]:
        entries: dict[str, int] = {}
        with file_errors(str(self._root / folder)):
            for parent, _, names in os.walk(self._root / folder):
                for name in names:
                    path = Path(parent, name)
                    # Another process may delete it, and a symbolic link may be broken.
                    with suppress(FileNotFoundError):
                        entries[path.relative_to(self._root).as_posix()] = path.stat().st_size
        return entries

    def remove(self, path: str) -> None:
        with file_errors(str(self._root / path)):
            (self._root / path).unlink(missing_ok=True)

    @contextmanager
    def draft(self, path: str) -> Iterator[Path]:
        # Use the same folder, because a file cannot be renamed to another file system.
        whole = self._root / path
        draft = whole.with_name(f".{whole.name}{DRAFT}")
        with file_errors(str(whole.parent)):
            whole.parent.mkdir(parents=True, exist_ok=True)
        try:
            yield draft
        finally:
            with suppress(OSError):
                draft.unlink(missing_ok=True)


class _Remote(Destination):
    """A file system of fsspec. Its driver finds credentials, for example in the environment."""

    def __init__(self, url: str) -> None:
        # Slow to import.
        from fsspec.core import url_to_fs

        self.name = without_secrets(url)
        protocol = url.partition(SCHEME)[0]
        try:
            self._files, root = url_to_fs(url)
        except ImportError as error:
            raise ConfigError(
                f"{self.name}: the driver of {protocol}{SCHEME} is missing: {error}. Install the "
                "package with .venv/bin/pip install"
            ) from None
        except Exception as error:  # noqa: BLE001 - drivers raise errors of their own
            raise ConfigError(f"{self.name}: {_in_short(error)}. Check the URL") from None
        self._root: str = root.rstrip("/")
        # Other drivers may not support several threads.
        self.max_moves = MAX_MOVES if self._files.async_impl else 1

    def read(self, path: str) -> bytes | None:
        with self._errors(path), suppress(FileNotFoundError):
            content: bytes = self._files.cat_file(self._at(path))
            return content
        return None

    @contextmanager
    def opened(self, path: str) -> Iterator[BinaryIO]:
        with self._errors(path), self._files.open(self._at(path), "rb") as file:
            yield file

    def put(self, draft: Path, path: str) -> None:
        whole = self._at(path)
        parent, _, name = whole.rpartition("/")
        unfinished = f"{parent}/.{name}{DRAFT}"
        with self._errors(path):
            self._files.makedirs(parent, exist_ok=True)
            self._files.put_file(str(draft), unfinished)
            self._files.mv(unfinished, whole)
        draft.unlink(missing_ok=True)

    def sizes(self, folder: str) -> dict[str, int]:
        with self._errors(folder):
            self._files.invalidate_cache()
            entries: dict[str, Any] = self._files.find(self._at(folder), detail=True)
        start = len(self._root) + 1
        return {name[start:]: int(details.get("size") or 0) for name, details in entries.items()}

    def remove(self, path: str) -> None:
        with self._errors(path), suppress(FileNotFoundError):
            self._files.rm_file(self._at(path))

    @contextmanager
    def draft(self, path: str) -> Iterator[Path]:
        with tempfile.TemporaryDirectory(prefix="freshet-export-") as folder:
            yield Path(folder, path.rpartition("/")[2])

    def _at(self, path: str) -> str:
        return f"{self._root}/{path}"

    @contextmanager
    def _errors(self, path: str) -> Iterator[None]:
        try:
            yield
        except NotImplementedError:
            raise ConfigError(
                f"{self.name}: cannot be written to. Use a folder, or a URL such as s3://bucket/path"
            ) from None
        except Exception as error:  # noqa: BLE001 - drivers raise errors of their own
            raise ConfigError(f"{self.name}/{path}: {_in_short(error)}") from None


def _in_short(error: Exception) -> str:
    """Return the message of an error in one line."""
    return " ".join((str(error) or type(error).__name__).split())[:300].rstrip(".")
