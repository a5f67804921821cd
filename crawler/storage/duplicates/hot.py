"""Bands that were refused lately.

Each refused insert leaves a trace in the index page of its key until the next checkpoint: ten
thousand copies of one post, inserted first, would take longer with each. So whoever has a band that
was refused before asks first.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

MOST = 100_000


class HotBands:
    """The latest of them; memory is bounded."""

    def __init__(self) -> None:
        self._bands: OrderedDict[int, None] = OrderedDict()

    def add(self, bands: Iterable[int]) -> None:
        """Bands that have owners."""
        for band in bands:
            self._bands[band] = None
            self._bands.move_to_end(band)
        while len(self._bands) > MOST:
            self._bands.popitem(last=False)

    def discard(self, bands: Iterable[int]) -> None:
        """Bands that have none."""
        for band in bands:
            self._bands.pop(band, None)

    def any(self, bands: frozenset[int]) -> bool:
        """Whether one of these was refused."""
        return not self._bands.keys().isdisjoint(bands)
