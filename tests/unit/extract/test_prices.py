"""Prices as shops in many countries write them, and the other numbers next to them."""

from __future__ import annotations

from typing import Any
from zoneinfo import ZoneInfo

import pytest

from crawler.extract.fields import Field, number, price
from crawler.extract.page_values import page_values
from crawler.extract.prices import PRICE, read_price
from tests.unit.pages import page

UTC_ZONE = ZoneInfo("UTC")
NOTATIONS: dict[str, list[tuple[str, float, str | None]]] = {
    "United States": [
        ("$19.99", 19.99, "$"), ("US$1,299", 1299, "US$"), ("1,299.00 USD", 1299, "USD"),
        ("$12.50 USD", 12.5, "USD"),
        ("$1,299.95 $999.00", 1299.95, "$"), ("$.75", 0.75, "$"), ("99¢", 0.99, "$"),
    ],
    "United Kingdom": [
        ("£4", 4, "£"), ("£1,299.00 inc. VAT", 1299, "£"), ("GBP 12.50", 12.5, "GBP"),
        ("85p", 0.85, "£"), ("Was £30.00 Now £24.00", 24, "£"),
    ],
    "Germany": [
        ("49,90 €", 49.9, "€"), ("1.299,00 EUR", 1299, "EUR"), ("12,- €", 12, "€"),
        ("UVP 59,00 € 49,00 €", 49, "€"), ("2 für 5,00 €", 5, "€"), ("ab 1.299 € *", 1299, "€"),
        ("12 x 0,5 l 8,99 € (1 l = 1,50 €)", 8.99, "€"), ("99 Cent", 0.99, "€"),
        ("3,99 € zzgl. 0,25 € Pfand", 3.99, "€"), ("1,789 €/l", 1.789, "€"),
    ],
    "Austria and Switzerland": [
        ("€ 49,90", 49.9, "€"), ("CHF 1’299.50", 1299.5, "CHF"), ("12.– CHF", 12, "CHF"),
        ("Fr. 19.90", 19.9, "Fr."), ("1'299.-", 1299, None),
    ],
    "France": [
        ("1 299,00 €", 1299, "€"), ("35€99", 35.99, "€"),
        ("12,90\u202f€ au lieu de 15,90\u202f€", 12.9, "€"),
        ("Lot de 3 : 9,90 € soit 3,30 €/pièce", 9.9, "€"),
        ("Taille 38 - 29,95 euros", 29.95, "euros"),
    ],
    "Italy and Spain": [
        ("€ 1.299,00", 1299, "€"), ("19,90€ -20% 15,92€", 19.9, "€"), ("3 por 10 €", 10, "€"),
        ("Antes 25 € Ahora 20 €", 20, "€"),
    ],
    "Netherlands": [
        ("€ 12,-", 12, "€"), ("Van € 20,00 voor € 15,00", 15, "€"),
        ("€12,95 per stuk", 12.95, "€"),
    ],
    "Scandinavia": [
        ("1 299 kr", 1299, "kr"), ("kr. 1.299,00", 1299, "kr."), ("199:-", 199, None),
        ("NOK 349", 349, "NOK"), ("Jfr pris 99,80 kr/kg 49,90 kr", 49.9, "kr"),
    ],
    "Poland": [
        ("199,99 zł", 199.99, "zł"), ("1 299,00 PLN", 1299, "PLN"),
        ("79,99 zł Najniższa cena z 30 dni: 89,99 zł", 79.99, "zł"),
        ("2 szt. 15 zł", 15, "zł"),
    ],
    "Czechia and Hungary": [
        ("1 299 Kč", 1299, "Kč"), ("99,- Kč", 99, "Kč"), ("12 990 Ft", 12990, "Ft"),
    ],
    "Russia and Bulgaria": [
        ("1 299 ₽", 1299, "₽"), ("1299 руб.", 1299, "руб."), ("12,50 лв.", 12.5, "лв."),
        ("старая цена 900 ₽ 750 ₽", 750, "₽"),
    ],
    "Turkey": [("1.299,90 TL", 1299.9, "TL"), ("₺1.299,90", 1299.9, "₺")],
    "Japan": [
        ("1,299円税込", 1299, "円"), ("¥12,800", 12800, "¥"), ("１，２９８円", 1298, "円"),
        ("12万円", 120000, "円"),
    ],
    "China and Korea": [("￥199.00", 199, "￥"), ("1299元", 1299, "元"), ("12,900원", 12900, "원")],
    "India": [
        ("₹1,29,999.00", 129999, "₹"), ("Rs. 1,299/-", 1299, "Rs."),
        ("₹ 499 M.R.P.: ₹999", 499, "₹"),
    ],
    "Brazil": [
        ("R$ 1.299,90", 1299.9, "R$"), ("De R$ 199,90 por R$ 149,90", 149.9, "R$"),
        ("12x de R$ 99,90 ou R$ 1.099,00 à vista", 1099, "R$"),
    ],
    "Mexico and Chile": [
        ("MXN $1,299.00", 1299, "MXN"), ("$ 12.990", 12990, "$"), ("CLP 12.990", 12990, "CLP"),
    ],
    "Other countries": [
        ("KD 12.500", 12.5, "KD"), ("1,299.00 AED", 1299, "AED"), ("١٬٢٩٩٫٥٠ ر.س", 1299.5, "ر.س"),
        ("₫1.299.000", 1299000, "₫"), ("฿1,299", 1299, "฿"), ("R 1 299.00", 1299, "R"),
        ("S/ 12.50", 12.5, "S/"), ("Rp1.299.000", 1299000, "Rp"), ("RM12.90", 12.9, "RM"),
        ("₪199.90", 199.9, "₪"), ("1 299 грн", 1299, "грн"), ("199,99 lei", 199.99, "lei"),
    ],
}  # fmt: skip


@pytest.mark.parametrize(
    ("text", "amount", "currency"),
    [
        pytest.param(*notation, id=f"{country}: {notation[0]!a}")
        for country, notations in NOTATIONS.items()
        for notation in notations
    ],
)
def test_price_is_read_in_the_notation_of_its_country(
    text: str, amount: float, currency: str | None
) -> None:
    assert read_price(text) == {"amount": amount, "currency": currency}


@pytest.mark.parametrize(
    ("text", "amount"),
    [
        ("Size 42: 49.90 €", 49.9),
        ("Size 42 49.90 €", 49.9),
        ("Gr. 42 € 49,90", 49.9),
        ("iPhone 15 128 GB $799", 799),
        ("Model 2024, €499", 499),
        ("Pack of 3 - $12", 12),
        ("Lot 3 - £250", 250),
        ("2 for $5", 5),
        ("3 for £10 or £4 each", 10),
        ("500 g 1,99 € (100 g = 0,40 €)", 1.99),
        ("0,40 € / 100 g 1,99 €", 1.99),
        ("19,90 €/kg", 19.9),
        ("$4.99 ($0.31/oz)", 4.99),
        ("-25 % 15,00 €", 15),
        ("5 % off $20", 20),
        ("Save $5: now $20", 20),
        ("$5 off, $20.00", 20),
        ("RRP: £50.00 Our price: £39.99", 39.99),
        ("Niedrigster Preis der letzten 30 Tage: 39,90 € 44,90 €", 44.9),
        ("+ $3.99 shipping $15.00", 15),
        ("12 x 9,99 €", 9.99),
        ("4 payments of $25.00 or $100.00", 100),
        ("4.5 stars (120) $20", 20),
        ("10 - 20 EUR", 10),
        ("from 9.99 to 12.99 USD", 9.99),
        ("29,99 23,99 €", 29.99),
        ("20.00 incl. 19% VAT", 20),
        ("19 % VAT incl. 20.00", 20),
        ("2 for 5.00", 5),
        ("Size 42: 49.90", 49.9),
        ("500 g 1,99", 1.99),
        ("1.2 million €", 1200000),
        ("Ø 12 cm 4 €", 4),
        ("Lamp 60W 230V 12,50 €", 12.5),
        ("19⁹⁹ €", 19.99),
        ("19,99¹ €", 19.99),
        ("free", 0),
    ],
)
def test_amount_next_to_a_currency_is_chosen_among_other_numbers(text: str, amount: float) -> None:
    read = read_price(text)
    assert read is not None
    assert read["amount"] == amount


@pytest.mark.parametrize(
    "text", ["500 g", "50 %", "Size 42", "3 x", "on request", "Free shipping", "", "€"]
)
def test_counts_sizes_and_weights_are_not_prices(text: str) -> None:
    assert read_price(text) is None


@pytest.mark.parametrize(
    ("markup", "amount"),
    [
        ("$19<sup>99</sup>", 19.99),
        ("<sup>$</sup>19<sup>99</sup>", 19.99),
        ("1,299<sup>00</sup> $", 1299),
        ("1.299<sup>95</sup> €", 1299.95),
        ("19 <sup>99</sup> €", 19.99),
        ("19<sup>€99</sup>", 19.99),
        ("19 € <sup>99</sup>", 19.99),
        ("$<span>12</span><span>49</span>", 12.49),
        ("$<span>12</span>\n  <span>49</span>", 12.49),
        ("<span>12</span><span>.</span><span>49</span> €", 12.49),
        ("<span>12,</span><sup>49</sup> €", 12.49),
        ("<span class=int>12</span> <span class=cents>49</span> €", 12.49),
        ("<div>12</div><div class='price-fraction'>49</div> €", 12.49),
        ("$19.99<sup>1</sup>", 19.99),
        ("$49<sup>1)</sup>", 49),
        ("1,299.00<sup>12</sup> $", 1299),
        ("<b>1</b><b>2</b><b>4</b><b>9</b> €", 1249),
        ("<i>1</i><i>299</i> €", 1299),
        ("<del>$30.00</del> $24.00", 24),
        ("<s>30,00 €</s><b>24,00 €</b>", 24),
        ("<span class=old-price>30,00 €</span><span>24,00 €</span>", 24),
        ("<span style='text-decoration: line-through'>$30</span> $24", 24),
        ("<del>$30.00</del>", 30),
        ("<span>$12.49</span><span aria-hidden=true>$<i>12<i>.</i></i><i>49</i></span>", 12.49),
        ("Size <b>42</b> <b>49</b> €", 49),
    ],
)
def test_parts_of_an_element_are_one_price(markup: str, amount: float) -> None:
    response = page(f"<div id=price>{markup}</div>")
    assert price("#price").read(response, UTC_ZONE)["amount"] == amount


@pytest.mark.parametrize(
    ("field", "value"),
    [
        (number("p"), 19.99),
        (price("p::text"), {"amount": 19.0, "currency": "$"}),
        (price(xpath="string(//p)"), {"amount": 1999.0, "currency": "$"}),
    ],
)
def test_superscript_cents_need_the_element(field: Field, value: Any) -> None:
    assert field.read(page("<p>$19<sup>99</sup></p>"), UTC_ZONE) == value


@pytest.mark.parametrize("text", ["9 €", "$ 9", "CHF 9", "9 zł", "9,-", "1,299円税込", "Rs. 9"])
def test_text_with_a_price_is_recognized(text: str) -> None:
    assert PRICE.search(text)


@pytest.mark.parametrize("text", ["9", "Size 42", "TOP 10", "9 krone posts", "ALL 4", "2-3 days"])
def test_other_numbers_are_not_taken_for_prices(text: str) -> None:
    assert not PRICE.search(text)


def test_parts_of_a_price_in_microdata_are_one_price() -> None:
    markup = (
        "<main itemscope itemtype=https://schema.org/Product><h1 itemprop=name>Tea</h1>"
        "<p itemprop=price>19<sup>99</sup> €</p></main>"
    )
    assert page_values(page(markup))["offers"] == ["Tea: 19.99"]
