"""What comes of a batch of posts that are claimed, whoever keeps the claims."""

from __future__ import annotations

from dataclasses import dataclass, field

from bson import ObjectId

from crawler.dedup.model import Candidate
from crawler.storage.client import Document

Member = tuple[Candidate, ObjectId]


@dataclass(frozen=True, slots=True)
class Claimed:
    """The posts of a batch. All are stored but the lost.

    alone:    originals without a cluster
    founders: originals whose cluster has a document only if a copy came meanwhile
    members:  copies, with their clusters
    known:    posts that were stored before, with their documents
    lost:     posts whose owner, or whose own document, went away meanwhile
    """

    alone: list[Candidate] = field(default_factory=list)
    founders: list[Member] = field(default_factory=list)
    members: list[Member] = field(default_factory=list)
    known: list[tuple[Candidate, Document]] = field(default_factory=list)
    lost: list[Candidate] = field(default_factory=list)
