"""Fields: locating a value on a page and converting it."""

from __future__ import annotations

from datetime import UTC, datetime
from time import process_time
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from pydantic import ValidationError
from scrapy.http import HtmlResponse, TextResponse

from crawler.extract.fields import (
    Field,
    FieldType,
    date,
    html,
    number,
    price,
    read_number,
    read_price,
    text,
    texts,
    typed,
)

UTC_ZONE = ZoneInfo("UTC")
PAGE = HtmlResponse(
    "https://shop.example/i/1",
    encoding="utf-8",
    body="""<h1>
        A  <b>green</b>\u00a0kettle<!-- new --></h1>
      <p class="price">£1,051.77</p>
      <p class="stock">In stock (22 available)</p>
      <ul><li>steel</li><li> </li><li>1.7 <i>l</i></li></ul>
      <time datetime=" 2024-07-01 10:00 ">July</time>
      <a href="/more ">more</a><p class="empty"> </p>
    """.encode(),
)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        (text("h1"), "A green kettle"),
        (text("h1::text"), "A"),
        (text("a::attr(href)"), "/more"),
        (text(xpath="//li[3]"), "1.7 l"),
        (text(xpath="//li[3]/i/text()"), "l"),
        (text(xpath="//a/@href"), "/more"),
        (text(xpath="string(//li)"), "steel"),
        (number("p.stock"), 22),
        (number(xpath="count(//li)"), 3),
        (price("p.price"), {"amount": 1051.77, "currency": "£"}),
        (date("time::attr(datetime)"), datetime(2024, 7, 1, 10, tzinfo=UTC)),
        (texts("li"), ["steel", "1.7 l"]),
        (texts(xpath="//li/text()"), ["steel", "1.7"]),
        (html("li:last-child"), "<li>1.7 <i>l</i></li>"),
        (text("p.empty"), None),
        (text("h2"), None),
        (number("h2"), None),
        (price("h2"), None),
        (date("h2"), None),
        (html("h2"), None),
        (texts("h2"), []),
        (number("h1"), None),
        (text(xpath="//h1/comment()"), "new"),
    ],
    ids=lambda value: (value.css or value.xpath) if isinstance(value, Field) else "",
)
def test_field_reads_its_value_from_html(field: Field, value: Any) -> None:
    assert field.read(PAGE, UTC_ZONE) == value


BLOCKS = HtmlResponse(
    "https://shop.example/i/2",
    encoding="utf-8",
    body=b"""<div><h1>Title one</h1><p>First <b>pa</b>ra</p>line<br>break
      <ul><li>one</li><li>two<script>var a = "<p>";</script></li></ul>
      <table><tr><td>1</td><td>2</td></tr><tr><th>3</th></tr></table>
      <style>p { color: red }</style><template><p>later</p></template>
      <noscript>Enable <b>JavaScript</b></noscript><section>end</section>tail</div>after""",
)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        (text("div"), "Title one First para line break one two 1 2 3 end tail"),
        (texts("ul, tr"), ["one two", "1 2", "3"]),
        (text("script"), 'var a = "<p>";'),
        (text("noscript"), "Enable JavaScript"),
        (text("body"), "Title one First para line break one two 1 2 3 end tail after"),
        (number("tr"), 1),
    ],
    ids=lambda value: (value.css or value.xpath) if isinstance(value, Field) else "",
)
def test_text_separates_blocks_and_omits_invisible_content(field: Field, value: Any) -> None:
    assert field.read(BLOCKS, UTC_ZONE) == value


@pytest.mark.soak
def test_text_of_deep_and_long_pages_takes_linear_time() -> None:
    def seconds(parts: int) -> float:
        deep = "<div>" * 1500 + "<i>a</i><p>b</p>" * parts + "</div>" * 1500
        page = HtmlResponse("https://shop.example", body=deep.encode(), encoding="utf-8")
        page.selector  # noqa: B018 - parse before the measurement
        started = process_time()
        assert (text("body").read(page, UTC_ZONE) or "").count("b") == parts
        return process_time() - started

    assert min(seconds(80_000) for _ in range(3)) < 16 * min(seconds(10_000) for _ in range(3))


JSON = TextResponse(
    "https://shop.example/api/1",
    headers={"Content-Type": "application/json"},
    encoding="utf-8",
    body="""{"title": " A  kettle ", "none": null, "n": 3, "x": 2.5, "label": "1,234.5 g",
             "price": "€5", "amount": 5.5, "rate": 1.234, "when": "2024-07-01T10:00:00Z",
             "tags": ["a ", null, " b  c"], "parts": [{"n": 1}, {"n": 2}], "is_new": true,
             "id": 18446744073709551616, "huge": 1%s}""".replace("%s", "0" * 400).encode(),
)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        (text(jmespath="title"), "A kettle"),
        (number(jmespath="n"), 3),
        (number(jmespath="x"), 2.5),
        (number(jmespath="label"), 1234.5),
        (price(jmespath="price"), {"amount": 5.0, "currency": "€"}),
        (price(jmespath="amount"), {"amount": 5.5, "currency": None}),
        (price(jmespath="rate"), {"amount": 1.234, "currency": None}),
        (date(jmespath="when"), datetime(2024, 7, 1, 10, tzinfo=UTC)),
        (texts(jmespath="tags"), ["a", "b c"]),
        (texts(jmespath="parts[].n"), ["1", "2"]),
        (number(jmespath="parts[?n > `1`].n | [0]"), 2),
        (texts(jmespath="[parts[0], is_new, none]"), ['{"n": 1}', "true"]),
        (text(jmespath="is_new"), True),
        (number(jmespath="is_new"), None),
        (number(jmespath="parts[0]"), None),
        (number(jmespath="id"), 2**64),
        (number(jmespath="huge"), None),
        (price(jmespath="huge"), None),
        (text(jmespath="none"), None),
        (number(jmespath="missing"), None),
        (texts(jmespath="missing"), []),
    ],
    ids=lambda value: value.jmespath if isinstance(value, Field) else "",
)
def test_field_reads_its_value_from_json(field: Field, value: Any) -> None:
    assert field.read(JSON, UTC_ZONE) == value


@pytest.mark.parametrize("body", [b"no json", b'{"n": 1', b"<p>page</p>"])
def test_invalid_json_has_no_value(body: bytes) -> None:
    assert number(jmespath="n").read(TextResponse("https://a.example", body=body), UTC_ZONE) is None


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("12", 12),
        ("18446744073709551616", 2**64),
        ("-3", -3),
        ("+7", 7),
        ("0", 0),
        ("007", 7),
        ("12%", 12),
        ("item-3", 3),
        ("2-3", 2),
        ("A4 paper 3", 4),
        ("In stock (22 available)", 22),
        ("0.5", 0.5),
        ("0,5", 0.5),
        ("12,34", 12.34),
        ("-1.5 °C", -1.5),
        ("£-3.50", -3.5),
        ("1,234.5", 1234.5),
        ("1.234,5", 1234.5),
        ("1 234,50", 1234.5),
        ("1\u00a0234,50", 1234.5),
        ("1'234.50", 1234.5),
        ("1,234,567", 1234567),
        ("1.234.567", 1234567),
        ("It is 3.", 3),
        ("3, 4 and 5", 3),
        ("3 4", 3),
        ("5 10-packs", 5),
        ("Rated 4 5 times", 4),
        (".5", 0.5),
        ("\u22123", -3),
        ("-$5", -5),
        ("- 5 °C", -5),
        ("Stock - 12", 12),
        ("price -> 5", 5),
        ("0.125", 0.125),
        ("0,500 kg", 0.5),
        (".125", 0.125),
        ("0 123", 0),
        ("1\u2019234.50", 1234.5),
        ("1\u066c234\u066b5", 1234.5),
        ("none", None),
        ("-", None),
        ("²", None),
    ],
    ids=ascii,
)
def test_first_number_in_the_text_is_read(value: str, expected: float | None) -> None:
    assert read_number(value) == expected


def test_number_beyond_pythons_digit_limit_does_not_fail() -> None:
    assert read_number("1" * 5000) in (None, float("inf"), 10**5000 // 9)


@pytest.mark.parametrize(
    ("value", "amount", "currency"),
    [
        ("£51.77", 51.77, "£"),
        ("$ 1,234.50", 1234.5, "$"),
        ("1.234,50 €", 1234.5, "€"),
        ("USD 5", 5.0, "USD"),
        ("CHF 12.-", 12.0, "CHF"),
        ("12,- €", 12.0, "€"),
        ("¥1000", 1000.0, "¥"),
        ("12 000 Kč", 12000.0, "Kč"),
        ("from 9.99", 9.99, None),
        ("-5 €", -5.0, "€"),
        ("-US$5", -5.0, "US$"),
        ("EUR -5", -5.0, "EUR"),
        ("$10 - $20", 10.0, "$"),
        ("10 - 20 EUR", 10.0, "EUR"),
        ("-20% $15.99", 15.99, "$"),
        ("$20.00 -25 %", 20.0, "$"),
        ("29,99 23,99 €", 29.99, "€"),
        ("12€ 34", 12.34, "€"),
        ("CHF 1\u2019234.50", 1234.5, "CHF"),
        ("$0.125", 0.125, "$"),
        ("free", 0.0, None),
    ],
)
def test_a_price_has_an_amount_and_a_currency(
    value: str, amount: float, currency: str | None
) -> None:
    assert read_price(value) == {"amount": amount, "currency": currency}


@pytest.mark.parametrize("value", ["on request", "", "€", "50 %"])
def test_text_without_an_amount_is_not_a_price(value: str) -> None:
    assert read_price(value) is None


@pytest.mark.parametrize("kind", [k for k in FieldType if k not in ("list", "html")])
def test_empty_text_is_none_for_all_types(kind: FieldType) -> None:
    assert typed("", kind, UTC_ZONE) is None


@pytest.mark.parametrize(
    ("selector", "cause"),
    [
        ({"css": "h1["}, "bad selector 'h1[': Expected"),
        ({"css": "h1::nothing"}, "bad selector 'h1::nothing': The pseudo-element"),
        ({"css": ":nothing"}, "bad selector ':nothing': The pseudo-class"),
        ({"css": ""}, "bad selector ''"),
        ({"xpath": "//a["}, "bad selector '//a[': "),
        ({"xpath": ""}, "bad selector ''"),
        ({"xpath": "nothing(//a)"}, "bad selector 'nothing(//a)': "),
        ({"xpath": "//no:such"}, "bad selector '//no:such': "),
        ({"jmespath": "a["}, "bad selector 'a[': Invalid jmespath"),
        ({"css": "a", "xpath": "//a"}, "needs exactly one of css, xpath and jmespath"),
        ({}, "needs exactly one of css, xpath and jmespath"),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",
)
def test_invalid_selector_is_rejected_with_its_cause(selector: dict[str, str], cause: str) -> None:
    with pytest.raises(ValidationError) as caught:
        Field(**selector)
    assert f"Value error, {cause}" in str(caught.value)


@pytest.mark.parametrize("xpath", ["re:test(string(//h1), 'kettle')", "has-class('a')"])
def test_parsel_functions_are_valid_in_selectors(xpath: str) -> None:
    assert Field(xpath=f"//p[{xpath}]").xpath is not None
