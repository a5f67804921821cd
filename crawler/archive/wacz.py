"""Export an archive as a WACZ file: WARC files, index, list of pages and checksums in one ZIP file.

The index is compressed in blocks, with a second index of the blocks, so that replay tools find a
page of a large archive without reading all of it.
"""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby, islice
from pathlib import Path
from typing import IO, Any
from zipfile import ZIP_DEFLATED, ZIP_STORED, ZipFile, ZipInfo

from crawler.archive.files import WarcFile, files_of, merged
from crawler.archive.records import GZIP_BITS, Line, iso_time, line_time
from crawler.errors import ArchiveError
from crawler.utils.files import atomic_replace

# Number of lines of the index per compressed block, as in the files of other tools.
BLOCK_LINES = 3000
CHUNK_BYTES = 1 << 20
INDEX, BLOCKS, PAGES = "indexes/index.cdx.gz", "indexes/index.idx", "pages/pages.jsonl"
OK = "200"
HTML = ("text/html", "application/xhtml+xml")


@dataclass(frozen=True, slots=True)
class Exported:
    """The result of an export: its numbers of files, responses and pages, and its size."""

    files: int
    responses: int
    pages: int
    bytes: int


def export(
    folder: Path, to: Path, title: str, software: str, now: datetime, say: Callable[[str], None]
) -> Exported:
    """Write all files of a site to a WACZ file, which replaces an existing one when it is complete.

    say: called with a progress text

    If a crawl is writing to a file, only the records that are complete now are exported. Raises
    ArchiveError if there are no files, and OSError.
    """
    files = files_of(folder)
    ends = {file: file.size if file.is_full else file.end() for file in files}
    files = [file for file in files if ends[file]]
    if not files:
        raise ArchiveError(
            f"no archive in {folder}. Set archive = true in the site definition, and crawl the site"
        )
    with atomic_replace(to) as draft, ZipFile(draft, "w") as package:
        wacz = _Package(package, now)
        for file in files:
            say(f"exporting {file.name}")
            with wacz.member(f"archive/{file.name}", compressed=False) as out:
                out.copy(file.path, ends[file])
        say("exporting the index")
        responses, blocks = 0, []
        with wacz.member(INDEX, compressed=False) as out:
            offset = 0
            all_lines = _complete(files, ends)
            while lines := list(islice(all_lines, BLOCK_LINES)):
                responses += len(lines)
                packer = zlib.compressobj(9, zlib.DEFLATED, GZIP_BITS)
                data = packer.compress("".join(map(str, lines)).encode("ascii")) + packer.flush()
                out.write(data)
                where = {
                    "offset": offset, "length": len(data),
                    "digest": f"sha256:{hashlib.sha256(data).hexdigest()}",
                    "filename": "index.cdx.gz",
                }  # fmt: skip
                blocks.append(f"{lines[0].key} {lines[0].time} {json.dumps(where)}\n")
                offset += len(data)
        with wacz.member(BLOCKS) as out:
            meta = {"format": "cdxj-gzip-1.0", "filename": "index.cdx.gz"}
            out.write(f"!meta 0 {json.dumps(meta)}\n".encode())
            out.write("".join(blocks).encode("ascii", "replace"))
        pages = 0
        with wacz.member(PAGES) as out:
            head = {"format": "json-pages-1.0", "id": "pages", "title": "All pages"}
            out.write(json.dumps(head).encode() + b"\n")
            for _, of_url in groupby(_complete(files, ends), key=lambda line: line.key):
                # The page of a URL is its newest successful response with HTML.
                newest = None
                for line in of_url:
                    if line.fields["status"] == OK and line.fields["mime"] in HTML:
                        newest = line
                if newest is None:
                    continue
                digest = hashlib.sha256(newest.key.encode()).hexdigest()[:22]
                ts, url = iso_time(line_time(newest)), newest.fields["url"]
                page = {"id": digest, "url": url, "ts": ts, "title": url}
                out.write(json.dumps(page).encode() + b"\n")
                pages += 1
        wacz.finish(title, software)
    return Exported(len(files), responses, pages, to.stat().st_size)


class _Package:
    """A ZIP file that records the checksum of each member."""

    def __init__(self, package: ZipFile, now: datetime) -> None:
        self._package, self._now = package, now
        self._resources: list[dict[str, Any]] = []

    @contextmanager
    def member(self, path: str, *, compressed: bool = True) -> Iterator[_Hashed]:
        """Yield a file to write a member to, and record its size and checksum."""
        info = ZipInfo(path, self._now.timetuple()[:6])
        info.compress_type = ZIP_DEFLATED if compressed else ZIP_STORED
        with self._package.open(info, "w", force_zip64=True) as out:
            hashed = _Hashed(out)
            yield hashed
        name = path.rpartition("/")[2]
        self._resources.append(
            {"name": name.lower(), "path": path, "hash": hashed.digest, "bytes": hashed.size}
        )

    def finish(self, title: str, software: str) -> None:
        """Write the list of all members with their checksums."""
        package = {
            "profile": "data-package", "wacz_version": "1.1.1", "title": title,
            "software": software, "created": iso_time(self._now), "resources": self._resources,
        }  # fmt: skip
        data = json.dumps(package, indent=1).encode()
        with self.member("datapackage.json") as out:
            out.write(data)
        digest = {"path": "datapackage.json", "hash": out.digest}
        with self.member("datapackage-digest.json") as out:
            out.write(json.dumps(digest, indent=1).encode())


class _Hashed:
    """A file that is written to, with its size and checksum."""

    def __init__(self, out: IO[bytes]) -> None:
        self._out, self._hash = out, hashlib.sha256()
        self.size = 0

    @property
    def digest(self) -> str:
        return f"sha256:{self._hash.hexdigest()}"

    def write(self, data: bytes) -> None:
        self._out.write(data)
        self._hash.update(data)
        self.size += len(data)

    def copy(self, path: Path, size: int) -> None:
        """Write the first `size` bytes of a WARC file."""
        with path.open("rb") as file:
            while size > 0:
                if not (data := file.read(min(CHUNK_BYTES, size))):
                    problem = f"{size} bytes shorter than its index states"
                    raise ArchiveError(f"{path}: {problem}. Run scrapy archive verify")
                self.write(data)
                size -= len(data)


def _complete(files: list[WarcFile], ends: dict[WarcFile, int]) -> Iterator[Line]:
    """Yield the lines of all records that are exported, sorted."""
    end_of = {file.name: end for file, end in ends.items()}
    for line in merged(files):
        if int(line.fields["offset"]) < end_of[line.fields["filename"]]:
            yield line
