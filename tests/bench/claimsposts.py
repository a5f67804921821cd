"""Generated posts for `make bench ARGS=--claims`, in files, so that all indexes get the same posts.

A text has 60 to 200 words of a made-up vocabulary; every tenth is a copy of one of the latest
10,000 posts with 1 to 5 words replaced.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.lib.format import open_memmap

from crawler.dedup.minhash import as_datasketch, by_characters, hashes_of, values_of
from crawler.dedup.sketch import CHARACTERS_SHAPE, VALUES
from crawler.dedup.text import compared_points, normal_text

if TYPE_CHECKING:
    from datasketch import MinHash

VOCABULARY, WORDS, LETTERS = 50_000, (60, 200), (3, 12)
COPIES, RECENT, EDITS = 0.1, 10_000, (1, 5)
BLOCK = 5000
SAMPLE = 500
Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class Made:
    """A post. number: its position, which is also its ID where short IDs are used."""

    number: int
    text: str
    sketch: bytes
    is_copy: bool


class Posts:
    """The posts in a folder, in order."""

    def __init__(self, folder: Path) -> None:
        self._texts = (folder / "texts").open()
        self._sketches = np.load(folder / "sketches.npy", mmap_mode="r")
        self._values = np.load(folder / "values.npy", mmap_mode="r")
        self._copies = np.load(folder / "copies.npy")
        self._pattern = as_datasketch(np.array(self._values[0]))
        self._next = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._texts.close()

    def until(self, stop: int, size: int) -> Iterator[list[Made]]:
        """Yield batches of `size` posts, from the end of the last call to number `stop`."""
        while self._next < stop:
            numbers = range(self._next, min(self._next + size, stop))
            self._next = numbers.stop
            yield [self._made(i, self._texts.readline()) for i in numbers]

    def _made(self, i: int, line: str) -> Made:
        return Made(i, line.rstrip("\n"), self._sketches[i].tobytes(), bool(self._copies[i]))

    def minhash(self, number: int) -> MinHash:
        """Return the post's signature in datasketch's format."""
        made = self._pattern.copy()  # Drawing permutations takes as long as an insert.
        made.hashvalues = np.array(self._values[number])
        return made


def write(folder: Path, count: int) -> None:
    """Write `count` generated posts."""
    size = len(_sketch("word " * WORDS[0]))
    sketches = open_memmap(folder / "sketches.npy", "w+", np.uint8, (count, size))
    values = open_memmap(folder / "values.npy", "w+", np.uint32, (count, VALUES))
    copies = np.zeros(count, bool)
    with (folder / "texts").open("w") as texts:
        for i, (text, is_copy) in enumerate(texts_of(count)):
            texts.write(text + "\n")
            sketches[i] = np.frombuffer(_sketch(text), np.uint8)
            values[i] = _values(text)
            copies[i] = is_copy
    np.save(folder / "copies.npy", copies)


def _sketch(text: str) -> bytes:
    sketch = by_characters(text)
    assert sketch is not None
    return sketch.encode()


def _values(text: str) -> Array:
    hashes = hashes_of(compared_points(text), CHARACTERS_SHAPE)
    assert hashes is not None
    return values_of(hashes)


def texts_of(count: int) -> Iterator[tuple[str, bool]]:
    """Yield the text of each post, and whether it is a copy."""
    rng = np.random.default_rng(1)
    vocabulary = _vocabulary(rng)
    recent: list[Array] = []
    for start in range(0, count, BLOCK):
        for i, own in enumerate(_word_numbers(rng, min(BLOCK, count - start)), start):
            is_copy = bool(recent) and rng.random() < COPIES
            words = _edited(rng, recent[rng.integers(len(recent))]) if is_copy else own
            if len(recent) < RECENT:
                recent.append(words)
            else:
                recent[i % RECENT] = words
            yield " ".join(vocabulary[words].tolist()), is_copy


def _vocabulary(rng: np.random.Generator) -> Array:
    letters = np.array(list("aeiou" * 3 + "bcdfghjklmnpqrstvwxyz"))
    lengths = rng.integers(LETTERS[0], LETTERS[1] + 1, VOCABULARY)
    made = ["".join(rng.choice(letters, length)) for length in lengths]
    return np.array(made, dtype=object)


def _word_numbers(rng: np.random.Generator, posts: int) -> list[Array]:
    lengths = rng.integers(WORDS[0], WORDS[1] + 1, posts)
    words = rng.integers(0, VOCABULARY, lengths.sum())
    return np.split(words, np.cumsum(lengths)[:-1])


def _edited(rng: np.random.Generator, words: Array) -> Array:
    edited = words.copy()
    count = rng.integers(EDITS[0], EDITS[1] + 1)
    edited[rng.integers(0, len(words), count)] = rng.integers(0, VOCABULARY, count)
    return edited


def sketching() -> dict[str, float]:
    """Return the number of texts per second that each method sketches, for a sample."""
    texts = [text for text, _ in texts_of(SAMPLE)]
    ways: dict[str, Callable[[str], object]] = {
        "Freshet's kernel": by_characters,
        "datasketch's update": _updated,
        "datasketch's update_batch": _updated_at_once,
    }
    return {name: SAMPLE / _seconds(way, texts) for name, way in ways.items()}


def _seconds(way: Callable[[str], object], texts: list[str]) -> float:
    way(texts[0])
    began = time.perf_counter()
    for text in texts:
        way(text)
    return time.perf_counter() - began


def _shingles(text: str) -> list[bytes]:
    normal = normal_text(text)
    return [normal[i : i + 5].encode() for i in range(len(normal) - 4)]


def _updated(text: str) -> MinHash:
    from datasketch import MinHash

    made = MinHash(VALUES)
    for shingle in _shingles(text):
        made.update(shingle)
    return made


def _updated_at_once(text: str) -> MinHash:
    from datasketch import MinHash

    made = MinHash(VALUES)
    made.update_batch(_shingles(text))
    return made
