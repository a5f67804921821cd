"""The blog's posts: about 120 at the start, then one or two a day; some are edited later."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from random import Random

from tests.site.weekly_profile import HORIZON_WEEKS
from tests.site.words import article, slug, title

TAGS = ("rivers", "tools", "walks", "weather", "repairs", "letters", "maps", "gardens")
OLD_POSTS = 120


@dataclass(frozen=True)
class Post:
    """A blog post; `edits` are the times at which a note is added to its end, oldest first."""

    number: int
    title: str
    slug: str
    published: datetime
    tags: tuple[str, ...]
    paragraphs: tuple[str, ...]
    notes: tuple[str, ...]
    edits: tuple[datetime, ...]

    @property
    def path(self) -> str:
        """The post's URL path."""
        return f"/blog/{self.published:%Y/%m}/{self.slug}.html"

    def times(self) -> list[datetime]:
        """Return the times at which the page changes: its publication and each edit."""
        return [self.published, *self.edits]

    def body(self, now: datetime) -> list[str]:
        """Return the paragraphs at `now`, with the notes added so far."""
        added = sum(1 for edit in self.edits if edit <= now)
        return [*self.paragraphs, *self.notes[:added]]


def make_posts(seed: int, start: datetime) -> tuple[Post, ...]:
    """Return all posts up to 12 weeks after `start`, newest first."""
    dates = _dates(Random(f"{seed}/blog"), start)
    posts = [_make_post(f"{seed}/post/{n}", n, at) for n, at in enumerate(dates, start=1)]
    return tuple(sorted(posts, key=lambda post: post.published, reverse=True))


def _dates(random: Random, start: datetime) -> list[datetime]:
    days = [start - timedelta(days=n) for n in range(1, OLD_POSTS + 1)]
    for n in range(HORIZON_WEEKS * 7):
        days += [start + timedelta(days=n)] * random.randint(1, 2)
    # Two posts on the same day get different seconds: the first is odd, the second is even.
    return sorted(
        day + timedelta(hours=random.randint(8, 17), seconds=random.randrange(0, 3600, 2) + n % 2)
        for n, day in enumerate(days)
    )


def _make_post(seed: str, number: int, published: datetime) -> Post:
    random = Random(seed)
    heading = title(random)
    edits = _edits(random, published)
    return Post(
        number=number,
        title=heading,
        slug=f"{slug(heading)}-{number}",
        published=published,
        tags=tuple(random.sample(TAGS, random.randint(1, 3))),
        paragraphs=tuple(article(random, random.randint(100, 330))),
        notes=tuple(f"Note {n}: {article(random, 8)[0]}" for n in range(1, len(edits) + 1)),
        edits=edits,
    )


def _edits(random: Random, published: datetime) -> tuple[datetime, ...]:
    count = random.choices((0, 1, 2), weights=(75, 18, 7))[0]
    gaps = (random.randint(600, 20 * 86400) for _ in range(count))
    return tuple(sorted({published + timedelta(seconds=gap) for gap in gaps}))
