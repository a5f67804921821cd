"""The inbox of changes: net differences, folded edits, marks, mutes, paging and the Atom feed."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from html import unescape
from typing import Any, TypeVar
from urllib.parse import quote
from xml.etree import ElementTree

import httpx
import pytest
from bson import ObjectId

from crawler.config import Config
from crawler.reports import inbox
from crawler.reports.inbox import Filters, read_inbox
from crawler.reports.net_changes import similar_edits, word_change
from crawler.storage import change_events, users
from crawler.storage.readers import MAX_ITEMS, MAX_MUTES, MAX_RANGES, Reader
from crawler.storage.store import opened
from crawler.storage.users import Role, Scope
from crawler.utils.edits import edits
from crawler.utils.urls import target_id
from tests.integration.harness import Db
from tests.integration.web.browser import Browser, Browsers, browsers_of, put_user
from tests.integration.web.conftest import OPEN

T0 = datetime(2026, 3, 2, tzinfo=UTC)
HOSTILE = "<script>alert(1)</script>\"'&\x07"
ATOM = "{http://www.w3.org/2005/Atom}"
Result = TypeVar("Result")


def hours(count: float) -> datetime:
    return T0 + timedelta(hours=count)


class Log:
    """Stores visits and versions as crawls do."""

    def __init__(self, db: Db) -> None:
        self.db = db
        self.seen: dict[tuple[str, str], dict[str, Any]] = {}

    def visit(
        self, at: datetime, url: str, content: dict[str, Any] | None = None, spider: str = "shop",
        **more: Any,
    ) -> ObjectId:  # fmt: skip
        """Add a visit that found this content, or a gone page if None."""
        before = self.seen.get((spider, url))
        now_gone = content is None
        digest = before["hash"] if now_gone and before else str(hash(str(content)))
        if now_gone:
            outcome = "gone"
        elif before is None:
            outcome = "new"
        else:
            outcome = "unchanged" if before["hash"] == digest else "changed"
        was_gone = bool(before and before["gone"])
        row = {
            "_id": ObjectId(), "spider": spider, "target": url, "at": at, "outcome": outcome,
            "status": 404 if now_gone else 200, "changed": int(outcome == "changed"),
            "content_hash": digest, "diff_size": 10 if outcome == "changed" else 0,
        } | more  # fmt: skip
        if outcome in ("new", "changed") or was_gone or (now_gone and not was_gone):
            row |= {"event": True, "news": True}
        self.db.visits.insert_one(row)
        if content is not None:
            key = f"{spider} {url} {digest}"
            version = {"_id": key, "spider": spider, "target": url, "content_hash": digest,
                       "at": at, "content": content}  # fmt: skip
            self.db.versions.replace_one({"_id": key}, version, upsert=True)
        self.seen[spider, url] = {"hash": digest, "gone": now_gone}
        self.db.targets.update_one(
            {"_id": f"{spider} {url}"},
            {"$setOnInsert": {"spider": spider, "url": url, "kind": "item", "first_seen": at,
                              "next_visit": at, "categories": more.get("categories", [])}},
            upsert=True,
        )  # fmt: skip
        return row["_id"]

    def pages(self, count: int) -> None:
        """Add the first visit of some pages, one an hour, each of a category of its own."""
        for number in range(count):
            url, content = f"https://a.example/{number}", item(f"page {number}")
            self.visit(hours(number), url, content, categories=[f"category {number}"])


@pytest.fixture
def log(database: Db) -> Log:
    return Log(database)


def entries(browser: Browser, query: str = "") -> list[dict[str, Any]]:
    answer = browser.get(f"/api/v1/changes{query}")
    assert answer.status_code == 200, answer.text
    return answer.json()["entries"]


def send(browser: Browser, path: str, **form: Any) -> httpx.Response:
    return browser.post(path, {"csrf": browser.token("/changes/settings")} | form)


def on(uri: str, act: Callable[[Any], Awaitable[Result]]) -> Result:
    async def run() -> Result:
        async with opened(Config.load(mongo_uri=uri)) as db:
            return await act(db)

    return asyncio.run(run())


def feed_address(browser: Browser) -> str:
    """Create the reader's Atom feed, or a new secret, and return its URL."""
    page = send(browser, "/changes/feed").text
    return unescape(page.partition('<code class="command">')[2].partition("<")[0])


def mark_read_until(browser: Browser, until: float, **form: str) -> None:
    """Mark all changes as read up to `until` hours after T0."""
    answer = send(browser, "/changes/read-all", until=hours(until).isoformat(), **form)
    assert answer.status_code == 303, answer.text


def item(title: str, **more: Any) -> dict[str, Any]:
    return {"title": title, "main_text": f"About {title}."} | more


def test_empty_inbox_shows_the_next_step(local: Browser, log: Log) -> None:
    page = local.get("/changes").text
    assert "No changes yet" in page
    assert "Go to the sites" in page
    log.visit(hours(0), "https://a.example/1", item("one"))
    assert "one" in local.get("/changes").text
    send(local, "/changes/read-all")
    assert "You have read everything" in local.get("/changes").text
    assert "No unread changes with these filters" in local.get("/changes?kind=gone").text


def test_new_page_that_changed_later_shows_its_values(local: Browser, log: Log) -> None:
    url = "https://a.example/1"
    log.visit(hours(0), url, item("one", price="10 €", stock="In stock (9 available)"))
    log.visit(hours(1), url, item("one", price="11 €", stock="Out of stock"))
    (entry,) = entries(local)
    assert (entry["kind"], entry["visits"]) == ("new", 2)
    assert entry["fields"] == ["title", "main_text", "price", "stock"]
    values = [(edit["name"], edit["before"], edit["after"]) for edit in entry["edits"]]
    assert values == [("price", None, "11 €"), ("stock", None, "Out of stock")]
    assert "Out of stock" in local.get("/changes").text


def test_each_place_that_changed_is_shown_or_counted(local: Browser, log: Log) -> None:
    url, places = "https://a.example/1", ("first", "second", "third", "fourth", "fifth")
    paragraphs = [f"{place} paragraph about {place} things of this old page" for place in places]
    page = "\n".join(paragraphs)
    log.visit(hours(0), url, item("one") | {"main_text": page})
    mark_read_until(local, 0.5)
    log.visit(hours(1), url, item("one") | {"main_text": page.replace(" things", " matters")})
    (entry,) = entries(local)
    assert (len(entry["edits"]), entry["more_edits"]) == (3, 2)
    for place, edit in zip(places, entry["edits"], strict=False):
        assert (f"{place} things" in edit["before"], f"{place} matters" in edit["after"]) == (
            True,
            True,
        )
    assert "and 2 more" in local.get("/changes").text


def test_changed_words_and_numbers_stay_whole(local: Browser, log: Log) -> None:
    url = "https://a.example/1"
    price = {"amount": 510.67, "currency": "£"}
    log.visit(hours(0), url, item("one", stock="In stock (9 available)", price=price))
    mark_read_until(local, 0.5)
    cheaper = price | {"amount": 459.6}
    log.visit(hours(1), url, item("one", stock="Out of stock", price=cheaper))
    (entry,) = entries(local)
    edits = [(edit["before"], edit["after"]) for edit in entry["edits"]]
    assert edits == [("£510.67", "£459.60"), ("In stock (9 available)", "Out of stock")]
    assert [edit["ratio"] for edit in entry["edits"]] == [pytest.approx(-0.1, abs=0.001), None]
    page = local.get("/changes").text
    assert "\N{MINUS SIGN}10 %" in page


def test_a_price_of_nothing_rises_without_a_percentage(local: Browser, log: Log) -> None:
    for number in range(5):
        url, price = f"https://a.example/{number}", {"amount": 0, "currency": "£"}
        log.visit(hours(0), url, item(f"lamp {number}", price=price))
    mark_read_until(local, 0.5)
    for number in range(5):
        url, price = f"https://a.example/{number}", {"amount": 5 + number, "currency": "£"}
        log.visit(hours(1), url, item(f"lamp {number}", price=price))
    (entry,) = entries(local)
    assert (entry["told"], entry["page_count"], entry["ratios"]) == ("higher", 5, None)
    assert "↑ higher" in local.get("/changes").text


def test_number_of_unread_changes_leaves_out_what_is_read_or_muted(
    local: Browser, log: Log
) -> None:
    log.pages(6)
    log.visit(hours(9), "https://b.example/1", item("other"), spider="blog")

    def unread() -> int:
        count: int = local.get("/api/v1/changes/unread").json()["changes"]
        return count

    assert unread() == 7
    (page, *_) = [each for each in entries(local) if each["url"] == "https://a.example/3"]
    send(local, "/changes/read", entry=",".join(page["events"]))
    assert unread() == 6
    send(local, "/changes/mute", pattern="example/4$")
    assert unread() == 5
    send(local, "/changes/read-all", site="shop")
    assert unread() == 1
    send(local, "/changes/read-all", site="blog")
    text = local.get("/changes").text
    assert ("You have read everything" in text, "Nothing new" in text) == (True, True)


def test_atom_feed_has_no_control_characters(local: Browser, log: Log) -> None:
    control = "".join(map(chr, [*range(32), *range(0x7F, 0xA0), 0xFFFE, 0xFFFF]))
    log.visit(hours(0), "https://a.example/1", item(f"one{control}two"))
    log.visit(hours(1), "https://a.example/1", item(f"{control} three"))
    document = local.get(feed_address(local)).text
    titles = [each.text or "" for each in ElementTree.fromstring(document).iter(f"{ATOM}title")]
    assert any("three" in title for title in titles)
    assert not re.search("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ufffe\uffff]", document)


def test_versions_are_combined_into_one_difference(local: Browser, log: Log) -> None:
    url = "https://a.example/1"
    log.visit(hours(0), url, item("one", price="10 €"))
    mark_read_until(local, 0.5)
    log.visit(hours(1), url, item("one", price="11 €"))
    log.visit(hours(2), url, item("one", price="12 €"))
    log.visit(hours(3), url, item("one", price="12 €"))
    last = log.visit(hours(4), url, item("one", price="13 €"))
    (entry,) = entries(local)
    edit = {
        "name": "price", "before": "10 €", "after": "13 €", "number_before": 10.0,
        "number_after": 13.0, "unit": "€", "direction": "higher", "ratio": pytest.approx(0.3),
        "is_price": True,
    }  # fmt: skip
    assert (entry["edits"], entry["more_edits"], entry["fields"]) == ([edit], 0, ["price"])
    assert (entry["visits"], entry["size"], entry["id"]) == (3, 4, str(last))
    assert entry["summary"] == "price: 10 € -> 13 €"
    detail = local.get(f"/api/v1/changes/{last}").json()
    (part,) = detail["fields"][0]["parts"]
    assert [segment["text"] for segment in part["segments"]] == ["10", "13", " €"]
    page = local.get(f"/changes/of/{last}").text
    for name in ("before", "after"):
        path = f"/targets/{target_id(f'shop {url}')}/versions/{detail[f'{name}_hash']}"
        assert f'<a href="{path}">Version {name}</a>' in page
    log.visit(hours(5), url, item("one", price="10 €"))
    (entry,) = entries(local)
    assert entry["summary"] == "the same content as before"
    page = local.get(f"/changes/of/{entry['id']}")
    assert page.status_code == 200


def test_entry_kind_is_the_net_change(local: Browser, log: Log) -> None:
    for name in ("gone", "back", "changed"):
        log.visit(hours(0), f"https://a.example/{name}", item(name))
    log.visit(hours(1), "https://a.example/back", None)
    mark_read_until(local, 1.5)
    log.visit(hours(2), "https://a.example/gone", None)
    log.visit(hours(2), "https://a.example/back", item("back"))
    log.visit(hours(2), "https://a.example/changed", item("changed!"))
    log.visit(hours(2), "https://a.example/new", item("new"))
    log.visit(hours(3), "https://a.example/new", item("newer"))
    log.visit(hours(2), "https://a.example/blink", item("blink"))
    log.visit(hours(3), "https://a.example/blink", None)
    kinds = {
        each["url"].rpartition("/")[2]: entry["kind"]
        for entry in entries(local)
        for each in entry["pages"]
    }
    assert kinds == {
        "gone": "gone", "back": "back", "changed": "changed", "new": "new", "blink": "gone"
    }  # fmt: skip
    for kind in ("new", "changed", "back"):
        assert [entry["kind"] for entry in entries(local, f"?kind={kind}")] == [kind]


def test_identical_edits_of_many_pages_are_one_entry(local: Browser, log: Log) -> None:
    for number in range(30):
        log.visit(hours(0), f"https://a.example/{number}", item(f"page {number}", year="2025 Shop"))
    mark_read_until(local, 0.5)
    for number in range(30):
        content = item(f"page {number}", year="2026 Shop")
        log.visit(hours(1 + number), f"https://a.example/{number}", content)
    log.visit(hours(50), "https://a.example/0", item("page 0", year="2027 Shop"))
    other, folded = entries(local)
    assert (other["page_count"], other["edits"][0]["after"]) == (1, "2027 Shop")
    assert (folded["page_count"], len(folded["events"]), len(folded["pages"])) == (29, 29, 20)
    page = local.get("/changes").text
    assert "The same edit, or nearly, on 29 pages" in page
    assert "Show all 29" in page
    send(local, "/changes/read", entry=",".join(folded["events"]), one=folded["id"])
    assert [entry["id"] for entry in entries(local)] == [other["id"]]


def put_edits(log: Log, count: int) -> None:
    """Change the footer of some pages, with a change of another page between any two."""
    for number in range(count):
        log.visit(hours(0), f"https://a.example/item/{number}", item(f"page {number}", foot="2025"))
        log.visit(hours(0), f"https://a.example/other/{number}", item(f"other {number}"))
    for number in range(count):
        at = hours(1 + number)
        content = item(f"page {number}", foot="2026")
        log.visit(at, f"https://a.example/item/{number}", content)
        content = item(f"other {number}", price=str(number))
        log.visit(at - timedelta(minutes=1), f"https://a.example/other/{number}", content)


def entries_by_page(browser: Browser, query: str) -> list[list[dict[str, Any]]]:
    """Return the entries of all pages of a list."""
    pages, cursor = [], ""
    while True:
        answer = browser.get(f"/api/v1/changes{query}{cursor}").json()
        pages.append(answer["entries"])
        if answer["next"] is None:
            return pages
        cursor = f"&cursor={answer['next']}"


def test_edit_is_folded_across_list_pages(local: Browser, log: Log) -> None:
    put_edits(log, 40)
    mark_read_until(local, 0.5)
    pages = entries_by_page(local, "?limit=5")
    assert [len(page) for page in pages] == [5] * 8 + [1]
    folded, *others = [entry for page in pages for entry in page]
    assert (folded["page_count"], len(folded["events"]), len(folded["pages"])) == (40, 40, 20)
    assert folded["common_url"] == "https://a.example/item/"
    assert [entry["page_count"] for entry in others] == [1] * 40
    assert len({entry["url"] for entry in others}) == 40

    listed = local.get("/changes?limit=5").text
    assert f'href="/changes/of/{folded["id"]}/pages?limit=5"' in listed
    shown = local.get(f"/changes/of/{folded['id']}/pages?limit=5").text
    assert shown.count("<tr>") == 1 + 40
    got = local.get(f"/api/v1/changes/{folded['id']}/pages").json()
    assert [each["event"] for each in got] == folded["events"]
    assert local.get(f"/api/v1/changes/{ObjectId()}/pages").status_code == 404

    assert "?url=https%3A%2F%2Fa.example%2Fitem%2F&amp;pages=40" in listed
    settings = local.get("/changes/settings?url=https://a.example/item/&pages=40").text
    assert r'value="^https://a\.example/item/"' in settings
    assert "matches all 40 pages" in settings

    send(local, "/changes/read", entry=",".join(folded["events"]), one=folded["id"])
    left = [entry for page in entries_by_page(local, "?limit=5") for entry in page]
    assert left == others


def test_marking_shown_entries_marks_folded_pages(local: Browser, log: Log) -> None:
    put_edits(log, 8)
    mark_read_until(local, 0.5)
    before = [entry["url"] for page in entries_by_page(local, "?limit=3") for entry in page]
    local.post("/changes/read", shown_form(local, "?limit=3"))
    assert [entry["url"] for entry in entries(local)] == before[3:]


def test_long_list_is_folded_in_bounded_windows(
    local: Browser, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inbox, "BATCH", 5)
    monkeypatch.setattr(inbox, "MAX_COMPARED", 20)
    put_edits(log, 40)
    mark_read_until(local, 0.5)
    pages = entries_by_page(local, "?limit=4")
    found = [entry for page in pages for entry in page]
    urls = [each["url"] for entry in found for each in entry["pages"]]
    assert len(urls) == len(set(urls)) == 80
    assert [entry["page_count"] for entry in found if entry["page_count"] > 1] == [10, 10, 10, 10]
    assert [len(page) for page in pages] == [4, 4, 3] * 4


def test_large_contents_end_a_window(
    local: Browser, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inbox, "BATCH", 5)
    monkeypatch.setattr(inbox, "MAX_BYTES", 1)
    put_edits(log, 10)
    mark_read_until(local, 0.5)
    assert [len(page) for page in entries_by_page(local, "?limit=50")] == [3, 4, 3, 4]


def test_nearly_identical_long_edits_are_one_entry(local: Browser, log: Log) -> None:
    notice = " ".join(f"word{n}" for n in range(60))
    for number in range(3):
        log.visit(hours(0), f"https://a.example/{number}", item("page"))
    log.visit(hours(0), "https://a.example/other", item("other"))
    mark_read_until(local, 0.5)
    for number in range(3):
        content = item("page", notice=f"{notice} number{number}")
        log.visit(hours(1 + number), f"https://a.example/{number}", content)
    (first,) = local.get("/api/v1/changes?limit=1").json()["entries"]
    assert first["page_count"] == 3, "entries beyond this list page were not folded"
    different = " ".join(f"else{n}" for n in range(60))
    log.visit(hours(9), "https://a.example/other", item("other", notice=different))
    assert [entry["page_count"] for entry in entries(local)] == [1, 3]


def test_filters_select_by_site_category_field_size_and_url(local: Browser, log: Log) -> None:
    log.visit(hours(0), "https://a.example/1", item("one"), categories=["Books"])
    log.visit(hours(0), "https://b.example/2", item("two"), spider="news")
    mark_read_until(local, 0.5)
    log.visit(hours(1), "https://a.example/1", item("one", price="1"))
    log.visit(hours(1), "https://b.example/2", item("two", text="x" * 500), spider="news")
    for query, url in {
        "?site=news": "https://b.example/2", "?category=Books": "https://a.example/1",
        "?field=price": "https://a.example/1", "?size=100": "https://b.example/2",
        "?q=A.EXAMPLE": "https://a.example/1",
    }.items():  # fmt: skip
        assert [entry["url"] for entry in entries(local, query)] == [url], query
    assert entries(local, "?site=none") == []
    assert len(entries(local, "?size=")) == 2
    assert local.get("/api/v1/changes?kind=x").status_code == 422


def test_pagination_lists_each_change_once(local: Browser, log: Log) -> None:
    for number in range(12):
        url, content = f"https://a.example/{number}", item(f"page {number}")
        log.visit(hours(number // 3), url, content, categories=[f"category {number}"])
    log.visit(hours(9), "https://a.example/0", item("page 0 again"))
    seen = [entry["url"] for page in entries_by_page(local, "?limit=5") for entry in page]
    assert len(seen) == len(set(seen)) == 12
    assert seen[0] == "https://a.example/0"
    first = local.get("/api/v1/changes?limit=5").json()["next"]
    form = shown_form(local, f"?limit=5&cursor={first}")
    assert "start" not in form, "marks a page whose later change is on the first list page"
    local.post("/changes/read", form)
    (again, *_, last) = entries(local)
    assert (again["url"], again["visits"], last["url"]) == (seen[0], 2, seen[-1])
    assert local.get("/api/v1/changes?cursor=WzFd").status_code == 422


def shown_form(browser: Browser, query: str = "") -> dict[str, Any]:
    """Return the form fields of a list page."""
    page = browser.get(f"/changes{query}").text
    form = page[page.index('id="shown"') : page.index("</form>", page.index('id="shown"'))]
    fields: dict[str, Any] = {}
    for name, value in re.findall(r'name="(\w+)" value="([^"]*)"', form):
        fields.setdefault(name, []).append(value.replace("&amp;", "&"))
    return fields


def test_shown_changes_are_marked_as_a_range(local: Browser, log: Log, database: Db) -> None:
    log.pages(20)
    answer = local.post("/changes/read", shown_form(local, "?limit=5"))
    assert answer.headers["location"] == "/changes?limit=5&marked=5"
    assert [entry["url"][18:] for entry in entries(local, "?limit=3")] == ["14", "13", "12"]
    reader = database.readers.find_one({"_id": "local"})
    assert (len(reader["ranges"]), len(reader["items"])) == (1, 0)
    log.visit(hours(30), "https://a.example/19", item("page 19 again"))
    newest, *_ = entries(local, "?limit=3")
    assert (newest["kind"], newest["visits"]) == ("changed", 1)
    for _ in range(4):
        local.post("/changes/read", shown_form(local, "?limit=5"))
    assert entries(local) == []
    reader = database.readers.find_one({"_id": "local"})
    assert (reader["ranges"], reader["items"]) == ([], [])
    assert reader["read_until"] == hours(30)


def test_changes_are_marked_down_to_an_entry(local: Browser, log: Log) -> None:
    log.pages(6)
    form = shown_form(local)
    local.post("/changes/read", form | {"to": form["entry"][2]})
    assert [entry["url"][18:] for entry in entries(local)] == ["2", "1", "0"]
    form = shown_form(local, "?q=/1")
    assert "start" not in form, "marks a range with changes that are not shown"
    local.post("/changes/read", form)
    assert [entry["url"][18:] for entry in entries(local)] == ["2", "0"]


def test_all_changes_of_a_site_are_marked(local: Browser, log: Log) -> None:
    for number in range(4):
        log.visit(hours(number), f"https://a.example/{number}", item("a"))
        log.visit(hours(number), f"https://b.example/{number}", item("b"), spider="news")
    mark_read_until(local, 5, site="shop")
    assert {entry["site"] for entry in entries(local)} == {"news"}
    log.visit(hours(9), "https://a.example/1", item("changed"))
    assert next(entry["site"] for entry in entries(local)) == "shop"
    assert len(entries(local, "?site=shop")) == 1


@pytest.mark.parametrize("more_sites", [0, change_events.MAX_MERGED])
def test_lists_are_sorted_by_an_index(stored: tuple[Db, str], log: Log, more_sites: int) -> None:
    for number in range(30):
        log.visit(hours(number // 4), f"https://a.example/{number}", item("x"), f"s{number % 3}")
    for number in range(more_sites):
        log.visit(hours(20), f"https://a.example/{number}", item("x"), f"other{number}")
    readers = (
        Reader("all"), Reader("from", hours(2)),
        Reader("sites", hours(1), {"s0": hours(4), "s1": hours(9)}),
    )  # fmt: skip
    rows = list(log.db.visits.find().sort([("at", -1), ("_id", -1)]))

    async def read(db: Any, reader: Reader, spider: str | None) -> list[ObjectId]:
        seen, after = [], None
        while True:
            page = await change_events.newest(db, reader, hours(6), 4, after, spider)
            seen += [row["_id"] for row in page.rows]
            if (after := page.last) is None:
                return seen

    for reader in readers:
        for spider in (None, "s1"):
            wanted = [
                row["_id"] for row in rows
                if row["at"] <= hours(6) and row["spider"] == (spider or row["spider"])
                and not reader.has_read(row["spider"], row["target"], row["at"])
            ]  # fmt: skip
            got = on(stored[1], lambda db, r=reader, s=spider: read(db, r, s))
            if spider is None:
                assert got == wanted, reader.name
            else:
                assert [each for each in got if each in wanted] == wanted
    log.db.command("profile", 2)
    try:
        on(stored[1], lambda db: read_inbox(db, readers[0], Filters(), 5, hours(6)))
        plans = [
            row for row in log.db.system.profile.find({"ns": f"{log.db.name}.visits"})
            if row["op"] in ("query", "command")
        ]  # fmt: skip
    finally:
        log.db.command("profile", 0)
        log.db.system.profile.drop()
    assert plans
    for plan in plans:
        assert "COLLSCAN" not in plan["planSummary"], plan["command"]
        assert not plan.get("hasSortStage"), plan["command"]


def test_marking_pages_one_by_one_advances_read_time(
    local: Browser, log: Log, database: Db
) -> None:
    for number in range(3):
        log.visit(hours(number), f"https://a.example/{number}", item("x"))
    for number in range(3):
        log.visit(hours(10 + number), f"https://a.example/{number}", item("y"))
    assert [entry["visits"] for entry in entries(local)] == [2, 2, 2]
    for _ in range(3):
        local.post("/changes/read", shown_form(local, "?limit=1"))
    assert entries(local) == []
    reader = database.readers.find_one({"_id": "local"})
    assert (reader["read_until"], reader["items"]) == (hours(12), [])


def test_change_stored_late_stays_unread(local: Browser, log: Log) -> None:
    now = datetime.now(UTC)
    log.visit(now - timedelta(seconds=2), "https://a.example/1", item("one"))
    send(local, "/changes/read-all")
    assert entries(local) == []
    log.visit(now - timedelta(seconds=5), "https://a.example/slow", item("slow"))
    assert [entry["name"] for entry in entries(local)] == ["slow"]


def test_api_lists_changes_since_the_last_read(local: Browser, log: Log) -> None:
    headers = {"X-CSRF-Token": local.token("/changes/settings")}
    log.pages(3)
    assert local.get("/api/v1/changes/unread").json() == {"since": None, "changes": 3}
    listed = local.get("/api/v1/changes").json()
    body = {"until": listed["until"]}
    late = datetime.now(UTC)
    assert local.request(
        "POST", "/api/v1/changes/read-all", json=body, headers=headers
    ).status_code == 204  # fmt: skip
    log.visit(late + timedelta(hours=1), "https://a.example/late", item("late"))
    assert [entry["name"] for entry in read_later(local)] == ["late"]
    seen = local.get("/api/v1/changes/unread").json()
    assert (seen["since"] is None, seen["changes"]) == (False, 1)
    assert local.get("/api/v1/changes/unread?site=none").json()["changes"] == 0

    since = quote((hours(0.5)).isoformat())
    again = entries(local, f"?since={since}")
    assert [entry["name"] for entry in again] == ["page 2", "page 1"]
    assert local.get("/api/v1/changes?since=2026-01-01T00:00:00").status_code == 422
    got = local.get(f"/api/v1/changes/{again[0]['id']}/pages?since={since}").json()
    assert [each["url"] for each in got] == ["https://a.example/2"]

    put = local.request(
        "PUT", "/api/v1/changes/unread", json={"since": hours(1.5).isoformat()}, headers=headers
    )
    assert put.json() == {"since": "2026-03-02T01:30:00Z", "changes": 2}
    assert [entry["name"] for entry in entries(local)] == ["page 2"]
    bad = local.request("PUT", "/api/v1/changes/unread", json={"since": "x"}, headers=headers)
    assert bad.status_code == 422


@pytest.mark.parametrize("time", ["0001-01-01T00:00:00+23:59", "9999-12-31T23:59:59-23:59"])
def test_times_out_of_range_are_rejected(local: Browser, time: str) -> None:
    headers = {"Origin": local.origin, "X-CSRF-Token": local.token()}
    answers = [
        local.get(f"/api/v1/changes?since={quote(time)}"),
        local.request("PUT", "/api/v1/changes/unread", json={"since": time}, headers=headers),
        local.request("POST", "/api/v1/changes/read-all", json={"until": time}, headers=headers),
        local.request("POST", "/api/v1/feeds/read-all", json={"until": time}, headers=headers),
    ]
    assert [answer.status_code for answer in answers] == [422] * len(answers)
    assert "since" in answers[0].json()["detail"]


def test_later_changes_stay_unread_if_the_chosen_time_is_in_the_future(
    local: Browser, log: Log
) -> None:
    send(local, "/changes/since", since="2999-01-01T00:00")
    log.visit(datetime.now(UTC) + timedelta(minutes=1), "https://a.example/1", item("one"))
    assert len(read_later(local)) == 1


def read_later(browser: Browser) -> list[dict[str, Any]]:
    """Return the unread changes with a clock two hours ahead."""
    config = browser.app.state.database.config
    browser.app.state.database.config = config.model_copy(update={"clock_offset_hours": 2.0})
    try:
        return entries(browser)
    finally:
        browser.app.state.database.config = config


def test_each_reader_has_separate_marks(anna: Browser, vic: Browser, log: Log) -> None:
    log.visit(hours(0), "https://a.example/1", item("one"))
    for each in (anna, vic):
        # What was there before a user came is read.
        assert entries_of(each) == []
        send(each, "/changes/since", since="")
    assert send(vic, "/changes/read-all").status_code == 303, "viewers cannot mark changes as read"
    assert entries_of(vic) == []
    assert len(entries_of(anna)) == 1
    send(vic, "/changes/since", since="2026-01-01T00:00")
    assert len(entries_of(vic)) == 1
    answer = send(vic, "/changes/since", since="tomorrow")
    assert answer.status_code == 422
    assert 'value="tomorrow"' in answer.text


def entries_of(browser: Browser) -> list[str]:
    return re.findall(r"data-open><bdi[^>]*>([^<]*)", browser.get("/changes").text)


def test_pages_are_muted_by_patterns(local: Browser, log: Log) -> None:
    log.visit(hours(0), "https://a.example/calendar/1", item("calendar"))
    log.visit(hours(1), "https://a.example/2", item("two"))
    assert send(local, "/changes/mute", pattern="/calendar/").status_code == 303
    assert [entry["name"] for entry in entries(local)] == ["two"]
    assert "1 change is" in local.get("/changes").text
    for bad in ("(", "a(?=b)", "", "x" * 501, "(a{1000}){1000}"):
        answer = send(local, "/changes/mute", pattern=bad)
        assert answer.status_code == 422, bad
        assert 'id="problem-pattern"' in answer.text
    assert local.get("/api/v1/changes/mutes").json() == {"patterns": ["/calendar/"]}
    suggested = local.get("/changes/settings?url=https://a.example/2?b=1").text
    assert r'value="^https://a\.example/2\?b=1$"' in suggested
    send(local, "/changes/unmute", pattern="/calendar/")
    assert len(entries(local)) == 2


def test_reader_state_is_bounded() -> None:
    reader = Reader("anna")
    for number in range(MAX_MUTES):
        reader = reader.mute(f"/{number}")
    with pytest.raises(ValueError, match="more than 50 patterns"):
        reader.mute("/one-more")
    pages = [("shop", f"u{number}", hours(number)) for number in range(MAX_ITEMS + 1)]
    with pytest.raises(Exception, match="more than 2,000 pages"):
        reader.read_items(pages)
    for number in range(MAX_RANGES):
        reader = reader.read_range(hours(number * 3), hours(number * 3 + 1))
    with pytest.raises(Exception, match="more than 100 parts"):
        reader.read_range(hours(1000), hours(1001))
    joined = reader.read_range(hours(0), hours(2000))
    assert joined.ranges == ((hours(0), hours(2000)),)
    assert joined.read_all(hours(3000)).ranges == ()


def test_hostile_content_is_text(local: Browser, log: Log) -> None:
    url = "javascript:alert(1)//" + HOSTILE
    log.visit(hours(0), url, item("x", **{HOSTILE: "old"}), spider=HOSTILE)
    mark_read_until(local, 0.5)
    big = {"title": HOSTILE + "t" * 1_000_000, HOSTILE: HOSTILE + "y" * 100_000}
    event = log.visit(hours(1), url, big, spider=HOSTILE)
    log.visit(hours(2), "https://a.example/1", {"title": HOSTILE}, spider=HOSTILE)
    for path in ("/changes", f"/changes/of/{event}", f"/changes/settings?url={quote(HOSTILE)}"):
        page = local.get(path)
        assert page.status_code == 200
        assert "<script>alert" not in page.text
        assert 'href="javascript' not in page.text
        assert len(page.content) < 60_000
    address = local.request(
        "POST", "/api/v1/changes/feed", headers={"X-CSRF-Token": local.token("/changes/settings")}
    ).json()["url"]
    feed = ElementTree.fromstring(local.get(address).content)
    assert len(feed.findall(f"{ATOM}entry")) == 3
    links = [link.get("href", "") for link in feed.iter(f"{ATOM}link")]
    assert all(link.startswith("http") for link in links)


def test_feed_is_valid_and_its_secret_can_be_renewed_and_revoked(
    anna: Browser, browsers: Browsers, log: Log, database: Db
) -> None:
    log.visit(hours(0), "https://a.example/1", item("one"))
    for number in (1, 2):
        log.visit(hours(1), f"https://a.example/f{number}", item(f"f{number}", year="2025"))
        log.visit(hours(2), f"https://a.example/f{number}", item(f"f{number}", year="2026"))
    address = feed_address(anna)
    secret = address.partition("token=")[2]
    assert secret not in str(list(database.readers.find())), "the secret is stored"
    assert secret not in anna.get("/changes/settings").text
    stranger = browsers()
    answer = stranger.get(address)
    assert answer.headers["content-type"] == "application/atom+xml; charset=utf-8"
    feed = ElementTree.fromstring(answer.content)
    for parent in (feed, *feed.findall(f"{ATOM}entry")):
        for name in ("id", "title", "updated"):
            assert len(parent.findall(f"{ATOM}{name}")) == 1
    titles = [each.findtext(f"{ATOM}title") for each in feed.findall(f"{ATOM}entry")]
    assert titles == ["Changed: f2 and 1 more", "New: f2", "New: f1", "New: one"]
    ids = [each.findtext(f"{ATOM}id") for each in feed.findall(f"{ATOM}entry")]
    assert len(set(ids)) == 4
    etag = {"If-None-Match": answer.headers["etag"]}
    assert stranger.get(address, headers=etag).status_code == 304
    send(anna, "/changes/read-all")
    assert stranger.get(address, headers=etag).status_code == 304, "marks changed the feed"
    log.visit(hours(3), "https://a.example/f3", item("f3", year="2025"))
    log.visit(hours(4), "https://a.example/f3", item("f3", year="2026"))
    again = ElementTree.fromstring(stranger.get(address, headers=etag).content)
    assert again.findtext(f"{ATOM}entry/{ATOM}id") == ids[0], "the id of the edit changed"
    renewed = feed_address(anna)
    assert stranger.get(address).status_code == 404
    assert stranger.get(renewed).status_code == 200
    send(anna, "/changes/feed/end")
    assert stranger.get(renewed).status_code == 404
    assert stranger.get("/changes/feed.atom").status_code == 404


def test_feed_ends_with_its_user_or_with_the_first_user(
    anna: Browser, local: Browser, database: Db
) -> None:
    address = feed_address(anna)
    database.users.delete_one({"_id": "anna"})
    assert anna.get(address).status_code == 404
    database.readers.update_one({"_id": "anna"}, {"$set": {"_id2": 1}})
    row = database.readers.find_one({"_id": "anna"})
    database.readers.delete_one({"_id": "anna"})
    database.readers.insert_one(row | {"_id": "local"})
    assert local.get(address).status_code == 404, "a user exists"
    database.users.delete_many({})
    assert local.get(address).status_code == 200


def test_read_only_token_cannot_mark_changes(anna: Browser, database: Db, stored: Any) -> None:
    now = datetime.now(UTC)
    for scopes, status in (([Scope.READ], 403), ([Scope.READ, Scope.WRITE], 204)):
        secret, _ = on(stored[1], lambda db, s=scopes: users.add_token(db, "anna", "x", s, now))
        headers = {"Authorization": f"Bearer {secret}"}
        assert (
            anna.request("POST", "/api/v1/changes/read-all", json={}, headers=headers).status_code
            == status
        )


def test_a_missing_or_broken_event_is_not_found(local: Browser, log: Log) -> None:
    assert local.get(f"/changes/of/{ObjectId()}").status_code == 404
    assert local.get("/changes/of/x").status_code == 422
    answer = send(local, "/changes/read", entry="x,y", one="x")
    assert answer.status_code == 422
    answer = send(local, "/changes/read", here="//evil.example/changes")
    assert answer.headers["location"] == "/changes?marked=0"


def test_edits_with_the_same_words_have_the_same_digest() -> None:
    def edit(text: str, old: str, new: str) -> Any:
        return word_change({"t": f"{text}\n{old} Shop {text}"}, {"t": f"{text}\n{new} Shop {text}"})

    a, b = edit("one", "2025", "2026"), edit("two", "2025", "2026")
    assert a.digest == b.digest
    assert a.digest != edit("one", "2025", "2027").digest
    assert word_change({"a": "x y"}, {"a": "y x"}).digest is None
    assert word_change({"a": ["x", "y"]}, {"a": ["y"]}).removed == "x"
    assert similar_edits([a, None, b]) == [0, 1, 2], "different short edits were folded"


def test_differences_of_hostile_texts_are_fast_and_small() -> None:
    began = time.process_time()
    old, new = "a b " * 400_000, "b a " * 400_000 + "\ud800"
    word_change({"t": old}, {"t": new})
    assert time.process_time() - began < 2
    found, _ = edits({"t": old}, {"t": new}, 3, 300)
    assert 1 <= len(found) <= 3
    assert all(len(text or "") <= 300 for edit in found for text in edit[1:])
    assert time.process_time() - began < 3


def test_list_pages_share_a_window_until_a_change(local: Browser, log: Log) -> None:
    log.pages(12)

    def count_event_lookups(path: str) -> int:
        """Return the number of lookups of earlier events while loading a list."""
        log.db.command("profile", 2)
        assert local.get(path).status_code == 200
        log.db.command("profile", 0)
        found = log.db.system.profile.count_documents(
            {"command.aggregate": "visits", "command.pipeline.$lookup": {"$exists": True}}
        )
        log.db.system.profile.drop()
        return int(found)

    following = local.get("/api/v1/changes?limit=5").json()["next"]
    for path in ("/api/v1/changes?limit=5", f"/changes?limit=5&cursor={following}"):
        assert count_event_lookups(path) == 0, path
    assert count_event_lookups("/changes?site=shop") > 0, "used the window of another list"
    log.visit(hours(5), "https://a.example/late", item("stored late"))
    assert count_event_lookups("/api/v1/changes?limit=5") > 0
    assert "https://a.example/late" in {entry["url"] for entry in entries(local)}
    mark_read_until(local, 8)
    assert {entry["url"] for entry in entries(local)} == {
        f"https://a.example/{number}" for number in (9, 10, 11)
    }


def put_shop(log: Log) -> None:
    """Store new and cheaper items of two categories, and one that is dearer, edited and gone."""
    prices = {"amount": 100.0, "currency": "£"}
    for number in range(12):
        log.visit(
            hours(0), f"https://a.example/{number}", item(f"Lamp {number}", price=prices),
            categories=["Lamps"],
        )  # fmt: skip
    log.db.visits.update_many({}, {"$unset": {"news": ""}})
    for number in range(5):
        content = item(f"Lamp {number}", price=prices | {"amount": 95.0 - 5 * number})
        log.visit(hours(2), f"https://a.example/{number}", content)
    log.visit(hours(2), "https://a.example/8", item("Lamp 8", price=prices | {"amount": 110.5}))
    log.visit(hours(2), "https://a.example/9", item("Lamp 9", price=prices, stock="3 left"))
    log.visit(hours(2), "https://a.example/10", None, reason="status 404; 1 of 3 confirmations")
    for number in range(6):
        content = item(f"Rug {number}", price=prices | {"amount": 20.0 + number})
        log.visit(hours(3), f"https://a.example/rug/{number}", content, categories=["Rugs"])


def test_items_of_a_category_are_told_together(local: Browser, log: Log) -> None:
    put_shop(log)
    told = {(each["told"], each["page_count"]): each for each in entries(local)}
    assert set(told) == {("new", 6), ("lower", 5), ("higher", 1), ("edited", 1), ("gone", 1)}
    cheaper = told["lower", 5]
    assert cheaper["ratios"] == [pytest.approx(-0.05), pytest.approx(-0.25)]
    assert [each["name"] for each in cheaper["pages"]] == [f"Lamp {n}" for n in (4, 3, 2, 1, 0)]
    assert not cheaper["is_same_edit"]
    text = re.sub(r"<[^>]+>|\s+", " ", local.get("/changes").text)
    text = re.sub(r"\s+", " ", text)
    assert "6 new items in Rugs shop Rug 5 £25 , Rug 4 £24 , Rug 3 £23 and 3 more" in text
    assert "prices fell by 5 % to 25 %, most: Lamp 4 Before: £100 → Now: £75 −25 %" in text
    assert "Lamp 10 shop · Lamps no longer there (status 404), last £100" in text
    assert "Lamp 9 shop · Lamps stock 3 left" in text


def test_numbers_of_a_list_agree_with_it(local: Browser, log: Log) -> None:
    put_shop(log)
    page = local.get("/changes").text
    assert "14 changes" in page
    chips = dict(re.findall(r'kind=(\w+)"[^>]*>[^<]*<b>(\d+)</b>', page))
    assert chips == {"new": "6", "lower": "5", "higher": "1", "edited": "1", "gone": "1"}
    for kind, number in chips.items():
        listed = entries(local, f"?kind={kind}")
        assert sum(each["page_count"] for each in listed) == int(number)
        assert dict(re.findall(r'kind=(\w+)"[^>]*>[^<]*<b>(\d+)</b>', page)) == chips
    assert sum(each["page_count"] for each in entries(local, "?kind=changed")) == 7
    assert [each["name"] for each in entries(local, "?q=lamp 9")] == ["Lamp 9"]


def test_a_mark_can_be_undone_until_the_next_change(local: Browser, log: Log) -> None:
    put_shop(log)
    everything = entries(local)
    answer = send(local, "/changes/read-all")
    assert "Marked everything as read." in local.get(answer.headers["location"]).text
    assert entries(local) == []
    send(local, "/changes/undo")
    assert entries(local) == everything
    ids = [each["id"] for each in everything]
    answer = send(local, "/changes/read", entry=ids[0], one=ids[0])
    assert "data-undo" in local.get(answer.headers["location"]).text
    send(local, "/changes/mute", pattern="nothing")
    assert "data-undo" not in local.get(answer.headers["location"]).text
    headers = {"X-CSRF-Token": local.token("/changes/settings")}
    assert local.request("POST", "/api/v1/changes/undo", headers=headers).status_code == 409
    assert ids[0] not in [each["id"] for each in entries(local)]


def test_first_user_has_the_marks_of_the_time_without_users(
    stored: tuple[Db, str], local: Browser, log: Log
) -> None:
    log.pages(3)
    ids = [each["id"] for each in entries(local)]
    send(local, "/changes/read", entry=ids[0], one=ids[0])
    put_user(log.db, "anna")
    with browsers_of(stored[1], OPEN) as browsers:
        anna = browsers()
        anna.sign_in("anna")
        assert [each["id"] for each in entries(anna)] == ids[1:]
        put_user(log.db, "vic", Role.VIEWER)
        vic = browsers(address="203.0.113.10")
        vic.sign_in("vic")
        assert entries(vic) == []
