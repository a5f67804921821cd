"""The folder of a site's archive: WARC files and indexes, reading, checks, repair after a crash.

    NAME-20261124103000-4711-00001.warc.gz     records
    NAME-20261124103000-4711-00001.cdxj.open   index of a file that is still growing, unsorted
    NAME-20261124103000-4711-00001.cdxj        index of a full file, sorted

A process locks the file that it writes to. The next process continues a growing file that is not
locked, so that short runs do not leave many small files.
"""

from __future__ import annotations

import fcntl
import heapq
import logging
import os
import re
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import groupby
from pathlib import Path

from crawler.archive.records import (
    GZIP_BITS,
    NOT_MODIFIED,
    REVISIT_TYPE,
    Line,
    digits,
    mime_of,
    read_lines,
    surt,
)
from crawler.config import Config
from crawler.errors import ArchiveError
from crawler.utils.files import atomic_replace, sync_folder

logger = logging.getLogger(__name__)
WARC, INDEX, GROWING = ".warc.gz", ".cdxj", ".cdxj.open"
NAME = re.compile(r"(?P<site>.+)-(?P<time>\d{14})-(?P<pid>\d+)-(?P<serial>\d{5})")
CHUNK_BYTES = 1 << 16
MAX_SERIAL = 99_999
# Errors caused by damaged records, and by records without a required field.
DAMAGE = (zlib.error, ValueError, EOFError, TypeError, AttributeError)
FOLDER = "archive"


@dataclass(frozen=True, slots=True)
class WarcFile:
    """A WARC file of a site, at `path`, with its index."""

    path: Path

    @property
    def name(self) -> str:
        """Return the file's name."""
        return self.path.name

    @property
    def index(self) -> Path:
        """Return the path of the sorted index, which exists if the file is full."""
        return self._with(INDEX)

    @property
    def growing(self) -> Path:
        """Return the path of the unsorted index of a file that is not full."""
        return self._with(GROWING)

    @property
    def is_full(self) -> bool:
        """Return whether the file is complete: nothing is appended to it anymore."""
        return self.index.exists()

    @property
    def size(self) -> int:
        """Return the size of the records in bytes; 0 if the file was deleted."""
        with suppress(FileNotFoundError):
            return self.path.stat().st_size
        return 0

    def lines(self) -> Iterator[Line]:
        """Yield the lines of the index, sorted only if the file is full."""
        return read_lines(self.index if self.is_full else self.growing)

    def sorted_lines(self) -> list[Line]:
        """Return the lines of the index, sorted; there are at most MAX_RESPONSES."""
        return sorted(self.lines(), key=lambda line: (line.key, line.time))

    def end(self) -> int:
        """Return the offset after the last record in the index, 0 without one."""
        return max(map(end_of, self.lines()), default=0)

    def close(self) -> None:
        """Write the sorted index, after which the file is full. Raises OSError."""
        lines = self.sorted_lines()
        with atomic_replace(self.index) as draft:
            draft.write_text("".join(map(str, lines)), encoding="ascii")
        self.growing.unlink(missing_ok=True)

    def delete(self) -> None:
        """Delete the file, then its index, so that no record lacks an index."""
        for path in (self.path, self.index, self.growing):
            path.unlink(missing_ok=True)

    def _with(self, suffix: str) -> Path:
        return self.path.with_name(self.path.name.removesuffix(WARC) + suffix)


def end_of(line: Line) -> int:
    """Return the offset after the record of a line."""
    return int(line.fields["offset"]) + int(line.fields["length"])


def folder_of(config: Config, site: str) -> Path:
    """Return the folder of a site's archive."""
    return config.data_dir / FOLDER / site


def files_of(folder: Path) -> list[WarcFile]:
    """Return the WARC files in a folder, oldest first; empty if there is no folder."""
    named = [
        (parts, path)
        for path in folder.glob(f"*{WARC}")
        if (parts := NAME.fullmatch(path.name.removesuffix(WARC)))
    ]
    named.sort(key=lambda pair: (pair[0]["time"], pair[0]["serial"], pair[0]["pid"]))
    return [WarcFile(path) for _, path in named]


def archived_sites(config: Config) -> list[str]:
    """Return the names of the sites with an archive."""
    folder = config.data_dir / FOLDER
    return sorted(path.name for path in folder.glob("*") if files_of(path))


def merged(files: Iterable[WarcFile]) -> Iterator[Line]:
    """Yield the lines of the indexes of some files, sorted.

    Holds one line of each full file in memory, and all lines of the growing ones.
    """
    streams = [file.lines() if file.is_full else file.sorted_lines() for file in files]
    return heapq.merge(*streams, key=lambda line: (line.key, line.time))


def create(folder: Path, site: str, now: datetime) -> tuple[WarcFile, int]:
    """Create the next file and lock it; return it and its descriptor. Raises OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    for serial in range(1, MAX_SERIAL + 1):
        name = f"{site}-{digits(now)}-{os.getpid()}-{serial:05}{WARC}"
        path = folder / name
        try:
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o640))
        except FileExistsError:
            continue
        # Another process may already have taken the file, or have filled or deleted it.
        if (descriptor := _taken(WarcFile(path))) is None:
            continue
        sync_folder(folder)
        return WarcFile(path), descriptor
    raise FileExistsError(f"{folder}: {MAX_SERIAL} files of one second")


def take_growing(folder: Path) -> tuple[WarcFile, int] | None:
    """Lock, repair and return a growing file that no process writes to; None if there is none.

    The descriptor holds the lock until it is closed. Raises OSError.
    """
    for file in reversed(files_of(folder)):
        if file.is_full:
            file.growing.unlink(missing_ok=True)
            continue
        if (descriptor := _taken(file)) is None:
            continue
        try:
            repair(file, descriptor)
        except BaseException:
            os.close(descriptor)
            raise
        return file, descriptor
    return None


def delete_oldest(folder: Path, limit_bytes: float) -> list[str]:
    """Delete whole files, oldest first, until the rest fits the limit; return their names.

    Files that are being written are kept.
    """
    files = files_of(folder)
    sizes = {file: file.size for file in files}
    used, deleted = sum(sizes.values()), []
    for file in files:
        if used <= limit_bytes:
            break
        if (descriptor := _locked(file.path)) is None:
            continue
        try:
            file.delete()
        finally:
            os.close(descriptor)
        used -= sizes[file]
        deleted.append(file.name)
    return deleted


def repair(file: WarcFile, descriptor: int) -> None:
    """Cut off a torn last record, and add complete records that the index lacks.

    A response gets its line in the index only after all its bytes were written, so that the search
    for missing lines can begin after the record of the last line.
    """
    lines = list(file.lines())
    size = os.fstat(descriptor).st_size
    while lines and end_of(lines[-1]) > size:
        # The system crashed, and the file lost more than the index.
        lines.pop()
    start = end_of(lines[-1]) if lines else 0
    good = good_end(file.path, start)
    if good < size:
        os.ftruncate(descriptor, good)
        logger.warning(
            "%s: removed %d bytes of a response that was not completely written",
            file.name, size - good,
        )  # fmt: skip
    index = "".join(map(str, [*lines, *indexed(file.path, start)])).encode("ascii")
    # The last line of the index may be torn, too.
    if not file.growing.exists() or file.growing.read_bytes() != index:
        with atomic_replace(file.growing) as draft:
            draft.write_bytes(index)


@dataclass(frozen=True, slots=True)
class Stored:
    """A response as received.

    headers: names and values in their order
    body:    before content decoding
    """

    url: str
    status: int
    headers: tuple[tuple[str, str], ...]
    body: bytes


@dataclass(slots=True)
class Check:
    """The result of a check of all files of a site.

    dangling: revisit records whose original was deleted with its file
    problems: damaged records and lines of indexes, at most one for each file
    """

    files: int = 0
    responses: int = 0
    revisits: int = 0
    dangling: int = 0
    problems: list[str] = field(default_factory=list)


def read_response(folder: Path, file: str, offset: int, limit_bytes: int) -> Stored | None:
    """Return the response at an offset; None if its file was deleted.

    limit_bytes: maximum size of the body

    Raises ArchiveError if there is no response at the offset, or if it is damaged or too large.
    """
    from warcio.archiveiterator import ArchiveIterator
    from warcio.exceptions import ArchiveLoadFailed

    place = f"{folder / file}, offset {offset}"
    try:
        with (folder / file).open("rb") as stream:
            stream.seek(offset)
            record = next(iter(ArchiveIterator(stream)), None)
            if record is None or record.rec_type != "response" or record.http_headers is None:
                raise ArchiveError(
                    f"no response in the archive: {place}. Run scrapy archive verify"
                )
            body: bytes = record.raw_stream.read(limit_bytes + 1)
            http = record.http_headers
            if len(body) > limit_bytes:
                raise ArchiveError(
                    f"archived body too large: {place}. Raise FRESHET_RESPONSE_MB to read it"
                )
            url = record.rec_headers.get_header("WARC-Target-URI")
            return Stored(url, int(http.get_statuscode()), tuple(map(tuple, http.headers)), body)
    except FileNotFoundError:
        return None
    except (*DAMAGE, ArchiveLoadFailed, OSError) as error:
        reason = " ".join(str(error).split())[:200]
        raise ArchiveError(
            f"damaged record in the archive: {place}: {reason}. Run scrapy archive verify"
        ) from None


def check(folder: Path, say: Callable[[str], None] = lambda _: None) -> Check:
    """Read all records of a site with their digests, and compare them with the indexes.

    say: called with a progress text

    Memory grows with the number of responses in one file, which is limited, and of one URL.
    """
    result = Check()
    files = files_of(folder)
    for file in files:
        say(f"checking {file.name}")
        result.files += 1
        in_index = {_place(line) for line in file.lines()}
        try:
            in_file = {_place(line) for line in indexed(file.path, check_digests=True)}
        except FileNotFoundError:
            # A run has deleted it, because the archive exceeded its limit.
            result.files -= 1
            continue
        except ArchiveError as error:
            result.problems.append(str(error))
            continue
        except OSError as error:
            result.problems.append(f"{file.path}: {error.strerror or error}")
            continue
        # A run may append to a growing file meanwhile.
        if in_index - in_file or (file.is_full and in_file - in_index):
            result.problems.append(
                f"{file.path}: its index differs from its records. Delete {file.index.name}; the "
                "next run writes it again"
            )
    for _, lines in groupby(merged(files), key=lambda line: line.key):
        of_url = list(lines)
        revisits = [line for line in of_url if line.fields["mime"] == REVISIT_TYPE]
        originals = {
            line.fields["digest"] for line in of_url if line.fields["mime"] != REVISIT_TYPE
        }
        result.responses += len(of_url)
        result.revisits += len(revisits)
        result.dangling += sum(line.fields["digest"] not in originals for line in revisits)
    return result


def _place(line: Line) -> tuple[str, str]:
    return line.fields["offset"], line.fields["length"]


def good_end(path: Path, start: int) -> int:
    """Return the offset after the last complete gzip member that begins at or after `start`.

    Memory does not depend on the sizes of members.
    """
    good = start
    with path.open("rb") as file:
        file.seek(start)
        member, at = zlib.decompressobj(GZIP_BITS), start
        data = file.read(CHUNK_BYTES)
        while data:
            try:
                member.decompress(data, CHUNK_BYTES)
            except zlib.error:
                return good
            if member.eof:
                at += len(data) - len(member.unused_data)
                data, good = member.unused_data, at
                member = zlib.decompressobj(GZIP_BITS)
            else:
                at += len(data) - len(member.unconsumed_tail)
                data = member.unconsumed_tail
            data = data or file.read(CHUNK_BYTES)
    return good


def indexed(path: Path, start: int = 0, *, check_digests: bool = False) -> Iterator[Line]:
    """Yield a line for each response in the complete records from an offset on.

    check_digests: also compare bodies with their digests

    Raises ArchiveError if the file is damaged.
    """
    from warcio.archiveiterator import ArchiveIterator
    from warcio.exceptions import ArchiveLoadFailed

    with path.open("rb") as stream:
        stream.seek(start)
        records = ArchiveIterator(stream, check_digests="raise" if check_digests else False)
        try:
            for record in records:
                if record.rec_type not in ("response", "revisit"):
                    continue
                fields, http = record.rec_headers, record.http_headers
                url = fields.get_header("WARC-Target-URI")
                at = datetime.fromisoformat(fields.get_header("WARC-Date")).astimezone(UTC)
                is_304 = fields.get_header("WARC-Profile") == NOT_MODIFIED
                mime = mime_of(http.get_header("Content-Type") if http else None)
                offset = records.get_record_offset()
                values = {
                    "url": url,
                    "mime": REVISIT_TYPE if record.rec_type == "revisit" else mime,
                    "status": "304" if is_304 else http.get_statuscode() if http else "-",
                    "digest": fields.get_header("WARC-Payload-Digest"),
                    "length": str(records.get_record_length()),
                    "offset": str(offset),
                    "filename": path.name,
                }
                yield Line(surt(url), digits(at), values)
        except (*DAMAGE, ArchiveLoadFailed) as error:
            reason = " ".join(str(error).split())[:200]
            raise ArchiveError(
                f"{path}: damaged record: {reason!r}. Restore the file from a backup, or delete it"
            ) from None


def _locked(path: Path) -> int | None:
    """Open and lock a file; return None if it was deleted or is locked."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_APPEND)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor


def _taken(file: WarcFile) -> int | None:
    """Lock a growing file; return None if it is full, deleted, or locked by another process."""
    if (descriptor := _locked(file.path)) is None:
        return None
    # It may have been filled or deleted before this process locked it.
    if file.is_full or not file.path.exists():
        os.close(descriptor)
        return None
    return descriptor
