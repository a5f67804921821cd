"""Every parser of external text finishes quickly, whatever the text.

docs/explanation/security.md lists the parsers. Each parser runs in a subprocess, because C code in
an endless loop could not be interrupted in this process.
"""

from __future__ import annotations

import asyncio
import io
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from scrapy.http import HtmlResponse

from crawler.config import Config
from crawler.dedup.boilerplate import sourced
from crawler.dedup.schemes import scheme_of
from crawler.errors import ConfigError
from crawler.extract import plain_text
from crawler.extract.content import digest, normal
from crawler.extract.fields import FieldType, squeeze, typed
from crawler.extract.links import listed_links, wanted_links
from crawler.extract.main_text import main_text
from crawler.extract.page_values import page_values
from crawler.extract.response import is_heavy
from crawler.extract.sitemaps import listing_of
from crawler.extract.unstable_text import without_unstable
from crawler.feeds.discovery import candidates
from crawler.feeds.parser import read
from crawler.feeds.subscriptions import read_list
from crawler.items import LinkCounts, NoFeed
from crawler.search import Query, passage, search_words
from crawler.utils import diff
from crawler.utils import text as normalization
from crawler.utils.edits import difference, edits
from crawler.utils.regex import compiled
from crawler.utils.sandbox import LimitExceeded, ProcessPool
from tests.unit.feeding import item, rss
from tests.unit.pages import NOON, SITE, wrapper

pytestmark = pytest.mark.soak
DOCS = Path(__file__).resolve().parents[3] / "docs/explanation/security.md"
# CPU time; the worst pages except heavy ones take 1 s, and quadratic parsing takes a minute.
MAX_SECONDS, MAX_MB = 8, 2048
SIZE = 150_000
HALF = SIZE // 2
WORST = {
    "marks": f"a{chr(0x301) * HALF}{chr(0x316) * HALF}",
    "alternating marks": "\u0301\u0316" * HALF,
    "marks and joiners": "\u0301\u200b\u0316\u200b" * (HALF // 2),
    "marks as references": "a" + "&#769;" * (HALF // 6) + "&#790;" * (HALF // 6),
    "marks in tags": "a" + "\u0301<b></b>" * (HALF // 8) + "\u0316<b></b>" * (HALF // 8),
    "kana marks": "\uff9e\u0301" * HALF,
    "ligatures": "\ufdfa" * SIZE,
    "one line": "word " * (SIZE // 5),
    "one word": "x" * SIZE,
    "lines": "".join(f"{n}\n" for n in range(SIZE // 6)),
    "digits": "1" * SIZE,
    "groups of digits": "111." * (SIZE // 4),
    "surrogates": "\ud800" * SIZE,
    "NUL": "\0" * SIZE,
    "deep tags": "<div>" * (SIZE // 5),
    "open tags": "<a " * (SIZE // 3),
    "open quotes": "<a b='" * (SIZE // 6),
    "open comments": "<!--" * (SIZE // 4),
    "open sections": "<![CDATA[" * (SIZE // 9),
    "deep JSON": "[" * SIZE,
    "ampersands": "&" * SIZE,
    "a long number": f"&#0; &#{'0' * (SIZE // 3)}",
    "a long hexadecimal number": f"&#0; &#x{'0' * (SIZE // 3)}",
    "a long name": f"&#0; &{'a' * (SIZE // 3)}",
}


def response(text: str) -> HtmlResponse:
    """Return a page that is small enough to be parsed in the crawl's own process."""
    body = text.encode("utf-8", "surrogatepass")[: SIZE - 100]
    return HtmlResponse(SITE, body=b"<body><p>" + body, encoding="utf-8")


def parse_page(text: str) -> None:
    page = response(text)
    main_text(page)
    wanted_links(page, wrapper(), None, 2000, LinkCounts())


def read_page_values(text: str) -> None:
    script = f"<script type='application/ld+json'>{text}</script>"
    marked = f"<p itemscope itemprop=price class=x>{text}"
    page_values(response(f"<h1>x</h1>{script}"))
    page_values(response(f"<h1>x</h1>{marked}"))


def digest_content(text: str) -> None:
    digest(normal({"text": text, text[:1000]: [text]}))
    without_unstable(text)


def sketch_text(text: str) -> None:
    for name in ("characters", "words", "supershingles"):
        scheme_of(name, 0.8).sketch(text)
    sourced("shop", text)


def search_text(text: str) -> None:
    search_words(text[:1000], text, {"field": text})
    passage([text], Query.of(["word"]).terms, 80)


def parse_fields(text: str) -> None:
    for kind in (FieldType.NUMBER, FieldType.PRICE, FieldType.DATE):
        typed(squeeze(text), kind, wrapper().zone)


def strip_markup(text: str) -> None:
    plain_text.plain(text)
    plain_text.lines(text)


def parse_feeds(text: str) -> None:
    inside = f"<title>{text}</title><description>{text}</description>"
    for body in (rss(item(inside)), f"<rss>{text}", text, f'{{"items": [{text}'):
        try:
            read(body.encode("utf-8", "surrogatepass"), SITE, None, NOON)
        except NoFeed:
            continue


def parse_feed_lists(text: str) -> None:
    for body in (text, f"<opml><body><outline text='{text}'/>{text}"):
        try:
            read_list(io.BytesIO(body.encode("utf-8", "surrogatepass")), "x.opml", Config.load())
        except ConfigError:
            continue


def parse_sitemaps(text: str) -> None:
    body = f"<urlset><url><loc>{SITE}item/1</loc>{text}".encode("utf-8", "surrogatepass")
    if sitemap := listing_of(body, 1 << 24):
        listed_links(sitemap, SITE, wrapper(), 200, LinkCounts())


def compute_diffs(text: str) -> None:
    other = text[::-1]
    if diff.is_quick(text, other):
        diff.diff_size(text, other)
    diff.estimated_diff_size(text, other)
    difference({"text": text}, {"text": other}, diff.Matcher())
    edits({"text": text}, {"text": other}, 3, 300)


def match_patterns(text: str) -> None:
    for pattern in (r"(\w+/?)+/none$", r".*-.*-.*-.*-.*\.html$", "((a{0,7}){0,7}){0,7}x$"):
        compiled(pattern).search(text.encode(errors="surrogatepass"))


PARSERS: dict[str, Callable[[str], Any]] = {
    "crawler/utils/text.py": lambda text: normalization.normalized("NFKC", text),
    "crawler/extract/content.py": digest_content,
    "crawler/dedup": sketch_text,
    "crawler/search.py": search_text,
    "crawler/extract/main_text.py": parse_page,
    "crawler/extract/page_values.py": read_page_values,
    "crawler/extract/fields.py": parse_fields,
    "crawler/extract/plain_text.py": strip_markup,
    "crawler/feeds/parser.py": parse_feeds,
    "crawler/feeds/discovery.py": lambda text: candidates(response(text)),
    "crawler/feeds/subscriptions.py": parse_feed_lists,
    "crawler/utils/regex.py": match_patterns,
    "crawler/extract/links.py": parse_sitemaps,
    "crawler/utils/diff.py": compute_diffs,
}
PAGE_PARSERS = {
    "crawler/extract/main_text.py",
    "crawler/extract/page_values.py",
    "crawler/feeds/discovery.py",
}


@pytest.fixture(scope="module", autouse=True)
def libraries() -> None:
    """Load the libraries that each subprocess would otherwise import itself."""
    # For text without a date, dateparser loads all languages, which takes 1.7 s.
    parse_fields("no date")
    sketch_text("word")


def test_security_page_lists_all_parsers() -> None:
    page = DOCS.read_text(encoding="utf-8")
    section = page.partition("### Code that reads outside text")[2].partition("\n### ")[0]
    assert {row.split("`")[1] for row in section.splitlines() if row.startswith("| `")} == set(
        PARSERS
    )


@pytest.mark.parametrize("path", PARSERS)
def test_worst_case_texts_are_parsed_quickly(path: str, tmp_path: Path) -> None:
    skipped = {kind for kind in WORST if path in PAGE_PARSERS and is_heavy(response(WORST[kind]))}
    finished = tmp_path / "finished.txt"

    def work() -> None:
        for kind in WORST.keys() - skipped:
            began = time.process_time()
            try:
                PARSERS[path](WORST[kind])
            except RecursionError:
                assert kind == "deep JSON"
            assert time.process_time() - began < MAX_SECONDS, kind
            with finished.open("a", encoding="utf-8") as names:
                names.write(f"{kind}\n")

    # A subprocess for each text would take most of the time.
    try:
        asyncio.run(ProcessPool.forking(MAX_SECONDS * 3, MAX_MB).run(work))
    finally:
        assert set(finished.read_text(encoding="utf-8").splitlines()) == WORST.keys() - skipped


HEAVY = [(path, kind) for path in sorted(PAGE_PARSERS) for kind in WORST]


@pytest.mark.parametrize(
    ("path", "kind"), [each for each in HEAVY if is_heavy(response(WORST[each[1]]))]
)
def test_heavy_pages_are_parsed_quickly_or_stopped(path: str, kind: str) -> None:
    """A crawl parses heavy pages in a subprocess, which is stopped like this one."""
    with suppress(LimitExceeded):
        sandbox = ProcessPool.forking(MAX_SECONDS, MAX_MB)
        asyncio.run(sandbox.run(lambda: bool(PARSERS[path](WORST[kind]))))
