"""The budget of feeds in the web app: curve, forecast, dry run and apply."""

from __future__ import annotations

import httpx
import pytest

from crawler.storage.users import Role
from tests.integration.harness import Db, Row
from tests.integration.known_feeds import feed, some_feeds
from tests.integration.known_pages import page, put
from tests.integration.web.browser import OPEN, Browser, put_user
from tests.integration.web.test_web_budget import PARTIAL, at_now, ended

pytestmark = pytest.mark.soak

API = "/api/v1/budget/feeds"
HOSTILE = '"><script>alert(1)</script>'


def send(browser: Browser, action: str, **fields: str) -> httpx.Response:
    """Send a form of the page."""
    return browser.post(f"/budget/feeds/{action}", {"csrf": browser.token()} | fields)


def send_json(browser: Browser, path: str, body: Row) -> httpx.Response:
    """Send a write to the API, as the page's script does."""
    headers = {"Origin": browser.origin, "X-CSRF-Token": browser.token()}
    return browser.request("POST", f"{API}/{path}", json=body, headers=headers)


def curve(browser: Browser) -> Row:
    """Wait until the curve is computed, and return it."""
    waiting = browser.get(API)
    assert waiting.status_code == 503
    assert waiting.headers["retry-after"] == "2"
    assert ended(browser)["state"] == "done"
    return dict(browser.get(API).json())


def test_curve_shows_missed_posts_by_budget(stored: tuple[Db, str]) -> None:
    db, uri = stored
    put(db, uri, [*some_feeds(), page("https://shop.example/1")])
    with at_now(uri) as browser:
        assert "Computing the curve of feeds" in browser.get("/budget/feeds").text
        assert ended(browser)["state"] == "done"
        found = browser.get(API).json()
        points = found["requests_per_day"]
        assert points == sorted(points)
        assert len(points) > 5
        assert found["share"][0] > 0.5
        assert found["share"][-1] < 0.01
        assert found["hours"][0] > found["hours"][-1]
        assert found["price"][0] > found["price"][-1]
        assert (found["targets"], found["sampled"]) == (5, 5)
        assert found["parts"][0]["url"] == "https://feeds.test/busy"
        assert sum(each["amount"] for each in found["parts"]) == pytest.approx(found["amount"])
        assert found["current"]["requests_per_day"] == pytest.approx(20), "every 6 hours"

        few = browser.get(f"{API}/forecast?budget=3").json()
        many = browser.get(f"{API}/forecast", params={"budget": "12/day"}).json()
        assert few["planned"]["share"] > many["planned"]["share"]
        busy = next(each for each in few["parts"] if each["url"].endswith("busy"))
        assert busy["verdict"] == "loses"
        part = browser.get("/budget/feeds?budget=6", headers=PARTIAL)
        assert part.text.strip().startswith('<div id="figures">')


def test_a_dry_run_of_feeds_becomes_a_plan(stored: tuple[Db, str]) -> None:
    db, uri = stored
    put(db, uri, [*some_feeds(), page("https://shop.example/1")])
    with at_now(uri) as browser:
        curve(browser)
        assert send(browser, "preview", budget="6").status_code == 303
        job = ended(browser)
        preview = job["result"]
        assert db.plans.count_documents({}) == 0, "a dry run stores nothing"
        assert preview["planned"]["requests_per_day"] <= 6
        expected = browser.get(f"{API}/forecast?budget=6").json()["planned"]
        assert preview["planned"]["share"] == pytest.approx(expected["share"], abs=0.05)
        assert preview["moves"]
        shown = browser.get("/budget/feeds?budget=6").text
        assert "scrapy replan --kind feeds --policy optimal --budget 6" in shown
        assert "https://feeds.test/busy" in shown

        answer = send(browser, "apply", preview=job["id"], budget="6")
        assert answer.headers["location"] == "/budget/feeds?budget=6"
        applied = ended(browser)
        assert applied["state"] == "done"
        (plan,) = db.plans.find({})
        assert (plan["state"], plan["budget_per_day"], plan["kind"]) == ("active", 6, "feeds")
        assert db.targets.count_documents({"plan.id": plan["_id"]}) == 5
        assert db.targets.count_documents({"plan.id": plan["_id"], "kind": "item"}) == 0
        assert applied["result"]["totals"]["missed_share"] == pytest.approx(
            preview["planned"]["share"], abs=0.001
        )
        entry = db.audit.find_one({"action": "POST /budget/feeds/apply"})
        assert entry
        assert entry["detail"] == "replan of feeds: 6 fetches a day"
        assert browser.get("/budget/feeds").status_code == 200
        assert ended(browser)["state"] == "done"
        after = browser.get(API).json()
        assert after["budget_per_day"] == 6, "the curve was computed again"
        assert after["plans"] == [str(plan["_id"])]
        assert browser.get("/api/v1/budget/jobs").json()["feed_preview"] is None


def test_page_without_feeds_shows_the_next_step(local: Browser) -> None:
    local.get("/budget/feeds")
    assert ended(local)["error"].startswith("no feeds to plan")
    answer = local.get("/budget/feeds")
    assert answer.status_code == 200
    assert "scrapy crawl feeds" in answer.text


def test_outdated_dry_run_of_feeds_is_not_applied(stored: tuple[Db, str]) -> None:
    db, uri = stored
    put(db, uri, some_feeds())
    with at_now(uri) as browser:
        curve(browser)
        assert send_json(browser, "preview", {"budget": "6/day"}).status_code == 202
        first = ended(browser)["id"]
        assert send_json(browser, "apply", {"preview": first}).status_code == 202
        assert ended(browser)["state"] == "done"
        assert send_json(browser, "apply", {"preview": first}).status_code == 422
        assert send_json(browser, "preview", {"budget": "8/day"}).status_code == 202
        second = ended(browser)["id"]
        db.plans.delete_many({})
        assert send(browser, "apply", preview=second).status_code == 303
        assert "the plan has changed since the dry run" in ended(browser)["error"]
        assert db.plans.count_documents({}) == 0


@pytest.mark.parametrize("budget", ["x", "-1", "0", "0.001"])
def test_invalid_feed_budget_is_refused(stored: tuple[Db, str], budget: str) -> None:
    db, uri = stored
    put(db, uri, some_feeds())
    with at_now(uri) as browser:
        curve(browser)
        page = browser.get("/budget/feeds", params={"budget": budget})
        assert page.status_code == 422
        assert f'value="{budget}"' in page.text
        assert browser.get(f"{API}/forecast", params={"budget": budget}).status_code == 422
        assert send_json(browser, "preview", {"budget": ""}).status_code == 422


def test_urls_of_feeds_are_shown_as_text(stored: tuple[Db, str]) -> None:
    db, uri = stored
    put(db, uri, [*some_feeds(), feed(f"x{HOSTILE}", [])])
    with at_now(uri) as browser:
        curve(browser)
        page = browser.get("/budget/feeds").text
        assert "<script>alert" not in page
        assert "&lt;script&gt;alert(1)" in page


def test_viewers_see_the_feed_curve_but_cannot_write(stored: tuple[Db, str]) -> None:
    db, uri = stored
    put(db, uri, some_feeds())
    put_user(db, "anna")
    put_user(db, "vic", Role.VIEWER)
    with at_now(uri, OPEN) as browser:
        assert browser.sign_in("vic").status_code == 303
        curve(browser)
        page = browser.get("/budget/feeds").text
        assert "Effect on each feed" in page
        assert "Dry run with" not in page
        token = {"csrf": browser.token("/account")}
        for action in ("preview", "apply", "again"):
            assert browser.post(f"/budget/feeds/{action}", token).status_code == 403
