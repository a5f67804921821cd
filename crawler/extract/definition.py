"""A site definition as plain data, as the database keeps it.

A site that is described by a TOML file or by `-a` arguments has no spider class that `scrapy crawl
NAME`, cron or the service could load. Each run stores the keys as they are written, so that the
name is enough the next time.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from crawler.config import VARIABLE

# A document of MongoDB may have 16 MB; a definition this long is a mistake, or a list of cells.
MAX_CHARACTERS = 1_000_000
# Headers whose values say nothing about who sends them.
PLAIN_HEADERS = frozenset(
    {
        "accept", "accept-language", "accept-encoding", "cache-control", "dnt", "from", "origin",
        "pragma", "referer", "upgrade-insecure-requests", "user-agent", "x-requested-with",
    }
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Definition:
    """The definition of one site.

    name:     of the site in the database
    reader:   name of the spider class that reads it: `site`, `feeds` or `cells`
    keys:     what is written there as JSON text; references such as `${VARIABLE}` as they are
    file:     absolute path of the TOML file; None: `-a` arguments
    withheld: keys whose values are left out, such as `cookies.sid`
    stored:   when it was stored; None: it was read just now
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
        """Return the definition with these keys, without the secrets among their values."""
        kept, withheld = _without_secrets(values)
        keys = json.dumps(kept, ensure_ascii=False, default=str)
        return cls(name, reader, keys, file, tuple(withheld))

    @property
    def values(self) -> dict[str, Any]:
        """The keys, for a wrapper to be made of."""
        found: dict[str, Any] = json.loads(self.keys)
        return found

    @property
    def is_too_long(self) -> bool:
        """Whether it is too long to be stored."""
        return len(self.keys) > MAX_CHARACTERS

    @property
    def source(self) -> str:
        """Where it is written, in words."""
        return self.file or "arguments (-a)"

    def says_the_same_as(self, other: Definition) -> bool:
        """Whether two definitions have the same keys, as far as they are stored."""
        return (self.keys, self.withheld) == (other.keys, other.withheld)


def _without_secrets(values: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Leave out the values of cookies and of unusual headers that are not `${VARIABLE}`.

    Wrappers refuse secrets under names such as `token`; a session's cookie may have any name.
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
    return kept, withheld
