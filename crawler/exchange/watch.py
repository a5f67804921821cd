"""A watch of another program, with the settings that Freshet has no equivalent for."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from crawler.config import unexpanded
from crawler.extract.stored_definition import PLAIN_HEADERS

# Watches of a file.
MAX_WATCHES = 10_000
MAX_SELECTOR_CHARACTERS, MAX_SELECTORS = 2000, 20
# Characters of a key in a message.
MAX_KEY_CHARACTERS = 80
ONLY_TEXTS = "Freshet reads HTML, XML and JSON"
NO_BROWSER = "Freshet reads pages as the server sends them, without JavaScript"
NO_TEXT_FILTER = "Freshet compares the whole value; select the part that matters"
ONLY_GET = "Freshet only sends GET requests"
NO_COMMANDS = "Freshet runs no commands"
NO_SETTING = "Freshet has no such setting"
NO_EXCLUSION = "only main texts can leave out parts of a page, not fields and cells"
# Documents that are neither HTML, XML nor JSON, by the end of a URL's path and by media type.
BINARY_END = re.compile(
    r"\.(?:pdf|docx?|xlsx?|pptx?|od[tsp]|rtf|epub|zip|tgz|bz2|xz|7z|rar|png|jpe?g|gif|webp|avif"
    r"|bmp|tiff?|ico|mp[34]|m4a|ogg|wav|webm|mov|avi|exe|dmg|iso|apk)$",
    re.I,
)
BINARY_TYPE = re.compile(r"application/(?:pdf|zip|msword|vnd\.|octet)|(?:image|audio|video)/", re.I)
_ONE_ID = re.compile(r"[\w-]*#[\w-]+|body|html")
_FIRST = re.compile(r"\(.*\)\[(?:1|last\(\))\]", re.S)
JSON_PATH = re.compile(
    r"\$((?:\.[A-Za-z_]\w*|\[\d+\]|\[\*\]"
    r"|\[\?\(@\.[A-Za-z_]\w*\s*==\s*(?:'[^'\\]*'|\"[^\"\\']*\"|-?\d+)\)\])*)"
)
_JSON_CONDITION = re.compile(r"\[\?\(@\.(\w+)\s*==\s*(?:'([^']*)'|\"([^\"]*)\"|(-?\d+))\)\]")
JQ_PATH = re.compile(r"((?:\.[A-Za-z_]\w*|\.?\[\d*\])+|\.)")
_FEED_END = re.compile(
    r"(?:^|/)(?:feed|rss|atom|index\.rdf)/?$|\.(?:rss|atom|rdf)$|(?:rss|atom|feed)[^/]*\.xml$", re.I
)


@dataclass(frozen=True, slots=True)
class Lost:
    """A setting that is not carried over. key: its name in the other program."""

    key: str
    reason: str


@dataclass(slots=True)
class Watch:
    """One watch of another program.

    where:   position such as `watch 3`
    name:    title, which feeds and cells keep; `name_key` is its key in the other program
    fields:  fields of a site definition by name; empty: the page's main text, prices and so on
    needs_page: whether only a page can have the values, not a cell
    ignore:  selectors of elements that are left out, each with its key in the other program
    every:   interval in seconds; None: not set
    refusal: why the watch cannot be imported; None: it can
    problem: why a visit of the page finds nothing; None: it finds something, or is unknown
    """

    where: str
    url: str = ""
    name: str | None = None
    name_key: str = "title"
    fields: dict[str, dict[str, str]] = field(default_factory=dict)
    every: float | None = None
    tags: tuple[str, ...] = ()
    headers: dict[str, str] = field(default_factory=dict)
    keys: dict[str, Any] = field(default_factory=dict)
    is_feed: bool = False
    needs_page: bool = False
    ignore: list[tuple[str, str]] = field(default_factory=list)
    lost: list[Lost] = field(default_factory=list)
    refusal: str | None = None
    problem: str | None = None

    def lose(self, key: str, reason: str) -> None:
        """Record a setting that is not carried over."""
        self.lost.append(Lost(key, reason))

    def take_headers(self, headers: object) -> None:
        """Take the headers that cannot be secret; record the others."""
        if not isinstance(headers, Mapping):
            return
        for name, value in headers.items():
            if str(name).lower() in PLAIN_HEADERS:
                self.headers[str(name)] = self.literal(f"headers.{name}", str(value))
            else:
                self.lose(f"headers.{name}", "may be secret; set headers with '${VARIABLE}'")

    def literal(self, key: str, text: str) -> str:
        """Return a text for a key in which definitions expand variables, and record the escapes.

        The author of the file must not choose which variables of this machine a site receives.
        """
        if (escaped := unexpanded(text)) != text:
            self.lose(key, "'${…}' stays as written; variables of this machine are not inserted")
        return escaped

    def lose_unknown(self, values: Mapping[str, Any], known: frozenset[str]) -> None:
        """Record all settings that are neither carried over nor recorded already."""
        reported = {lost.key for lost in self.lost}
        for key in values.keys() - known:
            if values[key] and str(key) not in reported:
                self.lose(str(key)[:MAX_KEY_CHARACTERS], NO_SETTING)

    def check_url(self) -> None:
        """Refuse documents that Freshet does not read, and record a part of the URL that it drops.

        Programs with a browser show other pages for other fragments such as `#/room/12`.
        """
        try:
            parts = urlsplit(self.url)
        except ValueError:
            return
        if parts.fragment.startswith(("/", "!")):
            self.refusal = self.refusal or (
                "the part of the URL after # is for scripts of the page. " + NO_BROWSER
            )
        elif parts.fragment:
            self.lose(f"#{parts.fragment[:MAX_KEY_CHARACTERS]}", "the whole page is read")
        if end := BINARY_END.search(parts.path[-MAX_KEY_CHARACTERS:]):
            self.refusal = self.refusal or f"{end[0]}: {ONLY_TEXTS}"

    def take_selector(self, kind: str, text: str, *, is_one: bool = False) -> None:
        """Add a field with a selector. kind: css, xpath or jmespath."""
        if len(text) > MAX_SELECTOR_CHARACTERS or len(self.fields) == MAX_SELECTORS:
            self.refusal = "the selectors are too long, or too many"
            return
        is_one = is_one or bool((_FIRST if kind == "xpath" else _ONE_ID).fullmatch(text))
        if kind == "jmespath":
            is_one = not any(part in text for part in ("[]", "[*]", "[?"))
        name = f"value_{len(self.fields) + 1}" if self.fields else "value"
        self.fields[name] = {kind: text} | ({} if is_one else {"type": "list"})


@dataclass(frozen=True, slots=True)
class WatchFile:
    """The watches of a file. problems: settings of the whole file that are not carried over."""

    program: str
    watches: list[Watch]
    problems: list[Lost] = field(default_factory=list)


def mapping(value: object) -> Mapping[str, Any]:
    """Return a value that is a mapping, else an empty one."""
    return value if isinstance(value, Mapping) else {}


def texts(value: object) -> list[str]:
    """Return the non-empty texts of a list, or of a single text."""
    values = [value] if isinstance(value, str) else value if isinstance(value, list) else []
    return [text for each in values if (text := str(each).strip())]


def take_json_path(watch: Watch, path: str, pattern: re.Pattern[str]) -> None:
    """Add a field for a path that JMESPath supports, too: names, indexes, all elements."""
    match = pattern.fullmatch(path) if len(path) <= MAX_SELECTOR_CHARACTERS else None
    if match is None:
        watch.refusal = f"cannot be written as JMESPath: {path[:80]!r}"
        return
    # The path of the whole document is `$` or `.`.
    selector = _JSON_CONDITION.sub(_condition, match[1])
    watch.take_selector("jmespath", selector.replace(".[", "[").removeprefix(".") or "@")


def _condition(match: re.Match[str]) -> str:
    """Return a condition of JSONPath in JMESPath."""
    name, quoted, doubly, number = match.groups()
    value = f"`{number}`" if number else f"'{quoted if quoted is not None else doubly}'"
    return f"[?{name}=={value}]"


def is_feed_url(url: str) -> bool:
    """Return whether a URL ends like that of a feed."""
    try:
        return _FEED_END.search(urlsplit(url).path[-200:]) is not None
    except ValueError:
        return False
