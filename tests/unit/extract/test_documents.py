"""JSON, XML and plain text are recognized by content, whatever the content type says."""

from __future__ import annotations

from typing import Any

import pytest
from scrapy.http import Headers, HtmlResponse, TextResponse
from scrapy.responsetypes import responsetypes

from crawler.extract.documents import (
    JsonPage,
    PlainTextPage,
    XmlPage,
    by_content,
    json_value,
    text_lines,
    xml_lines,
)

URL = "https://shop.example/page"


def sent(body: str | bytes, kind: str = "text/html") -> TextResponse:
    """Return the response as a crawl receives it."""
    data = body.encode() if isinstance(body, str) else body
    headers = Headers({"Content-Type": kind})
    cls = responsetypes.from_args(headers=headers, url=URL, body=data)
    response = cls(URL, headers=headers, body=data)
    assert isinstance(response, TextResponse)
    return by_content(response)


@pytest.mark.parametrize(
    ("body", "kind", "expected"),
    [
        ('{"a": 1}', "text/html", JsonPage),
        ('\ufeff\n [ {"a": 1} ]\n', "text/html; charset=utf-8", JsonPage),
        ('["a"]', "text/plain", JsonPage),
        ("{}", "text/html", JsonPage),
        (")]}',\n{\"a\": 1}", "text/html", JsonPage),
        ("[1] A note [2]", "text/plain", PlainTextPage),
        ("[[Page]] and [[Other]]", "text/plain", PlainTextPage),
        ("{{ template }}", "text/html", HtmlResponse),
        ('{"a": 1} <p>and more</p>', "text/html", HtmlResponse),
        ("42", "application/json", JsonPage),
        ("<?xml version='1.0'?><shop><a/></shop>", "text/html", XmlPage),
        ("\n<?xml version='1.0'?>\n<!-- x --><s:shop xmlns:s='u'/>", "text/plain", XmlPage),
        ("<shop><a/></shop>", "application/xml", XmlPage),
        ("<?xml version='1.0'?><!DOCTYPE html><html/>", "text/html", HtmlResponse),
        ("<?xml version='1.0'?><html xmlns='u:xhtml'/>", "text/html", HtmlResponse),
        ("<!doctype html><p>a", "text/plain", HtmlResponse),
        ("<HTML><p>a", "text/plain", HtmlResponse),
        ("<p>a</p>", "text/plain", PlainTextPage),
        ("<p>a</p>", "text/html", HtmlResponse),
        ("a,b\n1,2", "text/csv", PlainTextPage),
        ("# A\n", "text/markdown", PlainTextPage),
    ],
)  # fmt: skip
def test_kind_of_a_document_is_recognized(
    body: str, kind: str, expected: type[TextResponse]
) -> None:
    assert type(sent(body, kind)) is expected


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("9007199254740993", 9007199254740993),
        ("18446744073709551617", 2**64 + 1),
        ("9007199254740993.0", 9007199254740993),
        ("9007199254740993.5", "9007199254740993.5"),
        ("0.12345678901234567891", "0.12345678901234567891"),
        ("1e400", "1E+400"),
        ("1e5", 100000.0),
        ("0.1", 0.1),
        ("1.50", 1.5),
        ("1" * 5000, "1" * 5000),
        ('"\\ud83d\\ude00 \\ud83d"', "\U0001f600 \ufffd"),
        ('{"\\udc00": ["\\\\ud83d"]}', {"\ufffd": ["\\ud83d"]}),
        ('"a\tb"', "a\tb"),
    ],
)
def test_json_keeps_digits_and_has_no_half_characters(text: str, value: Any) -> None:
    page = sent(text, "application/json")
    assert json_value(page) == value
    assert isinstance(page, JsonPage)
    assert page.problem is None


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('{"a": 1', "invalid JSON: Expecting ',' delimiter"),
        ("no json", "invalid JSON: Expecting value"),
        ("[" * 100_000, "JSON, nested too deeply"),
    ],
)
def test_problem_of_invalid_json_is_named(text: str, problem: str) -> None:
    page = sent(text, "application/json")
    assert isinstance(page, JsonPage)
    assert json_value(page) is None
    assert (page.problem or "").startswith(problem)


def test_names_in_xml_have_no_namespace() -> None:
    page = sent(
        "<?xml version='1.0'?><c xmlns='u:c' xmlns:p='u:p'><p:i p:id='1'>Tea</p:i></c>", "text/xml"
    )
    assert page.xpath("//c/i/text()").get() == "Tea"
    assert page.css("c > i::attr(id)").get() == "1"
    assert xml_lines(page.selector.root) == "i id: 1\ni: Tea"


def test_text_in_xml_may_be_in_cdata_and_around_elements() -> None:
    page = sent("<?xml version='1.0'?><a><![CDATA[1 < 2]]> and <b>3</b> more<!-- no --></a>")
    assert xml_lines(page.selector.root) == "a: 1 < 2 and more\nb: 3"


def test_plain_text_is_not_markup_for_selectors_either() -> None:
    page = sent("a <b>bold</b> &lt; Map<K, V>\n\n  b", "text/plain")
    assert page.css("pre::text").get() == "a <b>bold</b> &lt; Map<K, V>\n\n  b"
    assert page.css("b") == []


def test_lines_of_plain_text_stay_as_they_are() -> None:
    assert text_lines("\ufeff\n\n  a \r\n\r\nb\t1\rc\x0c\x00\n\n") == "  a\n\nb\t1\nc"
