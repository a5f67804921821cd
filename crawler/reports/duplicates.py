"""Reports on near-duplicates: measured precision, labels of pairs, and texts side by side."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from typing_extensions import TypedDict

from crawler.config import Config
from crawler.reports.comparison import GAP, SAME, DiffRow, Span
from crawler.storage.client import Database
from crawler.storage.dedup import labels, queries
from crawler.storage.dedup.labels import Label
from crawler.storage.dedup.queries import Cluster


class Piece(TypedDict):
    """A part of a sentence."""

    text: str
    """The text."""
    shared: bool
    """Whether both sides have it."""


class PairRow(TypedDict):
    """A row of two texts side by side."""

    left: list[Piece]
    """Sentence of the first text; empty if only the second text has it."""
    right: list[Piece]
    """Sentence of the second text; empty if only the first text has it."""
    left_out: int
    """Number of equal sentences that this row leaves out."""


async def put_label(
    db: Database, config: Config, posts: tuple[str, str], now: datetime, *, same: bool, by: str
) -> Label:
    """Label two posts by their ids, and apply the label to the stored clusters.

    Raises ConfigError for posts that are not stored, and Busy during a rebuild.
    """
    # Slow: these load the compiled kernels.
    from crawler.storage.dedup.index import as_stored
    from crawler.storage.dedup.labels import label

    async with as_stored(db, config) as registry:
        return await label(db, registry, posts, now, same=same, by=by)


async def labels_of(db: Database, cluster: Cluster) -> dict[str, Label]:
    """Return the labels of a cluster's original and each of its shown copies, by copy."""
    copies = [member["id"] for member in cluster["members"]]
    return await labels.with_post(db, cluster["original"]["id"], copies)


async def compared_by(db: Database, config: Config) -> str:
    """Return the name of the scheme by which the stored posts are compared."""
    return (await queries.stored_scheme(db, config)).name


def side_by_side(diff: Sequence[DiffRow]) -> list[PairRow]:
    """Return the rows of a comparison with the shared parts of both sides."""
    return [
        {
            "left": _pieces(row["left"], row["left_spans"], row),
            "right": _pieces(row["right"], row["right_spans"], row),
            "left_out": row["left_out"] if row["mark"] == GAP else 0,
        }
        for row in diff
    ]


def _pieces(text: str, differing: Sequence[Span], row: DiffRow) -> list[Piece]:
    """Split a sentence at the ends of the parts that only this side has."""
    if not text:
        return []
    if row["mark"] == SAME:
        return [{"text": text, "shared": True}]
    if not (row["left"] and row["right"]):
        return [{"text": text, "shared": False}]
    pieces: list[Piece] = []
    at = 0
    for start, stop in differing:
        pieces += [
            {"text": text[at:start], "shared": True},
            {"text": text[start:stop], "shared": False},
        ]
        at = stop
    pieces.append({"text": text[at:], "shared": True})
    return [piece for piece in pieces if piece["text"]]
