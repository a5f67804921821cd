"""Item pages in several scripts, for the misbehaving resources."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape


@dataclass(frozen=True)
class Text:
    """The text of an item page, its charset, and its price as displayed."""

    charset: str
    title: str
    price: str
    stock: str
    paragraphs: tuple[str, ...]


LATIN = Text(
    "utf-8",
    "Stoneware jug",
    "£12.50",
    "In stock (4 available)",
    (
        "A jug for water or for flowers, thrown by hand and glazed in grey.",
        "It holds one litre, stands firmly, and pours without dripping on the table.",
        "The handle is wide enough for a whole hand in a woollen glove.",
    ),
)
TEXTS = {
    "euc-kr": Text(
        "euc-kr",
        "손으로 빚은 물병",
        "12,500원",
        "재고 있음 (4개)",
        (
            "이 물병은 강가의 작은 공방에서 손으로 빚어 만들었습니다.",
            "물을 담아 식탁에 올려 두거나 꽃을 꽂아 창가에 놓아도 좋습니다.",
            "손잡이가 넓어서 겨울에 장갑을 끼고도 편하게 들 수 있습니다.",
        ),
    ),
    "shift-jis": Text(
        "shift_jis",
        "手作りの水差し",
        "1,250円",
        "在庫あり(4個)",
        (
            "この水差しは、川のそばにある小さな工房で、ひとつずつ手で作られています。",
            "水を入れて食卓に置いても、花を生けて窓辺に飾っても似合います。",
            "取っ手が広いので、冬に手袋をしたままでも楽に持つことができます。",
        ),
    ),
    "gb18030": Text(
        "gb18030",
        "手工陶水壶",
        "¥98.00",
        "有货(4件)",
        (
            "这把水壶是河边一间小作坊里的师傅亲手做的,表面上了一层灰色的釉。",
            "您可以用它盛水放在餐桌上,也可以插几枝花摆在窗台上。",
            "壶柄很宽,冬天戴着手套也能稳稳地拿住,倒水时不会滴漏。",
        ),
    ),
}


def item_html(text: Text, title: str, price: str | None = None) -> str:
    """Return an item page without a charset declaration."""
    body = "\n".join(f"<p>{escape(line)}</p>" for line in text.paragraphs)
    return f"""<!DOCTYPE html>
<html><head><title>{escape(title)}</title></head>
<body>
<main id="content"><article class="item">
<h1>{escape(title)}</h1>
<p class="price">{escape(price or text.price)}</p>
<p class="stock">{escape(text.stock)}</p>
<div class="description">
{body}
</div>
</article></main>
</body></html>
"""


def latin_item(name: str, price: str | None = None) -> bytes:
    """Return an English item page, in UTF-8, whose heading ends with the name."""
    return item_html(LATIN, f"Stoneware jug, {name}", price).encode()
