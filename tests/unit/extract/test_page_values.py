"""Values of pages without fields: what counts as a change, and what does not."""

from __future__ import annotations

import json
from typing import Any

import pytest

from crawler.extract.page_values import MAX_FILES, MAX_LINES, page_values, without_elements
from crawler.utils.sandbox import time_limit
from pipelines.content import ContentPipeline
from tests.unit.pages import fetched, page

PROSE = "".join(
    f"<p>{n}. The kettle holds one and a half litres of water, which is enough for six cups.</p>"
    for n in range(40)
)
RELATED = (
    "<section class='related'><h2>Related</h2><ul><li>Kettle {n} <b>€{n}</b></li></ul></section>"
)
HEADING = "<h1>Steel kettle</h1>"


def html(body: str, head: str = "") -> str:
    return (
        f"<html lang=en><head><title>Steel kettle | Shop</title>{head}</head><body>"
        f"<nav><a href='/'>Shop</a></nav>{body}<footer>Imprint</footer></body></html>"
    )


def values(body: str, head: str = "") -> dict[str, Any]:
    return page_values(page(html(body, head)))


def content_hash(source: str) -> str:
    content = page_values(page(source))
    item: Any = ContentPipeline().process_item(fetched(content=content))
    return str(item.content_hash)


def json_ld(data: Any) -> str:
    return f"<script type='application/ld+json'>{json.dumps(data)}</script>"


def product(**offer: Any) -> dict[str, Any]:
    offers = {"@type": "Offer", "price": "49.90", "priceCurrency": "EUR"} | offer
    return {"@type": "Product", "name": "Steel kettle", "offers": offers}


OFFERS = [
    ([product()], ["Steel kettle: 49.90 EUR"]),
    ([product(availability="https://schema.org/InStock")], ["Steel kettle: 49.90 EUR, InStock"]),
    ([{"@graph": [{"@type": "WebSite"}, product(price=5)]}], ["Steel kettle: 5.00 EUR"]),
    ([{"@type": "ItemPage", "mainEntity": product()}], ["Steel kettle: 49.90 EUR"]),
    (
        [{"name": "Pot", "offers": {"lowPrice": 1, "highPrice": 2.5, "priceCurrency": "EUR"}}],
        ["Pot: 1.00 to 2.50 EUR"],
    ),
    (
        [{"name": "Pot", "offers": [{"sku": "b", "price": 2}, {"sku": "a", "price": 1}]}],
        ["a: 1.00", "b: 2.00"],
    ),
    ([product(price=None, priceSpecification=[{"price": "9"}])], ["Steel kettle: 9.00"]),
    (
        [{"name": "Pot", "hasVariant": [{"name": "Red pot", "offers": {"sku": "r", "price": 3}}]}],
        ["r: 3.00"],
    ),
    ([{"name": "Other", "offers": {"price": 1}}, product()], ["Steel kettle: 49.90 EUR"]),
    (
        [{"name": "Concert", "startDate": "2024-05-04", "eventStatus": "schema:/EventCancelled"}],
        ["Concert: 2024-05-04, EventCancelled"],
    ),
]


@pytest.mark.parametrize(("data", "offers"), OFFERS)
def test_offers_and_dates_are_read_from_json_ld(data: list[Any], offers: list[str]) -> None:
    assert values(PROSE, "".join(map(json_ld, data)))["offers"] == offers


@pytest.mark.parametrize(
    "script",
    [
        '{"name": "A\nB", "offers": {"price": "1",}}',
        '//<![CDATA[\n{"name": "A B", "offers": {"price": 1}}\n//]]>',
        '<!-- {"name": "A B", "offers": {"price": 1}} -->',
        '{"name": "A B", // product\n/* offer, */ "offers": {"price": 1, // last\n}}',
        r'{"name": "A B", "text": "it\'s \x \u12", "offers": {"price": 1}}',
        '{"@type": "WebSite", "url": "https://a.x/"}\n{"name": "A B", "offers": {"price": 1}}',
        '[{"@type": "WebSite"}];{"name": "A B", "offers": {"price": 1}},',
        "{&quot;name&quot;: &quot;A B&quot;, &quot;offers&quot;: {&quot;price&quot;: 1}}",
        '{"name": "A &#66;", "offers": {"price": "1"}}',
        '{"name": "A B", "url": "a.example//b/*c*/,]", "offers": {"price": 1,},}',
        'window.data = {"name": "A B", "offers": {"price": 1}};',
        '{"name": "A B", "offers": {"price": 1}} and more',
    ],
    ids=[
        "line break and comma", "CDATA", "HTML comment", "comments", "escapes", "two objects",
        "list and object", "references", "reference in a name", "signs in a text", "assignment",
        "text after it",
    ],
)  # fmt: skip
def test_common_mistakes_in_json_ld_are_repaired(script: str) -> None:
    head = f"<script type='application/LD+JSON'>{script}</script>"
    assert values(PROSE, head)["offers"] == ["A B: 1.00"]


MICRODATA = (
    f"<div itemscope itemtype='https://schema.org/Product'>{HEADING}"
    "<i itemprop=name>Steel kettle</i>"
    "<div itemprop=offers itemscope itemtype='https://schema.org/Offer'>"
    "<meta itemprop=price content='49.90'><meta itemprop=priceCurrency content=EUR>"
    "<link itemprop=availability href='https://schema.org/InStock'></div></div>"
)
RDFA = (
    "<div vocab='https://schema.org/' typeof=Product><h1 property=name>Steel kettle</h1>"
    "<div property=offers typeof=Offer><span property=price>49,90 €</span></div></div>"
)
META = "<meta property='product:price:amount' content='49.9'>"


@pytest.mark.parametrize(
    ("body", "head", "offers"),
    [
        (MICRODATA, "", ["Steel kettle: 49.90 EUR, InStock"]),
        (RDFA, "", ["Steel kettle: 49.90"]),
        (PROSE, META, ["49.90"]),
        (MICRODATA, META + json_ld(product()), None),
        (f"<div class='related'>{MICRODATA.replace('h1', 'h2')}</div>{PROSE}", "", []),
        (PROSE, "", []),
    ],
    ids=["microdata", "RDFa", "meta tags", "all", "related item", "none"],
)
def test_offers_are_read_from_markup(body: str, head: str, offers: list[str] | None) -> None:
    expected = ["Steel kettle: 49.90 EUR", "Steel kettle: 49.90 EUR, InStock"]
    assert values(body, head).get("offers", []) == (expected if offers is None else offers)


def test_page_without_offers_has_only_title_and_main_text() -> None:
    assert values(HEADING + PROSE).keys() == {"title", "main_text"}


def shop(price: str = "€49.90", stock: str = "In stock", more: str = "") -> str:
    return html(
        f"<div class=x1>{HEADING}<div class=x2><span>{price}</span></div>"
        f"<div class=x3><span>{stock}</span></div>{more}</div><div class=x4>{PROSE}</div>"
        + RELATED.format(n=1)
    )


def register(*, long: bool, file: str = "plan.pdf", date: str = "4 May") -> str:
    link = f"<p>Read the <a href='/files/{file}'>plan of the building</a> before the meeting.</p>"
    return html(f"{HEADING}<div>{date}</div>{link}{PROSE if long else ''}")


TRUE_CHANGES = {
    "price": (shop(), shop("€44.90")),
    "price in zloty": (shop("199,00 zł"), shop("189,00 zł")),
    "price with a dash": (shop("1 299:-"), shop("1 199:-")),
    "stock": (shop(), shop(stock="Sold out")),
    "stock in a button": (
        shop(more="<button>Add to cart</button>"),
        shop(more="<button>Sold out</button>"),
    ),
    "price of an option": (
        shop(more="<select><option>S €49</option></select>"),
        shop(more="<select><option>S €45</option></select>"),
    ),
    "price in a form": tuple(
        html(f"<main>{HEADING}{PROSE}<form><b>{price}</b></form></main>") for price in ("$9", "$8")
    ),
    "price only in JSON-LD": tuple(
        html(HEADING + PROSE, json_ld(product(price=price))) for price in (1, 2)
    ),
    "prices of cards": tuple(
        html(f"<h1>Plans</h1><div><h3>Pro</h3><div>{price} a month</div></div>")
        for price in ("$9", "$8")
    ),
    "date of an event": (register(long=True), register(long=True, date="5 May")),
    "replaced file": (register(long=False), register(long=False, file="plan-2.pdf")),
}
FALSE_CHANGES = {
    "related products": (shop(), shop().replace(RELATED.format(n=1), RELATED.format(n=2))),
    "numbers of reviews": (
        shop(more="<div>17 reviews</div>"),
        shop(more="<div>18 reviews</div>"),
    ),
    "shoppers": (
        shop(more="<div>3 people have this in their basket</div>"),
        shop(more="<div>4 people have this in their basket</div>"),
    ),
    "class names": (shop(), shop().replace("x1", "y7")),
    "parameters of files": (register(long=False), register(long=False, file="plan.pdf?v=2")),
    "cookie dialog": (shop(), shop(more="<div role=dialog>Accept all cookies</div>")),
    "ratings in JSON-LD": tuple(
        html(HEADING + PROSE, json_ld(product() | {"aggregateRating": {"reviewCount": n}}))
        for n in (1, 2)
    ),
    "prices that end": tuple(
        html(HEADING + PROSE, json_ld(product(priceValidUntil=day))) for day in ("1 May", "2 May")
    ),
    "form of a number": tuple(
        html(HEADING + PROSE, json_ld(product(price=price))) for price in ("49.90", 49.9)
    ),
    "prices beside an article": tuple(
        html(f"<article>{HEADING}{PROSE}</article><div>Buy a pot for {price}</div>")
        for price in ("$9", "$8")
    ),
}


@pytest.mark.parametrize("kind", TRUE_CHANGES)
def test_changes_of_content_are_detected(kind: str) -> None:
    before, after = TRUE_CHANGES[kind]
    assert content_hash(before) != content_hash(after)


@pytest.mark.parametrize("kind", FALSE_CHANGES)
def test_changes_around_the_content_are_ignored(kind: str) -> None:
    before, after = FALSE_CHANGES[kind]
    assert content_hash(before) == content_hash(after)


def test_files_are_absolute_and_of_the_content() -> None:
    links = "<p><a href='a.pdf#page=2'>A</a> <a href='/b'>B</a></p><nav><a href=n.pdf>N</a></nav>"
    assert values(HEADING + links)["files"] == ["https://shop.example/a.pdf"]


def test_values_are_bounded() -> None:
    lines = "".join(f"<button>€{n}</button>" for n in range(500))
    files = "".join(f"<a href='{n}.pdf'>File</a>" for n in range(500))
    offers = [{"sku": f"{n}", "price": n} for n in range(500)]
    body = f"<main><h1>All kettles</h1>{PROSE}{lines}{files}</main>"
    read = values(body, json_ld(product() | {"offers": offers}))
    assert len(read["files"]) == MAX_FILES
    assert len(read["offers"]) == 200
    assert len(values(body)["details"]) == MAX_LINES


@pytest.mark.parametrize(
    "script",
    [
        "[" * 100_000,
        json.dumps([[[]] * 5000] * 20),
        '{"@graph":' * 5000,
        "9" * 100_000,
        "," * 100_000,
        ";" * 400_000 + "x",
        "{" + "/*" * 200_000,
        "{" + '\\"' * 200_000,
        "{" + "//\n" * 200_000,
        "{" + "<!--" * 100_000,
        "{&quot;" + "&#" * 200_000,
        "{}" * 200_000,
    ],
    ids=[
        "deep",
        "wide",
        "open",
        "digits",
        "commas",
        "semicolons",
        "comments",
        "quotes",
        "line comments",
        "HTML comments",
        "references",
        "objects",
    ],
)
def test_hostile_json_ld_has_no_offers(script: str) -> None:
    head = f"<script type='application/ld+json'>{script}</script>" * 3
    with time_limit(5):
        assert "offers" not in values(PROSE, head)


def test_page_with_a_long_title_and_many_headings_is_read_quickly() -> None:
    with time_limit(5):
        title = f"<meta property='og:title' content='{'ab' * 250_000}'>"
        assert "offers" not in values("<h1>zz</h1>" * 5000, title)


@pytest.mark.parametrize("tag", ["article", "div itemscope", "h1", "option", "a href=x.pdf"])
def test_deep_markup_does_not_fail(tag: str) -> None:
    assert values(f"<div itemscope>{HEADING}" + f"<{tag}>€1" * 5000)["title"] == "Steel kettle"


def test_elements_that_selectors_match_are_left_out() -> None:
    quote = "<blockquote class=quote>Nothing beats good steel. <b>Ann</b></blockquote>"
    source = page(html(f"<main>{HEADING}{PROSE}{quote}<p>It ships today.</p></main>"))
    selectors = (".quote", ".quote b", "html")
    text = page_values(without_elements(source, selectors))["main_text"]
    assert "Nothing beats" not in text
    assert text.endswith("It ships today.")
    assert "Nothing beats" in source.css(".quote").get("")


@pytest.mark.parametrize(
    ("price", "shown"),
    [
        ("9007199254740993", "9007199254740993.00"),
        ("1234567.891", "1234567.891"),
        ("1.299", "1.299"),
        ("0.5", "0.50"),
        ("12", "12.00"),
    ],
)
def test_prices_in_json_ld_keep_all_digits(price: str, shown: str) -> None:
    script = f'{{"name": "A", "offers": {{"price": {price}}}}}'
    offers = values(PROSE, f"<script type='application/ld+json'>{script}</script>")["offers"]
    assert offers == [f"A: {shown}"]
