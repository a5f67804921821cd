"""Made-up English text; the same random generator gives the same text."""

from __future__ import annotations

import re
from random import Random

ADJECTIVES = (
    "plain", "quiet", "narrow", "mossy", "copper", "early", "patient", "crooked", "pale",
    "sturdy", "woollen", "shallow", "bright", "tidal", "folded", "northern", "speckled",
    "hollow", "gentle", "amber", "rough", "slender", "damp", "silver", "borrowed", "weathered",
)  # fmt: skip
NOUNS = (
    "stream", "ladder", "kettle", "orchard", "harbour", "lantern", "meadow", "bridge", "pebble",
    "window", "basket", "heron", "mill", "sluice", "ferry", "thicket", "towpath", "weir",
    "garden", "chimney", "barrow", "willow", "cellar", "notebook", "compass", "reservoir",
)  # fmt: skip
VERBS = (
    "crosses", "follows", "shelters", "carries", "borders", "outlasts", "mirrors", "feeds",
    "steadies", "reaches", "hides", "colours", "joins", "passes", "warms", "leans on",
)  # fmt: skip
OPENINGS = (
    "In spring", "By evening", "After the thaw", "Most years", "On market days", "At low water",
    "For a week or two", "Without much noise", "As a rule", "Once the rain stops",
)  # fmt: skip
ENDINGS = (
    "before the frost comes", "as it always has", "and nobody minds", "until the gates open",
    "when the wind turns", "for the rest of the day", "and the work goes on",
    "while the boats wait", "so the path stays dry",
)  # fmt: skip


def sentence(random: Random) -> str:
    """Return a sentence of about 10 to 20 words."""
    first = f"the {random.choice(ADJECTIVES)} {random.choice(NOUNS)} {random.choice(VERBS)}"
    second = f"the {random.choice(ADJECTIVES)} {random.choice(NOUNS)}"
    text = f"{first} {second}"
    if random.random() < 0.6:
        text = f"{random.choice(OPENINGS)} {text}"
    if random.random() < 0.6:
        text = f"{text} {random.choice(ENDINGS)}"
    return text[0].upper() + text[1:] + "."


def paragraph(random: Random, sentences: int) -> str:
    """Return `sentences` sentences, joined with spaces."""
    return " ".join(sentence(random) for _ in range(sentences))


def article(random: Random, least_words: int) -> list[str]:
    """Return paragraphs with at least `least_words` words in total (and few more)."""
    paragraphs: list[str] = []
    words = 0
    while words < least_words:
        text = paragraph(random, random.randint(2, 5))
        words += len(text.split())
        paragraphs.append(text)
    return paragraphs


def title(random: Random) -> str:
    """Return a headline such as "Amber ferry, hollow mill"."""
    parts = [f"{random.choice(ADJECTIVES)} {random.choice(NOUNS)}" for _ in range(2)]
    return ", ".join(parts).capitalize()


def slug(text: str) -> str:
    """Return the text as lower-case words joined with hyphens, for use in a URL."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
