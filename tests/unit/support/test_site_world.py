"""The model of the demo site: a reproducible history, and true times of changes."""

from __future__ import annotations

import itertools
from datetime import datetime, timedelta

import pytest
from parsel import Selector

from tests.site.shop import CATEGORIES
from tests.site.weekly_profile import HORIZON_WEEKS
from tests.site.world import START, Visit, World

END = START + timedelta(weeks=HORIZON_WEEKS)
BEFORE = START - timedelta(days=400)
SECOND = timedelta(seconds=1)
WORLD = World()
LISTS = ["/", "/blog/", "/blog/page/3/", "/blog/tag/maps/", "/shop/tools/", "/shop/lamps/page/2/"]
SITEMAP = "/sitemap.xml"


def select(path: str, now: datetime = START) -> Selector:
    """Return a selector for the page at `path`, which must exist."""
    page = WORLD.page(path, now)
    assert page is not None, path
    return Selector(page.html)


def walk(path: str, css: str) -> list[str]:
    """Return the links of a list page and of all following pages, at the start."""
    links: list[str] = []
    for _ in range(50):
        page = select(path)
        links += page.css(css).getall()
        after = page.css("a.next::attr(href)").get()
        if after is None:
            return links
        path = after
    raise AssertionError("the list does not end")


def assert_truth(path: str) -> None:
    """Check that the content changes at the times in `changes`, and only then.

    Between two changes, the content is compared at both ends and in the middle.
    """
    times = [BEFORE, *WORLD.changes(path, BEFORE, END), END + SECOND]
    for at, after in itertools.pairwise(times):
        if at != BEFORE:
            assert WORLD.content(path, at - SECOND) != WORLD.content(path, at)
        steady = WORLD.content(path, at)
        assert WORLD.content(path, at + (after - at) / 2) == steady
        assert WORLD.content(path, after - SECOND) == steady


def test_worlds_with_equal_seeds_are_equal() -> None:
    other = World()
    now = START + timedelta(days=17, hours=10)
    for path in [*LISTS, SITEMAP, *WORLD.paths(now)]:
        assert WORLD.page(path, now) == other.page(path, now)
        assert WORLD.changes(path, START, END) == other.changes(path, START, END)


def test_worlds_with_different_seeds_differ() -> None:
    assert World(seed=8).paths(START) != WORLD.paths(START)


def test_changes_of_items_match_content() -> None:
    for item in WORLD.items:
        assert_truth(item.path)


def test_changes_of_posts_match_content() -> None:
    for post in WORLD.posts:
        assert_truth(post.path)


@pytest.mark.parametrize("path", LISTS)
def test_changes_of_lists_match_content(path: str) -> None:
    assert_truth(path)


def test_sitemap_changes_with_any_page() -> None:
    times = WORLD.changes(SITEMAP, START, START + timedelta(days=3))
    assert len(times) > 10
    for at in times:
        assert WORLD.content(SITEMAP, at - SECOND) != WORLD.content(SITEMAP, at)


def test_changes_exclude_start_and_include_end() -> None:
    path = max(WORLD.items, key=lambda item: len(item.offers)).path
    first, second = WORLD.changes(path, START, END)[:2]
    assert WORLD.changes(path, first, second) == [second]


def test_items_and_posts_come_and_go() -> None:
    gone = [item for item in WORLD.items if item.ends is not None]
    late = [item for item in WORLD.items if item.appears > START]
    assert len(gone) > 5
    assert 20 < len(late) < 70
    for item in gone:
        assert item.ends is not None
        assert WORLD.page(item.path, item.ends - SECOND) is not None
        assert WORLD.page(item.path, item.ends) is None
    assert all(item.appears < START + timedelta(weeks=4) for item in late)
    assert sum(post.published < START for post in WORLD.posts) == 120
    assert len(WORLD.posts) > 120 + 84


def test_paths_are_distinct_and_exist() -> None:
    paths = [*(item.path for item in WORLD.items), *(post.path for post in WORLD.posts)]
    assert len(set(paths)) == len(paths)
    assert all(WORLD.page(path, START) for path in WORLD.paths(START))


def test_lists_link_all_existing_pages() -> None:
    links = [
        link for name in CATEGORIES for link in walk(f"/shop/{name}/", "li.product a::attr(href)")
    ]
    assert set(links) == {item.path for item in WORLD.items if item.live(START)}
    posts = walk("/blog/", "li.post a::attr(href)")
    assert posts == [post.path for post in WORLD.posts if post.published <= START]


def test_item_page_has_fields_and_two_related_links() -> None:
    path = WORLD.paths(START)[0]
    page = select(path)
    assert page.css("h1::text").get()
    assert (page.css("p.price::text").get() or "").startswith("£")
    assert page.css("p.stock::text").get()
    assert page.css("p.rating::attr(data-rating)").get()
    assert page.css("p.added time::attr(datetime)").get()
    assert page.css("div.description p::text").get()
    related = page.css("aside.related a::attr(href)").getall()
    assert len(set(related) - {path}) == 2


def test_a_post_has_its_fields() -> None:
    for post in WORLD.posts:
        words = " ".join(post.paragraphs).split()
        assert 100 <= len(words) <= 420
    page = select(WORLD.posts[-1].path)
    assert page.css("article.post h1::text").get() == WORLD.posts[-1].title
    assert page.css("time::attr(datetime)").get() == WORLD.posts[-1].published.isoformat()
    assert page.css("div.body p")
    assert page.css("a[rel=tag]")


@pytest.mark.parametrize("path", ["/", "/shop/tools/", "/blog/", "/about/"])
def test_boilerplate_does_not_change_digest(path: str) -> None:
    page = WORLD.page(path, START, Visit(token="1"))
    two = WORLD.page(path, START + SECOND, Visit(token="2"))
    assert page is not None
    assert two is not None
    assert page.html != two.html
    assert page.digest == two.digest
    for trap in ("/about/", "/cart/", "/login/"):
        assert f'href="{trap}"' in page.html


def test_an_edit_is_visible_content() -> None:
    plain, edited = (WORLD.page("/about/", START, Visit(edits=n)) for n in (0, 2))
    assert plain is not None
    assert edited is not None
    assert plain.digest != edited.digest
    assert "edited 2 times" in edited.html


def test_last_modified_is_the_last_change() -> None:
    now = START + timedelta(weeks=6)
    for path in WORLD.paths(now):
        page = WORLD.page(path, now)
        assert page is not None
        assert page.last_modified == WORLD.changes(path, BEFORE, now)[-1]


def test_most_items_change_rarely_and_in_working_hours() -> None:
    changes = {i.path: [o.at for o in i.offers[1:]] for i in WORLD.items}
    counts = sorted(len(times) for times in changes.values())
    assert counts[len(counts) // 2] <= 3
    assert counts[-1] > 100
    times = [at for all_times in changes.values() for at in all_times]
    working = [at for at in times if at.weekday() < 5 and 8 <= at.hour < 18]
    assert len(working) > 0.7 * len(times)


def test_robots_and_sitemap() -> None:
    robots = WORLD.page("/robots.txt", START, Visit(base="http://here"))
    assert robots is not None
    assert robots.html == "User-agent: *\nDisallow: /cart/\nSitemap: http://here/sitemap.xml\n"
    page = WORLD.page(SITEMAP, START, Visit(base="http://here"))
    assert page is not None
    assert page.html.count("<loc>http://here/") == len(WORLD.paths(START))
    assert page.html.count("<lastmod>20") == len(WORLD.paths(START))


@pytest.mark.parametrize(
    "path",
    ["/x", "/shop/", "/shop/hats/", "/shop/tools/page/1/", "/shop/tools/page/99/", "/blog/tag/x/"],
)
def test_unknown_pages(path: str) -> None:
    assert WORLD.page(path, START) is None
    assert WORLD.changes(path, START, END) == []


def test_campaign_parameters_are_ignored() -> None:
    link = select("/").css("ul.featured a::attr(href)").get() or ""
    assert "utm_source=" in link
    assert WORLD.page(link, START) == WORLD.page(link.partition("?")[0], START)
