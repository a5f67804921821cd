"""Limit feedparser's two parsers, so that hostile documents do not take longer than others.

`feedparser.parse` has no limits: a few hundred kilobytes of categories, author names or line breaks
keep it busy for minutes. The subclasses in this module limit all methods that take more than linear
time. feedparser has no type annotations; `xml` converts its results to plain dicts.
"""

from __future__ import annotations

from typing import Any
from xml.sax.saxutils import unescape
from xml.sax.xmlreader import AttributesNSImpl

from feedparser.api import LooseFeedParser, StrictFeedParser
from feedparser.mixin import _FeedParserMixin

QUOTES = {"&quot;": '"', "&apos;": "'"}
MAX_ELEMENTS = 500_000
MAX_TAGS = 200
MAX_NAMESPACES = 100
MAX_ATTRIBUTES = 200
MAX_HOURS = 100
MAX_AUTHOR_CHARACTERS = 500
# A text arrives in one piece per tag or entity inside it. Above this number of pieces, `pop` drops
# the empty pieces at the start.
MANY_PIECES = 100


class LimitExceeded(Exception):
    """The document exceeds a limit, and parsing stopped; `str()` is the limit."""


class Bounded(_FeedParserMixin):  # type: ignore[misc] # feedparser has no types
    """Limits and corrections that both parsers share.

    max_entries:           maximum number of entries
    skip_hours, skip_days: texts of the document's skipHours and skipDays elements

    Raises LimitExceeded for more than `max_entries` entries or MAX_ELEMENTS elements.
    """

    resolve_relative_uris = False
    sanitize_html = False
    # Do not resolve guids against the feed's URL: they must not change when the feed moves.
    can_be_relative_uri = _FeedParserMixin.can_be_relative_uri - {"id"}

    def __init__(self, url: str, max_entries: int, *args: Any) -> None:
        self.max_entries = max_entries
        self.elements = 0
        self.skip_hours: list[str] = []
        self.skip_days: list[str] = []
        super().__init__(url, None, "utf-8", *args)

    def unknown_starttag(self, tag: str, attrs: Any) -> None:
        """Handle the start of any element."""
        self.elements += 1
        if self.elements > MAX_ELEMENTS:
            raise LimitExceeded(f"{MAX_ELEMENTS:,} elements")
        super().unknown_starttag(tag, attrs)

    def _start_item(self, attrs_d: Any) -> None:
        if len(self.entries) >= self.max_entries:
            raise LimitExceeded(f"{self.max_entries:,} entries")
        super()._start_item(attrs_d)

    _start_entry = _start_item

    def _add_tag(self, *args: Any) -> None:
        # feedparser compares each tag with all previous tags.
        if len(self._get_context().get("tags", ())) < MAX_TAGS:
            super()._add_tag(*args)

    def _sync_author_detail(self, key: str = "author") -> None:
        # feedparser's search for an email address takes quadratic time.
        context = self._get_context()
        if len(author := dict.get(context, key) or "") > MAX_AUTHOR_CHARACTERS:
            context[key] = author[:MAX_AUTHOR_CHARACTERS]
        super()._sync_author_detail(key)

    def track_namespace(self, prefix: Any, uri: Any) -> None:
        """Register a namespace. feedparser searches all namespaces for each element."""
        if len(self.namespaces_in_use) < MAX_NAMESPACES:
            super().track_namespace(prefix, uri)

    def pop(self, element: str, strip_whitespace: int = 1) -> Any:
        """Return the text of an element.

        feedparser removes leading empty pieces one by one, which takes quadratic time.
        """
        stack = self.elementstack
        if stack and stack[-1][0] == element and len(stack[-1][2]) > MANY_PIECES:
            pieces = list(stack[-1][2])
            first = next((n for n, piece in enumerate(pieces) if piece.strip()), len(pieces))
            stack[-1][2] = pieces[first:]
        return super().pop(element, strip_whitespace)

    # feedparser treats a second description as the content of the entry. These elements are always
    # summaries, so store each under its own key.

    def _start_itunes_summary(self, attrs_d: Any) -> None:
        self.push_content("itunes_summary", attrs_d, "text/plain", 1)

    def _end_itunes_summary(self) -> None:
        self.pop_content("itunes_summary")

    def _start_dc_description(self, attrs_d: Any) -> None:
        self.push_content("dc_description", attrs_d, "text/html", 1)

    def _end_dc_description(self) -> None:
        self.pop_content("dc_description")

    def _start_media_description(self, attrs_d: Any) -> None:
        self.push_content("media_description", attrs_d, "text/plain", 1)

    def _end_media_description(self) -> None:
        self.pop_content("media_description")

    # feedparser only keeps the last hour and day.

    def _end_hour(self) -> None:
        self._skip("skiphours", self.pop("hour"), self.skip_hours)

    def _end_day(self) -> None:
        self._skip("skipdays", self.pop("day"), self.skip_days)

    def _skip(self, within: str, text: Any, skipped: list[str]) -> None:
        stack = self.elementstack
        if stack and stack[-1][0] == within and text and len(skipped) < MAX_HOURS:
            skipped.append(str(text))


class Strict(Bounded, StrictFeedParser):  # type: ignore[misc] # as above
    """Handler for a SAX parser. It joins the lines of a text, which SAX reports one by one."""

    def __init__(self, url: str, max_entries: int) -> None:
        self.pending: list[str] = []
        super().__init__(url, max_entries)

    def characters(self, text: str) -> None:
        """Collect a piece of text until an element starts or ends."""
        self.pending.append(text)

    def startElementNS(self, name: Any, qname: Any, attrs: Any) -> None:  # noqa: N802 # SAX's name
        """Handle the start of an element; drop its attributes if there are too many.

        feedparser searches all attributes for each of them.
        """
        self._flush_text()
        few = attrs if len(attrs) <= MAX_ATTRIBUTES else AttributesNSImpl({}, {})
        super().startElementNS(name, qname, few)

    def endElementNS(self, *args: Any) -> None:  # noqa: N802 # as above
        """Handle the end of an element."""
        self._flush_text()
        super().endElementNS(*args)

    def _flush_text(self) -> None:
        if self.pending:
            self.handle_data("".join(self.pending))
            self.pending.clear()


class Loose(Bounded, LooseFeedParser):  # type: ignore[misc] # as above
    """Parser for text that resembles XML but is not well-formed."""

    def decode_entities(self, element: str, data: str) -> str:
        """Decode entities, also in guids, so that both parsers return the same guid."""
        decoded: str = super().decode_entities(element, data)
        return decoded if self.contentparams else unescape(decoded, QUOTES)

    def pop(self, element: str, strip_whitespace: int = 1) -> Any:
        """Return the text of an element, with entities in names of people decoded."""
        text = super().pop(element, strip_whitespace)
        return unescape(text, QUOTES) if text and element == "name" else text

    def handle_charref(self, ref: str) -> None:
        """Handle a numeric character reference; ignore invalid numbers."""
        try:
            super().handle_charref(ref)
        except (ValueError, OverflowError):
            return
