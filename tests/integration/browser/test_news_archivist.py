"""An archivist of news, who never opens a terminal, keeps two sites and finds a copied article.

After `scrapy web`, all is done in the browser: both sites, the change of an article, two versions
read and compared, a search, the near-duplicate with both sites, a saved search and its Atom feed.
The clicks and the words typed are counted.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import httpx
import pytest
from playwright.sync_api import Page, expect

from tests.integration.browser.person import JOB_MILLISECONDS, Person, add_site, until
from tests.integration.harness import Db, Freshet, Pages
from tests.integration.web.served import Served

pytestmark = pytest.mark.soak
# What a person needs at most, from the empty app to the feed of the saved search.
MAX_CLICKS, MAX_WORDS = 35, 15
PHRASE = "the harbor bridge reopens"
BRIDGE = (
    "After four years of repairs the harbor bridge reopens on Saturday, the city said on Tuesday.",
    "Engineers replaced all forty steel cables and the two bearings on the northern bank, which "
    "had rusted since the flood of 1997, and strengthened the piers against ice.",
    "The work cost 62 million euros, nine million more than the council had agreed to in its "
    "first vote, because the masonry of the old towers turned out to be hollow.",
    "Cyclists get a lane of their own on the eastern side; heavy trucks must still take the "
    "tunnel, at least until the measurements of the first winter are known.",
    "The mayor will cut the ribbon at noon, and the tram runs across the bridge from one o'clock.",
)
# By the name of the page: section, title and paragraphs.
Story = tuple[str, str, tuple[str, ...]]
STORIES: dict[str, Story] = {
    "harbor-bridge": ("politics", "Harbor bridge reopens on Saturday", BRIDGE),
    "council-budget": (
        "politics", "Council votes on the budget",
        ("The council votes on the budget of next year on Thursday evening in the old town hall.",
         "Schools and libraries get more money, while the fees for parking rise by a tenth.",
         "The opposition calls the plan timid and wants to sell the fairground instead."),
    ),
    "spring-regatta": (
        "sports", "Rowers win the spring regatta",
        ("Eight rowers of the local club won the spring regatta ahead of two guests from abroad.",
         "A strong wind from the west made the second half of the course hard for all boats.",
         "The next race is in June, on the lake behind the paper mill."),
    ),
}  # fmt: skip
OTHERS: dict[str, Story] = {
    "weekly-market": (
        "local", "Market moves to the station",
        ("The weekly market moves to the square in front of the station until the autumn.",
         "The stands open at seven, and the bakers have promised to come an hour earlier.",
         "Whether the fish stalls come along is to be decided next week."),
    ),
    "chess-club": (
        "sports", "Chess club turns one hundred",
        ("The chess club celebrates its hundredth birthday with a tournament for everyone.",
         "Its oldest member has played in every championship since the club won its first cup.",
         "Beginners meet on Mondays, and boards are lent for free."),
    ),
}  # fmt: skip
OLD, NEW = "The work cost 62 million euros", "The work cost 71 million euros"


def write(site: Pages, stories: dict[str, Story]) -> None:
    """Write the front page, a page of each section, and the articles."""
    sections = sorted({section for section, *_ in stories.values()})
    links = [f'<a href="/section/{name}.html">{name.title()}</a>' for name in sections]
    site.file("/index.html", html("News of today", listed(links)))
    for name in sections:
        own = [
            f'<a href="/news/{slug}.html">{title}</a>'
            for slug, (section, title, _) in stories.items()
            if section == name
        ]
        site.file(f"/section/{name}.html", html(name.title(), listed(own)))
    for slug, (_, title, paragraphs) in stories.items():
        text = "".join(f"<p>{each}</p>" for each in paragraphs)
        site.file(f"/news/{slug}.html", html(title, f"<article>{text}</article>"))


def listed(links: list[str]) -> str:
    return f"<ul>{''.join(f'<li>{link}</li>' for link in links)}</ul>"


def html(title: str, body: str) -> str:
    return (
        f"<!DOCTYPE html><html lang=en><head><title>{title}</title></head><body>"
        f'<nav><a href="/index.html">Home</a></nav><main><h1>{title}</h1>{body}</main>'
        "</body></html>"
    )


@pytest.fixture
def paper() -> Iterator[Pages]:
    with Pages() as site:
        write(site, STORIES)
        yield site


@pytest.fixture
def copycat() -> Iterator[Pages]:
    """Another site, which has copied an article and changed a sentence."""
    copied = (*BRIDGE[:-1], "The mayor will open it at noon. This is what we have heard so far.")
    with Pages() as site:
        write(
            site, OTHERS | {"bridge-opens": ("local", "Bridge over the harbor opens again", copied)}
        )
        yield site


@pytest.fixture
def app(freshet: Freshet, paper: Pages, copycat: Pages) -> Iterator[Served]:
    """Serve the web app, which crawls by itself and compares posts, on an empty database."""
    hosts = (site.url.removeprefix("http://") for site in (paper, copycat))
    served = Served(
        freshet, service=True, FRESHET_PRIVATE_HOSTS=",".join(hosts),
        FRESHET_DUPLICATES="characters",
    )  # fmt: skip
    yield served
    served.stop()


def test_news_are_archived_without_a_terminal(
    page: Page, app: Served, paper: Pages, copycat: Pages, database: Db
) -> None:
    person = Person(page)
    page.goto(app.url)
    add_site(person, "paper", f"{paper.url}/index.html")
    person.follow("Sites")
    add_site(person, "copycat", f"{copycat.url}/index.html")
    number = len(STORIES) + len(OTHERS) + 1
    until(lambda: database.posts.count_documents({}) == number, "not all articles were crawled")
    edit_an_article(person, paper, database)
    read_two_versions(person)
    search(person)
    look_at_duplicates(person)
    subscribe(person)
    assert person.needed_at_most(MAX_CLICKS, MAX_WORDS)


def edit_an_article(person: Person, paper: Pages, database: Db) -> None:
    """Let the paper edit an article; check all its pages, and see the change."""
    section, title, paragraphs = STORIES["harbor-bridge"]
    edited = tuple(each.replace(OLD, NEW) for each in paragraphs)
    write(paper, STORIES | {"harbor-bridge": (section, title, edited)})
    person.follow("Sites")
    person.follow("paper")
    person.click(person.page.get_by_role("button", name=re.compile("Check now")).first)
    until(lambda: database.visits.count_documents({"news": True}) == 1, "no change was found")
    person.follow("Changes")
    change = person.page.locator("[data-change]", has_text=title)
    expect(change).to_be_visible()
    expect(person.page.get_by_text("1 change", exact=True)).to_be_visible()
    person.click(change.locator("[data-open]"))
    expect(person.page.get_by_role("heading", level=1)).to_contain_text(title)


def read_two_versions(person: Person) -> None:
    """Read the version before the edit, as a page of its own, and compare it with the new one."""
    page = person.page
    person.follow("Version before")
    text = page.locator(".read-text")
    expect(text).to_contain_text(OLD)
    expect(text).to_contain_text(BRIDGE[1])
    expect(text).not_to_contain_text(NEW)
    person.follow("Later version")
    expect(text).to_contain_text(NEW)
    person.follow("Compare with the earlier one")
    expect(page.get_by_role("heading", name="Versions compared")).to_be_visible()
    expect(page.locator("del").filter(has_text="62").first).to_be_visible()
    expect(page.locator("ins").filter(has_text="71").first).to_be_visible()


def search(person: Person) -> None:
    """Find the article by a phrase; its copy on the other site is folded below it."""
    page = person.page
    person.follow("Search")
    person.type("Words to find in items and posts", f'"{PHRASE}"')
    person.press("Search")
    hits = page.locator(".hit")
    expect(hits).to_have_count(1)
    expect(page.get_by_text("1 result", exact=False)).to_be_visible()
    expect(hits).to_contain_text("paper")
    expect(hits.locator(".also")).to_contain_text("also on copycat")


def look_at_duplicates(person: Person) -> None:
    """Find both sites in the list of near-duplicates, and compare the two articles."""
    page = person.page
    person.open_from_menu("Near-duplicates")
    row = page.get_by_role("row", name=re.compile("bridge", re.IGNORECASE))
    expect(row).to_contain_text("paper")
    expect(row).to_contain_text("copycat")
    person.click(row.get_by_role("link"))
    texts = page.get_by_role("region", name="Side by side")
    expect(texts).to_contain_text("paper", timeout=JOB_MILLISECONDS)
    expect(texts).to_contain_text("copycat")
    expect(texts).to_contain_text("heard so far")


def subscribe(person: Person) -> None:
    """Save the search, and open its Atom feed."""
    page = person.page
    person.follow("Search")
    person.type("Words to find in items and posts", f'"{PHRASE}"')
    person.press("Search")
    person.click(page.get_by_text("Save this search"))
    person.type("Name of the search", "Bridge")
    person.press("Save")
    expect(page.get_by_role("navigation", name="Saved searches")).to_contain_text("Bridge")
    person.follow("Edit and feeds")
    person.press("Make a feed")
    address = page.locator(".notice .command").inner_text()
    feed = httpx.get(address)
    assert feed.status_code == 200
    assert feed.headers["content-type"].startswith("application/atom+xml")
    assert "Bridge in Freshet" in feed.text
    assert STORIES["harbor-bridge"][1] in feed.text
    assert "also on copycat" in feed.text
