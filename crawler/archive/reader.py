"""Read archived responses, and check files."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path

from crawler.archive.files import DAMAGE, files_of, indexed, merged
from crawler.archive.records import REVISIT_TYPE, Line
from crawler.errors import ArchiveError


@dataclass(frozen=True, slots=True)
class Stored:
    """A response as it came.

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

    Memory depends on the number of responses in one file, which is limited, and of one URL.
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
            # A run has deleted it, as the archive exceeded its limit.
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
