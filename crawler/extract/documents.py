"""Responses that are not HTML: JSON, XML and plain text, recognized by their content.

Servers send JSON and XML as `text/html`, and HTML as `text/plain`.
"""

from __future__ import annotations

import re
from html import escape
from typing import Any

from lxml import etree
from scrapy import Selector
from scrapy.http import HtmlResponse, JsonResponse, TextResponse, XmlResponse

from crawler.extract.plain_text import FORBIDDEN, MAX_CHARACTERS
from crawler.utils.exact_json import loads

SNIFFED_BYTES = 8192
# The beginning of an object, or of a list of objects or texts, maybe after the characters that keep
# browsers from running it as a script.
JSON_START = re.compile(
    rb"(?:\xef\xbb\xbf)?\s*+(?:\)\]\}',?\s*+)?(?:\{\s*+[\"}]|\[\s*+(?:\{|\"|\]))"
)
JSON_ENDS = b"}", b"]"
UNRUNNABLE = re.compile(r"\s*\)\]\}',?")
# The root element may follow an XML declaration, comments and a document type. The atomic group
# prevents backtracking on pages that begin with thousands of comments.
ROOT = re.compile(
    rb"(?:\xef\xbb\xbf)?\s*+(?P<xml><\?xml\b)?(?>\s+|<\?.*?\?>|[^<]*?\?>|<!--.*?-->"
    rb"|(?P<type><!DOCTYPE\s+html\b)[^>]*>|<!DOCTYPE[^\[>]*(?:\[.*?\])?\s*>)*+"
    rb"<(?:[\w.-]+:)?(?P<name>[\w.-]+)",
    re.S | re.I,
)
HTML_NAMES = frozenset({b"html", b"head", b"body"})
MAX_VALUE_CHARACTERS = 10_000


class JsonPage(JsonResponse):
    """A JSON document. Its numbers have all their digits."""

    @property
    def selector(self) -> Selector:
        """Return a selector of the document; its root is None if the document is invalid."""
        if self._cached_selector is None:
            try:
                root = loads(UNRUNNABLE.sub("", self.text.removeprefix("\ufeff"), count=1))
            except (ValueError, RecursionError):
                root = None
            self._cached_selector = _selector(self, Selector(root=root, type="json"))
        return self._cached_selector

    @property
    def problem(self) -> str | None:
        """Return why the document is invalid; None if it is valid."""
        if self.selector.root is not None:
            return None
        try:
            loads(UNRUNNABLE.sub("", self.text.removeprefix("\ufeff"), count=1))
        except RecursionError:
            return "JSON, nested too deeply"
        except ValueError as error:
            return f"invalid JSON: {' '.join(str(error).split())[:200]}"
        return None


class XmlPage(XmlResponse):
    """An XML document. Its names have no namespaces, so that `//item` finds all items."""

    @property
    def selector(self) -> Selector:
        """Return a selector of the document."""
        if self._cached_selector is None:
            selector = super().selector
            if isinstance(selector.root, etree._Element):
                selector.remove_namespaces()
        assert self._cached_selector is not None
        return self._cached_selector


class PlainTextPage(TextResponse):
    """A text without markup. For selectors, it is in a `pre` element."""

    @property
    def selector(self) -> Selector:
        """Return a selector of a page with the text."""
        if self._cached_selector is None:
            markup = f"<pre>{escape(FORBIDDEN.sub('', self.text))}</pre>"
            self._cached_selector = _selector(self, Selector(text=markup, type="html"))
        return self._cached_selector


def by_content(response: TextResponse) -> TextResponse:
    """Return a response as JSON, XML, plain text or HTML by its content and content type."""
    kind = _kind(response)
    return response if kind is type(response) else response.replace(cls=kind)


def text_lines(text: str) -> str:
    """Return a plain text as it is, with usual line ends and without control characters."""
    text = FORBIDDEN.sub("", text.removeprefix("\ufeff"))
    lines = (line.rstrip() for line in text.replace("\r\n", "\n").replace("\r", "\n").split("\n"))
    return "\n".join(lines).strip("\n")[:MAX_CHARACTERS]


def xml_lines(root: etree._Element) -> str:
    """Return the texts and attributes of an XML document, each on a line with its name."""
    lines: list[str] = []
    characters = 0
    for element in root.iter(etree.Element):
        name = etree.QName(element).localname
        own = " ".join(str(text) for text in (element.text, *(c.tail for c in element)) if text)
        values = [(f"{name} {key!s}", str(value)) for key, value in element.items()]
        for label, value in (*values, (name, own)):
            if shown := " ".join(value[:MAX_VALUE_CHARACTERS].split()):
                lines.append(f"{label}: {shown}")
                characters += len(lines[-1])
        if characters > MAX_CHARACTERS:
            break
    return "\n".join(lines)[:MAX_CHARACTERS]


def _kind(response: TextResponse) -> type[TextResponse]:
    head = response.body[:SNIFFED_BYTES]
    is_json = JSON_START.match(head) and response.body.rstrip()[-1:] in JSON_ENDS
    if is_json or isinstance(response, JsonResponse):
        return JsonPage
    if isinstance(response, XmlResponse):
        return XmlPage
    root = ROOT.match(head)
    is_html = root is not None and (root["type"] or root["name"].lower() in HTML_NAMES)
    if root is not None and root["xml"] and not is_html:
        return XmlPage
    if type(response) is not TextResponse:
        return type(response)
    stated = (response.headers.get("Content-Type") or b"").strip().lower()
    if is_html:
        return HtmlResponse
    return PlainTextPage if stated.startswith(b"text/") else TextResponse


def _selector(response: TextResponse, selector: Selector) -> Selector:
    selector.response = response
    return selector


def json_value(response: TextResponse) -> Any:
    """Return the value of a JSON document; None for other pages and invalid documents."""
    selector = response.selector
    return selector.root if selector.type == "json" else None
