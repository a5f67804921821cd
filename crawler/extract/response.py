"""What a response is before anyone reads it: refused, gone, broken, or a page of text."""

from __future__ import annotations

import codecs
import hashlib
import re

from scrapy.http import Response, TextResponse

from crawler.items import Outcome, Validators
from crawler.utils.sandbox import DEEPEST, is_cut_off

GONE = frozenset({404, 410})
REFUSED = frozenset({401, 403, 407, 429, 451})
SNIFFED_BYTES = 2048
GUESSED_BYTES = 65_536
# Encodings that pages without a declaration still have; the rest is read like a browser does.
LIKELY = ("cp949", "cp932", "gb18030", "big5", "euc_jp", "cp1251", "koi8_r", "cp1252")
PERMANENT = frozenset({301, 308})
LONGEST_VALIDATOR = 1000
MAX_AGE = re.compile(r"max-age\s*=\s*\"?(\d{1,9})")
REDIRECTS = frozenset({301, 302, 303, 307, 308})
# Every other status reaches the spider, which turns it into an outcome.
HANDLED = frozenset(range(100, 600)) - REDIRECTS


def status_outcome(response: Response) -> tuple[Outcome, str | None] | None:
    """The outcome that the status alone decides, with its reason; None for a page to read."""
    status = response.status
    if status == 304:
        return Outcome.NOT_MODIFIED, None
    if status in GONE:
        return Outcome.GONE, None
    if status in REFUSED or (status == 503 and b"Retry-After" in response.headers):
        return Outcome.BLOCKED, f"status {status}"
    if not 200 <= status < 300:
        return Outcome.ERROR, f"status {status}"
    return None


def page_problem(response: Response) -> str | None:
    """Why a response of status 2xx cannot be read; None if it can."""
    if not response.body.strip():
        return "empty page"
    kind = (response.headers.get("Content-Type") or b"").decode("latin-1")
    # Scrapy takes what it does not know for text; markup and JSON it recognises by themselves.
    guessed = type(response) is TextResponse and kind and not kind.startswith("text/")
    if not isinstance(response, TextResponse) or guessed:
        return f"not a text page: {kind[:80] or 'unknown type'}"
    head = response.body[:SNIFFED_BYTES]
    if b"\0" in head and not head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "not a text page: binary content"
    return f"nested more than {DEEPEST:,} deep" if is_cut_off(response) else None


def decoded(response: TextResponse) -> TextResponse:
    """The response in the encoding it declares; where it declares none, in the one it shows."""
    if response._declared_encoding():
        return response
    head = response.body[:GUESSED_BYTES]
    try:
        codecs.getincrementaldecoder("utf-8")().decode(head)
    except UnicodeDecodeError:
        from charset_normalizer import from_bytes  # only for the few pages that declare nothing

        best = from_bytes(head, cp_isolation=list(LIKELY)).best()
        return response.replace(encoding=best.encoding if best else response.encoding)
    return response.replace(encoding="utf-8")


def moved_to(response: Response, final_url: str | None) -> str | None:
    """The final URL where every redirect on the way was permanent."""
    reasons = response.meta.get("redirect_reasons") or ()
    return final_url if reasons and PERMANENT.issuperset(reasons) else None


def at_least_hours(response: Response) -> float | None:
    """For how many hours the answer is good by its Cache-Control; None where it does not say."""
    said = (response.headers.get("Cache-Control") or b"").decode("latin-1").lower()
    if "no-cache" in said or "no-store" in said or not (found := MAX_AGE.search(said)):
        return None
    age = (response.headers.get("Age") or b"").decode("latin-1").strip()
    passed = int(age[:9]) if age.isascii() and age.isdigit() else 0
    return max(0, int(found[1]) - passed) / 3600


def unfollowed(response: Response) -> str:
    """Why a status that no page has was the end, such as a redirect to where nobody goes."""
    to = (response.headers.get("Location") or b"").decode("latin-1")
    return f"status {response.status}" + (f", redirects to {to[:200]!r}" if to else "")


def validators_of(response: Response) -> Validators:
    """ETag and Last-Modified of a response; what is too long to be one is none."""

    def header(name: str) -> str | None:
        value = response.headers.get(name)
        return value.decode("latin-1") if value and len(value) <= LONGEST_VALIDATOR else None

    return Validators(header("ETag"), header("Last-Modified"))


def raw_hash(body: bytes) -> str:
    """Hash of the bytes as they came, frame and all."""
    return hashlib.blake2b(body, digest_size=16).hexdigest()
