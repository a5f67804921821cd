"""Patterns proposed from the links of a few pages of a site."""

from __future__ import annotations

import time

import pytest
from scrapy.http import HtmlResponse

from crawler.extract.proposals import LinkPage, Proposal, anchors_of, propose, worth_fetching
from crawler.utils.regex import compiled

HOST = "https://shop.example"
TITLES = ("green tea from Uji", "black tea with bergamot", "a cup of oolong", "mint and lemon")
NAVIGATION = '<nav><a href="/">Home</a><a href="/about">About</a><a href="/cart">Cart</a></nav>'


def page(path: str, *links: tuple[str, str], frame: str = NAVIGATION) -> LinkPage:
    """Return a page with links in its content."""
    rows = "".join(f'<li class="card"><a href="{href}">{text}</a></li>' for href, text in links)
    return read(path, f"{frame}<main><ul>{rows}</ul></main>")


def read(path: str, body: str) -> LinkPage:
    response = HtmlResponse(f"{HOST}{path}", body=body.encode(), encoding="utf-8")
    return LinkPage(response.url, anchors_of(response))


def products(folder: str, start: int = 0, ending: str = "") -> list[tuple[str, str]]:
    return [
        (f"{folder}{title.replace(' ', '-')}-{start + n}{ending}", title)
        for n, title in enumerate(TITLES)
    ]


def rank(proposals: tuple[Proposal, ...], *paths: str, without: tuple[str, ...] = ()) -> int | None:
    """Return the place of the first proposal that matches some paths and none of others."""

    def selects(proposal: Proposal, path: str) -> bool:
        url = f"{HOST}{path}"
        excluded = proposal.exclude and compiled(proposal.exclude).search(url)
        return bool(compiled(proposal.pattern).search(url)) and not excluded

    for place, proposal in enumerate(proposals):
        if all(selects(proposal, path) for path in paths) and not any(
            selects(proposal, path) for path in without
        ):
            return place
    return None


SITES = {
    "shop": (
        [page("/", ("/category/tea/", "Tea"), ("/category/cups/", "Cups"), *products("/product/")),
         page("/category/tea/", *products("/product/", 4), ("/category/tea/page/2/", "2"))],
        ["/category/tea/", "/category/new/page/7/"], ["/product/other-thing"],
    ),
    "dated blog": (
        [page("/", *products("/2024/05/"), ("/page/2", "Older posts"), ("/tag/green", "green")),
         page("/page/2", *products("/2023/11/", 4), ("/page/3", "Older posts"))],
        ["/page/9"], ["/2019/01/any-words"],
    ),
    "items in the root folder": (
        [page("/", ("/blog", "Blog")),
         page("/blog", *products("/"), ("/blog/page/2", "Next")),
         page("/blog/page/2", *products("/", 4), ("/blog/page/3", "Next"))],
        ["/blog", "/blog/page/4"], ["/some-other-post"],
    ),
    "files": (
        [page("/", *products("/catalogue/books/", ending=".html"),
              ("/catalogue/page/2/index.html", "next"))],
        ["/catalogue/page/3/index.html"], ["/catalogue/books/x.html"],
    ),
    "numbers": (
        [page("/", *((f"/item/{n}", f"{TITLES[n % 4]} {n}") for n in range(1000, 1020))),
         page("/archive", *((f"/item/{n}", f"{TITLES[n % 4]} {n}") for n in range(20)))],
        ["/archive"], ["/item/77"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SITES)
def test_correct_patterns_rank_in_the_top_three(name: str) -> None:
    pages, lists, items = SITES[name]
    proposals = propose(pages)
    list_rank = rank(proposals.lists, *lists, without=tuple(items))
    item_rank = rank(proposals.items, *items, without=(*lists, "/about", "/cart"))
    assert list_rank is not None
    assert item_rank is not None
    assert (list_rank, item_rank) < (3, 3)


def test_item_patterns_exclude_list_pages() -> None:
    pages, *_ = SITES["items in the root folder"]
    first = propose(pages).items[0]
    assert first.pattern == "^https?://[^/]+/[^/]+/?$"
    assert first.exclude
    assert f"{HOST}/blog" not in first.urls
    assert f"{HOST}/blog/page/2" not in first.urls
    assert len(first.urls) == 8


def test_two_categories_of_one_folder_are_one_list_with_their_names() -> None:
    menu = (("/c/lamps.html", "Lamps"), ("/c/rugs.html", "Rugs"))
    pages = [
        page("/index.html", *menu),
        page("/c/lamps.html", *products("/p/", ending=".html")),
        page("/c/rugs.html", *products("/p/", 4, ending=".html")),
    ]
    proposals = propose(pages)
    (lists,) = [each for each in proposals.lists if each.leads]
    assert lists.pattern == "^https?://[^/]+/c/[^/]+/?$"
    assert lists.names == ("Lamps", "Rugs")
    assert lists.leads == (proposals.items[0].pattern,)
    assert proposals.items[0].names[:2] == TITLES[:2]
    assert len(proposals.items[0].names) == 4


def test_a_list_beside_other_pages_stays_alone() -> None:
    pages = [
        page("/", ("/c/lamps", "Lamps"), ("/c/team", "Team")),
        page("/c/lamps", *products("/p/")),
        page("/c/team"),
    ]
    leads = [each.pattern for each in propose(pages).lists if each.leads]
    assert "^https?://[^/]+/c/lamps/?$" in leads


def test_most_informative_pages_are_fetched_first() -> None:
    home = page("/", *products("/product/"), ("/category/tea/", "Tea"), ("/feed.xml", "Feed"))
    chosen = worth_fetching([home], 3)
    assert chosen[:2] == [f"{HOST}/category/tea/", f"{HOST}{products('/product/')[0][0]}"]
    assert len(chosen) == 3
    assert not {f"{HOST}/about", f"{HOST}/cart", f"{HOST}/feed.xml"} & set(chosen)


def test_foreign_and_invalid_links_are_skipped() -> None:
    body = (
        '<a href="https://other.example/x">x</a><a href="javascript:alert(1)">y</a>'
        '<a href="https://[x/">z</a><a href="//www.shop.example/p#top">p</a><a>none</a>'
    )
    assert [anchor.url for anchor in read("/", body).anchors] == ["https://www.shop.example/p"]


def test_a_page_without_links_has_no_proposals() -> None:
    proposals = propose([read("/", "<p>Nothing here</p>")])
    assert (proposals.lists, proposals.items) == ((), ())
    assert propose([]).items == ()


def test_pages_with_many_long_links_stay_fast() -> None:
    links = "".join(f'<p><a href="/{"a-" * 300}{n}/{n}{"/b" * (n % 9)}">t</a>' for n in range(4000))
    began = time.process_time()
    pages = [read(f"/{n}", links) for n in range(2)]
    proposals = propose(pages)
    assert time.process_time() - began < 10
    assert all(len(page.anchors) <= 3000 for page in pages)
    for proposal in (*proposals.lists, *proposals.items):
        compiled(proposal.pattern)


def test_all_sections_of_a_paper_are_proposed_together() -> None:
    sections = ("politics", "sport", "culture")
    menu = "".join(f'<a href="/{name}/">{name.title()}</a>' for name in sections)
    frame = f"<nav>{menu}</nav>"
    articles = {name: products(f"/{name}/", 10 * n) for n, name in enumerate(sections)}
    # One section has only two articles.
    articles["culture"] = articles["culture"][:2]
    every = [link for links in articles.values() for link in links]
    pages = [page("/", *every, frame=frame)]
    pages += [page(f"/{name}/", *links, frame=frame) for name, links in articles.items()]
    best = propose(pages).items[0]
    patterns = [best.pattern, *best.alike]
    for links in articles.values():
        for path, _ in links:
            assert any(compiled(each).search(f"{HOST}{path}") for each in patterns), path
    for name in sections:
        assert not any(compiled(each).search(f"{HOST}/{name}/") for each in patterns)
