"""Read numbers and prices in texts and in elements of pages.

Of several numbers, the amount next to a currency is the price. Counts, sizes, weights and
percentages are never prices. Amounts that are not what the item costs now (old prices, savings,
unit prices, instalments, shipping) are read only if there is no other.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import lru_cache
from itertools import pairwise, zip_longest
from typing import Any

from lxml import etree

from crawler.extract.plain_text import SEPARATORS as BLOCK_SEPARATORS
from crawler.extract.plain_text import UNSEEN
from crawler.utils.exact_json import INT64, exact_number

# Grouped digits (1,234,567.89), plain digits, or a fraction without a leading zero. No group begins
# with a zero: 0.125 is less than one.
NUMBER = re.compile(
    r"[1-9]\d{0,2}(?:[ .,'\u00a0\u202f]\d{3})+(?!\d)(?:[.,]\d+)?"
    r"|\d+(?:[.,]\d+)*|(?<!\w)[.,]\d+"
)
FRACTION = re.compile(r"0*[.,]\d+")
TWO_DECIMALS = re.compile(r".*\d[.,]\d\d")
GROUP_DIGITS = 3
# Separators of Swiss and Arabic numbers, and full-width ones.
SEPARATORS = str.maketrans(
    {"\u2019": "'", "\u066b": ".", "\u066c": ",", "\uff0c": ",", "\uff0e": "."}
)
# The end of the text before a negative number: a minus, and maybe a currency. A minus in a word (as
# in A-1) or between spaces is a hyphen or a dash, except at the start.
NEGATIVE = re.compile(
    r"(?:^[-\u2212]\s?|(?<![\w.])[-\u2212])"
    r"(?:[A-Z]{0,3}[$\u00a3\u00a5\u20a0-\u20cf]\s?|[A-Z]{1,3}\s?)?$"
)
MAX_SIGN_CHARACTERS = 7
MAX_DIGITS = 300
MAX_EXACT_FLOAT = 2**53
# Longer texts are cut before they are searched for a price, and before the cache stores them.
MAX_PRICE_CHARACTERS = 1000
# Maximum number of characters next to a number in which its meaning and its currency are searched.
MAX_BEFORE, MAX_CURRENCY = 60, 20

# Codes of ISO 4217, without those that are also English words: ALL, CUP, TOP.
_CODES = (
    "AED|AFN|AMD|ANG|AOA|ARS|AUD|AWG|AZN|BAM|BBD|BDT|BGN|BHD|BIF|BMD|BND|BOB|BRL|BSD|BTN|BWP|BYN"
    "|BZD|CAD|CDF|CHF|CLP|CNY|COP|CRC|CVE|CZK|DJF|DKK|DOP|DZD|EGP|ERN|ETB|EUR|FJD|FKP|GBP|GEL|GHS"
    "|GIP|GMD|GNF|GTQ|GYD|HKD|HNL|HRK|HTG|HUF|IDR|ILS|INR|IQD|IRR|ISK|JMD|JOD|JPY|KES|KGS|KHR|KMF"
    "|KRW|KWD|KYD|KZT|LAK|LBP|LKR|LRD|LSL|LYD|MAD|MDL|MGA|MKD|MMK|MNT|MOP|MRU|MUR|MVR|MWK|MXN|MYR"
    "|MZN|NAD|NGN|NIO|NOK|NPR|NTD|NZD|OMR|PAB|PEN|PGK|PHP|PKR|PLN|PYG|QAR|RMB|RON|RSD|RUB|RWF|SAR"
    "|SBD|SCR|SDG|SEK|SGD|SLE|SOS|SRD|SYP|SZL|THB|TJS|TMT|TND|TRY|TTD|TWD|TZS|UAH|UGX|USD|UYU|UZS"
    "|VES|VND|VUV|WST|XAF|XCD|XOF|XPF|YER|ZAR|ZMW"
)
# Signs of several currencies, which a code may make clear: `$ 12 USD`, `MXN $12`.
_VAGUE_SIGNS = frozenset("$¥￥")
_CODE_BEFORE = re.compile(rf"(?<![^\W\d_])({_CODES})\s?$")
_CODE_AFTER = re.compile(rf"\s?\(?({_CODES})(?![^\W\d_])")
# Names and abbreviations.
_WORDS = (
    r"[Ee]uros?|EUROS?|eur|usd|gbp|chf|[Dd]ollars?|z[łl]|ZŁ|Zł|K[čc]|kč|[Kk]r\.?|KR|Ft|[Ll]e[iu]|LEI"
    r"|kn|din\.?|TL|Rs\.?|Rp\.?|RM|K[Ss]h|TSh|USh|F ?CFA|S?Fr\.?|fr\.|KD|Bs\.?|Gs\.?|[Pp]esos?"
    r"|[Rr]eais|[Yy]uan|đ(?:ồng)?|лв\.?|грн\.?|руб(?:\.|лей|ля|ль)?|[рР]\.|дин\.?|тг|тенге|сум"
    r"|ש[\"״]ח|դր\.?|(?:د\.[إكبأتمجعل]|ر\.[سقعي]|ج\.م|ل\.[لس])\.?|ريال|ریال|درهم|جنيه|دينار|تومان"
)
_SIGN = "[$£¥\u20a0-\u20cf฿৳៛﷼＄￡￥￦؋]"
_SIGNS = (
    r"(?:(?<![^\W\d_])(?:US|CA|AU|NZ|HK|NT|MX|AR|CL|CO|RD|TT|BZ|BN|Bds|MOP|CV|CN|GH|[ACJNRSTZ]))?"
    + _SIGN
)
# Names in languages that write no spaces.
_CJK = "[元圆圓円원]|บาท"
_ONLY_BEFORE = r"(?<![^\W\d_])(?:R|Q|[SB]/\.?)"
_BEFORE = rf"(?:{_SIGNS}|{_ONLY_BEFORE}|(?<![^\W\d_])(?:{_CODES}|{_WORDS}))"
_AFTER = rf"(?:{_SIGNS}|{_CJK}|(?:{_CODES}|{_WORDS})(?![^\W\d_]))"
_SPACE = r"[ \u00a0\u202f]?"
# Signs in place of cents: `12,-`, `1 299:-` and `1,299/-`.
_DASH = rf"{_SPACE}(?:[,.:][-–—−]{{1,2}}|/[-=])(?![\w-])"
# An amount with its currency.
PRICE = re.compile(rf"{_BEFORE}{_SPACE}[-−]?\d|\d{_SPACE}{_AFTER}|\d{_DASH}")
_CURRENCY_BEFORE = re.compile(rf"(?P<currency>{_BEFORE})[)\]]?:?\s?[-−+]?\s?$")
_CURRENCY_AFTER = re.compile(
    r"(?P<multiplier>\s?(?:[Mm]illion|[Mm]io\.?|[Mm]ln\.?|k)(?![^\W_])|[万만萬億亿억])?"
    rf"[*¹²³]?(?P<dash>{_DASH})?\s?[(\[]?(?P<currency>{_AFTER})?"
)
_MULTIPLIERS = {
    "million": 10**6, "mio": 10**6, "mln": 10**6, "k": 1000,
    "万": 10**4, "만": 10**4, "萬": 10**4, "億": 10**8, "亿": 10**8, "억": 10**8,
}  # fmt: skip
_ANY_CURRENCY = re.compile(rf"{_SIGNS}|(?<![^\W\d_])(?:{_CODES}|{_WORDS})(?![^\W\d_])")
# The euro sign in place of the decimal separator: 12€34, 12€ 34.
_WHOLE = r"(?<![\d.,])(?P<whole>\d{1,3}(?:[.,' \u00a0]\d{3})+|\d+)"
_SIGN_AS_POINT = re.compile(rf"{_WHOLE}(?:(?P<early>€)\s?|\s(?P<late>€))(?P<cents>\d\d)(?![.,]?\d)")
_HIGH = "⁰¹²³⁴⁵⁶⁷⁸⁹"
_HIGH_CENTS = re.compile(rf"{_WHOLE}(?P<cents>[{_HIGH}]{{2}})(?![{_HIGH}])")
_LOWERED = str.maketrans(_HIGH, "0123456789")
# Currencies with a thousandth as the smallest unit, so that 12.500 is twelve and a half. Fuel and
# electricity are also sold by thousandths.
_THOUSANDTHS = frozenset(
    {
        "BHD",
        "IQD",
        "JOD",
        "KD",
        "KWD",
        "LYD",
        "OMR",
        "TND",
        "د.ك",
        "د.ب",
        "ر.ع",
        "د.أ",
        "د.ت",
        "د.ل",
    }
)
_BY_THOUSANDTHS = re.compile(r"\s?/\s?(?:l|liter|litre|gal(?:lon)?|kWh)(?![^\W_])", re.I)
# Hundredths of a currency.
_CENTS_AFTER = re.compile(r"\s?(?P<sign>¢|cents?|ct|p)(?![^\W_])", re.I)
_CENTS_OF = {"¢": "$", "cents": "$", "cent": "€", "ct": "€", "p": "£"}

_UNIT = (
    r"(?:[mk]?g|gr|lbs?|oz|[mcd]?l|[cmk]?m[²³23]?|inch(?:es)?|[\"″]|ft|[MGT]B|k?Wh?|V|m?Ah|[kMG]?Hz"
    r"|MP|px|°C?|lit(?:er|re)s?|kilos?|Stück|Stk|St|pcs?|pieces?|pièces?|stuks?|szt|ks|шт|кг|г|л|мл"
    r"|см|мм|units?|items?|packs?|pairs?|Paar|sheets?|rolls?|tabl\w{0,5}|caps\w{0,5}|er|-?teilig"
    r"|days?|hours?|weeks?|months?|years?|Tagen?|Wochen?|Monate?|Jahre?|jours?|mois|ans|dni|días?"
    r"|giorni|dagen|stars?|reviews?|ratings?|customers?|available|in stock|left|個|本|枚|点|件|개)"
)
_UNIT_AFTER = re.compile(rf"[\s-]?{_UNIT}(?![^\W_])|\s?%", re.I)
_COUNT_AFTER = re.compile(
    r"\s?[x×](?![^\W\d_])"
    rf"|\s?(?:for|für|pour|por|per|voor|za|för|за)\s?(?:{_BEFORE}\s?)?\d",
    re.I,
)
_SIZE_BEFORE = re.compile(
    r"(?:(?<![^\W_])(?:sizes?|größe|grösse|gr|taille|pointure|talla|taglia|maat|rozmiar|velikost"
    r"|storlek|størrelse|размер|no|nr|n°|nº|art(?:icle|ikel)?|ref|réf|model|modell|item|sku|ean"
    r"|isbn|qty|quantity|menge|anzahl|(?:pack|set|box|lot|pack) (?:of|de)|rated|version|eu|uk)"
    r"|№|#|Ø|サイズ|(?<![^\W\d_])[x×])\W{0,3}$",
    re.I,
)
_PER = rf"(?:/|pro|per|par|por|je|al|for|p\.)\s?(?:\d+(?:[.,]\d+)?\s?)?{_UNIT}(?![^\W_])"
_UNIT_PRICE_AFTER = re.compile(rf"\s?\W?\s?{_PER}", re.I)
_UNIT_PRICE_BEFORE = re.compile(
    rf"\d\s?{_UNIT}\s?=\s?$|(?<![^\W_]){_PER}\W{{0,2}}$|/\s?{_UNIT}\W{{0,2}}$"
    r"|(?<![^\W_])(?:grundpreis|unit price|kg-?preis|literpreis|prix (?:au|du) \w{1,9}|jämförpris"
    r"|jfr\.? ?pris|soit|grundpr\.?)\W{0,3}$",
    re.I,
)
_INSTALMENT_BEFORE = re.compile(
    r"\d\s?[x×]\s?(?:de |à |a )?$|(?<![^\W_])(?:payments?|instal?lments?|raten|mensualités|cuotas"
    r"|rate|parcelas|vezes|fois|pagos) (?:of|von|à|zu|de|da)\s?$",
    re.I,
)
_OTHER_BEFORE = re.compile(
    r"(?:(?<![^\W_])(?:was|were|r\.?r\.?p|m?srp|m\.?r\.?p|uvp|uvp des herstellers|statt|vorher"
    r"|bisher|früher|instead of|previously|compare at"
    r"|(?:list|old|original|regular|reg|previous|usual|normal)\.?"
    r"(?: price)?|alter preis|normalpreis|listenpreis|au lieu de|avant|prix (?:conseillé|barré)"
    r"|antes|precio (?:anterior|original)|en lugar de|invece di|anziché|prima|prezzo (?:di listino"
    r"|precedente)|adviesprijs|zamiast|cena (?:regularna|katalogowa)|původní cena|běžná cena|místo"
    r"|ord(?:inarie)?\.? ?pris|förr|før(?:pris)?|старая цена|было|вместо|стара ціна"
    r"|save|(?:sie )?sparen|sparen sie|spare|spar|ersparnis|économisez|économie de|ahorras?"
    r"|risparmi\w{0,3}|bespaar|oszczędzasz|du sparar|скидка|discount|coupon|rabatt|rabat"
    r"|shipping|delivery|postage|versand\w{0,10}|porto|livraison|env[ií]o|frete|spedizione"
    r"|verzendkosten|доставка|pfand|deposit|zzgl|plus|over|above)(?: price)?"
    r"|通常価格|定価|参考価格|希望小売価格|原价|原價|市场价|市場價|정가|\+)\W{0,3}$"
    r"|(?:niedrigste|lowest|najniższa|plus bas|nejnižší|più basso|más bajo|laagste|lägsta)"
    r"[^\d]{0,40}30[^\d]{1,20}$",
    re.I,
)
_DISCOUNT_AFTER = re.compile(
    r"\W{0,2}(?:off|sparen|gespart|günstiger|rabatt|ersparnis|discount|cashback|korting|rabat|rabais"
    r"|de (?:remise|réduction|descuento|desconto|sconto)|скидк)",
    re.I,
)
_FEE_AFTER = re.compile(
    r"\W{0,2}(?:shipping|delivery|postage|versand\w{0,10}|porto|pfand|deposit"
    r"|(?:frais )?de (?:port|livraison)|livraison|envío|frete|spedizione|verzend\w{0,6}|доставк\w)",
    re.I,
)
# Maximum number of characters between a word and the amount that it describes.
MAX_GAP = 3
# Words around the old price of two: de … por, van … voor, von … auf.
_REDUCED_BEFORE = re.compile(r"(?<![^\W_])(?:de|van|von)\s?$", re.I)
_REDUCED_AFTER = re.compile(r"\s?(?:por|voor|auf)(?![^\W_])", re.I)
_RANGE = re.compile(r"\s?(?:[-–—~～]|to|bis|à|até|do|tot)\s?", re.I)
_FREE = re.compile(
    r"(?<![^\W_])(?:free|gratis|kostenlos|gratuite?)(?![^\W_])"
    r"(?! (?:shipping|delivery|returns|versand|livraison|envío))",
    re.I,
)
_PLAIN, _CENTS, _PER_UNIT, _OTHER = range(4)

# Marks of the boundaries of elements in the text of an element with a price.
_EDGE, _EDGE_OF_CENTS = "\x1f", "\x1e"
_ANY_EDGE = f"[{_EDGE}{_EDGE_OF_CENTS}]"
# The repetitions are bounded, or long runs of white space would take quadratic time.
_GAP = rf"[\s{_EDGE}]{{0,20}}"
_WIDE_GAP = rf"[\s{_EDGE}{_EDGE_OF_CENTS}]{{0,20}}"
_MARKED_CENTS = re.compile(
    # 12|49, and with white space or a sign between them: 12 €^99^, $|12| |49|
    rf"(?P<before>{_SIGN}{_WIDE_GAP})?{_WHOLE}"
    rf"(?:{_ANY_EDGE}{{1,20}}(?P<near>\d\d)"
    rf"|{_GAP}(?P<early>{_SIGN})?{_GAP}{_EDGE_OF_CENTS}{_WIDE_GAP}(?P<late>{_SIGN})?(?P<high>\d\d)"
    rf"|(?(before){_ANY_EDGE}{{1,20}}\s{{1,200}}{_ANY_EDGE}{{1,20}}(?P<far>\d\d){_ANY_EDGE}|(?!)))"
    rf"(?!{_ANY_EDGE}{{0,20}}[.,]?\d|{_ANY_EDGE}{{0,20}}\s?%)"
)
_FOOTNOTE = re.compile(
    rf"(?<=\d){_EDGE}{{0,20}}{_EDGE_OF_CENTS}{_ANY_EDGE}{{0,20}}\d\d?\)?(?={_ANY_EDGE})"
)
_CENTS_TAGS = frozenset({"sup", "sub", "small"})
_CENTS_NAME = re.compile(r"(?<![a-z])(?:cents?|fraction|decimals?)(?![a-z])|(?:Cents?|Fraction)")
_STRUCK_TAGS = frozenset({"del", "s", "strike"})
_STRUCK_NAME = re.compile(
    r"(?<![a-z])(?:old|was|strike\w*|stroke|line-?through|crossed|previous|original|rrp|uvp|msrp"
    r"|compare|list-?price|before)(?![a-z])"
)
_CAPITAL = re.compile(r"(?<=[a-z])(?=[A-Z])")


@dataclass(slots=True)
class _Amount:
    """A number in a text that may be a price.

    match:         of NUMBER
    start, end:    of the number with its currency
    before, after: currency before the number, and multiplier, sign and currency after it
    level:         lower levels are read first; None without a currency
    """

    match: re.Match[str]
    start: int
    end: int
    before: re.Match[str] | None = None
    after: re.Match[str] | None = None
    currency: str | None = None
    level: int | None = None
    factor: float = 1

    @property
    def is_exact(self) -> bool:
        return TWO_DECIMALS.fullmatch(self.match[0]) is not None

    @property
    def rank(self) -> int:
        return _OTHER + 1 if self.level is None else self.level


def read_number(value: str) -> int | float | None:
    """Return the first number in a text, with either decimal separator (1,234.5 or 1.234,5)."""
    match = NUMBER.search(value.translate(SEPARATORS))
    return None if match is None else _signed(match)


def read_price(value: str) -> dict[str, Any] | None:
    """Return the price in a text, a dict of `amount` and `currency` (or None); None without one."""
    # Cut the text before the cache stores it as a key.
    read = _price(value[:MAX_PRICE_CHARACTERS])
    return None if read is None else {"amount": read[0], "currency": read[1]}


def exact_amount(amount: int | float) -> int | float:
    """Return an amount as float, or as int if a float would lose digits of it."""
    return amount if MAX_EXACT_FLOAT < abs(amount) < INT64 else float(amount)


def amount_text(root: etree._Element) -> str:
    """Return the text of an element with a number: with a point before cents of their own.

    Cents may be in an element of their own (`$19<sup>99</sup>`, `$<b>12</b><b>49</b>`), and then
    the text lacks the decimal separator. Text that is struck through is left out if there is other
    text with digits.
    """
    text = _marked_text(root, with_struck=False)
    if not any(map(str.isdigit, text)):
        text = _marked_text(root, with_struck=True)
    text = _FOOTNOTE.sub(" ", _MARKED_CENTS.sub(_with_point, text)).replace(_EDGE, "")
    return " ".join(text.replace(_EDGE_OF_CENTS, "").split())


def _marked_text(root: etree._Element, *, with_struck: bool) -> str:
    parts: list[str] = []
    walk: Any = etree.iterwalk(root, events=("start", "end", "comment", "pi"))
    for event, element in walk:
        is_root, tag = element is root, element.tag
        if (
            event == "start"
            and not is_root
            and (tag in UNSEEN or (_is_struck(element) and not with_struck))
        ):
            walk.skip_subtree()
        elif event == "start":
            parts += ["" if is_root else _edge_before(element), _unmarked(element.text)]
        elif event == "end" and not is_root:
            parts += [" " if tag in BLOCK_SEPARATORS else _EDGE, _unmarked(element.tail)]
        elif not is_root:
            parts.append(_unmarked(element.tail))
    return "".join(parts)


def _edge_before(element: etree._Element) -> str:
    is_cents = element.tag in _CENTS_TAGS or _CENTS_NAME.search(element.get("class") or "")
    block = " " if element.tag in BLOCK_SEPARATORS else ""
    return block + (_EDGE_OF_CENTS if is_cents else "" if block else _EDGE)


def _unmarked(text: str | None) -> str:
    return (text or "").replace(_EDGE, "").replace(_EDGE_OF_CENTS, "")


def _is_struck(element: etree._Element) -> bool:
    if element.tag in _STRUCK_TAGS or "line-through" in (element.get("style") or ""):
        return True
    names = element.get("class") or ""
    return bool(names) and bool(_STRUCK_NAME.search(_CAPITAL.sub("-", names).lower()))


def _with_point(match: re.Match[str]) -> str:
    """Return whole and cents as one number, with the sign that was between them after it."""
    parts = match.groupdict()
    cents = parts.get("near") or parts.get("high") or parts.get("far") or parts.get("cents") or ""
    sign = parts.get("early") or parts.get("late") or ""
    point = "," if "." in match["whole"] else "."
    before = parts.get("before") or ""
    return f"{before}{match['whole']}{point}{cents.translate(_LOWERED)}{sign and f' {sign}'}"


def _signed(
    match: re.Match[str], factor: float = 1, *, has_thousandths: bool = False
) -> int | float | None:
    """Return the value of a match of NUMBER, with its sign; None if it is too long or ambiguous."""
    amount = _unsigned(match[0], has_thousandths=has_thousandths)
    if amount is None:
        return None
    start = match.start()
    if NEGATIVE.search(match.string, max(0, start - MAX_SIGN_CHARACTERS), start):
        amount = -amount
    if factor != 1:
        amount = round(amount * factor, 2)
    # Return 1234 rather than 1234.0 for "1,234", or it would count as a change from "1234".
    return int(amount) if amount == int(amount) else amount


def _unsigned(size: str, *, has_thousandths: bool) -> int | float | None:
    if len(size) > MAX_DIGITS:
        return None
    if size.isdigit():
        return int(size)
    if FRACTION.fullmatch(size):
        return float(size.replace(",", "."))
    last = max(size.rfind("."), size.rfind(","))
    whole, decimals = size[:last], size[last + 1 :]
    others = {character for character in whole if not character.isdigit()}
    # 1,234 is a whole number, and 1,234.567 is not.
    is_decimal = last >= 0 and (
        len(decimals) != GROUP_DIGITS or (has_thousandths and not others) or others - {size[last]}
    )
    if not is_decimal:
        return int("".join(filter(str.isdigit, size)))
    if size[last] in others:
        return None
    exact = exact_number(Decimal(f"{''.join(filter(str.isdigit, whole))}.{decimals}"))
    return float(exact) if isinstance(exact, str) else exact


@lru_cache(maxsize=1024)
def _price(value: str) -> tuple[int | float, str | None] | None:
    text = value.translate(SEPARATORS)
    if text.count("€") == 1:
        text = _SIGN_AS_POINT.sub(_with_point, text)
    text = _HIGH_CENTS.sub(_with_point, text)
    amounts = _amounts(text)
    if not amounts:
        return (0.0, None) if _FREE.search(text) and not NUMBER.search(text) else None
    # The first one of the lowest level.
    chosen = min(amounts, key=lambda each: each.rank)
    currency = chosen.currency
    if chosen.level is None and (anywhere := _ANY_CURRENCY.search(text)):
        currency = anywhere[0]
    elif currency in _VAGUE_SIGNS:
        currency = _code_next_to(text, chosen) or currency
    is_fine = (currency or "").strip(".") in _THOUSANDTHS or _BY_THOUSANDTHS.match(text, chosen.end)
    amount = _signed(chosen.match, chosen.factor, has_thousandths=bool(is_fine))
    return None if amount is None else (exact_amount(amount), currency)


def _code_next_to(text: str, chosen: _Amount) -> str | None:
    before = _CODE_BEFORE.search(text[max(0, chosen.start - MAX_CURRENCY) : chosen.start])
    ends = (chosen.match.end(), chosen.end)
    code = next(filter(None, (*(_CODE_AFTER.match(text, end) for end in ends), before)), None)
    return code[1] if code else None


def _amounts(text: str) -> list[_Amount]:
    """Return the numbers of a text that may be prices, in their order."""
    numbers = [_amount(match) for match in _numbers(text)]
    for one, two in pairwise(numbers):
        if one.end > two.start and one.after and one.after["currency"] and two.before:
            _give_sign(text, one, two)
    for each in numbers:
        _set_currency(text, each)
    _set_levels(text, numbers)
    for one, two in reversed([*pairwise(numbers)]):
        between = text[one.match.end() : two.start]
        is_range = _RANGE.fullmatch(between) or (between == " " and one.is_exact and two.is_exact)
        # In "Lot 3 - £250", the currency is only of the second number.
        is_shared = is_range and two.after is not None and two.level is not None
        if one.level is None and is_shared and not _is_other(text, one):
            one.level, one.currency = two.level, two.currency
    return [each for each in numbers if each.level is not None or not _is_other(text, each)]


def _numbers(text: str) -> Iterator[re.Match[str]]:
    at = 0
    while match := NUMBER.search(text, at):
        before = text[max(0, match.start() - MAX_BEFORE) : match.start()]
        if " " in match[0] and _SIZE_BEFORE.search(before):
            # "Size 42 499 €" has two numbers.
            match = NUMBER.search(text, match.start(), text.index(" ", match.start())) or match
        yield match
        at = match.end()


def _amount(match: re.Match[str]) -> _Amount:
    """Return a number with what is before and after it."""
    text, start, end = match.string, match.start(), match.end()
    each = _Amount(match, start, end)
    each.before = _CURRENCY_BEFORE.search(text[max(0, start - MAX_CURRENCY) : start])
    is_named = each.before is not None and each.before["currency"][-1].isalpha()
    if is_named and _UNIT_AFTER.match(text, end):
        # As in "GEL 50 ml".
        each.before = None
    if each.before:
        each.start -= len(each.before[0])
    each.after = _CURRENCY_AFTER.match(text, end)
    if each.after and any(each.after.groups()):
        each.end = each.after.end()
    else:
        each.after = None
    return each


def _set_currency(text: str, each: _Amount) -> None:
    """Set currency, level and factor of a number that has a currency, or a sign in its place."""
    after = each.after
    for part in (each.before, after):
        if part and part["currency"]:
            each.currency, each.level = each.currency or part["currency"], _PLAIN
    if after and after["dash"]:
        each.level = _PLAIN
    name = ((after and after["multiplier"]) or "").strip(" .").lower()
    if name and (each.level is not None or not name.isascii()):
        each.factor = _MULTIPLIERS[name]
    if each.level is None and (cents := _CENTS_AFTER.match(text, each.match.end())):
        sign = cents["sign"].lower()
        if each.match[0].isdigit() and (len(each.match[0]) < GROUP_DIGITS or sign != "p"):
            each.currency, each.level = _CENTS_OF[sign], _CENTS
            each.factor, each.end = 0.01, cents.end()


def _give_sign(text: str, one: _Amount, two: _Amount) -> None:
    """Leave the currency between two numbers to one of them."""
    assert one.after is not None
    assert two.before is not None
    name = one.after["currency"]
    sign_at = one.after.start("currency")
    if bool(one.before) != bool(two.after):
        is_of_one = one.before is None
    elif (sign_at == one.match.end()) != (sign_at + len(name) == two.match.start()):
        is_of_one = sign_at == one.match.end()
    else:
        # Of "42 € 49.90", the number with cents is the price.
        is_of_one = one.is_exact or not two.is_exact
    if is_of_one:
        two.before, two.start = None, two.match.start()
    else:
        one.after, one.end = None, one.match.end()


def _set_levels(text: str, numbers: Sequence[_Amount]) -> None:
    """Set whether each amount with a currency is the price, or another kind of amount."""
    at = 0
    for each, following in zip_longest(numbers, numbers[1:]):
        if each.level is None:
            continue
        before = text[max(at, each.start - MAX_BEFORE) : each.start]
        after = text[each.end : each.end + MAX_BEFORE]
        is_other = _OTHER_BEFORE.search(before) is not None
        discount, fee = _DISCOUNT_AFTER.match(after), _FEE_AFTER.match(after)
        if fee and not is_other and following is not None and following.level is not None:
            # In "49 €, shipping 4 €", the word is of the second amount.
            fee = fee if following.start - each.end - fee.end() > MAX_GAP else None
        if word := discount or (fee if is_other else None):
            at = each.end + word.end()
        if _REDUCED_BEFORE.search(before) and _REDUCED_AFTER.match(after):
            is_other = True
        if is_other or discount or fee:
            each.level = _OTHER
        elif per_unit := _UNIT_PRICE_AFTER.match(after):
            each.level, at = max(each.level, _PER_UNIT), each.end + per_unit.end()
        elif _UNIT_PRICE_BEFORE.search(before) or _INSTALMENT_BEFORE.search(before):
            each.level = max(each.level, _PER_UNIT)


def _is_other(text: str, each: _Amount) -> bool:
    """Return whether a number without a currency is a count, a size, a weight or a percentage."""
    start, end = each.match.span()
    if _UNIT_AFTER.match(text, end) or _SIZE_BEFORE.search(
        text[max(0, start - MAX_BEFORE) : start]
    ):
        return True
    return each.match[0].isdigit() and _COUNT_AFTER.match(text, end) is not None
