"""The secrets of a subscription: its token in the callback's URL, its key for signatures."""

from __future__ import annotations

import hmac
import re
import secrets
from base64 import urlsafe_b64decode, urlsafe_b64encode
from dataclasses import dataclass

RANDOM_BYTES = 18
MARK_BYTES = 18
DIGESTS = frozenset({"sha1", "sha256", "sha384", "sha512"})
_TOKEN = re.compile(r"[A-Za-z0-9_-]{48}")


@dataclass(frozen=True, slots=True)
class Tokens:
    """Makes tokens and knows its own again, so that foreign ones cost no look into the database.

    key: 32 random bytes that stay with the database
    """

    key: bytes

    def new(self) -> str:
        """A token that nobody can guess: 48 characters, fit for a URL's path."""
        chance = secrets.token_bytes(RANDOM_BYTES)
        return urlsafe_b64encode(chance + self._mark(chance)).decode("ascii")

    def knows(self, token: str) -> bool:
        """Whether `new` made this token once; its feed may be gone since."""
        if not _TOKEN.fullmatch(token):
            return False
        raw = urlsafe_b64decode(token)
        return hmac.compare_digest(self._mark(raw[:RANDOM_BYTES]), raw[RANDOM_BYTES:])

    def _mark(self, chance: bytes) -> bytes:
        return hmac.digest(self.key, chance, "sha256")[:MARK_BYTES]


def new_secret() -> str:
    """A key for signatures, shorter than the 200 bytes that hubs take."""
    return secrets.token_hex(32)


def is_signed(header: str | None, body: bytes, secret: str) -> bool:
    """Whether an X-Hub-Signature (`sha256=…`) is that of this body."""
    method, mark, given = (header or "").strip().partition("=")
    method = method.strip().lower()
    if not mark or method not in DIGESTS:
        return False
    expected = hmac.digest(secret.encode(), body, method).hex()
    return hmac.compare_digest(expected.encode(), given.strip().lower().encode())
