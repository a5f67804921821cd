"""Backups: one zip archive with all collections as BSON, and a manifest with their digests.

    freshet-backup.txt     description of the file; the first entry, to recognize a truncated file
    collections/NAME.bson  documents of a collection, in the form of mongodump
    manifest.json          version, time; options, further indexes, count, digest of each collection

A backup is written to a temporary file, which is read back and checked before it gets its name.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, BinaryIO, Self

import bson
from bson import json_util
from bson.errors import BSONError

from crawler.errors import Busy, ConfigError
from crawler.storage import transfer
from crawler.storage.client import META, VERSION, Database
from crawler.storage.dedup.index import META as INDEX
from crawler.storage.schema import RESTORED, is_version
from crawler.storage.transfer import Contents, Shape
from crawler.utils.files import file_errors, sync_folder
from crawler.utils.process import Say
from crawler.utils.text import count

FORMAT = 1
FIRST, MANIFEST = "freshet-backup.txt", "manifest.json"
ABOUT = "A backup of a Freshet database. To restore it: scrapy restore FILE\n"
# The local header of a zip entry is 30 bytes and the name.
_HEADER_BYTES = 30
# Higher levels take twice the time and save only 5 % of the size.
COMPRESSION_LEVEL = 3
MAX_MANIFEST_BYTES, MAX_COLLECTIONS = 16 * 1024**2, 10_000
# MongoDB's limit, with room for its own fields.
MIN_DOCUMENT_BYTES, MAX_DOCUMENT_BYTES = 5, 16 * 1024**2 + 16_384
BROKEN = (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError)
DAMAGED = "{}: damaged: {}. Use another backup"
JSON = json_util.CANONICAL_JSON_OPTIONS


@dataclass(frozen=True, slots=True)
class Manifest:
    """The description of a backup.

    version:     version of the data, as in `meta`
    at:          time at which the backup was started
    database:    name of the database
    collections: in the order of their names
    """

    version: int
    at: datetime
    database: str
    collections: tuple[Contents, ...]

    @property
    def other_indexes(self) -> list[str]:
        """Return the indexes outside the schema, such as `NAME of COLLECTION`."""
        shapes = [each.shape for each in self.collections]
        return [f"{index} of {shape.name}" for shape in shapes for index in shape.indexes]

    @property
    def documents(self) -> int:
        """Return the number of documents of all collections."""
        return sum(self.counts.values())

    @property
    def counts(self) -> dict[str, int]:
        """Return the number of documents by collection."""
        return {each.shape.name: each.documents for each in self.collections}

    def __str__(self) -> str:
        documents = count(self.documents, "document")
        return f"{documents} in {count(len(self.collections), 'collection')}"

    def to_json(self) -> str:
        """Return the manifest as the archive stores it, in MongoDB's extended JSON."""
        return json_util.dumps(
            {
                "format": FORMAT,
                "version": self.version,
                "at": self.at,
                "database": self.database,
                "collections": [
                    {
                        "name": each.shape.name,
                        "options": each.shape.options,
                        "other_indexes": list(each.shape.indexes),
                        "documents": each.documents,
                        "sha256": each.sha256,
                    }
                    for each in self.collections
                ],
            },
            json_options=JSON,
            indent=1,
        )

    @classmethod
    def of_json(cls, text: bytes) -> Self:
        """Return the manifest in a text. Raises KeyError, TypeError and ValueError."""
        values = json_util.loads(text, json_options=JSON)
        if values["format"] != FORMAT:
            raise ValueError(f"format {values['format']!r} is not supported")
        rows: Sequence[dict[str, Any]] = values["collections"]
        contents = tuple(
            Contents(
                Shape(
                    str(row["name"]), dict(row["options"]), [str(i) for i in row["other_indexes"]]
                ),
                int(row["documents"]),
                str(row["sha256"]),
            )
            for row in rows
        )
        if not is_version(values["version"]) or not isinstance(values["at"], datetime):
            raise ValueError("no valid version or time")
        return cls(int(values["version"]), values["at"], str(values["database"]), contents)

    def check_names(self, archive: zipfile.ZipFile) -> None:
        """Raise ValueError unless the archive has each collection once, and nothing else."""
        names = [each.shape.name for each in self.collections]
        entries = archive.namelist()
        is_meant = all(
            name
            and not name.startswith(("system.", RESTORED))
            and "$" not in name
            and name != transfer.LEASES
            for name in names
        )
        is_whole = sorted(entries) == sorted([FIRST, MANIFEST, *map(_entry, names)])
        if not (is_meant and is_whole and "meta" in names and len(names) <= MAX_COLLECTIONS):
            raise ValueError("other entries than the manifest says")


async def write(db: Database, path: Path, now: datetime, say: Say) -> tuple[Manifest, int]:
    """Write a backup of a database that has no other writers, and check it.

    Returns the manifest and the size of the file in bytes. Raises ConfigError if the database is
    empty, or the file exists or cannot be written, and StorageError.
    """
    if await transfer.collection_in_use(db) is None:
        raise ConfigError(f"database {db.name!r} is empty. Crawl a site first")
    with file_errors(str(path)), _draft_of(path) as (file, draft):
        contents = []
        with zipfile.ZipFile(
            file, "w", zipfile.ZIP_DEFLATED, compresslevel=COMPRESSION_LEVEL
        ) as archive:
            archive.writestr(zipfile.ZipInfo(FIRST), ABOUT)
            for shape in await transfer.shapes(db):
                digest, n = hashlib.sha256(), 0
                # Entries larger than 2 GB need an extra field, which is written before them.
                with archive.open(_entry(shape.name), "w", force_zip64=True) as entry:
                    async for batch in transfer.documents(db, shape.name):
                        for document in batch:
                            entry.write(document)
                            digest.update(document)
                        n += len(batch)
                        say(f"writing {shape.name}: {n:,}")
                contents.append(Contents(shape, n, digest.hexdigest()))
            meta = await db.meta.find_one(META) or {"version": VERSION}
            manifest = Manifest(int(meta["version"]), now, db.name, tuple(contents))
            archive.writestr(MANIFEST, manifest.to_json())
        os.fsync(file.fileno())
        with Backup.opened(draft, str(path)) as backup:
            backup.verify(say)
        size = draft.stat().st_size
        try:
            # Unlike a rename, fails if another process has created the file meanwhile.
            os.link(draft, path)
        except FileExistsError:
            raise
        except OSError:  # a file system without hard links
            draft.rename(path)
        sync_folder(path.parent)
    return manifest, size


def remove_abandoned_drafts(folder: Path) -> None:
    """Delete the temporary files of backups whose processes were killed. Raises OSError."""
    for draft in folder.glob(".*.part"):
        with draft.open("rb") as file, suppress(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            draft.unlink(missing_ok=True)


class Backup:
    """An opened backup.

    name: of the file, for messages
    """

    def __init__(self, archive: zipfile.ZipFile, manifest: Manifest, name: str) -> None:
        self.manifest, self.name = manifest, name
        self._archive = archive

    @classmethod
    @contextmanager
    def opened(cls, path: Path, name: str | None = None) -> Iterator[Self]:
        """Open a backup and read its manifest.

        Raises ConfigError if the file cannot be read, is not a backup, is truncated, or is of a
        later version.
        """
        name = name or str(path)
        with file_errors(name), path.open("rb") as file:
            start = file.read(_HEADER_BYTES + len(FIRST))
            if start[_HEADER_BYTES:] != FIRST.encode():
                raise ConfigError(
                    f"{name}: not a backup of Freshet. Give a file that scrapy backup wrote"
                )
            try:
                archive = zipfile.ZipFile(file)
                with archive.open(MANIFEST) as entry:
                    data = entry.read(MAX_MANIFEST_BYTES + 1)
                if len(data) > MAX_MANIFEST_BYTES:
                    raise ValueError("too long")
                manifest = Manifest.of_json(data)
                manifest.check_names(archive)
            except zipfile.BadZipFile:
                problem = "incomplete: the end of the file is missing. Copy it again"
                raise ConfigError(f"{name}: {problem}, or use another backup") from None
            except (*BROKEN, AttributeError, KeyError, RecursionError, TypeError, ValueError,
                    BSONError):  # fmt: skip
                raise ConfigError(DAMAGED.format(name, "its manifest is invalid")) from None
            if manifest.version > VERSION:
                raise ConfigError(
                    f"{name}: has data version {manifest.version}, this Freshet supports up to "
                    f"{VERSION}. Upgrade Freshet"
                )
            yield cls(archive, manifest, name)

    def verify(self, say: Say) -> None:
        """Read the whole file.

        Raises ConfigError unless all counts and digests, and the data version, are right.
        """
        for collection in self.manifest.collections:
            name, digest, n = collection.shape.name, hashlib.sha256(), 0
            for batch in self.documents(name):
                n += len(batch)
                for document in batch:
                    digest.update(document)
                say(f"checking {name}: {n:,} of {collection.documents:,}")
            if (n, digest.hexdigest()) != (collection.documents, collection.sha256):
                problem = f"the documents of {name} are not those that were written"
                raise ConfigError(DAMAGED.format(self.name, problem))
        self._verify_meta()

    def _verify_meta(self) -> None:
        """Raise ConfigError unless a database with this `meta` can be opened."""
        meta: dict[Any, dict[str, Any]] = {}
        try:
            for batch in self.documents("meta"):
                rows = map(bson.decode, batch)
                meta |= {row["_id"]: row for row in rows if isinstance(row["_id"], str)}
        except (BSONError, KeyError, TypeError, ValueError):
            meta = {}
        version = meta.get(META["_id"], {}).get("version")
        if not isinstance(meta.get(INDEX["_id"], {"scheme": ""}).get("scheme"), str):
            problem = "its index of near-duplicates has no valid scheme"
            raise ConfigError(DAMAGED.format(self.name, problem))
        if version != self.manifest.version or not is_version(version):
            problem = f"its collection 'meta' has not data version {self.manifest.version}"
            raise ConfigError(DAMAGED.format(self.name, problem))

    def documents(self, name: str) -> Iterator[list[bytes]]:
        """Yield batches of the documents of a collection as BSON. Raises ConfigError."""
        problem = DAMAGED.format(self.name, f"the documents of {name} cannot be read")
        batch: list[bytes] = []
        size = 0
        try:
            with self._archive.open(_entry(name)) as entry:
                while head := entry.read(4):
                    length = int.from_bytes(head, "little")
                    if not MIN_DOCUMENT_BYTES <= length <= MAX_DOCUMENT_BYTES:
                        raise ConfigError(problem)
                    document = head + entry.read(length - 4)
                    if len(document) != length or document[-1]:
                        raise ConfigError(problem)
                    batch.append(document)
                    size += length
                    if len(batch) == transfer.BATCH or size >= transfer.BATCH_BYTES:
                        yield batch
                        batch, size = [], 0
        except (*BROKEN, KeyError):
            raise ConfigError(problem) from None
        if batch:
            yield batch

    async def restore(self, db: Database, say: Say) -> None:
        """Replace all data of a database with this backup, which `verify` has accepted.

        Raises StorageError and ConfigError, with the database unchanged.
        """
        await transfer.replace_all(
            db, Path(self.name).name, self.manifest.version, self.manifest.collections,
            self.documents, say,
        )  # fmt: skip


def _entry(collection: str) -> str:
    return f"collections/{collection}.bson"


@contextmanager
def _draft_of(path: Path) -> Iterator[tuple[BinaryIO, Path]]:
    """Yield a temporary file next to `path`, which only this process has open, and its path.

    The file has a fixed name, so that the next backup reuses a file left by a crash. Raises
    ConfigError if `path` exists, Busy if another process is writing to it, and OSError.
    """
    if path.exists():
        raise ConfigError(f"{path}: the file exists. Name another file, or remove this one")
    draft = path.with_name(f".{path.name}.part")
    # Only the owner may read password hashes and tokens.
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    with os.fdopen(os.open(draft, flags, 0o600), "r+b") as file:
        if os.fstat(file.fileno()).st_uid != os.getuid():
            raise ConfigError(f"{draft}: belongs to another user. Remove it, or use another folder")
        os.fchmod(file.fileno(), 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Busy(f"{path}: another backup is being written to this file") from None
        try:
            file.truncate()
            yield file, draft
        finally:
            draft.unlink(missing_ok=True)
