"""Propose URL patterns of list and item pages from the links of a few pages of a site.

Links are grouped by the shape of their paths. Item pages are shapes with many links in repeated
places of the content, with long texts. List pages are shapes that lead to such links, or that have
names such as `category` or `page`.
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import cast
from urllib.parse import unquote, urlsplit

from lxml import etree
from scrapy.http import TextResponse

from crawler.extract.plain_text import text_below
from crawler.utils.regex import compiled
from crawler.utils.text import count
from crawler.utils.urls import base_url, canonical, is_http, joined, site_of

MAX_LINKS = 3000
MAX_URL_CHARACTERS = 1000
MAX_TEXT_CHARACTERS = 200
MAX_NAMES, MAX_NAME_CHARACTERS = 12, 60
MAX_PROPOSALS = 8
# Sibling folders of items that are proposed together.
MAX_ALIKE = 30
MAX_SEGMENTS = 8
# At least this many different words at one place of a path are interchangeable.
MIN_WORDS = 3
# Names in paths by which sites usually mark pages that list others, and single items.
LIST_NAMES = frozenset({
    "archive", "archives", "author", "blog", "brand", "brands", "browse", "catalog", "catalogue",
    "categories", "category", "collection", "collections", "kategorie", "label", "latest", "news",
    "page", "posts", "products", "product-category", "product-tag", "product_cat", "rubrique",
    "section", "sections", "shop", "store", "tag", "tags", "thema", "topic", "topics", "seite",
    "search",
})  # fmt: skip
ITEM_NAMES = frozenset({
    "article", "articles", "artikel", "book", "dp", "entry", "item", "items", "job", "jobs",
    "movie", "p", "post", "product", "produkt", "produit", "question", "recipe", "story", "view",
    "watch",
})  # fmt: skip
PAGE_NAMES = ("page", "seite", "pagina", "p")
# Names of pages that a site has only once.
SINGLE_NAMES = frozenset({
    "about", "account", "cart", "checkout", "contact", "contact-us", "cookies", "disclaimer",
    "faq", "feed", "help", "imprint", "impressum", "index", "legal", "login", "my-account",
    "privacy", "privacy-policy", "register", "rss", "search", "sign-in", "sitemap", "support",
    "terms", "wishlist",
})  # fmt: skip
FILES = re.compile(
    r"\.(?:xml|rss|atom|json|pdf|zip|gz|jpe?g|png|gif|svg|webp|ico|css|js|mp[34]|txt)$", re.I
)
INDEX = re.compile(r"^index\.(?:html?|php)$", re.I)
EXTENSION = re.compile(r"\.(?:html?|php|aspx?)$", re.I)
BOILERPLATE = re.compile(
    r"\b(?:nav|navbar|menu|footer|header|sidebar|breadcrumbs?|widget|social|share|cookie|logo)",
    re.I,
)
BOILERPLATE_TAGS = frozenset({"nav", "header", "footer", "aside"})
ANCESTORS = 5
NUMBER, WORD = "#", "*"
# A link on at least this share of the fetched pages counts as boilerplate, if at least FRAME_PAGES
# pages were fetched.
FRAME_SHARE, FRAME_PAGES = 0.8, 3
_NAME = re.compile(r"[^\W\d_]")
# Texts of links to further pages, which name no page.
PAGING = re.compile(
    r"\W*(?:next|prev(?:ious)?|older|newer|first|last|more|page|weiter|zurück|suivant|précédent)\b",
    re.I,
)
_LINKS = etree.XPath(
    "//a[@href] | //link[@href and (contains(concat(' ', @rel, ' '), ' next ')"
    " or contains(concat(' ', @rel, ' '), ' prev '))]"
)


@dataclass(frozen=True, slots=True)
class Anchor:
    """A link of a page.

    url:      canonical URL
    text:     text of the link
    place:    tags and classes around the link; links of one list have the same place
    is_frame: whether the link is in a menu, header, footer or sidebar
    """

    url: str
    text: str
    place: str
    is_frame: bool


@dataclass(frozen=True, slots=True)
class LinkPage:
    """A fetched page with its links."""

    url: str
    anchors: tuple[Anchor, ...]


@dataclass(frozen=True, slots=True)
class Proposal:
    """A pattern that could select the list or the item pages of a site.

    pattern: regular expression for URLs
    exclude: pattern for known URLs that `pattern` matches, but that are not items; None without any
    reason:  why the pattern is proposed, one line
    urls:    known URLs that the pattern matches, in the order of the pages
    names:   different texts of links to them, at most MAX_NAMES, without numbers of pages
    leads:   patterns of the proposed items that fetched pages of this pattern link to; for lists
    alike:   patterns of items in sibling folders, such as other sections of a paper; for items
    """

    pattern: str
    exclude: str | None
    reason: str
    urls: tuple[str, ...]
    names: tuple[str, ...] = ()
    leads: tuple[str, ...] = ()
    alike: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Proposals:
    """The proposals for one site, the most likely ones first."""

    lists: tuple[Proposal, ...]
    items: tuple[Proposal, ...]


# The segments of a path, where NUMBER and WORD stand for any number and any text.
Shape = tuple[str, ...]


@dataclass(slots=True)
class _Group:
    """The links of one shape."""

    shape: Shape
    urls: dict[str, None] = field(default_factory=dict)
    in_content: set[str] = field(default_factory=set)
    words: list[int] = field(default_factory=list)
    places: Counter[str] = field(default_factory=Counter)
    # Fetched pages of this shape, with the numbers of content links by shape.
    links: dict[str, Counter[Shape]] = field(default_factory=dict)
    # Longest text of the links to each URL.
    texts: dict[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str | None:
        """Return the last fixed name of the shape, without extension."""
        fixed = [part for part in self.shape if part not in (NUMBER, WORD)]
        return EXTENSION.sub("", fixed[-1]).lower() if fixed else None

    @property
    def is_paging(self) -> bool:
        return len(self.shape) > 1 and self.shape[-1] == NUMBER and self.shape[-2] in PAGE_NAMES

    def item_score(self) -> float:
        """Return a score for the shape as one of item pages; 0 if it is unlikely."""
        if not self.shape or self.is_paging or not {WORD, NUMBER} & set(self.shape):
            return 0.0
        n_content = len(self.in_content)
        if n_content == 0:
            return 0.0
        score = math.log2(1 + n_content) * (0.3 + n_content / len(self.urls))
        words = sum(self.words) / len(self.words) if self.words else 0.0
        score *= 0.6 + min(words, 6) / 6
        if self.places:
            # Links of one list have the same place.
            score *= 0.7 + 0.6 * max(self.places.values()) / self.places.total()
        slugs = [unquote(_segments(url)[-1]) for url in self.in_content]
        score *= 0.7 + min(sum(map(len, slugs)) / len(slugs), 30) / 60
        parents = {part.lower() for part in self.shape[:-1]}
        if parents & ITEM_NAMES:
            score *= 2
        unclear = {"blog", "news", "shop", "store", "products", "posts", "archives"}
        if parents & (LIST_NAMES - unclear):
            score *= 0.15
        if self.shape.count(NUMBER) >= 2 and self.shape[-1] == WORD:
            score *= 1.6
        if self.shape[-1] == NUMBER and len(self.shape) > 1:
            score *= 0.5
        # Pages of items that were fetched mostly lead to other kinds of pages.
        own = [links[self.shape] for links in self.links.values()]
        if own and min(own) > 8:
            score *= 0.5
        return score

    def list_score(self, items: Mapping[Shape, float], *, is_first: bool) -> float:
        """Return a score for the shape as one of list pages; 0 if it is unlikely.

        items: the likely shapes of items, with their weights
        """
        if self.shape in items and items[self.shape] == 1:
            return 0.0
        leads = [
            max((links[shape] * weight for shape, weight in items.items()), default=0.0)
            for links in self.links.values()
        ]
        evidence = math.log2(1 + sum(leads) / len(leads)) if leads else 0.0
        names = {part.lower() for part in self.shape}
        has_name = bool(names & LIST_NAMES) or self.is_paging
        if leads and evidence < 1:
            return 0.3 if has_name else 0.0
        if not leads and not has_name:
            return 0.0
        score = evidence + (2.0 if has_name else 0.0)
        if self.is_paging:
            score += 2.5
        score += 0.5 * math.log2(1 + len(self.urls))
        if is_first:
            score *= 0.5
        if WORD in self.shape and not has_name:
            score *= 0.4
        return score if self.name not in SINGLE_NAMES else 0.0


def anchors_of(page: TextResponse) -> tuple[Anchor, ...]:
    """Return the links of an HTML page to its own host, at most MAX_LINKS."""
    root = page.selector.root
    if not isinstance(root, etree._Element):
        return ()
    base, site = base_url(root, page.url), site_of(page.url)
    anchors: list[Anchor] = []
    elements = cast("list[etree._Element]", _LINKS(root))
    for element in elements[:MAX_LINKS]:
        try:
            url = joined(base, element.get("href") or "")
            if len(url) > MAX_URL_CHARACTERS or not is_http(url) or site_of(url) != site:
                continue
            url = canonical(url)
        except ValueError:
            continue
        place, is_frame = _place(element)
        text = text_below(element)[:MAX_TEXT_CHARACTERS]
        anchors.append(Anchor(url, text, place, is_frame))
    return tuple(anchors)


def propose(pages: Sequence[LinkPage]) -> Proposals:
    """Return patterns for the list and item pages of a site, from the links of some of its pages.

    pages: fetched pages of the site, the one that the user named first
    """
    groups = _groups(pages)
    items = sorted(
        ((score, group) for group in groups.values() if (score := group.item_score()) > 0),
        key=lambda pair: -pair[0],
    )
    best = [group for _, group in items[:MAX_PROPOSALS]]
    likely = {group.shape: 1 / (1 + rank) for rank, group in enumerate(best[:3])}
    first = next((s for s, group in groups.items() if pages and pages[0].url in group.urls), None)
    lists = sorted(
        (
            (score, group)
            for group in groups.values()
            if (score := group.list_score(likely, is_first=group.shape == first)) > 0
        ),
        key=lambda pair: -pair[0],
    )
    joined = _joined([group for _, group in lists], groups)
    by_shape = groups | {group.shape: group for group in joined}
    list_proposals = []
    for shapes in _merged(joined)[:MAX_PROPOSALS]:
        members = [by_shape[shape] for shape in shapes if shape in by_shape]
        pattern = _regex(shapes, next(url for group in members for url in group.urls))
        is_read = any(group.links for group in members)
        reason = "leads to items" if is_read else "has the name of a list"
        if len(shapes) > 1:
            reason += " and has further pages"
        urls = _matching(pattern, _known(groups))
        names = _names(members, urls)
        leads = tuple(
            _regex([item.shape], next(iter(item.urls))) for item in best if _leads(members, item)
        )
        list_proposals.append(Proposal(pattern, None, reason, urls, names, leads))
    # URLs of lists and of single pages, which no item pattern should match.
    list_shapes = {group.shape for _, group in lists}
    others = [
        url
        for shape, group in groups.items()
        for url in group.urls
        if (shape in list_shapes and WORD not in shape) or group.name in SINGLE_NAMES
    ]
    item_proposals = tuple(
        replace(_item_proposal(group, groups, others), alike=_alike(group, groups, list_shapes))
        for group in best
    )
    return Proposals(tuple(list_proposals), item_proposals)


def _alike(
    group: _Group, groups: Mapping[Shape, _Group], lists: Collection[Shape]
) -> tuple[str, ...]:
    """Return patterns for the items of sibling folders: all but one part of the path is the same.

    A folder with only one or two items has no shape of its own; it counts if it has a page, too.
    """
    shape = group.shape
    if len(shape) < 2 or shape[-1] not in (WORD, NUMBER):
        return ()
    known = {tuple(_segments(url)) for each in groups.values() for url in each.urls}
    folders: dict[Shape, str] = {}
    for other in groups.values():
        if len(other.shape) != len(shape) or _ending(other.shape) != _ending(shape):
            continue
        if other.is_paging or not other.in_content or other.shape in lists:
            continue
        own = other.shape if other.shape[-1] in (WORD, NUMBER) else (*other.shape[:-1], shape[-1])
        differing = [(a, b) for a, b in zip(shape, own, strict=True) if a != b]
        is_fixed = all(part not in (WORD, NUMBER) for pair in differing for part in pair)
        is_folder = own == other.shape or own[:-1] in known
        if len(differing) == 1 and is_fixed and is_folder and not set(own) & LIST_NAMES:
            folders.setdefault(own, next(iter(other.in_content)))
    return tuple(_regex([own], url) for own, url in folders.items())[:MAX_ALIKE]


def _leads(lists: Iterable[_Group], items: _Group) -> bool:
    """Return whether the fetched pages of some lists link to items, at least one each."""
    counts = [links[items.shape] for group in lists for links in group.links.values()]
    return sum(counts) >= max(1, len(counts))


def _names(groups: Iterable[_Group], urls: Sequence[str]) -> tuple[str, ...]:
    """Return different texts of links to some URLs, without numbers of pages."""
    texts = {url: text for group in groups for url, text in group.texts.items()}
    names = (texts.get(url, "")[:MAX_NAME_CHARACTERS].strip() for url in urls)
    wanted = dict.fromkeys(name for name in names if _NAME.search(name) and not PAGING.match(name))
    return tuple(wanted)[:MAX_NAMES]


def worth_fetching(pages: Sequence[LinkPage], max_links: int) -> list[str]:
    """Return at most `max_links` links of these pages, those that are most useful to fetch next.

    One page of each shape is enough. Shapes with the names of lists come first, then those with
    most links.
    """
    groups = _groups(pages)
    fetched = {page.url for page in pages}
    rows = []
    for group in groups.values():
        unseen = [url for url in group.urls if url not in fetched]
        if not unseen or group.links or group.name in SINGLE_NAMES:
            continue
        is_list = group.name in LIST_NAMES
        is_open = WORD in group.shape and not group.in_content
        size = min(math.log2(1 + len(group.urls)), 4)
        rows.append(((4 if is_list else 0) + size - (1 if is_open else 0), unseen))
    rows.sort(key=lambda row: -row[0])
    chosen = [unseen[0] for _, unseen in rows]
    # More pages of the largest shapes, if there are few shapes.
    for place in (1, 2):
        chosen += [unseen[place] for _, unseen in rows if len(unseen) > place]
    return chosen[:max_links]


def _groups(pages: Iterable[LinkPage]) -> dict[Shape, _Group]:
    pages = list(pages)
    on_pages: dict[str, int] = Counter(
        url for page in pages for url in {anchor.url for anchor in page.anchors}
    )
    menu_urls = {
        url
        for url, n in on_pages.items()
        if len(pages) >= FRAME_PAGES and n >= FRAME_SHARE * len(pages)
    }
    urls = dict.fromkeys(
        url for page in pages for url in (page.url, *(anchor.url for anchor in page.anchors))
    )
    shapes = _shapes(url for url in urls if not FILES.search(urlsplit(url).path))
    groups = {shape: _Group(shape) for shape in dict.fromkeys(shapes.values())}
    for url, shape in shapes.items():
        groups[shape].urls[url] = None
    for page in pages:
        links: Counter[Shape] = Counter()
        counted = {page.url}
        for anchor in page.anchors:
            if anchor.url not in shapes:
                continue
            shape = shapes[anchor.url]
            group = groups[shape]
            if anchor.text:
                if len(anchor.text) > len(group.texts.get(anchor.url, "")):
                    group.texts[anchor.url] = anchor.text
                # In scripts without spaces, two characters count as one word.
                spaceless = sum("\u2e80" <= sign <= "\uffef" for sign in anchor.text)
                group.words.append(len(anchor.text.split()) + spaceless // 2)
                group.places[anchor.place] += 1
            if not anchor.is_frame and anchor.url not in menu_urls and anchor.url not in counted:
                counted.add(anchor.url)
                group.in_content.add(anchor.url)
                links[shape] += 1
        if page.url in shapes:
            groups[shapes[page.url]].links[page.url] = links
    return groups


def _shapes(urls: Iterable[str]) -> dict[str, Shape]:
    """Return the shape of each URL: which parts of its path are fixed."""
    by_length: dict[tuple[int, str], list[tuple[Shape, str]]] = defaultdict(list)
    for url in urls:
        parts = tuple(NUMBER if part.isdigit() else part for part in _segments(url))
        if len(parts) <= MAX_SEGMENTS:
            by_length[len(parts), _ending(parts)].append((parts, url))
    shapes: dict[str, Shape] = {}
    for rows in by_length.values():
        shapes |= {url: shape for shape, url in _generalized(rows)}
    return shapes


def _segments(url: str) -> list[str]:
    path = urlsplit(url).path
    parts = [part for part in path.split("/") if part]
    if parts and INDEX.match(parts[-1]):
        parts.pop()
    return parts


def _ending(parts: Shape) -> str:
    extension = EXTENSION.search(parts[-1]) if parts else None
    return extension[0].lower() if extension else ""


def _generalized(rows: list[tuple[Shape, str]]) -> Iterator[tuple[Shape, str]]:
    """Yield shape and URL of paths of one length, place by place from the left."""
    length = len(rows[0][0])
    groups: list[tuple[Shape, list[tuple[Shape, str]]]] = [((), rows)]
    for place in range(length):
        refined: list[tuple[Shape, list[tuple[Shape, str]]]] = []
        for before, members in groups:
            by_text: dict[str, list[tuple[Shape, str]]] = defaultdict(list)
            for member in members:
                by_text[member[0][place]].append(member)
            is_last = place == length - 1
            # Names such as `category` are followed by any word, even if only one was seen.
            is_open = bool(before) and before[-1].lower() in LIST_NAMES | ITEM_NAMES
            # Names of areas of the site stay as they are.
            areas = LIST_NAMES.union(PAGE_NAMES, SINGLE_NAMES if is_last else ITEM_NAMES)
            fixed = {
                text: some
                for text, some in by_text.items()
                if text == NUMBER
                or (text in PAGE_NAMES if is_open else EXTENSION.sub("", text).lower() in areas)
            }
            rest = {text: some for text, some in by_text.items() if text not in fixed}
            n_members = sum(map(len, rest.values()))
            is_word = is_open or (len(rest) >= MIN_WORDS and (is_last or len(rest) * 2 > n_members))
            refined += [((*before, text), some) for text, some in fixed.items()]
            if is_word:
                merged = [member for some in rest.values() for member in some]
                if merged:
                    refined.append(((*before, WORD), merged))
            else:
                refined += [((*before, text), some) for text, some in rest.items()]
        groups = refined
    for shape, members in groups:
        yield from ((shape, url) for _, url in members)


def _joined(groups: Sequence[_Group], known: Mapping[Shape, _Group]) -> list[_Group]:
    """Return groups of lists in order, where siblings in one folder of lists are one group.

    Two categories are too few for a shape of their own, but a third may come.
    """
    siblings: dict[tuple[Shape, str], list[_Group]] = defaultdict(list)
    for group in groups:
        last = group.shape[-1] if len(group.shape) > 1 else NUMBER
        if group.links and last not in (NUMBER, WORD) and group.name not in LIST_NAMES:
            siblings[group.shape[:-1], _ending(group.shape)].append(group)
    replaced: dict[Shape, _Group] = {}
    for (parent, ending), members in siblings.items():
        shapes = {group.shape for group in members}
        others = [
            shape
            for shape in known
            if shape[:-1] == parent and shape not in shapes and _ending(shape) == ending
        ]
        if len(members) < 2 or others:
            continue
        whole = _Group((*parent, WORD))
        for group in members:
            whole.urls |= group.urls
            whole.links |= group.links
            whole.texts |= group.texts
            replaced[group.shape] = whole
    return list({id(each): each for g in groups for each in [replaced.get(g.shape, g)]}.values())


def _merged(groups: Sequence[_Group]) -> list[list[Shape]]:
    """Return the shapes of lists in order, each with the shape of its further pages."""
    merged: list[list[Shape]] = []
    done: set[Shape] = set()
    by_shape = {group.shape: group for group in groups}
    for group in groups:
        if group.shape in done:
            continue
        base = group.shape[:-2] if group.is_paging else group.shape
        paging = next(
            (shape for shape, other in by_shape.items() if other.is_paging and shape[:-2] == base),
            None,
        )
        shapes = [base, paging] if paging else [base]
        done |= set(shapes)
        if shapes != [()]:
            merged.append(shapes)
    return merged


def _regex(shapes: Sequence[Shape], example: str) -> str:
    """Return the pattern of a shape, and of its further pages if a second one is given.

    example: URL of the shape, for the name of the index file in its folder
    """
    base, *paging = shapes
    path = "/".join(map(_part, base))
    last = urlsplit(example).path.rpartition("/")[2]
    end = f"(?:/{re.escape(last)})?/?$" if INDEX.match(last) else "/?$"
    if paging:
        further = f"{re.escape(paging[0][-2])}/\\d+"
        path = f"{path}(?:/{further})?" if base else f"(?:{further})?"
    return f"^https?://[^/]+/{path}{'$' if _ending(base) else end}"


def _part(part: str) -> str:
    if part in (NUMBER, WORD):
        return r"\d+" if part == NUMBER else "[^/]+"
    # Escapes that patterns do not need would make them hard to read.
    return re.sub(r"\\(?=[-%&~#])", "", re.escape(part))


def _item_proposal(
    group: _Group, groups: Mapping[Shape, _Group], others: Iterable[str]
) -> Proposal:
    pattern = _regex([group.shape], next(iter(group.urls)))
    confused = set(_matching(pattern, others))
    exclude = None
    if confused:
        paths = sorted({"/".join(map(_part, _segments(url))) for url in confused} - {""})
        exclude = f"^https?://[^/]+/(?:{'|'.join(paths)})(?:/|$)"
    urls = tuple(url for url in _matching(pattern, _known(groups)) if url not in confused)
    n_content = len(group.in_content)
    reason = f"{count(n_content, 'link')} in the content"
    return Proposal(pattern, exclude, reason, urls, _names([group], urls))


def _known(groups: Mapping[Shape, _Group]) -> Iterator[str]:
    return (url for group in groups.values() for url in group.urls)


def _matching(pattern: str, urls: Iterable[str]) -> tuple[str, ...]:
    regex = compiled(pattern)
    return tuple(url for url in urls if regex.search(url))


def _place(element: etree._Element) -> tuple[str, bool]:
    """Return the place of a link, and whether it is in the page's boilerplate."""
    parts, is_frame = [], False
    node: etree._Element | None = element
    depth = 0
    while node is not None and isinstance(node.tag, str):
        marks = f"{node.get('class') or ''} {node.get('id') or ''}"[:200]
        if depth < ANCESTORS:
            parts.append(f"{node.tag}.{marks.split()[0]}" if marks.split() else node.tag)
        if node.tag not in ("body", "html", "article", "main") and (
            node.tag in BOILERPLATE_TAGS or BOILERPLATE.search(marks)
        ):
            is_frame = True
        node, depth = node.getparent(), depth + 1
    return " < ".join(parts), is_frame
