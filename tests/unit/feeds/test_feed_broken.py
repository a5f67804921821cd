"""Malformed and malicious feeds: parsing recovers as much as possible and always ends."""

from __future__ import annotations

import socket
import time

import pytest

from crawler.feeds.recover import REPAIRABLE, Markup, repaired
from crawler.items import NoFeed
from tests.unit.feeding import atom, item, json_feed, reading, rss

UMLAUT = item("<description>Bücher, жизнь</description>")
UNDECLARED = rss(UMLAUT, head="")


def texts_and_problems(
    document: str | bytes, content_type: str | None = None
) -> tuple[list[str], str]:
    """Return the texts and the problems of a document."""
    parsed = reading(document, content_type)
    texts = [
        entry.content.get("main_text", entry.content.get("title", "")) for entry in parsed.entries
    ]
    return texts, "; ".join(parsed.problems)


@pytest.mark.parametrize(
    ("inside", "text", "problem"),
    [
        ("a & b", "a & b", "malformed XML: not well-formed (invalid token), line 1"),
        ("a&nbsp;b", "a b", "malformed XML: undefined entity, line 1"),
        ("a&#8; b", "a b", "malformed XML: reference to invalid character number, line 1"),
        ("a <br> b", "a", "malformed XML: mismatched tag, line 1"),
        ("a\x08b", "ab", "malformed XML: 1 character that XML forbids"),
        ("a <![CDATA[<p>b & c</p>]]> & d", "a\nb & c\n& d", "malformed XML: not well-formed"),
    ],
)
def test_malformed_xml_is_parsed_and_reported(inside: str, text: str, problem: str) -> None:
    texts, problems = texts_and_problems(
        rss(item(f"<description>{inside}</description>"), item(n=2))
    )
    assert texts[0].startswith(text)
    assert len(texts) == 2
    assert problems.startswith(problem)


def test_recovered_entries_equal_those_of_valid_xml() -> None:
    good = item("<link>https://a.example/?a=1&amp;b=2</link><guid>a&amp;b</guid>", n=1)
    named = item("<author>A &amp; B</author><category>c &amp; d</category>", n=2)
    whole = reading(rss(good, named)).entries
    broken = reading(rss(good, named, "<item><title>3 <b> 4</title></item>")).entries
    assert broken[:2] == whole


@pytest.mark.parametrize(
    ("before", "problem"),
    [
        ("\n\n", "text before the XML declaration"),
        ("<!-- made by hand -->\n", "text before the XML declaration"),
        ("Warning: cannot connect\n", "text before the feed"),
        ("<br />\n<b>Warning</b>: in <i>x.php</i>", "text before the feed"),
    ],
)
def test_text_before_the_feed_is_skipped(before: str, problem: str) -> None:
    texts, problems = texts_and_problems(before + rss(item(), item(n=2)))
    assert texts == ["Post 1", "Post 2"]
    assert problems == f"malformed XML: {problem}"


def test_text_after_the_feed_is_ignored() -> None:
    texts, problems = texts_and_problems(rss(item()) + "\n<script>track()</script>")
    assert texts == ["Post 1"]
    assert problems == "malformed XML: junk after document element, line 2"


@pytest.mark.parametrize(
    "rest", ["<item><guid>tag:2</guid><link>https://a.exa", "<item>", "<item><ti"]
)
def test_truncated_last_entry_is_dropped(rest: str) -> None:
    truncated = rss(item()).partition("</channel>")[0] + rest
    texts, problems = texts_and_problems(truncated)
    assert texts == ["Post 1"]
    assert problems.endswith("the document ends within its last entry, which is left out")


def test_missing_end_tags_lose_no_entries() -> None:
    texts, problems = texts_and_problems(rss(item(), item(n=2)).partition("</channel>")[0])
    assert texts == ["Post 1", "Post 2"]
    assert problems == "malformed XML: its end is missing, line 1"


def test_reported_line_numbers_match_the_document() -> None:
    document = "<?xml version='1.0'?>\n<!-- a\n b -->\n" + rss(item("\n<x>&</x>"), head="")
    assert texts_and_problems(document)[1].endswith("invalid token), line 5")


@pytest.mark.parametrize(
    ("body", "content_type"),
    [
        (rss(UMLAUT).encode(), None),
        (UNDECLARED.encode(), None),
        (UNDECLARED.encode("utf-8-sig"), None),
        (UNDECLARED.encode("utf-16"), None),
        (rss(UMLAUT).encode("utf-16-le"), None),
        (rss(UMLAUT).encode("utf-16-be"), "text/xml; charset=utf-8"),
        (UNDECLARED.encode("utf-32"), None),
        (UNDECLARED.encode(), "text/xml; charset=iso-8859-1"),
        (rss(UMLAUT, head="<?xml version='1.0' encoding='iso-8859-1'?>").encode(), None),
        (rss(UMLAUT, head="<?xml version='1.0' encoding='gb18030'?>").encode("gb18030"), None),
        (UNDECLARED.encode("gb18030"), "text/xml; charset=gb2312"),
        (
            rss(UMLAUT, head="<?xml version='1.0' encoding='gb18030'?>").encode("gb18030"),
            "text/xml; charset=ISO-8859-1",
        ),
        (json_feed({"id": "1", "content_text": "Bücher, жизнь"}).encode("utf-8-sig"), None),
        (rss(UMLAUT).encode(), "text/xml; charset=punycode"),
    ],
)
def test_actual_encoding_is_detected(body: bytes, content_type: str | None) -> None:
    assert texts_and_problems(body, content_type) == (["Bücher, жизнь"], "")


def test_wrong_encoding_is_reported() -> None:
    latin = rss(item("<description>Bücher für alle</description>")).encode("latin-1")
    assert texts_and_problems(latin) == (
        ["Bücher für alle"],
        "no valid encoding declared: read as cp1252",
    )
    unknown = rss(UMLAUT, head="<?xml version='1.0' encoding='bogus'?>")
    assert texts_and_problems(unknown) == (["Bücher, жизнь"], "unknown encoding 'bogus'")


def test_few_invalid_bytes_do_not_change_the_encoding() -> None:
    body = rss(item("<description>жизнь как она есть</description>")).encode()
    texts, problems = texts_and_problems(body.replace("есть".encode(), b"\xd0" + "есть".encode()))
    assert texts == ["жизнь как она \N{REPLACEMENT CHARACTER}есть"]
    assert problems == "1 character invalid in utf-8: replaced"


def test_simple_entities_are_expanded_but_nested_ones_are_not() -> None:
    head = '<!DOCTYPE rss [<!ENTITY me "Ada &#38; Bob"><!ENTITY bomb "&me;&me;">]>'
    assert texts_and_problems(rss(item("<description>by &me;</description>"), head=head))[0] == [
        "by Ada & Bob"
    ]
    _, problems = texts_and_problems(rss(item("<description>&bomb;</description>"), head=head))
    assert problems.startswith("malformed XML: undefined entity")


def test_parsing_opens_no_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise AssertionError("a connection")

    monkeypatch.setattr(socket.socket, "connect", refused)
    head = (
        '<?xml version="1.0"?><?xml-stylesheet href="http://127.0.0.1:9/x.xsl"?>'
        '<!DOCTYPE rss SYSTEM "http://127.0.0.1:9/x.dtd" [<!ENTITY file SYSTEM "file:///etc/passwd">]>'
    )
    texts, _ = texts_and_problems(rss(item("<description>a &file; b</description>"), head=head))
    assert "root" not in texts[0]


HALF = 250_000
HOSTILE = {
    "billion laughs": rss(
        item("<description>&l9;</description>"),
        head="<!DOCTYPE rss [<!ENTITY l0 'ha'>"
        + "".join(f"<!ENTITY l{n} '{f'&l{n - 1};' * 10}'>" for n in range(1, 10))
        + "]>",
    ),
    "long entity": rss(
        item(f"<description>{'&e;' * (HALF // 3)}</description>"),
        head=f"<!DOCTYPE rss [<!ENTITY e '{'a' * 200}'>]>",
    ),
    "blank lines": "\n" * HALF + rss(item()),
    "doctypes": "\n<!DOCTYPE" * (HALF // 10) + rss(item()),
    "deep": rss("<x>" * (HALF // 7), "</x>" * (HALF // 7)),
    "attributes": rss("<x " + " ".join(f"a{n}='1'" for n in range(HALF // 9)) + "/>"),
    "namespaces": rss("<u:x xmlns:u='u'/>" * 5_000).replace(
        "<rss ", "<rss " + " ".join(f"xmlns:n{n}='{n}'" for n in range(5_000)) + " "
    ),
    "categories": rss(item("".join(f"<category>{n}</category>" for n in range(HALF // 25)))),
    "long author": rss(item(f"<author>{'a' * HALF}</author>")),
    "processing instructions": atom(
        f"<entry><content type='xhtml'>{'<?a?> ' * (HALF // 6)}</content></entry>"
    ),
    "unclosed comments": rss("<b " + "<!--" * (HALF // 4)),
    "unclosed sections": rss("& " + "<![CDATA[" * (HALF // 9)),
    "unclosed tags": rss("<b " + "<a b='" * (HALF // 6)),
    "less-than signs": rss("<" * HALF),
    "markup in a text": rss(item(f"<description>{'&lt;a b=&quot;' * (HALF // 13)}</description>")),
    "empty posts": rss("<item/>" * (HALF // 7)),
    "shared guid": rss(*(f"<item><guid>1</guid><title>{n}</title></item>" for n in range(5_000))),
    "invalid references": rss(item("<b " + "&#xd800;&#99999999999;" * (HALF // 22))),
    "long number": json_feed().replace("[]", f"[{'1' * HALF}]"),
    "deep JSON": '{"a":' * (HALF // 5),
}
# Parsing takes about one second; ten seconds mean a hang.
MAX_SECONDS = 10


@pytest.mark.soak
@pytest.mark.parametrize("document", HOSTILE.values(), ids=HOSTILE)
def test_hostile_documents_are_parsed_quickly(document: str) -> None:
    start = time.process_time()
    try:
        parsed = reading(document)
    except NoFeed:
        parsed = None
    assert time.process_time() - start < MAX_SECONDS
    if parsed is not None:
        assert sum(len(str(entry.content)) for entry in parsed.entries) < 8 * len(document)


def test_oversized_malformed_document_is_rejected() -> None:
    with pytest.raises(NoFeed, match="too long for the loose parser"):
        reading(rss(item("<b>") * 60_000))


@pytest.mark.parametrize(
    "reference",
    ["&#0;", "&#x0;", "&#00011;", "&#x1F;", "&#55296;", "&#xDFFF;", "&#xFFFE;", "&#1114112;",
     "&#99999999999;", "&#x110000;"],
)  # fmt: skip
def test_invalid_character_references_are_removed(reference: str) -> None:
    texts, _ = texts_and_problems(rss(item(f"<description>a&#0;b{reference}c</description>")))
    assert texts == ["abc"]


@pytest.mark.parametrize("reference", ["&#65;", "&#x41;", "&#00065;", "&#x00041;"])
def test_valid_character_references_are_decoded(reference: str) -> None:
    texts, _ = texts_and_problems(rss(item(f"<description>a&#0;b{reference}c</description>")))
    assert texts == ["abAc"]


@pytest.mark.parametrize("start", ["&#", "&#x", "&#1", "&a"])
def test_unterminated_reference_is_scanned_in_linear_time(start: str) -> None:
    markup = Markup(f"<rss>&#0; {start}{'0' * 98_000}</rss>", {})
    began = time.process_time()
    for message in REPAIRABLE:
        repaired(markup, message)
    assert time.process_time() - began < 2
