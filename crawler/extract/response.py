"""Classify HTTP responses before they are parsed: blocked, gone, broken, or a page of text.

`failure_text` describes a request that failed.
"""

from __future__ import annotations

import codecs
import hashlib
import re
from datetime import datetime, timedelta
from typing import Any, NamedTuple, TypeGuard

from lxml import etree
from scrapy.exceptions import (
    CannotResolveHostError,
    DownloadConnectionRefusedError,
    IgnoreRequest,
)
from scrapy.http import Headers, Response, TextResponse
from scrapy.spidermiddlewares.httperror import HttpError
from scrapy.utils.response import get_base_url
from twisted.python.failure import Failure

from crawler.errors import QueryFailed
from crawler.extract.documents import JsonPage, by_content
from crawler.extract.fields import node_text
from crawler.extract.plain_text import UNSEEN, text_below
from crawler.extract.shells import MAX_TEXT_CHARACTERS, needs_browser
from crawler.items import Fetched, Outcome, Validators
from crawler.utils.text import GUESSED_BYTES, guessed_encoding
from crawler.utils.time import http_date

GONE = frozenset({404, 410})
CONDITIONS = ("If-None-Match", "If-Modified-Since")
# No request asks for a part.
PARTIAL = 206
REFUSED = frozenset({401, 403, 407, 429, 451})
SNIFFED_BYTES = 2048
LONG_BYTES = 30_000
# Larger pages are heavy. 300 kB is enough for a tag with 80,000 attributes, which takes libxml2
# about 9 s to parse.
HEAVY_BYTES = 300_000
HEAVY_ZIPPED_BYTES = 20_000
GZIP_MAGIC = b"\x1f\x8b"
MANY_TAGS = 20_000
# Any arrangement of this many tags is harmless: the selector `div div` takes 6 s at worst.
FEW_TAGS = 5_000
# True for pages with elements more than 50 levels deep. Hardly any real page exceeds 40 levels.
IS_DEEP = etree.XPath(f"boolean({'/*' * 51})")
# libxml2 drops the content of elements more than 2,048 levels deep.
MAX_DEPTH = 2_000
NO_MEMORY = etree.ErrorTypes.ERR_NO_MEMORY
UTF_8 = "utf-8"
UTF_8_CHARACTER = re.compile(rb"[\xc2-\xdf][\x80-\xbf]|[\xe0-\xef][\x80-\xbf]{2}")
# Other scripts than the Latin one have several characters outside ASCII in a row.
ADJACENT = re.compile(rb"[\x80-\xff]{2}")
# Encodings with zero bytes in markup.
WIDE = ("utf-16", "utf-32")
PERMANENT = frozenset({301, 308})
# Key in the meta of a request: whether its URL is that to which the page of its target has moved.
DIRECT = "direct"
MAX_VALIDATOR_BYTES = 1000
YEAR = re.compile(r"\b\d{4}\b")
# Clocks of servers may be ahead, and some send local times as GMT.
MAX_AHEAD = timedelta(days=1)
# The bounded runs of white space keep the search linear.
PASSWORD = re.compile(rb"""\btype\s{0,9}=\s{0,9}["']?password\b""", re.I)
MISSING_PAGE = "a page with status 200 that reports a missing page"
# A page with more text, menus and links not included, is content, whatever its heading says.
MAX_STAND_IN_CHARACTERS = 1500
MAX_HEADING_CHARACTERS = 200
# Values of fields that were not found, and values of a page that scripts may have written, too.
NOTHING: tuple[Any, ...] = (None, [], "")
PAGE_TEXTS = ("title", "main_text")
# Links, because missing pages often list other items.
STAND_IN_MENUS = UNSEEN | {"nav", "header", "footer", "a"}
# Separators of the parts of a title, such as "Page not found | Shop".
TITLE_SEPARATOR = re.compile(r"\s+[|\-\u2013\u2014\u00b7\u00bb\u2022:]+\s+|\|")
# Headings of pages that servers send with status 200 instead of the requested page.
CHALLENGE = re.compile(
    r"just a moment|attention required|access(?: to this page has been)? denied"
    r"|checking (?:your browser|if the site connection is secure).*|ddos[- ](?:guard|protection).*"
    r"|(?:are you|(?:prove|confirm)(?: that)? you are(?: not)?|i'?m not) a (?:ro)?bot"
    r"|(?:ro)?bot (?:check|verification)|(?:please )?(?:verify|verifying|confirm)(?: that)? you"
    r"(?: are|'re) (?:a )?human.*|human verification|security (?:check|verification)"
    r"|one moment,? please|please wait|pardon our interruption|(?:re)?captcha|unusual traffic.*"
    r"|(?:sorry, )?you have been blocked|request (?:blocked|rejected)|(?:403 )?forbidden"
)
# A text or script that pages with such a heading also have.
CHALLENGE_MARK = re.compile(
    rb"captcha|cf[-_]chl|challenge-platform|turnstile|(?:enable|requires) javascript"
    rb"|your browser|unusual traffic|a robot|a human|\bray id|incident id|reference ?(?:id|#)"
    rb"|datadome|perimeterx|_incapsula_|ddos",
    re.I,
)
LOG_IN = re.compile(
    r"(?:please )?(?:log|sign)[ -]?in(?: (?:to|required|first|again).*)?|(?:user |member )?login"
    r"(?: required| page| form)?|(?:you must |you need to )(?:be logged|log|sign) in.*"
    r"|authentication required|anmelden|anmeldung|einloggen|(?:se )?connecter|connexion"
    r"|iniciar sesi[o\u00f3]n|accedi|inloggen|zaloguj si\u0119|logowanie|entrar|logga in|log ind"
    r"|logg inn|\u0432\u0445\u043e\u0434|\u0432\u043e\u0439\u0442\u0438"
    r"|\u30ed\u30b0\u30a4\u30f3|\u767b\u5f55|\u767b\u5165"
)
# Pages that ask for consent before they show the requested page, with a button to agree.
CONSENT = re.compile(
    r"(?:we (?:value|respect|care about)|manage) your privacy|your privacy(?: (?:choices|settings"
    r"|matters.*|is important.*))?|before you continue.*|(?:cookie|privacy) (?:consent|settings"
    r"|preferences|notice)|(?:we|this (?:site|website)) uses? cookies"
    r"|(?:wir )?(?:respektieren|schätzen) (?:wir )?ihre privatsphäre"
    r"|(?:ihre )?(?:privatsphäre|datenschutz|cookie)-?einstellungen"
    r"|(?:nous respectons )?votre vie privée|valoramos (?:su|tu) privacidad"
)
CONSENT_MARK = re.compile(
    rb"<(?:button|input|form)\b[^<>]{0,1000}>[^<>]{0,200}"
    rb"\b(?:accept|agree|consent|akzeptier|zustimm|einverstanden|accepte|aceptar)",
    re.I,
)
# The number may also be that of a car or of trousers.
NUMBER_404 = re.compile(r"404")
NOT_FOUND_MARK = re.compile(
    rb"not (?:be )?found|n['\xe2].{0,8}t (?:be found|find|exist)|not exist|no longer|missing|oops"
    rb"|nicht gefunden|introuvable|no encontrad|n\xc3\xa3o encontrad|non trovat|niet gevonden",
    re.I,
)
NOT_FOUND = re.compile(
    r"(?:http )?error (?:404|410)|404 error"
    r"|(?:(?:http )?(?:error )?404[:,]? )?(?:(?:sorry|oops)[,!.]* )?(?:(?:the|this|that) )?"
    r"(?:(?:requested )?(?:page|product|item|article|file|document|post|listing) )?"
    r"(?:you (?:requested|(?:are|were) looking for) )?(?:(?:was|is|could|can) ?)?"
    r"(?:can't be found|not (?:be )?found|doesn't exist|does not exist|(?:no longer|not) exists?)"
    r"(?: \(?404\)?)?"
    r"|(?:die )?seite (?:wurde )?nicht gefunden|(?:la )?page (?:non trouv\u00e9e|introuvable)"
    r"|p[a\u00e1]gina n(?:o|\u00e3o|on) (?:encontrada|trovata)|pagina niet gevonden"
    r"|nie znaleziono strony|\u0441\u0442\u0440\u0430\u043d\u0438\u0446\u0430 \u043d\u0435"
    r" \u043d\u0430\u0439\u0434\u0435\u043d\u0430"
    # With a noun, because "Kettle | No longer available" may still show the kettle.
    r"|(?:(?:sorry|oops)[,!.]* )?(?:(?:the|this|that) )?(?:requested )?"
    r"(?:page|product|item|article|post|listing|ad|job|offer|position|event)"
    r"(?: you (?:requested|(?:are|were) looking for))?(?: is| was| has| has been)?"
    r" (?:no longer available|not available any ?more|removed|deleted|expired|discontinued)"
    r"|(?:(?:der|die|das|diese[rs]?) )?(?:artikel|produkt|angebot|anzeige|seite|beitrag)"
    r" (?:ist )?(?:leider )?nicht mehr (?:verf\u00fcgbar|vorhanden|erh\u00e4ltlich)"
    r"|(?:(?:le|la|ce|cet|cette) )?(?:produit|article|annonce|offre|page) n'est plus disponible"
    r"|(?:(?:el|este|la|esta) )?(?:producto|art\u00edculo|anuncio|oferta|p\u00e1gina) ya no"
    r" est\u00e1 disponible"
)
FAILURE = re.compile(
    r"(?:http )?error (?:429|50[0-4]|52[0-7])"
    r"|(?:(?:http )?(?:error )?(?:429|50[0-4]|52[0-7])[:,]? )?(?:internal server error"
    r"|bad gateway|(?:the )?(?:service|server|site|website)(?: is)? (?:temporarily |currently )?"
    r"(?:unavailable|offline|down)|gateway time-?out|too many requests|temporarily unavailable)"
    r"|error establishing a database connection"
    r"|(?:(?:the |our )?(?:site|website)(?: is)? )?(?:currently )?(?:under|down for)"
    r" (?:scheduled )?maintenance|scheduled maintenance|maintenance mode"
    r"|we(?:'ll| will) be (?:right )?back(?: soon| shortly)?"
)
# JSON types such as application/ld+json have no class in Scrapy.
TEXT_TYPE = re.compile(r"\s*(?:text/|[\w.-]+/[\w.-]+\+json\s*(?:;|$))", re.I)
# An unclosed tag extends to the end. Otherwise each of many would be searched up to there.
BASE_TAG = re.compile(rb"<base\b[^>]*+(?:>|\Z)", re.I)
MAX_AGE = re.compile(r"max-age\s*=\s*\"?(\d{1,9})")
REDIRECTS = frozenset({301, 302, 303, 307, 308})
# Responses with all other statuses reach the spider, which converts them to outcomes.
HANDLED = frozenset(range(100, 600)) - REDIRECTS
# Errors whose message does not need the name of the class.
PLAIN = (QueryFailed, IgnoreRequest, CannotResolveHostError, DownloadConnectionRefusedError)


def status_outcome(response: Response) -> tuple[Outcome, str | None] | None:
    """Return the outcome and reason of a response that is not a page; None if it is a page."""
    status = response.status
    if status == 304:
        sent = response.request.headers if response.request is not None else CONDITIONS
        if not any(name in sent for name in CONDITIONS):
            return Outcome.ERROR, "status 304, but the request had no condition"
        return Outcome.NOT_MODIFIED, None
    if status in GONE:
        return Outcome.GONE, None
    if status in REFUSED or (status == 503 and b"Retry-After" in response.headers):
        return Outcome.BLOCKED, f"status {status}"
    if not 200 <= status < 300:
        return Outcome.ERROR, f"status {status}"
    if status == PARTIAL:
        return Outcome.ERROR, f"status {status}: only a part of the page"
    return None


def page_problem(response: Response) -> str | None:
    """Return the reason why a response with status 2xx cannot be parsed; None if it can."""
    if not response.body.strip():
        return "empty page"
    kind = (response.headers.get("Content-Type") or b"").decode("latin-1")
    # Scrapy returns a plain TextResponse for unknown types too. HTML, XML and JSON have subclasses.
    guessed = type(response) is TextResponse and kind and not TEXT_TYPE.match(kind)
    if not isinstance(response, TextResponse) or guessed:
        return f"not a text page: {kind[:80] or 'unknown type'}"
    head = response.body[:SNIFFED_BYTES]
    if b"\0" in head and not response.encoding.startswith(WIDE):
        return "not a text page: binary content"
    if isinstance(response, JsonPage) and (problem := response.problem):
        return problem
    return f"nested more than {MAX_DEPTH:,} deep" if is_truncated(response) else None


def is_heavy(response: Response) -> bool:
    """Return True if a response may take long to parse, so that a subprocess has to."""
    body = response.body
    if len(body) > (HEAVY_ZIPPED_BYTES if body.startswith(GZIP_MAGIC) else HEAVY_BYTES):
        return True
    tags = body.count(b"<")
    if tags <= FEW_TAGS or not isinstance(response, TextResponse):
        return False
    if tags > MANY_TAGS:
        return True
    try:
        root = response.selector.root
    except ValueError:
        return True
    return isinstance(root, etree._Element) and bool(IS_DEEP(root))


def is_truncated(page: TextResponse) -> bool:
    """Return True if a page is nested so deeply that the parser drops some of its content."""
    try:
        node, depth = page.selector.root, 1
    except ValueError:  # parsel rejects a <base> with an invalid URL
        return False
    while isinstance(node, etree._Element) and len(node):
        node, depth = node[-1], depth + 1
    return depth >= MAX_DEPTH


def out_of_memory(error: Exception) -> bool:
    """Return True if a page could not be parsed because memory ran out."""
    in_lxml = isinstance(error, etree.ParseError) and getattr(error, "code", None) == NO_MEMORY
    return in_lxml or isinstance(error, MemoryError)


class PageParts(NamedTuple):
    """Parts of a response that another process needs to parse it."""

    kind: type[TextResponse]
    url: str
    status: int
    headers: Headers
    body: bytes
    encoding: str


def is_long(response: Response) -> TypeGuard[TextResponse]:
    """Return whether parsing a page takes longer than sending it to another process."""
    return isinstance(response, TextResponse) and len(response.body) >= LONG_BYTES


def parts_of(page: TextResponse) -> PageParts:
    """Return the parts of a page, which can be pickled."""
    kind, encoding = type(page), page.encoding
    return PageParts(kind, page.url, page.status, page.headers, page.body, encoding)


def page_of(parts: PageParts) -> TextResponse:
    """Return the page with these parts, without its request."""
    return parts.kind(parts.url, parts.status, parts.headers, parts.body, encoding=parts.encoding)


def asks_password(response: Response) -> bool:
    """Return whether a page has an input for a password."""
    return PASSWORD.search(response.body) is not None


def stand_in(page: TextResponse, *, is_known: bool) -> tuple[Outcome, str] | None:
    """Return outcome and reason if another page was sent instead of the requested one, else None.

    is_known: the requested page was read before; else only bot checks are recognized, for
              the page itself may be a login page, or have a heading such as "Maintenance"

    Recognized are short pages whose title or heading is a usual phrase: login and consent pages,
    checks for robots, and with status 200 error pages and missing pages.
    """
    if page.selector.type == "json":
        return None
    phrases = _headings(page)
    for pattern, mark, outcome, problem in (
        (CHALLENGE, CHALLENGE_MARK, Outcome.BLOCKED, "a bot check instead of the page"),
        (LOG_IN, PASSWORD, Outcome.ERROR, "a login page instead of the page"),
        (CONSENT, CONSENT_MARK, Outcome.ERROR, "a consent page instead of the page"),
        (NUMBER_404, NOT_FOUND_MARK, Outcome.GONE, MISSING_PAGE),
        (NOT_FOUND, None, Outcome.GONE, MISSING_PAGE),
        (FAILURE, None, Outcome.ERROR, "a page with status 200 that reports an error"),
    ):
        phrase = next((text for text in phrases if pattern.fullmatch(text.lower())), None)
        if phrase is None or not (is_known or pattern is CHALLENGE):
            continue
        # An article on captchas has the word in its heading.
        body = page.body.replace(phrase.encode(), b"") if "captcha" in phrase.lower() else page.body
        if mark is not None and not mark.search(body):
            continue
        bodies = page.xpath("//body")
        size = sum(len(text_below(body.root, STAND_IN_MENUS)) for body in bodies)
        if size <= MAX_STAND_IN_CHARACTERS:
            return outcome, f"{problem}: {phrase!r}"
    return None


def judge(page: TextResponse, fetched: Fetched) -> None:
    """Set whether another page was sent instead of the requested one, or may have been."""
    values = fetched.content or {}
    # Of a page with a long text, or with other values, something can be read without a browser.
    has_values = len(str(values.get("main_text") or "")) > MAX_TEXT_CHARACTERS or any(
        value not in NOTHING for name, value in values.items() if name not in PAGE_TEXTS
    )
    if not has_values and (problem := needs_browser(page)) is not None:
        fetched.stand_in, fetched.doubtful = (Outcome.SHELL, problem), True
        return
    other = stand_in(page, is_known=True)
    is_known = fetched.target.content_hash is not None
    fetched.stand_in = other if is_known else other and stand_in(page, is_known=False)
    fetched.doubtful = other is not None or asks_password(page)


def settle_stand_in(fetched: Fetched) -> None:
    """Give a page that another one replaced the outcome of the other page, without content."""
    if fetched.stand_in is None:
        return
    if fetched.content_hash is not None and fetched.content_hash == fetched.target.content_hash:
        fetched.stand_in = None
        return
    fetched.outcome, fetched.reason = fetched.stand_in
    fetched.content = fetched.links = fetched.content_hash = None
    fetched.link_counts = fetched.empty_fields = None


def _headings(page: TextResponse) -> list[str]:
    """Return the title of a page, its parts, and the first heading, without final punctuation."""
    # Icons may have titles, too.
    nodes = page.xpath("//head/title[1] | (//h1)[1]") or page.xpath("(//h2)[1]")
    texts = [node_text(node)[:MAX_HEADING_CHARACTERS] for node in nodes]
    parts = [part for text in texts for part in (text, *TITLE_SEPARATOR.split(text))]
    stripped = (part.replace("\u2019", "'").strip(" .!?\u2026") for part in parts)
    return list(dict.fromkeys(filter(None, stripped)))


def decoded(response: TextResponse) -> TextResponse:
    """Return the response with the right encoding, and as the kind of document that it contains."""
    return by_content(_with_encoding(response))


def _with_encoding(response: TextResponse) -> TextResponse:
    """Return the response with its declared encoding, or a detected one if none is declared.

    A page without zero bytes that declares UTF-16 or UTF-32 is in another encoding, mostly UTF-8. A
    page that declares UTF-8 and has none of its characters, only invalid bytes, is in another one,
    mostly because of the server's default: in that of its `<meta>` tag, else in a detected one.
    """
    declared = response._declared_encoding() or ""
    head = response.body[:GUESSED_BYTES]
    is_false = declared.startswith(WIDE) and b"\0" not in response.body[:SNIFFED_BYTES]
    if declared == UTF_8 and not _is_utf_8(head) and not UTF_8_CHARACTER.search(head):
        is_false = True
        if (inner := response._body_declared_encoding()) not in (None, UTF_8):
            return response.replace(encoding=inner)
    if declared and not is_false:
        return response
    if not _is_utf_8(head):
        # Few accents among ASCII letters are too little for a guess, which may find other scripts.
        if not ADJACENT.search(head):
            return response.replace(encoding="cp1252")
        # Scrapy's guess follows the rules of browsers.
        return response.replace(encoding=guessed_encoding(head) or response.encoding)
    return response.replace(encoding=UTF_8)


def _is_utf_8(head: bytes) -> bool:
    """Return whether the beginning of a body is valid UTF-8; its last character may be cut off."""
    try:
        codecs.getincrementaldecoder(UTF_8)().decode(head)
    except UnicodeDecodeError:
        return False
    return True


def with_valid_base(page: TextResponse) -> TextResponse:
    """Return the page without `<base>` tags if Scrapy cannot parse it because of an invalid one."""
    try:
        get_base_url(page)
    except ValueError:
        return page.replace(body=BASE_TAG.sub(b"", page.body))
    return page


def release_page(response: Response) -> None:
    """Let a page that was read be freed with its last reference, not by garbage collection.

    A response and its selector refer to each other, so they would stay in memory together, with
    body and parsed page, until a collection finds them.
    """
    if (selector := getattr(response, "_cached_selector", None)) is not None:
        selector.response = None


def moved_to(response: Response, final_url: str | None) -> str | None:
    """Return the final URL if all redirects to it were permanent, else None.

    A request for the URL to which a page has moved counts as such a redirect.
    """
    reasons = response.meta.get("redirect_reasons") or ()
    is_moved = reasons or response.meta.get(DIRECT)
    return final_url if is_moved and PERMANENT.issuperset(reasons) else None


def fresh_hours(response: Response) -> float | None:
    """Return the remaining lifetime in hours by `Cache-Control: max-age`; None without max-age."""
    control = (response.headers.get("Cache-Control") or b"").decode("latin-1").lower()
    if "no-cache" in control or "no-store" in control or not (match := MAX_AGE.search(control)):
        return None
    age = (response.headers.get("Age") or b"").decode("latin-1").strip()
    age_seconds = int(age[:9]) if age.isascii() and age.isdigit() else 0
    return max(0, int(match[1]) - age_seconds) / 3600


def unfollowed(response: Response) -> str:
    """Return the reason for an error with this status, with the target of a refused redirect."""
    to = (response.headers.get("Location") or b"").decode("latin-1")
    return f"status {response.status}" + (f", redirects to {to[:200]!r}" if to else "")


def failure_text(failure: Failure) -> str:
    """Return why a request failed, in one line of at most 300 characters."""
    if isinstance(failure.value, HttpError):
        return unfollowed(failure.value.response)
    reason = " ".join(str(failure.value).split())
    if isinstance(failure.value, PLAIN):
        return reason[:300]
    name = failure.type.__name__ if failure.type else "failure"
    return f"{name}: {reason}"[:300] if reason else name


def validators_of(response: Response, now: datetime) -> Validators:
    """Return the ETag and Last-Modified headers of a response; unusable values are ignored.

    These are overlong values, `ETag: *`, to which every page would match, and times in the future,
    after which many servers do not send a change.
    """

    def header(name: str) -> str | None:
        value = response.headers.get(name)
        return value.decode("latin-1") if value and len(value) <= MAX_VALIDATOR_BYTES else None

    etag, last_modified = header("ETag"), header("Last-Modified")
    if etag is not None and etag.strip() == "*":
        etag = None
    if last_modified is not None and _is_future(last_modified, now):
        last_modified = None
    return Validators(etag, last_modified)


def _is_future(value: str, now: datetime) -> bool:
    # The year is enough for most pages.
    if (year := YEAR.search(value)) is not None and int(year[0]) < now.year:
        return False
    moment = http_date(value)
    return moment is not None and moment > now + MAX_AHEAD


def raw_hash(body: bytes) -> str:
    """Return a hash of the response body, boilerplate included."""
    return hashlib.blake2b(body, digest_size=16).hexdigest()
