"""feedparser's two parsers with bounds: hostile documents end as soon as others.

feedparser's own `parse` has none: some hundred kilobytes of categories, of names in an author or
of line ends keep it busy for minutes. Here the methods are bounded that grow faster than a
document. feedparser ships no types; what it gives leaves `xml` as plain dicts.
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
# Text comes in as many pieces as there are marks in it; so many are no text any more.
MANY_PIECES = 100


class LimitExceeded(Exception):
    """The rest is not read; `str()` says more than how much there is."""


class Bounded(_FeedParserMixin):  # type: ignore[misc] # feedparser has no types
    """What both parsers do otherwise than feedparser.

    max_entries: raises LimitExceeded at the next one, and at one element more than anybody needs
    skip_hours, skip_days: as they stand in the document
    """

    resolve_relative_uris = False
    sanitize_html = False
    # A guid is a name, and stays the same when the feed moves to another URL.
    can_be_relative_uri = _FeedParserMixin.can_be_relative_uri - {"id"}

    def __init__(self, url: str, max_entries: int, *args: Any) -> None:
        self.max_entries = max_entries
        self.elements = 0
        self.skip_hours: list[str] = []
        self.skip_days: list[str] = []
        super().__init__(url, None, "utf-8", *args)

    def unknown_starttag(self, tag: str, attrs: Any) -> None:
        """Begin an element, whichever it is."""
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
        # Each is compared with all before it.
        if len(self._get_context().get("tags", ())) < MAX_TAGS:
            super()._add_tag(*args)

    def _sync_author_detail(self, key: str = "author") -> None:
        # The search for an address in it takes the square of its length.
        context = self._get_context()
        if len(author := dict.get(context, key) or "") > MAX_AUTHOR_CHARACTERS:
            context[key] = author[:MAX_AUTHOR_CHARACTERS]
        super()._sync_author_detail(key)

    def track_namespace(self, prefix: Any, uri: Any) -> None:
        """Remember a namespace; all are looked through at each element."""
        if len(self.namespaces_in_use) < MAX_NAMESPACES:
            super().track_namespace(prefix, uri)

    def pop(self, element: str, strip_whitespace: int = 1) -> Any:
        """The text of an element; feedparser would move all pieces once for each empty one."""
        stack = self.elementstack
        if stack and stack[-1][0] == element and len(stack[-1][2]) > MANY_PIECES:
            pieces = list(stack[-1][2])
            first = next((n for n, piece in enumerate(pieces) if piece.strip()), len(pieces))
            stack[-1][2] = pieces[first:]
        return super().pop(element, strip_whitespace)

    # feedparser takes a second description for the content, which these never are.

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

    # feedparser keeps the last of these only.

    def _end_hour(self) -> None:
        self._skip("skiphours", self.pop("hour"), self.skip_hours)

    def _end_day(self) -> None:
        self._skip("skipdays", self.pop("day"), self.skip_days)

    def _skip(self, within: str, text: Any, skipped: list[str]) -> None:
        stack = self.elementstack
        if stack and stack[-1][0] == within and text and len(skipped) < MAX_HOURS:
            skipped.append(str(text))


class Strict(Bounded, StrictFeedParser):  # type: ignore[misc] # as above
    """Handler of a SAX parser, which tells each line of a text apart."""

    def __init__(self, url: str, max_entries: int) -> None:
        self.waiting: list[str] = []
        super().__init__(url, max_entries)

    def characters(self, text: str) -> None:
        """Keep a piece of text until its element has ended or another begins."""
        self.waiting.append(text)

    def startElementNS(self, name: Any, qname: Any, attrs: Any) -> None:  # noqa: N802 # SAX's name
        """Begin an element; each attribute is looked for among all."""
        self._say_text()
        few = attrs if len(attrs) <= MAX_ATTRIBUTES else AttributesNSImpl({}, {})
        super().startElementNS(name, qname, few)

    def endElementNS(self, *args: Any) -> None:  # noqa: N802 # as above
        """End an element."""
        self._say_text()
        super().endElementNS(*args)

    def _say_text(self) -> None:
        if self.waiting:
            self.handle_data("".join(self.waiting))
            self.waiting.clear()


class Loose(Bounded, LooseFeedParser):  # type: ignore[misc] # as above
    """Reads text that only looks like XML."""

    def decode_entities(self, element: str, data: str) -> str:
        """Decode, outside of contents too: a guid is the same one in both parsers."""
        decoded: str = super().decode_entities(element, data)
        return decoded if self.contentparams else unescape(decoded, QUOTES)

    def pop(self, element: str, strip_whitespace: int = 1) -> Any:
        """The text of an element; a person's name is decoded as well."""
        text = super().pop(element, strip_whitespace)
        return unescape(text, QUOTES) if text and element == "name" else text

    def handle_charref(self, ref: str) -> None:
        """A character by its number; none for a number that no character has."""
        try:
            super().handle_charref(ref)
        except (ValueError, OverflowError):
            return
