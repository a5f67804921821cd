"""Recognize pages whose content only a browser shows: JavaScript shells, redirects, framesets."""

from __future__ import annotations

import re

from scrapy.http import TextResponse

from crawler.extract.plain_text import UNSEEN, text_below
from crawler.utils.urls import joined

# A page with more text, besides scripts, has content of its own.
MAX_TEXT_CHARACTERS = 400
# "You are being redirected. If nothing happens, click here."
MAX_REDIRECT_CHARACTERS = 200
MAX_URL_CHARACTERS = 300
# Characters of each script that are searched for a redirect.
MAX_SCRIPT_CHARACTERS = 20_000
# Without any text, a script is reason enough. One word may be the name of the site.
MIN_TEXT_CHARACTERS = 3
# Elements that frameworks fill.
MOUNT = (
    "//body//*[(@id='root' or @id='app' or @id='__next' or @id='__nuxt' or @id='___gatsby'"
    " or @id='react-root' or @id='app-root' or @id='svelte' or @id='q-app' or @id='main-app'"
    " or @ng-app or @data-reactroot or @ng-version or self::app-root) and not(normalize-space())]"
)
SCRIPTS = "//script[not(@type) or contains(@type, 'javascript') or @type='module']"
WORDS = r"\W{1,3}(?:\w{1,20}\W{1,3}){0,5}"
ENABLE = re.compile(
    rf"(?:enable|activate|turn on|allow|require[sd]?|needs?){WORDS}java ?script"
    rf"|java ?script{WORDS}(?:enabled|required|disabled|needed|activated|aktivier\w*|deaktiviert"
    r"|ben\u00f6tigt|erforderlich|n\u00e9cessaire|d\u00e9sactiv\w+|requis|requerido|necesario"
    r"|habilit\w+|richiesto|abilit\w+|vereist|ingeschakeld)"
    rf"|(?:aktivier\w*|activez|habilit\w+|activ[ae]|abilit\w+|schakel){WORDS}java ?script"
    r"|java ?script.{0,6}(?:\u6709\u52b9|\u542f\u7528|\u958b\u555f)",
    re.I,
)
LOADING = re.compile(
    r"\W{0,9}(?:loading|please wait|one moment|wird geladen|bitte warten|l\u00e4dt|chargement"
    r"|cargando|caricamento|laden|carregando)(?:\W{1,3}\w{1,20}){0,3}\W{0,9}",
    re.I,
)
# What comes after it in a script waits for the visitor.
HANDLER = re.compile(
    r"\b(?:on)?(?:click|submit|change|key(?:down|up|press))\b|\bfunction \w{1,40}\("
)
# Trackers have their frames and pictures in <noscript>.
FRAMES = "//body//iframe[not(ancestor::noscript)]/@src"
PICTURES = "//body//*[self::img or self::picture or self::video][not(ancestor::noscript)]"
# `location = …`, `location.href = …`, `location.replace(…)`, `location.assign(…)`.
REDIRECT = re.compile(
    r"\blocation(?:\.href)?\s{0,9}=\s{0,9}[\"']([^\"'<>\s]{1,300})[\"']"
    r"|\blocation\.(?:replace|assign)\s{0,9}\(\s{0,9}[\"']([^\"'<>\s]{1,300})[\"']"
)


def needs_browser(page: TextResponse) -> str | None:
    """Return why only a browser shows the content of a page; None if its HTML has content."""
    if page.selector.type != "html":
        return None
    if frames := page.xpath("//frameset//frame/@src"):
        return _frame(page, frames[-1].get())
    text = " ".join(text_below(body.root, UNSEEN) for body in page.xpath("//body"))
    if len(text) > MAX_TEXT_CHARACTERS:
        return None
    if len(text) <= MAX_REDIRECT_CHARACTERS and (url := _redirect(page)) is not None:
        return f"a page that only redirects by JavaScript, to {url}. Use that URL"
    is_empty = len(text) < MIN_TEXT_CHARACTERS
    if is_empty and (frames := page.xpath(FRAMES)):
        return _frame(page, frames[0].get())
    if not page.xpath("//script"):
        return None
    hint = " ".join(page.xpath("//noscript//text()").getall()[:20])[:MAX_TEXT_CHARACTERS]
    is_shell = (
        (is_empty and not page.xpath(PICTURES))
        or page.xpath(MOUNT)
        or LOADING.fullmatch(text)
        or ENABLE.search(text)
        or (ENABLE.search(hint) and len(text) <= MAX_TEXT_CHARACTERS // 4)
    )
    return "a page that JavaScript fills, which Freshet does not run" if is_shell else None


def _frame(page: TextResponse, source: str) -> str:
    url = joined(page.url, source)[:MAX_URL_CHARACTERS]
    return f"a page without text, but with frames, such as {url}. Use the URL of the frame"


def _redirect(page: TextResponse) -> str | None:
    """Return the URL to which a script leads without a click; None if there is none."""
    for script in page.xpath(f"{SCRIPTS}/text() | //body/@onload"):
        code = script.get()[:MAX_SCRIPT_CHARACTERS]
        match = REDIRECT.search(code)
        if match is not None and HANDLER.search(code[: match.start()]) is None:
            return joined(page.url, match[1] or match[2])[:MAX_URL_CHARACTERS]
    return None
