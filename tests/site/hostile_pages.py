"""Bodies of pages that are hard or harmful to parse, or unusual, by name."""

from __future__ import annotations

from tests.site.hostile_link import Link, Misbehaviour

PARAGRAPH = "<p>A sentence of a page that is as good as any other one of this site.</p>"
HEAD = "<!DOCTYPE html><html><head><title>Page</title></head><body><h1>Heading</h1>"
MANY = 100_000
BROKEN = {
    "deep": "<div>" * MANY + PARAGRAPH,
    "tables": "<table><tr><td>" * MANY + PARAGRAPH,
    "bold": "<b>x" * MANY + PARAGRAPH,
    "forms": "<form><div>" * 50_000 + PARAGRAPH,
    "memory": "<p>x" * (7 * MANY),
}
# Pages that take minutes to parse without limits.
ENDLESS = {
    "attributes": f"<div {' '.join(f'a{n}=1' for n in range(5 * MANY))}>{PARAGRAPH}</div>",
    "selectors": "<div class=x>" * 200 + "<p>x" * 30_000,
}
FINE = {
    "plain": PARAGRAPH,
    "anchors": "<a href='/x'>x" * 3_000 + PARAGRAPH,
    "misnested": "<b><i>x</b>" * 2_000 + "<font><p>x</font>" * 2_000 + PARAGRAPH,
    "attribute": f'<p title="{"x" * 1_000_000}" class="{"c " * 300_000}">x</p>{PARAGRAPH}',
    "entities": "<p>" + "&amp;&lt;&#65;&nbsp;&none;" * 20_000 + PARAGRAPH,
    "unclosed": f"{PARAGRAPH}<!--" + "<!--" * MANY,
    "brackets": "<" * (10 * MANY) + PARAGRAPH,
    "marks": f"<p>a{chr(0x301) * 5 * MANY}{chr(0x316) * 5 * MANY}</p>{PARAGRAPH}",
    "few-marks": f"<p>a{chr(0x301) * 70_000}{chr(0x316) * 70_000}</p>{PARAGRAPH}",
    "marks-by-number": f"<p>a{'&#769;' * 24_000}{'&#790;' * 24_000}</p>{PARAGRAPH}",
    "ligatures": f"<p>{chr(0xFDFA) * 95_000}</p>{PARAGRAPH}",
    "characters": PARAGRAPH * 40 + "<p>a\0b &#0; &#xD800; \ufdd0</p>",
}


def _answering(body: str) -> Misbehaviour:
    async def answer(link: Link, rest: str) -> None:
        await link.page(HEAD + body)

    return answer


ALL: dict[str, Misbehaviour] = {
    name: _answering(body) for name, body in (BROKEN | ENDLESS | FINE).items()
}
