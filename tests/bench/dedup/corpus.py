"""The posts of the experiment, in a fixed order, and copies of them with changed words.

Posts are read from a file or generated. A word is a string between whitespace characters; in
Chinese, Japanese and Korean it is two characters.
"""

from __future__ import annotations

import gzip
import lzma
import re
import zlib
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from random import Random
from typing import IO, Protocol, cast

import numpy as np

from crawler.cli.duplicates_check import Bad, Line, parse_line
from crawler.errors import ConfigError

GZIP, XZ = b"\x1f\x8b", b"\xfd7zXZ\x00"
BROKEN = (EOFError, zlib.error, gzip.BadGzipFile, lzma.LZMAError)
SHOWN_PROBLEMS = 5
# Generated posts: their lengths in words, the vocabulary size, and the syllables per word.
SHORTEST, LONGEST = 10, 800
VOCABULARY, SHORTEST_WORD, LONGEST_WORD = 50_000, 1, 4
SYLLABLES = [consonant + vowel for consonant in "bdfgklmnprstvz" for vowel in "aeiou"]
IDEOGRAPHS = "\u3040-\u312f\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff"
IDEOGRAPHS += "\U00020000-\U0003ffff"
WORD = re.compile(rf"[{IDEOGRAPHS}]{{1,2}}|[^\s{IDEOGRAPHS}]+")
IDEOGRAPH = re.compile(f"[{IDEOGRAPHS}]")
REPLACE, INSERT, DELETE = "replace", "insert", "delete"
KINDS = {REPLACE: (REPLACE,), "all": (REPLACE, INSERT, DELETE)}


class Corpus(Protocol):
    """Texts in a fixed order.

    skipped: number of lines without a post, in the last reading
    problems: messages about the first of these lines
    """

    name: str
    synthetic: bool
    skipped: int
    problems: list[str]

    def texts(self) -> Iterator[str]:
        """Yield each text, starting with number 0."""
        ...

    def texts_of(self, numbers: Collection[int]) -> dict[int, str]:
        """Return the texts with these numbers."""
        ...


class File:
    """Posts of a file: {id, text} as JSON on each line; plain, gzip or xz. most: None for all."""

    synthetic = False

    def __init__(self, path: Path, most: int | None) -> None:
        self.path, self.most = path, most
        self.name = str(path)
        self.skipped = 0
        self.problems: list[str] = []

    def texts(self) -> Iterator[str]:
        """Yield at most `most` texts; raise ConfigError if the file cannot be read."""
        self.skipped, self.problems = 0, []
        return islice(self._posts(), self.most)

    def texts_of(self, numbers: Collection[int]) -> dict[int, str]:
        """Return the texts with these numbers; reads the file again."""
        wanted = set(numbers)
        upto = islice(self.texts(), max(wanted, default=-1) + 1)
        return {number: text for number, text in enumerate(upto) if number in wanted}

    def _posts(self) -> Iterator[str]:
        with _explained(self.path), _opened(self.path) as lines:
            for number, line in enumerate(lines, 1):
                if not line.strip():
                    continue
                parsed = parse_line(line, number)
                if isinstance(parsed, Line) and parsed.text.strip():
                    yield parsed.text
                else:
                    self._note(
                        number, parsed.problem if isinstance(parsed, Bad) else "text is empty"
                    )

    def _note(self, number: int, problem: str) -> None:
        self.skipped += 1
        if self.skipped <= SHOWN_PROBLEMS:
            self.problems.append(f"{self.path}, line {number}: {problem}; skipped")


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    try:
        yield
    except BROKEN:
        raise ConfigError(f"{path}: broken data (fetch or write the file again)") from None
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or error}") from None


@contextmanager
def _opened(path: Path) -> Iterator[IO[bytes]]:
    with path.open("rb") as raw:
        start = raw.peek(len(XZ))
        if start.startswith(GZIP):
            with gzip.open(raw) as data:
                yield cast(IO[bytes], data)
        elif start.startswith(XZ):
            with lzma.open(raw) as data:
                yield data
        else:
            yield raw


class Synthetic:
    """Generated posts: words by Zipf's law, 10 to 800 words, short posts as common as long ones."""

    synthetic = True
    name = "synthetic posts"
    skipped = 0

    def __init__(self, count: int, seed: int) -> None:
        self.problems: list[str] = []
        self.count, self.seed = count, seed
        random = np.random.default_rng(seed)
        self._words = np.array(_made_words(random), dtype=object)
        shares = 1 / np.arange(1, VOCABULARY + 1)
        self._upto = np.cumsum(shares / shares.sum())

    def texts(self) -> Iterator[str]:
        """Yield all texts; the same seed generates the same posts."""
        return map(self._text, range(self.count))

    def texts_of(self, numbers: Collection[int]) -> dict[int, str]:
        """Return the texts with these numbers."""
        return {number: self._text(number) for number in numbers}

    def _text(self, number: int) -> str:
        random = np.random.default_rng((self.seed, number))
        length = int(np.exp(random.uniform(np.log(SHORTEST), np.log(LONGEST + 1))))
        ranks = np.searchsorted(self._upto, random.random(length))
        return " ".join(self._words[np.minimum(ranks, VOCABULARY - 1)].tolist())


def _made_words(random: np.random.Generator) -> list[str]:
    """Generate words of one or more syllables, such as `ba` or `tukamo`."""
    each = random.integers(SHORTEST_WORD, LONGEST_WORD + 1, VOCABULARY)
    drawn = random.integers(len(SYLLABLES), size=each.sum())
    made = iter([SYLLABLES[syllable] for syllable in drawn])
    return ["".join(islice(made, count)) for count in each]


def words_of(text: str) -> list[str]:
    """Return the words of a text."""
    return WORD.findall(text)


def is_cjk(text: str) -> bool:
    """Return whether more than half of the characters other than whitespace are ideographs."""
    written = len(text) - sum(map(str.isspace, text))
    return 2 * len(IDEOGRAPH.findall(text)) > written


def edited(
    text: str, edits: int, kinds: Sequence[str], others: Sequence[str], random: Random
) -> str:
    """Return the text with `edits` of its words changed, or all words of a shorter text.

    kinds:  kinds of changes to choose from for each word
    others: replacement words; a word is never replaced by itself
    """
    places = [match.span() for match in WORD.finditer(text)]
    chosen = random.sample(places, min(edits, len(places)))
    for start, end in sorted(chosen, reverse=True):
        word = text[start:end]
        text = text[:start] + _changed(word, random.choice(kinds), others, random) + text[end:]
    return text


def _changed(word: str, kind: str, others: Sequence[str], random: Random) -> str:
    if kind == DELETE:
        return ""
    new = _another(word, others, random)
    if kind == REPLACE:
        return new
    return word + ("" if IDEOGRAPH.match(word) else " ") + new


def _another(word: str, others: Sequence[str], random: Random) -> str:
    """Return a different word, of the same script if a few attempts find one."""
    script = bool(IDEOGRAPH.match(word))
    tries = (random.choice(others) for _ in range(100)) if others else ()
    fitting = (one for one in tries if one != word and bool(IDEOGRAPH.match(one)) == script)
    return next(fitting, word + word)
