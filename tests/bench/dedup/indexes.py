"""The methods of the experiment: the keys by which posts are compared, and the indexes."""

from __future__ import annotations

import asyncio
import tracemalloc
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import numpy as np

from crawler.dedup.minhash import (
    as_datasketch,
    by_characters,
    by_supershingles,
    by_words,
    hashes_of,
    values_of,
)
from crawler.dedup.points import Keys
from crawler.dedup.schemes import scheme_of
from crawler.dedup.sketch import (
    CHARACTERS_SHAPE,
    PAIRS,
    SUPERSHINGLES,
    VALUES,
    WORDS_SHAPE,
    Shape,
    Sketch,
)
from crawler.dedup.text import compared_points
from crawler.storage.client import Database, Document
from tests.bench.dedup.layouts import (
    LAYOUTS,
    Bands,
    Collection,
    Found,
    create_indexes,
    fill,
    index_bytes,
    scratch,
)

# The key by which a post is compared, as bytes; None if the post is too short.
Key = bytes | None
Tell = Callable[[str], None]
NOTHING = Found([], 0, 0)
AT_ONCE = 1000
WEIGHED = 10_000
# Default of the product's setting.
THRESHOLD = 0.7
FEATURES = "features"


class Index(Protocol):
    """An index in which a method looks up posts, by their numbers."""

    async def find(self, key: bytes) -> Found:
        """Return the duplicates of a text with this key."""
        ...

    async def size(self) -> int:
        """Return the size of the index in bytes."""
        ...


class Stored(Index, Protocol):
    """An index in MongoDB."""

    @property
    def layout(self) -> Any:
        """Return the layout; its `indexes()` are created after all documents are stored."""
        ...

    def documents(self, keys: Sequence[Key]) -> Iterator[Document]:
        """Yield the documents of all posts one by one, to save memory."""
        ...


Opened = AbstractAsyncContextManager[Index]


class OfFeatures:
    """An index with one of the paper's layouts."""

    def __init__(self, name: str, collection: Collection) -> None:
        self.layout = LAYOUTS[name](collection, [(int(i), int(j)) for i, j in PAIRS])

    def documents(self, keys: Sequence[Key]) -> Iterator[Document]:
        """Yield the documents of all posts that have features."""
        for post, key in enumerate(keys):
            if features := features_in(key):
                yield self.layout.document(post, features)

    async def find(self, key: bytes) -> Found:
        """Search by the paper's layout."""
        features = features_in(key)
        return await self.layout.find(features) if features else NOTHING

    async def size(self) -> int:
        """Return the bytes of the indexes."""
        return await index_bytes(self.layout.collection)


def features_in(key: Key) -> list[int]:
    """Return the six features of a sketch; none if the text is shorter than a shingle."""
    part = Sketch.decode(key).parts.get(SUPERSHINGLES) if key else None
    features: list[int] = [] if part is None else np.frombuffer(part.tobytes(), np.int64).tolist()
    return features


class OfBands:
    """Freshet's own lookup, with verification."""

    def __init__(self, threshold: float, collection: Collection) -> None:
        self.threshold = threshold
        self.layout = Bands(collection)

    def documents(self, keys: Sequence[Key]) -> Iterator[Document]:
        """Yield each post with the bands that no earlier post has."""
        sketched = [(post, key) for post, key in enumerate(keys) if key]
        owned = first_owned([Sketch.decode(key).bands for _, key in sketched])
        for (post, key), bands in zip(sketched, owned, strict=True):
            yield self.layout.document(post, bands.tolist(), key)

    async def find(self, key: bytes) -> Found:
        """Return the most similar post, if it is similar enough."""
        sketch = Sketch.decode(key)
        bands = sketch.bands.tolist()
        owners = await self.layout.owners(bands)
        alike = [(sketch.similarity(Sketch.decode(stored)), -post) for post, stored in owners]
        similarity, post = max(alike, default=(0.0, 0))
        posts = [-post] if alike and similarity >= self.threshold else []
        return Found(posts, len(bands), len(owners))

    async def size(self) -> int:
        """Return the bytes of the index."""
        return await index_bytes(self.layout.collection)


def first_owned(bands: Sequence[Keys]) -> list[Keys]:
    """Return for each post its bands that no earlier post has."""
    if not bands:
        return []
    every = np.concatenate(bands)
    owned = np.zeros(every.size, dtype=np.bool_)
    owned[np.unique(every, return_index=True)[1]] = True
    ends = np.cumsum([one.size for one in bands])[:-1]
    return [one[mine] for one, mine in zip(bands, np.split(owned, ends), strict=True)]


class InMemory:
    """datasketch's LSH: candidates without verification."""

    def __init__(self, threshold: float, keys: Sequence[Key]) -> None:
        from datasketch import MinHashLSH  # slow to import

        self.lsh = MinHashLSH(threshold=threshold, num_perm=VALUES)
        self._threshold, self._keys = threshold, keys
        # Reused for all texts: creating an object takes as long as a search.
        self._minhash = as_datasketch(np.zeros(VALUES, np.uint32))

    async def fill(self, tell: Tell) -> None:
        """Insert all posts."""
        for post, key in enumerate(self._keys):
            if post % AT_ONCE == 0:
                tell(f"{post:,}")
                await asyncio.sleep(0)  # allows an interruption
            if key:
                self.lsh.insert(post, self._of(key), check_duplication=False)

    async def find(self, key: bytes) -> Found:
        """Return all candidates."""
        posts = [int(post) for post in self.lsh.query(self._of(key))]
        return Found(posts, self.lsh.b, len(posts))

    async def size(self) -> int:
        """Return the bytes of memory, extrapolated from an index of the first posts."""
        sample = InMemory(self._threshold, self._keys[:WEIGHED])
        tracemalloc.start()
        try:
            await sample.fill(lambda done: None)
            taken, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        return taken * len(self._keys) // max(1, len(sample._keys))

    def _of(self, key: bytes) -> Any:
        self._minhash.hashvalues = np.frombuffer(key, np.uint32)
        return self._minhash


@asynccontextmanager
async def in_mongodb(
    make: Callable[[Collection], Stored], name: str, db: Database, keys: Sequence[Key], tell: Tell
) -> AsyncIterator[Index]:
    """Open an index in a scratch collection: store all documents, then create the indexes."""
    async with scratch(db, name) as collection:
        index = make(collection)
        async for done in fill(collection, index.documents(keys)):
            tell(f"{done:,}")
        tell("and creating the indexes of")
        await create_indexes(collection, index.layout.indexes())
        yield index


@asynccontextmanager
async def in_memory(
    threshold: float, db: Database, keys: Sequence[Key], tell: Tell
) -> AsyncIterator[Index]:
    """Open datasketch's index, which does not use the database."""
    index = InMemory(threshold, keys)
    await index.fill(tell)
    yield index


@dataclass(frozen=True, slots=True)
class Method:
    """A rule that defines duplicates, and an index to find them.

    opened: context manager for an index of posts with these keys
    """

    rule: str
    opened: Callable[[Database, Sequence[Key], Tell], Opened]


def _sketched(sketch: Callable[[str], Sketch | None], text: str) -> Key:
    made = sketch(text)
    return made.encode() if made else None


def _signed(shape: Shape, text: str) -> Key:
    hashes = hashes_of(compared_points(text), shape)
    return None if hashes is None else values_of(hashes).tobytes()


def _paper(name: str) -> Method:
    return Method(FEATURES, partial(in_mongodb, partial(OfFeatures, name), name))


def _freshet(name: str, rule: str) -> Method:
    threshold = scheme_of(name, THRESHOLD).threshold
    return Method(rule, partial(in_mongodb, partial(OfBands, threshold), name))


RULES: dict[str, Callable[[str], Key]] = {
    FEATURES: partial(_sketched, by_supershingles),
    "characters": partial(_sketched, by_characters),
    "words": partial(_sketched, by_words),
    "LSH words": partial(_signed, WORDS_SHAPE),
    "LSH characters": partial(_signed, CHARACTERS_SHAPE),
}
METHODS = {
    "B6D1": _paper("B6D1"),
    "R15D2": _paper("R15D2"),
    "R1D3": _paper("R1D3"),
    "supershingles": _freshet("supershingles", FEATURES),
    "characters": _freshet("characters", "characters"),
    "words": _freshet("words", "words"),
    "datasketch-words": Method("LSH words", partial(in_memory, 0.8)),
    "datasketch-chars": Method("LSH characters", partial(in_memory, 0.7)),
}
