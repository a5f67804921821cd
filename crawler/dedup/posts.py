"""Posts as they are compared: their text and its normal form, candidates, claims and verdicts."""

from __future__ import annotations

import hashlib
import html
import json
import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cache, cached_property, lru_cache
from itertools import islice
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from crawler.utils.text import INVISIBLE, MAX_CHARACTERS, normalized

if TYPE_CHECKING:
    from crawler.dedup.boilerplate import Sourced
    from crawler.dedup.minhash import CodePoints, Values
    from crawler.dedup.sketch import Scheme, Sketch

# Limits of plausible dates: blogs are younger, and the clocks of sites are wrong by hours, not
# days.
OLDEST = datetime(1995, 1, 1, tzinfo=UTC)
AHEAD = timedelta(hours=1)


@dataclass(frozen=True, eq=False)
class Candidate:
    """A post to be claimed as an original or a copy.

    key:     `_id` of the post
    created: the stated date if it is plausible, else when the post was first seen
    edited:  whether a sketch of an older text may be stored
    item:    number of the item that the post is a source of; sources of one item are not copies
    text:    text to learn boilerplate from and to remove it from; None: keep the sketch as it is
    fences:  fence numbers of the visits that stored the post, by name (crawler/storage/leases.py)
    seen:    when this text of the post was first seen; None: the same as `created`
    source:  number of the post's feed or site
    absent:  last visit of the source that did not show this text; None: it had no visit before
    claimed: time from which the post counts among sources; None: the same as `seen`
    """

    key: str
    created: datetime
    sketch: Sketch
    edited: bool = False
    item: int | None = None
    text: Sourced | None = None
    fences: dict[str, int] = field(default_factory=dict, hash=False)
    seen: datetime | None = None
    source: int = 0
    absent: datetime | None = None
    claimed: datetime | None = None

    @cached_property
    def id(self) -> int:
        """Return the post's number in the index."""
        return id_of(self.key)

    @cached_property
    def bands(self) -> frozenset[int]:
        """Return the keys under which the post is found."""
        return frozenset(self.sketch.repeated_bands().tolist())


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of a claim.

    duplicate_of: `_id` of the original, which is shown instead; None for an original
    similarity:   estimated similarity to the original
    cluster:      cluster of the post; None without duplicates
    """

    duplicate_of: str | None = None
    similarity: float | None = None
    cluster: Any = None

    @property
    def is_original(self) -> bool:
        """Return whether searches show the post."""
        return self.duplicate_of is None


ALONE = Verdict()
Verdicts = dict[str, Verdict]


@dataclass(frozen=True, slots=True)
class Owner:
    """A stored post. cluster: None without duplicates.

    created, seen, source, item, fences, absent, claimed: as in Candidate
    """

    id: int
    post: str
    created: datetime
    sketch: Sketch
    cluster: Any = None
    item: int | None = None
    seen: datetime | None = None
    source: int = 0
    fences: dict[str, int] = field(default_factory=dict, hash=False)
    absent: datetime | None = None
    claimed: datetime | None = None

    def claimed_again(self) -> Candidate:
        """Return the post as a candidate for another claim."""
        return Candidate(
            self.post, self.created, self.sketch, item=self.item, fences=self.fences,
            seen=self.seen, source=self.source, absent=self.absent, claimed=self.claimed,
        )  # fmt: skip


@lru_cache(maxsize=4096)  # needed for each post of a batch, and its source, several times
def id_of(key: str) -> int:
    """Return a 64-bit hash of a post's `_id` or item: indexes of numbers are far smaller.

    Among a hundred million posts, the probability of any collision is 1 in 3,700.
    """
    return int.from_bytes(hashlib.blake2b(key.encode(), digest_size=8).digest(), signed=True)


def created_at(published: datetime | None, first_seen: datetime) -> datetime:
    """Return a post's stated date if it is plausible, else when it was first seen."""
    if published is None or not OLDEST <= published <= first_seen + AHEAD:
        return first_seen
    return min(published, first_seen)


def claimed_at(created: datetime, seen: datetime, absent: datetime | None) -> datetime:
    """Return the time from which a post counts among sources.

    created: as in Candidate
    absent:  last visit of the source that did not show the post; None: it had no visit before

    A stated date cannot be verified, but our visits limit it: a post that the last visit did not
    show is younger than that visit. Without such a visit the date does not count.
    """
    return created if absent is not None and absent < created <= seen else seen


def most_similar(
    sketch: Sketch, owners: Iterable[Owner | Candidate], threshold: float
) -> Owner | Candidate | None:
    """Return the owner most similar to a sketch, the earliest of equals; None below threshold."""
    ranked = [
        (-similarity, owner.created, owner.id, owner)
        for owner in owners
        if (similarity := sketch.similarity(owner.sketch)) >= threshold
    ]
    return min(ranked)[-1] if ranked else None


# Records with fewer words resemble too many others: two items of a shop may differ in one word.
MIN_WORDS = 20
# Distinct words that a post must have to be compared, and words of a field that count for it.
MIN_DISTINCT_WORDS, MIN_FIELD_WORDS = 5, 7
IDEOGRAPH = "[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]"
WORD = re.compile(rf"{IDEOGRAPH}{{2}}|[^\W\d_\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]+")
ORIGIN = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://[^/?#]*")
LINKS = ("http://", "https://", "//", "data:")
# The most frequent replacements of NFKC: Chinese punctuation, typographic marks. Normalizing takes
# ten times as long as everything else, and after these replacements few texts need it.
FREQUENT = {
    mark: normalized("NFKC", mark)
    for mark in "\uff0c\uff1a\uff08\uff09\uff01\uff1b\uff1f\u2026\u00a0\u3000"
}
# Typographic quotes and dashes: sites and their feeds often differ in these, and short or Chinese
# texts would fall below the threshold.
TYPOGRAPHIC = {
    mark: plain
    for plain, marks in (
        ("'", "\u2018\u2019\u201a\u201b"),
        ('"', "\u201c\u201d\u201e\u201f\u00ab\u00bb"),
        ("-", "\u2010\u2011\u2012\u2013\u2014\u2015\u2212"),
    )
    for mark in marks
}
REPLACED = FREQUENT | TYPOGRAPHIC
# Texts of ASCII and Latin-1 in which only the case and white space are not normal.
PLAIN = re.compile("[\x00-\x7f\xa1-\xa7\xa9\xac\xae\xb0\xb1\xb6\xb7\xbf-\xff]*")
# Texts of feeds are often escaped twice. The patterns are narrower than those of `html.unescape`,
# which takes quadratic time for a long number.
ENTITY = re.compile("&(?:#[0-9]{1,7}|#[xX][0-9a-fA-F]{1,6}|[a-zA-Z][a-zA-Z0-9]{1,31});")
# Punctuation that becomes a space; other punctuation is dropped, like the apostrophe of "it's".
SEPARATORS = "-/\\_"
# Dropped except between digits, so that 1.5 and 15 stay different.
IN_NUMBERS = ".,:"
# Scripts whose accents and vowel points are often left out: Latin, Greek, Cyrillic, Hebrew, Arabic.
# In others, such as Thai, Hindi and Japanese, marks are a part of the spelling.
ACCENTED = re.compile("[\xc0-\u06ff\u1ab0-\u1aff\u1dc0-\u1fff\u20d0-\u20ff]")
TATWEEL = "\u0640"
# The first code point after the punctuation of Chinese and Japanese.
END_OF_FOLDED = 0x3040
# Letters that Unicode does not decompose into a letter and a mark, and Arabic ones that are typed
# in place of each other.
LETTERS = str.maketrans(
    "\u0131\u0111\u0142\xf8\u0127\u0649\u06cc\u06a9\u0629", "idloh\u064a\u064a\u0643\u0647"
)


def text_of(
    title: str | None, text: str | None, fields: Mapping[str, Any], names: Sequence[str] | None
) -> str:
    """Return the text by which a post is compared, cut to MAX_CHARACTERS.

    names: fields chosen in the site definition; None: title and main text, or else all fields
    """
    if names is not None:
        chosen = {**fields, "main_text": text}
        return _joined(chosen.get(name) for name in names)
    if text:
        return _joined([title, text[:MAX_CHARACTERS]])
    return _joined(fields.values()) or title or ""


def _joined(values: Iterable[Any]) -> str:
    """Join values, one per line, each cut to the compared length."""
    texts = (_plain(value)[:MAX_CHARACTERS] for value in values)
    return "\n".join(filter(None, texts))[:MAX_CHARACTERS]


def compared(
    scheme: Scheme,
    source: str,
    title: str | None,
    text: str | None,
    fields: Mapping[str, Any],
    names: Sequence[str] | None,
) -> tuple[Sketch | None, Sourced | None]:
    """Return the sketch of a post, and its text to learn and remove boilerplate.

    There is no sketch without text, nor of values that say little. Boilerplate is not removed from
    records, which match only the same records, nor from very long texts.
    """
    if why_not_compared(title, text, fields, names) is not None:
        return None, None
    whole = text_of(title, text, fields, names)
    if is_record(text, names, whole):
        from crawler.dedup.minhash import exactly  # compiled code, loaded with the first text

        return exactly(whole), None
    sketch = scheme.sketch(whole)
    if sketch is None or not scheme.weighs:
        return sketch, None
    from crawler.dedup.boilerplate import sourced  # compiled code, loaded with the first text

    return sketch, sourced(source, whole, title)


def why_not_compared(
    title: str | None, text: str | None, fields: Mapping[str, Any], names: Sequence[str] | None
) -> str | None:
    """Return why a post is not compared with others; None if it is.

    names: fields chosen in the site definition; None: title and main text, or else all fields

    Products with the same price and stock are not duplicates. Numbers, prices, dates and flags say
    little, and so do a few words. All values are compared, but only others show that two posts are
    the same.
    """
    if names == ():
        return "the site definition disables the comparison (duplicates = false)"
    if names is not None:
        chosen = {**fields, "title": title, "main_text": text}
        values: list[Any] = [chosen.get(name, fields.get(name)) for name in names]
    elif text:
        values = [title, text]
    else:
        values = [title, *(value for name, value in fields.items() if name != "title")]
        values[1:] = (value for value in values[1:] if _is_text(value))
    found = set[str]()
    for value in values:
        for word in _words_in(value):
            found.add(word)
            if len(found) >= MIN_DISTINCT_WORDS:
                return None
    return (
        f"it has too few words to compare, {len(found)} of {MIN_DISTINCT_WORDS}. Numbers, prices, "
        f"dates, and fields of fewer than {MIN_FIELD_WORDS} words do not count"
    )


def _is_text(value: Any) -> bool:
    """Return whether a field has enough words to say more than a flag such as `In stock`."""
    return len(list(islice(_words_in(value), MIN_FIELD_WORDS))) == MIN_FIELD_WORDS


def _words_in(value: Any) -> Iterator[str]:
    """Yield the words of texts in a value, without numbers; two ideographs count as one word."""
    if isinstance(value, str) and not value.startswith(LINKS):
        for match in WORD.finditer(value[:MAX_CHARACTERS]):
            yield match[0].casefold()
    elif isinstance(value, Sequence) and not isinstance(value, str):
        for each in value:
            yield from _words_in(each)


def source_of(spider: str, url: str, *, is_feed: bool) -> str:
    """Return the source whose boilerplate a text may contain: a feed, or a host.

    Each spider has its own sources, as spiders extract different parts of a page.
    """
    if is_feed:
        return f"{spider} {url}"
    # urlsplit caches its results: all pages of a site have one origin.
    origin = ORIGIN.match(url)
    return f"{spider} {urlsplit(origin[0] if origin else url).netloc}"


def is_record(text: str | None, names: Sequence[str] | None, compared: str) -> bool:
    """Return whether a post's fields have so few words that only exact matches count."""
    # Split only as much as needed: a string takes about 60 bytes per word.
    return not text and names is None and len(compared.split(None, MIN_WORDS)) < MIN_WORDS


def _plain(value: Any) -> str:
    """Return a field's value as text, without links."""
    if value is None or isinstance(value, bool):
        return ""
    if isinstance(value, str):
        return "" if value.startswith(LINKS) else value
    if isinstance(value, Mapping):
        return json.dumps(value, ensure_ascii=False, default=str)
    if isinstance(value, Sequence):
        return " ".join(filter(None, map(_plain, value)))
    return str(value)


def normal_text(text: str) -> str:
    """Normalize a text: NFKC, case folded, plain quotes and dashes, nothing invisible.

    White space becomes single spaces. Reads and returns at most MAX_CHARACTERS.
    """
    text = text[:MAX_CHARACTERS]
    if text.isascii():
        return " ".join(text.lower().split())
    if PLAIN.fullmatch(text):
        return " ".join(text.casefold().split())
    for mark, plain in REPLACED.items():
        text = text.replace(mark, plain)
    text = INVISIBLE.sub("", normalized("NFKC", text, MAX_CHARACTERS))
    folded = normalized("NFKC", text.casefold(), MAX_CHARACTERS)
    return " ".join(folded.split())


@lru_cache(maxsize=2)  # called twice for each text: for its sketch, and for its boilerplate
def compared_points(text: str) -> CodePoints:
    """Return the (n,) code points by which a text is compared: its normal text, folded.

    Character references of HTML are replaced. Accents, vowel points and most punctuation are
    dropped, and spaces in Chinese and Japanese: copies often differ in these. A text of nothing
    but punctuation is not folded.
    """
    from crawler.dedup.minhash import folded  # compiled code, loaded with the first text

    text = text[:MAX_CHARACTERS]
    if "&" in text:
        text = ENTITY.sub(lambda match: html.unescape(match[0]), text)
    points = code_points(normal_text(text))
    result = folded(points, _letters())
    if not result.size:
        return points
    result = result.copy()
    result.setflags(write=False)
    return result


@cache
def _letters() -> Values:
    """Return the table of `folded`."""
    import numpy as np

    from crawler.dedup import minhash

    table = np.arange(END_OF_FOLDED, dtype=np.uint32)
    for code in range(END_OF_FOLDED):
        character = chr(code)
        category = unicodedata.category(character)
        if character in SEPARATORS:
            table[code] = minhash.SPACE
        elif character in IN_NUMBERS:
            table[code] = minhash.BETWEEN_DIGITS
        elif category.startswith("P") or character == TATWEEL:
            table[code] = minhash.DROP
        elif category == "Nd":
            table[code] = ord("0") + unicodedata.digit(character)
        elif ACCENTED.match(character):
            letter = normalized("NFD", character)[0].translate(LETTERS)
            table[code] = minhash.DROP if category == "Mn" else ord(letter)
    return table


def code_points(text: str) -> CodePoints:
    """Return the (n,) code points of a text, including lone surrogates."""
    import numpy as np

    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype=np.uint32)
