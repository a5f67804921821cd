"""Feed lists: OPML and plain text, valid and malformed, and rejected entries."""

from __future__ import annotations

import io
import time
from datetime import UTC, datetime

import pytest

from crawler.config import Config
from crawler.errors import ConfigError
from crawler.feeds import subscriptions
from crawler.feeds.subscriptions import (
    FeedList,
    Refused,
    Subscription,
    category_of,
    encoding_of,
    feed_url,
    opml_lines,
    read_list,
    tidy,
)

NAME = "my.opml"
BOMB_LEVELS = 9
FEED = '<outline text="A" xmlUrl="https://a.example/feed"/>'


def read(text: str | bytes, **settings: object) -> FeedList:
    """Parse a feed list with this content."""
    body = text.encode() if isinstance(text, str) else text
    return read_list(io.BytesIO(body), NAME, Config.load(**settings))


def outlines(inner: str) -> FeedList:
    """Parse an OPML document with these outlines."""
    return read(f'<?xml version="1.0"?><opml version="2.0"><body>{inner}</body></opml>')


def urls(feed_list: FeedList) -> list[str]:
    return [feed.url for feed in feed_list.feeds]


def test_an_outline_with_xml_url_is_a_feed() -> None:
    feed_list = outlines(
        '<outline type="rss" text="A &amp; B" title="other" xmlUrl="https://A.example/feed"'
        ' htmlUrl="https://a.example/"/>'
    )
    assert feed_list == FeedList(
        (Subscription("https://a.example/feed", "A & B", "https://a.example/"),)
    )


@pytest.mark.parametrize("name", ["hex", "rot13", "zlib", "ISO-8859-1"])
def test_codec_that_is_no_encoding_is_ignored(name: str) -> None:
    outline = '<outline text="Élan où ça" xmlUrl="https://a.example/feed"/>'
    text = f'<?xml version="1.0" encoding="{name}"?><opml><body>{outline}</body></opml>'
    assert read(text.encode("cp1252")).feeds[0].title == "Élan où ça"


def test_nested_outlines_are_categories() -> None:
    feed_list = outlines(
        f'<outline text="News"><outline title=" Local  news ">{FEED}</outline></outline>'
    )
    assert feed_list.feeds[0].categories == ("News/Local news",)


@pytest.mark.parametrize(
    ("inner", "categories"),
    [
        (FEED, ()),
        (f"<outline>{FEED}</outline>", ()),
        (f'<outline text="AC/DC">{FEED}</outline>', ("AC/DC",)),
        (f'<outline text="N">{FEED}</outline>{FEED}', ("N",)),
        (f'<outline text="N">{FEED}{FEED}</outline><outline text="M">{FEED}</outline>', ("N", "M")),
        ('<outline xmlUrl="https://a.example/feed" category="/News/Local, Sport,,"/>',
         ("News/Local", "Sport")),
        (f'<outline text="N" xmlUrl="https://b.example/">{FEED}</outline>', ()),
    ],
    ids=["none", "unnamed", "slash", "one twice", "two", "attribute", "inside a feed"],
)  # fmt: skip
def test_categories_of_folders_and_attributes(inner: str, categories: tuple[str, ...]) -> None:
    feeds = {feed.url: feed for feed in outlines(inner).feeds}
    assert feeds["https://a.example/feed"].categories == categories


def test_duplicate_feeds_are_merged_and_keep_the_first_title() -> None:
    feed_list = outlines(
        '<outline text="N"><outline xmlUrl="https://a.example/feed?utm_source=x"/></outline>'
        '<outline text="M"><outline text="Second" xmlUrl="HTTPS://A.example:443/feed#top"/></outline>'
        '<outline text="Third" htmlUrl="https://a.example/" xmlUrl="https://a.example/feed"/>'
    )
    assert feed_list.feeds == (
        Subscription("https://a.example/feed", "Second", "https://a.example/", ("N", "M")),
    )


def test_url_as_title_is_ignored() -> None:
    feed_list = outlines('<outline text="https://a.example/feed" xmlUrl="https://a.example/feed"/>')
    assert feed_list.feeds[0].title is None


@pytest.mark.parametrize(
    ("written", "url"),
    [
        ("feed://a.example/x", "http://a.example/x"),
        ("itpc://a.example/x", "http://a.example/x"),
        ("podcast:https://a.example/x", "https://a.example/x"),
        ("feed:https://a.example/x", "https://a.example/x"),
        ("feed://https://a.example/x", "https://a.example/x"),
        ("FEED:http://a.example/x", "http://a.example/x"),
        (" https://a.example/x\n", "https://a.example/x"),
        ("https://a.example", "https://a.example/"),
        ("https://a.example/a b", "https://a.example/a%20b"),
    ],
)
def test_feed_urls_are_normalized(written: str, url: str) -> None:
    assert feed_url(written, Config.load()) == url


@pytest.mark.parametrize(
    ("written", "reason"),
    [
        ("", "the URL is empty"),
        ("a.example/feed", "not an http or https URL"),
        ("ftp://a.example/feed", "not an http or https URL"),
        ("feed:", "not an http or https URL"),
        ("javascript:alert(1)", "not an http or https URL"),
        ("http://", "not an http or https URL"),
        ("http://[::1/", "not an http or https URL"),
        ("http://a b/", "not an http or https URL"),
        ("https://me:hidden@a.example/feed", "must not contain a user name"),
        ("feed://me@a.example/feed", "must not contain a user name"),
        ("https://a.example/" + "x" * 2000, "longer than 2000 characters"),
    ],
)
def test_invalid_url_is_rejected_with_a_reason(written: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        feed_url(written, Config.load())


def test_only_invalid_outlines_are_rejected() -> None:
    feed_list = outlines(
        f'\n\n<outline text="Bad one" xmlUrl="ftp://a.example/"/>{FEED}\n<outline xmlUrl=""/>'
        '<outline text="More" type="include" url="https://a.example/more.opml"/>'
    )
    assert urls(feed_list) == ["https://a.example/feed"]
    assert feed_list.refused == (
        Refused("line 3, Bad one", "ftp://a.example/", "not an http or https URL"),
        Refused("line 4", "", "the URL is empty"),
        Refused(
            "line 4, More", "https://a.example/more.opml", "a link or another list, not a feed"
        ),
    )


def test_plain_list_has_one_url_per_line_and_comments() -> None:
    feed_list = read(
        "# mine\r\nhttps://a.example/feed # good\r\n\r\n  feed://b.example/#part\n"
        "https://a.example/feed\nc.example\nhttps://d.example/ x\nhttps://e.example/"
    )
    assert urls(feed_list) == ["https://a.example/feed", "http://b.example/", "https://e.example/"]
    assert [(entry.where, entry.url) for entry in feed_list.refused] == [
        ("line 6", "c.example"), ("line 7", "https://d.example/ x"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    "body",
    [
        '<opml><body><outline text="Q & A" xmlUrl="https://a.example/?a=1&b=2"/></body></opml>',
        "<opml><body><outline text=Q xmlUrl=https://a.example/?a=1&b=2 /></body></opml>",
        '<opml><body></outline><outline xmlUrl="https://a.example/?a=1&amp;b=2"/></outline></opml>',
        '<opml><body><outline xmlUrl="https://a.example/?a=1&amp;b=2"/><outline text="x" xml',
        '<opml><body><x:outline xmlUrl="https://a.example/?a=1&amp;b=2"/>&nbsp;</body></opml>',
        '<opml><outline text="\x03<b>" xmlUrl="https://a.example/?a=1&amp;b=2"/></opml>',
    ],
    ids=["ampersands", "no quotes", "stray ends", "truncated", "prefix and entity", "control"],
)
def test_malformed_list_is_recovered_and_reported(body: str) -> None:
    feed_list = read(body)
    assert urls(feed_list) == ["https://a.example/?a=1&b=2"]
    (problem,) = feed_list.problems
    assert problem.startswith("malformed XML (")
    assert ", line 1, " in problem


def test_case_and_namespaces_are_ignored() -> None:
    assert urls(read('<OPML><BODY><OUTLINE XMLURL="https://a.example/"/></BODY></OPML>')) == [
        "https://a.example/"
    ]
    namespaced = (
        '<opml xmlns="http://opml.org/spec2"><body><outline type="rss" url="https://a.example/"/>'
    )
    assert urls(read(namespaced + "</body></opml>")) == ["https://a.example/"]


@pytest.mark.parametrize(
    ("encoding", "declared"),
    [
        ("utf-8", ""),
        ("utf-8-sig", ""),
        ("utf-16", ' encoding="UTF-16"'),
        ("utf-32", ""),
        ("iso-8859-1", ' encoding="ISO-8859-1"'),
        ("utf-8", ' encoding="ISO-8859-1"'),
        ("utf-8", ' encoding="nonsense"'),
        ("iso2022_jp", ' encoding="ISO-2022-JP"'),
    ],
)
def test_declared_and_misdeclared_encodings_are_decoded(encoding: str, declared: str) -> None:
    title = "新聞" if encoding == "iso2022_jp" else "Élan où ça"
    text = f'<?xml version="1.0"{declared}?><opml><outline text="{title}" xmlUrl="http://a.b/"/></opml>'
    feed_list = read(text.encode(encoding))
    assert (feed_list.feeds[0].title, feed_list.problems) == (title, ())


@pytest.mark.parametrize(
    ("encoding", "title"), [("cp1252", "L’été où ça va déjà"), ("cp1251", "Новости культуры")]
)
def test_undeclared_encoding_is_guessed_and_reported(encoding: str, title: str) -> None:
    text = f'<opml><outline text="{title}" xmlUrl="http://a.b/"/></opml>'
    feed_list = read(text.encode(encoding))
    assert feed_list.feeds[0].title == title
    assert feed_list.problems == (f"not valid utf-8: read as {encoding}",)


def test_plain_list_in_utf_16_is_read() -> None:
    assert urls(read("http://a.b/\r\nhttp://c.d/\r\n".encode("utf-16"))) == [
        "http://a.b/", "http://c.d/",
    ]  # fmt: skip
    assert encoding_of(io.BytesIO(b"")) == ("utf-8", None)


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ("", "no feeds found"),
        ("# none\n\n", "no feeds found"),
        ("<opml><body/></opml>", "OPML without any feeds"),
        ('<opml><body><outline text="x"/></body></opml>', "no feeds found"),
        (
            "<!DOCTYPE html><html><body><a href='/opml'>x</a></body></html>",
            "an HTML page, not OPML",
        ),
        (
            "<?xml version='1.0'?><rss><channel/></rss>",
            "a feed, not a list of feeds. Use scrapy feeds add URL",
        ),
        ("<kml/>", "neither OPML nor a list of URLs"),
        ('{"version": 1}', "neither OPML nor a list of URLs"),
        ("\x89PNG\0\0", "neither OPML nor a list of URLs"),
    ],
)
def test_other_documents_are_rejected_with_one_line(body: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=f"^my.opml: {problem}$"):
        read(body)


def _bomb() -> str:
    levels = "".join(f'<!ENTITY e{i} "{f"&e{i - 1};" * 10}">' for i in range(1, BOMB_LEVELS))
    return f'<!DOCTYPE opml [<!ENTITY e0 "lol lol lol">{levels}]>'


@pytest.mark.parametrize(
    "body",
    [
        f'{_bomb()}<opml><outline text="&e{BOMB_LEVELS - 1};" xmlUrl="http://a.b/"/></opml>',
        f'{_bomb()}<opml>&e{BOMB_LEVELS - 1};<outline xmlUrl="http://a.b/"/></opml>',
        '<!DOCTYPE opml [<!ENTITY x SYSTEM "file:///etc/passwd">]>'
        '<opml>&x;<outline text="&x;" xmlUrl="http://a.b/"/></opml>',
        '<!DOCTYPE opml SYSTEM "http://127.0.0.1:9/x.dtd"><opml><outline xmlUrl="http://a.b/"/></opml>',
    ],
    ids=["in a title", "in the text", "a file", "a DTD"],
)  # fmt: skip
def test_entities_are_not_expanded(body: str) -> None:
    begun = time.process_time()
    (feed,) = read('<?xml version="1.0"?>' + body).feeds
    assert feed.url == "http://a.b/"
    assert "root:" not in (feed.title or "")
    assert len(feed.title or "") <= subscriptions.TITLE_CHARACTERS
    assert time.process_time() - begun < 1


@pytest.mark.parametrize(
    "body",
    [
        "<opml>" + '<outline text="a"><outline xmlUrl="http://a.b/"/>' * 20_000,
        "<opml>" + f'<outline text="{"long " * 100}">' * 200 + '<outline xmlUrl="http://a.b/"/>',
        "<opml>" + "".join(
            f'<outline text="{i}"><outline xmlUrl="http://a.b/"/></outline>' for i in range(20_000)
        ) + "</opml>",
        "http://a.b/\n" + "x" * 5_000_000,
    ],
    ids=["deep", "long names", "many folders", "one long line"],
)  # fmt: skip
def test_hostile_list_takes_linear_time_and_memory(body: str) -> None:
    begun = time.process_time()
    feed_list = read(body)
    assert urls(feed_list) == ["http://a.b/"]
    assert len(feed_list.feeds[0].categories) <= subscriptions.MAX_FEED_CATEGORIES
    assert all(
        len(name) <= subscriptions.CATEGORY_CHARACTERS for name in feed_list.feeds[0].categories
    )
    assert time.process_time() - begun < 5


def test_list_size_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("crawler.feeds.subscriptions.MAX_FEEDS", 2)
    monkeypatch.setattr("crawler.feeds.subscriptions.MAX_REFUSED", 2)
    with pytest.raises(ConfigError, match=r"^my.opml: more than 2 feeds\. Import the list"):
        read("http://a.b/1\nhttp://a.b/2\nhttp://a.b/3\n")
    with pytest.raises(ConfigError, match=r"^my.opml: more than 2 lines are not feeds$"):
        read("a\nb\nc\n")
    monkeypatch.setattr("crawler.feeds.subscriptions.MAX_MB", 1)
    with pytest.raises(ConfigError, match=r"^my.opml: larger than 1 MB. Import it in parts$"):
        read("#" * 1_048_577)


@pytest.mark.parametrize(
    ("path", "kept"),
    [
        ("News", "News"),
        (" News / Local\tnews ", "News/Local news"),
        ("//News//", "News"),
        (" / ", ""),
        ("a\0\ud800b", "a b"),
        ("x" * 199 + "/y", "x" * 199),
    ],
)
def test_category_paths_are_normalized(path: str, kept: str) -> None:
    assert category_of(path) == kept
    assert category_of(kept) == kept


def test_tidy_returns_one_short_line() -> None:
    assert tidy("  a\r\n b\x00\u2028c ", 100) == "a b c"
    assert tidy("ab cd", 3) == "ab"


def test_feed_is_exported_in_each_of_its_categories() -> None:
    feeds = [
        Subscription(
            "https://a.example/?x=1&y=2", 'A "quoted" <b>', "https://a.example/", ("N/L", "S")
        ),
        Subscription("https://b.example/", None, None, ("N",)),
        Subscription("https://c.example/", "C"),
    ]
    written = "".join(opml_lines(feeds, "Mine & yours", datetime(2026, 1, 5, 12, tzinfo=UTC)))
    assert (
        written
        == """\
<?xml version="1.0" encoding="UTF-8"?>
<opml version="2.0">
  <head>
    <title>Mine &amp; yours</title>
    <dateCreated>Mon, 05 Jan 2026 12:00:00 GMT</dateCreated>
  </head>
  <body>
    <outline type="rss" text="C" title="C" xmlUrl="https://c.example/"/>
    <outline text="N">
      <outline type="rss" text="https://b.example/" xmlUrl="https://b.example/"/>
      <outline text="L">
        <outline type="rss" text='A "quoted" &lt;b&gt;' title='A "quoted" &lt;b&gt;'\
 xmlUrl="https://a.example/?x=1&amp;y=2" htmlUrl="https://a.example/"/>
      </outline>
    </outline>
    <outline text="S">
      <outline type="rss" text='A "quoted" &lt;b&gt;' title='A "quoted" &lt;b&gt;'\
 xmlUrl="https://a.example/?x=1&amp;y=2" htmlUrl="https://a.example/"/>
    </outline>
  </body>
</opml>
"""
    )
    assert sorted(read(written).feeds, key=lambda feed: feed.url) == feeds
