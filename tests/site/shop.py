"""The shop's items and their history: they appear, change price and stock, and disappear."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cached_property
from random import Random

from tests.site.weekly_profile import HORIZON_WEEKS, change_times, moment
from tests.site.words import ADJECTIVES, paragraph, slug

CATEGORIES = {
    "kitchen": ("Kitchen", ("jug", "skillet", "bread tin", "ladle", "colander", "teapot")),
    "garden": ("Garden", ("trowel", "cloche", "watering can", "rake", "seed tray", "trellis")),
    "lamps": ("Lamps", ("reading lamp", "lantern", "wall light", "candlestick", "shade")),
    "paper": ("Paper", ("notebook", "envelope set", "ledger", "calendar", "sketch pad")),
    "textiles": ("Textiles", ("blanket", "tea towel", "cushion", "apron", "rug", "curtain")),
    "tools": ("Tools", ("hand drill", "spirit level", "chisel", "clamp", "mallet", "plane")),
}
# (share of the items, changes per week): most items hardly ever change.
RATES = ((0.45, 0.0), (0.20, 0.1), (0.15, 0.5), (0.10, 1.0), (0.07, 3.0), (0.03, 14.0))


@dataclass(frozen=True)
class Offer:
    """The price (pence) and stock (units) of an item from a given time on."""

    at: datetime
    pence: int
    stock: int


@dataclass(frozen=True)
class Item:
    """An item for sale; `ends` is the time at which its page is removed, if ever."""

    seed: str
    number: int
    title: str
    categories: tuple[str, ...]
    description: str
    rating: int
    appears: datetime
    ends: datetime | None
    monday: datetime
    per_week: float

    @property
    def path(self) -> str:
        """The item's URL path."""
        return f"/shop/item/{self.number}-{slug(self.title)}.html"

    def live(self, now: datetime) -> bool:
        """Return whether the item is for sale at `now`."""
        return self.appears <= now and (self.ends is None or now < self.ends)

    @cached_property
    def offers(self) -> tuple[Offer, ...]:
        """Return all offers of the item, oldest first; each differs from the previous one."""
        random = Random(f"{self.seed}/offers")
        offers = [Offer(self.appears, random.randrange(250, 9000, 5), random.randint(0, 40))]
        for at in change_times(random, self.monday, self.per_week):
            if at > self.appears and (self.ends is None or at < self.ends):
                offers.append(_next_offer(random, offers[-1], at))
        return tuple(offers)

    def offer(self, now: datetime) -> Offer:
        """Return the offer at `now` (the first offer if `now` is earlier)."""
        index = bisect_right(self.offers, now, key=lambda offer: offer.at)
        return self.offers[max(index - 1, 0)]

    def times(self) -> list[datetime]:
        """Return the times at which the page changes: its appearance, each new offer, its end."""
        times = [offer.at for offer in self.offers]
        return times if self.ends is None else [*times, self.ends]


def _next_offer(random: Random, last: Offer, at: datetime) -> Offer:
    """Return an offer with a different price, stock, or both."""
    kind = random.random()
    pence, stock = last.pence, last.stock
    if kind < 0.65:
        step = max(5, round(pence * random.uniform(0.03, 0.2)))
        pence = pence + step if pence < 1000 or random.random() < 0.5 else pence - step
    if kind > 0.5:
        stock = (stock + random.randint(1, 40)) % 41
    return Offer(at, pence, stock)


def make_items(seed: int, start: datetime, count: int) -> tuple[Item, ...]:
    """Return the shop's items: four out of five exist at `start`, the others arrive later."""
    return tuple(_make_item(f"{seed}/item/{n}", n, start) for n in range(1, count + 1))


def _make_item(seed: str, number: int, start: datetime) -> Item:
    random = Random(seed)
    names = random.sample(sorted(CATEGORIES), 2 if random.random() < 0.3 else 1)
    noun = random.choice(CATEGORIES[names[0]][1])
    appears = _appears(random, start)
    return Item(
        seed=seed,
        number=number,
        title=" ".join([*random.sample(ADJECTIVES, 2), noun]).capitalize(),
        categories=tuple(names),
        description=paragraph(random, random.randint(3, 7)),
        rating=random.randint(1, 5),
        appears=appears,
        ends=_ends(random, max(appears, start)),
        monday=start,
        per_week=_rate(random),
    )


def _appears(random: Random, start: datetime) -> datetime:
    if random.random() < 0.2:
        return moment(random, start + timedelta(weeks=random.randrange(4)))
    return start - timedelta(days=random.randint(1, 365), seconds=random.randrange(86400))


def _ends(random: Random, earliest: datetime) -> datetime | None:
    if random.random() >= 0.12:
        return None
    last = (HORIZON_WEEKS - 5) * 7
    return earliest + timedelta(days=random.randint(3, last), seconds=random.randrange(86400))


def _rate(random: Random) -> float:
    shares = [share for share, _ in RATES]
    return random.choices(RATES, weights=shares)[0][1]
