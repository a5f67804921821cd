"""Texts of made-up words, of any length and reproducible by seed."""

from __future__ import annotations

from itertools import accumulate
from random import Random

MADE = Random("words")
SYLLABLES = [consonant + vowel for consonant in "bdfgklmnprstvz" for vowel in "aeiou"]
WORDS = ["".join(MADE.choices(SYLLABLES, k=MADE.choice((1, 2, 2, 3, 3, 4)))) for _ in range(2000)]
# A few thousand characters account for nearly all of a Chinese text.
HAN = MADE.sample([chr(0x4E00 + n) for n in range(20_000)], 2500)
# As in every language, a few units account for much of the text.
WORD_WEIGHTS, HAN_WEIGHTS = (
    list(accumulate(1 / (rank + 10) for rank in range(len(units)))) for units in (WORDS, HAN)
)


class Writer:
    """Generate texts that are all different."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)

    def words(self, count: int) -> list[str]:
        """Return `count` words."""
        return self.random.choices(WORDS, cum_weights=WORD_WEIGHTS, k=count)

    def text(self, count: int) -> str:
        """Return sentences with `count` words in total."""
        words, sentences, at = self.words(count), [], 0
        while at < count:
            length = self.random.randint(6, 16)
            sentences.append(" ".join(words[at : at + length]).capitalize() + ".")
            at += length
        return " ".join(sentences)

    def title(self) -> str:
        """Return a title of a few words."""
        return " ".join(self.words(self.random.randint(3, 8))).capitalize()

    def chinese(self, count: int) -> str:
        """Return `count` Chinese characters, without punctuation."""
        return "".join(self.random.choices(HAN, cum_weights=HAN_WEIGHTS, k=count))
