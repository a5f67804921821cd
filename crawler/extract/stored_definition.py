"""Site definitions as plain data, as the database stores them.

A site that is defined by a TOML file or by `-a` arguments has no spider class that `scrapy crawl
NAME`, cron or the service could load. Each run therefore stores the keys of the definition as
written, so that later runs need only the site's name.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from crawler.config import VARIABLE

# MongoDB limits documents to 16 MB. Only a mistake or a long list of cells reaches this length.
MAX_CHARACTERS = 1_000_000
# Headers that never carry credentials. Values of all other headers are treated as secrets.
PLAIN_HEADERS = frozenset(
    {
        "accept", "accept-language", "accept-encoding", "cache-control", "dnt", "from", "origin",
        "pragma", "referer", "upgrade-insecure-requests", "user-agent", "x-requested-with",
    }
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Definition:
    """The definition of one site.

    name:     name of the site in the database
    reader:   name of the spider class for the site: `site`, `feeds` or `cells`
    keys:     keys and values as JSON text, with references such as `${VARIABLE}` unexpanded
    file:     absolute path of the TOML file; None: defined by `-a` arguments
    withheld: keys whose values are not stored because they may be secrets, such as `cookies.sid`
    stored:   time at which the definition was stored; None: not stored yet
    """

    name: str
    reader: str
    keys: str
    file: str | None = None
    withheld: tuple[str, ...] = ()
    stored: datetime | None = None

    @classmethod
    def of(
        cls, name: str, reader: str, values: Mapping[str, Any], file: str | None = None
    ) -> Definition:
        """Return the definition with these keys, without possible secrets.

        Values of cookies and of unusual headers are withheld unless they refer to a `${VARIABLE}`.
        The checks of a site definition only recognize secrets by names such as `token`, but a
        session cookie may have any name.
        """
        kept, withheld = dict(values), []
        for key, plain in (("headers", PLAIN_HEADERS), ("cookies", frozenset[str]())):
            entries = values.get(key)
            if not isinstance(entries, Mapping):
                continue
            secret = [
                name
                for name, value in entries.items()
                if name.lower() not in plain and not VARIABLE.search(str(value))
            ]
            kept[key] = {name: value for name, value in entries.items() if name not in secret}
            withheld += [f"{key}.{name}" for name in secret]
        keys = json.dumps(kept, ensure_ascii=False, default=str)
        return cls(name, reader, keys, file, tuple(withheld))

    @property
    def values(self) -> dict[str, Any]:
        """Return the keys and values, ready to build a `Wrapper` from."""
        values: dict[str, Any] = json.loads(self.keys)
        return values

    @property
    def is_too_long(self) -> bool:
        """Return True if the definition is too long to be stored."""
        return len(self.keys) > MAX_CHARACTERS

    @property
    def source(self) -> str:
        """Return the place where the definition is written, for messages."""
        return self.file or "arguments (-a)"

    def has_same_keys_as(self, other: Definition) -> bool:
        """Return True if both definitions store the same keys and withhold the same values."""
        return (self.keys, self.withheld) == (other.keys, other.withheld)
