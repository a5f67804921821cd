"""Text from remote servers is shown escaped, without control sequences for the terminal."""

from __future__ import annotations

import json
from typing import Any

import pytest

from crawler.utils.terminal import UNSAFE
from tests.integration.harness import Db, Freshet, Pages

pytestmark = pytest.mark.soak

# ESC, C1 CSI, BEL, CR, bidi overrides and isolates, separators, NEL, DEL, BS, and markup.
MARKUP = "[/nope] [bold] :smile:"
NASTY = "a\x1b[31mb\x9b2Jc\x07d\re\u202ef\u2066g\u2028h\u2029i\x85j\x7fk\x08l\u200fm" + MARKUP
SPIDER = f"""
from spiders.wrapper import WrapperSpider
NASTY = {NASTY!r}

class Loud(WrapperSpider):
    name = "loud"
    item_pages = "/item/"
    custom_settings = {{"AUTOTHROTTLE_ENABLED": False}}

    def read_item(self, response):
        self.logger.info("said %s and %r", NASTY, [NASTY])
        self.logger.warning(NASTY + "\\n2026-01-01 00:00:00 [x] ERROR: forged")
        try:
            raise ValueError(NASTY)
        except ValueError:
            self.logger.exception("failed: %s", NASTY)
        return {{"title": "x"}}

"""
FEED = """<?xml version="1.0"?><rss version="2.0"><channel><title>{title}</title>
<link>http://a.test/</link>{items}</channel></rss>"""
ITEM = """<item><guid>{n}</guid><link>{url}/post/{n}.html</link><title>{title}</title>
<category>{title}</category><description>{title}, number {n}, with words</description></item>"""
XML_NASTY = "".join(x if x >= " " else "" for x in NASTY).replace("\x7f", "&#x7f;")


def dirtied(value: Any) -> Any:
    """Append NASTY to each text in a part of a document, except to keys."""
    if isinstance(value, str):
        return value + NASTY
    if isinstance(value, list):
        return [dirtied(part) for part in value]
    if isinstance(value, dict):
        return {name: dirtied(part) for name, part in value.items()}
    return value


# Paths of external texts, by collection.
FIELDS = {
    "targets": ("category", "categories", "last_visit.reason", "title", "feed.title"),
    "visits": ("reason",),
    "posts": ("title", "fields", "text", "categories", "page.fields"),
    "versions": ("content",),
    "monitors": ("title",),
}


def dirty(database: Db) -> None:
    """Append NASTY to all stored external texts."""
    for name, paths in FIELDS.items():
        for document in database[name].find():
            dirtied_fields = {}
            for path in paths:
                value: Any = document
                for key in path.split("."):
                    value = value.get(key) if isinstance(value, dict) else None
                if value:
                    dirtied_fields[path] = dirtied(value)
            if name in ("targets", "visits") and "reason" not in dirtied_fields:
                dirtied_fields["last_visit.reason" if name == "targets" else "reason"] = NASTY
            if name == "targets":
                dirtied_fields["category"] = NASTY
            database.command(
                "update", name, bypassDocumentValidation=True,
                updates=[{"q": {"_id": document["_id"]}, "u": {"$set": dirtied_fields}}],
            ) if dirtied_fields else None  # fmt: skip


@pytest.fixture
def hostile(freshet: Freshet, pages: Pages, database: Db) -> tuple[Freshet, str]:
    """Create a site and a feed with only nasty texts, and fetch them twice."""
    path = f"item/{'%1b%5b31m%e2%80%ae'}.html"
    for text in ("One", "Two"):
        pages.list("index.html", [f"/{path}", "/item/2.html"], category=XML_NASTY)
        pages.item("item/\x1b[31m\u202e.html", f"{text} {NASTY}")
        pages.item("item/2.html", f"{text} {NASTY}, copied and long enough to be one of many words")
        items = "".join(ITEM.format(n=n, url=pages.url, title=text + XML_NASTY) for n in range(2))
        pages.file("feed.xml", FEED.format(title=XML_NASTY, items=items))
        if text == "One":
            freshet("feeds", "add", f"{pages.url}/feed.xml")
        definition = freshet.wrapper(
            "nasty", start_urls=[f"{pages.url}/"], item_pages="/item/", category="h2",
            fields={"title": "h1", "wide": f"h1:not([title='{MARKUP}'])"},
        )  # fmt: skip
        freshet.crawl(definition, "-a", "full=1", hours=48 * (text == "Two"))
        freshet("crawl", "feeds", "-a", "full=1", hours=48 * (text == "Two"))
    dirty(database)
    return freshet, f"{pages.url}/{path}"


def assert_printable(text: str) -> None:
    unsafe = UNSAFE.search(text)
    assert unsafe is None, text[max(0, unsafe.start() - 80) : unsafe.end() + 20]


def test_commands_print_no_control_sequences(hostile: tuple[Freshet, str]) -> None:
    freshet, url = hostile
    definition = freshet.folder / "nasty.toml"
    feed = f"{url.split('/item')[0]}/feed.xml"
    commands: dict[str, tuple[object, ...]] = {
        "history": ("history", url),
        "diff": ("history", url, "--diff"),
        "explain": ("explain", url),
        "learn": ("learn", "nasty"),
        "check": ("wrapper", "check", definition, url, f"{url.split('/item')[0]}/"),
        "targets": ("targets",),
        "listed": ("targets", "--urls"),
        "changes": ("changes",),
        "search": ("search", "words"),
        "clusters": ("duplicates",),
        "pair": ("duplicates", "explain", url, url.rsplit("/", 1)[0] + "/2.html"),
        "feeds": ("feeds", "list"),
        "export": ("feeds", "export"),
        "deadletters": ("deadletters", "list"),
        "doctor": ("doctor",),
        "replan": ("replan", "nasty"),
        "plan": ("plan", "nasty"),
        "forget": ("forget", "nasty", "--dry-run"),
        "remove": ("feeds", "remove", feed, "--dry-run"),
        "unknown": ("targets", NASTY.replace("\x1b", "")),
        "unknown URL": ("history", f"http://a.test/{NASTY}"),
    }
    shown = {}
    for name, words in commands.items():
        for json_too in (False, True):
            result = freshet(*words, *(["--json"] if json_too else []), COLUMNS=120)
            assert "Traceback" not in result.err, (name, result.err)
            assert_printable(result.out)
            assert_printable(result.err)
            shown[name, json_too] = result.out + result.err
    # Each command had something to escape; markup and emoji names are printed as text.
    for name in ("history", "diff", "targets", "changes", "check"):
        assert "[/nope]" in shown[name, False], (name, shown[name, False])
    for name in ("history", "diff", "targets"):
        assert "\\u001b" in shown[name, True], name
    assert ":smile:" in shown["targets", False]


def test_crawl_log_has_no_control_sequences(freshet: Freshet, pages: Pages) -> None:
    pages.list("index.html", ["/item/1.html"])
    pages.item("item/1.html", "One")
    code = f"{SPIDER}\n    start_urls = ['{pages.url}/']\n"
    log = freshet.folder / "crawl.log"
    done = freshet.crawl_spider(code, "loud", "-s", f"LOG_FILE={log}")
    written = log.read_text(encoding="utf-8")
    for text in (written, done.err):
        assert_printable(text)
    assert r"said a\x1b[31mb\x9b2Jc\x07d\re\u202ef" in written
    # Line breaks in the text stay within its record; those of a traceback are kept.
    assert "\n  2026-01-01 00:00:00 [x] ERROR: forged" in written
    assert "\nTraceback (most recent call last):\n  File " in written


def test_ids_of_checked_texts_are_escaped(freshet: Freshet) -> None:
    file, out = freshet.folder / "texts.jsonl", freshet.folder / "flags.jsonl"
    file.write_text(json.dumps({"id": NASTY, "text": "some words of a text"}), encoding="utf-8")
    printed = freshet("duplicates", "check", file)
    freshet("duplicates", "check", file, "--output", out)
    for text in (printed.out, out.read_text(encoding="utf-8")):
        assert_printable(text)
        assert json.loads(text)["id"] == NASTY


def test_the_password_of_a_start_url_is_not_in_the_log(freshet: Freshet, pages: Pages) -> None:
    pages.list("index.html", ["/item/1.html"])
    url = pages.url.replace("http://", "http://me:s3cret@")
    definition = freshet.wrapper("secret", start_urls=[f"{url}/", f"{url}/none"], item_pages="/x/")
    log = freshet.folder / "crawl.log"
    done = freshet("crawl", "site", "-a", f"wrapper={definition}", "-s", f"LOG_FILE={log}")
    written = log.read_text(encoding="utf-8") if log.exists() else ""
    assert written or done.err
    assert "s3cret" not in written + done.err + done.out
