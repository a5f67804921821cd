"""The budget page: curve, forecast, dry run, apply, simulation, and their limits."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import pytest

from crawler.planning.budget_forecast import MAX_SITES
from crawler.storage import leases
from crawler.web.options import WebOptions
from tests.integration.harness import Db, Row
from tests.integration.holding import holding
from tests.integration.known_pages import clock, of_the_paper, page, put, spread
from tests.integration.web.browser import OPEN, Browser, browsers_of, put_user

HOSTILE = '"><script>alert(1)</script>'
PARTIAL = {"HX-Request": "true", "HX-Request-Type": "partial"}
API = "/api/v1/budget"
SECONDS = 90


@contextmanager
def at_now(uri: str, options: WebOptions | None = None) -> Iterator[Browser]:
    """Create an app with the clock of the stored pages, and a browser on the same machine."""
    with browsers_of(uri, options or WebOptions(), clock_offset_hours=clock()) as make:
        yield make(address="127.0.0.1")


def pause(browser: Browser, seconds: float = 0.1) -> None:
    """Run the app's event loop for some time."""
    browser._loop.run_until_complete(asyncio.sleep(seconds))


def ended(browser: Browser) -> Row:
    """Wait until no job is running, and return the state of the last one."""
    for _ in range(SECONDS * 10):
        answer = browser.get(f"{API}/jobs")
        # While a job is running, the database may be too slow to check the viewer's session.
        if answer.status_code != 503:
            assert answer.status_code == 200, answer.text
            latest: Row = answer.json()["latest"]
            if latest["state"] != "running":
                return latest
        pause(browser)
    raise AssertionError(answer.text)


def curve(browser: Browser, query: str = "") -> Row:
    """Wait until the curve is computed, and return it."""
    assert browser.get(f"{API}{query}").status_code == 503
    assert ended(browser)["state"] == "done"
    answer = browser.get(f"{API}{query}")
    assert answer.status_code == 200
    return dict(answer.json())


def send(browser: Browser, action: str, **fields: str) -> httpx.Response:
    """Send a form of the budget page."""
    return browser.post(f"/budget/{action}", {"csrf": browser.token()} | fields)


def send_json(browser: Browser, path: str, body: Row) -> httpx.Response:
    """Send a write to the API, as the page's script does."""
    headers = {"Origin": browser.origin, "X-CSRF-Token": browser.token()}
    return browser.request("POST", f"{API}/{path}", json=body, headers=headers)


def put_two_sites(db: Db, uri: str) -> None:
    """Store the pages of the paper and a second site that never changes."""
    quiet = [page(f"https://quiet.example/{i}", spider="quiet") for i in range(5)]
    put(db, uri, [*of_the_paper(), *quiet])


@pytest.mark.soak
def test_workflow_from_curve_to_applied_plan(stored: tuple[Db, str]) -> None:
    db, uri = stored
    put_two_sites(db, uri)
    with at_now(uri) as browser:
        waiting = browser.get("/budget").text
        assert "Computing the curve" in waiting
        assert 'hx-trigger="every 1s"' in waiting
        assert ended(browser)["state"] == "done"
        found = browser.get(API).json()
        points = found["requests_per_day"]
        assert points == sorted(points)
        assert found["share"] == sorted(found["share"])
        assert {site["site"] for site in found["parts"]} == {"shop", "quiet"}
        assert found["targets"] == 20

        few = browser.get(f"{API}/forecast?budget=10").json()
        many = browser.get(f"{API}/forecast", params={"budget": "40/day"}).json()
        assert few["planned"]["share"] < many["planned"]["share"]
        assert few["price"] > many["price"]
        by_site = {site["site"]: site for site in many["parts"]}
        assert by_site["shop"]["verdict"] == "wins"

        part = browser.get("/budget?budget=10", headers=PARTIAL)
        assert part.text.strip().startswith('<div id="figures">')

        assert send(browser, "preview", budget="10", objective="balanced").status_code == 303
        job = ended(browser)
        preview = job["result"]
        assert db.plans.count_documents({}) == 0, "a dry run stores nothing"
        assert preview["planned"]["requests_per_day"] <= 10
        expected = few["planned"]["share"]
        assert preview["planned"]["share"] == pytest.approx(expected, abs=0.1)
        assert preview["moves"], "the fixed intervals take more requests"
        changes = [
            abs(m["visits_per_week"] - m["visits_per_week_before"]) for m in preview["moves"]
        ]
        assert changes == sorted(changes, reverse=True)
        shown = browser.get("/budget?budget=10").text
        assert "scrapy replan --kind pages" in shown
        assert "https://shop.example/u1" in shown

        answer = send(browser, "apply", preview=job["id"], budget="10", objective="balanced")
        assert answer.headers["location"] == "/budget?budget=10&objective=balanced"
        assert ended(browser)["state"] == "done"
        (plan,) = db.plans.find({})
        assert (plan["state"], plan["budget_per_day"], plan["kind"]) == ("active", 10, "pages")
        assert db.targets.count_documents({"plan.id": plan["_id"]}) == 20
        entry = db.audit.find_one({"action": "POST /budget/apply"})
        assert entry
        assert entry["detail"] == "replan: 10 requests a day, balanced"

        browser.get("/budget")
        assert ended(browser)["state"] == "done"
        after = browser.get(API).json()
        assert after["budget_per_day"] == 10, "the curve was computed again"
        assert after["current"]["requests_per_day"] <= 10
        assert after["plans"] == [str(plan["_id"])]


def test_empty_database_shows_the_next_step(local: Browser) -> None:
    local.get("/budget")
    job = ended(local)
    assert job["state"] == "failed"
    shown = local.get("/budget").text
    assert "No pages yet" in shown
    assert "Add a site" in shown
    assert "failed" not in shown
    again = local.get("/budget").text
    assert "every 1s" not in again, "computes the curve repeatedly"
    assert send(local, "again", objective="balanced").status_code == 303
    assert "Computing the curve" in local.get("/budget").text
    assert ended(local)["state"] == "failed"


@pytest.mark.soak
def test_outdated_dry_run_is_not_applied(stored: tuple[Db, str]) -> None:
    db, uri = stored
    put_two_sites(db, uri)
    with at_now(uri) as browser:
        refused = send_json(browser, "apply", {"preview": "0" * 16})
        assert refused.status_code == 422
        assert "Make the dry run again" in refused.json()["detail"]
        chosen = {"budget": 12, "objective": "age"}
        first = send_json(browser, "preview", chosen).json()
        assert ended(browser)["state"] == "done"
        planned = send_json(browser, "apply", {"preview": first["id"]})
        assert planned.status_code == 202
        assert ended(browser)["state"] == "done"
        # An applied dry run, and a dry run that is older than another user's replan.
        assert send_json(browser, "apply", {"preview": first["id"]}).is_error
        second = send_json(browser, "preview", chosen).json()
        assert ended(browser)["state"] == "done"
        (plan,) = db.plans.find({})
        db.plans.insert_one({**plan, "_id": "later"})
        db.plans.delete_one({"_id": plan["_id"]})
        send_json(browser, "apply", {"preview": second["id"]})
        job = ended(browser)
        assert job["state"] == "failed"
        assert job["error"] == "the plan has changed since the dry run. Make the dry run again"


def test_apply_fails_during_another_replan(stored: tuple[Db, str]) -> None:
    db, uri = stored
    put_two_sites(db, uri)
    with at_now(uri) as browser:
        preview = send_json(browser, "preview", {"budget": 12}).json()
        assert ended(browser)["state"] == "done"
        with holding(uri, leases.REPLAN):
            send_json(browser, "apply", {"preview": preview["id"]})
            job = ended(browser)
        assert job["state"] == "failed"
        assert job["error"].startswith("another replan is running on ")
        assert db.plans.count_documents({}) == 0
        assert "another replan is running" in browser.get("/budget").text


def test_one_job_runs_at_a_time_and_can_be_cancelled(stored: tuple[Db, str]) -> None:
    db, uri = stored
    put(db, uri, [page(f"https://shop.example/{i}", spread(i % 9, i % 24)) for i in range(300)])
    with at_now(uri) as browser:
        chosen = {"policies": ["optimal", "uniform", "sqrt", "age", "freshness", "harmonic"]}
        job = send_json(browser, "simulate", chosen).json()
        assert job["state"] == "running"
        refused = send(browser, "preview", budget="12", objective="age")
        assert refused.status_code == 409
        assert "Another job is running: simulation (local)" in refused.text
        assert 'value="12"' in refused.text, "the form lost its values"
        assert send_json(browser, "preview", {"budget": 12}).status_code == 409
        pause(browser, 0.5)
        process = browser.app.state.planner.jobs.process
        assert process.returncode is None
        stopped = send_json(browser, f"jobs/{job['id']}/cancel", {}).json()
        assert stopped["latest"]["state"] == "cancelled"
        assert process.returncode is not None, "the subprocess is still running"
        assert "canceled" in browser.get("/budget").text
        send_json(browser, f"jobs/{job['id']}/cancel", {})
        send_json(browser, "jobs/nope/cancel", {})


def test_policies_are_compared_on_stored_history(stored: tuple[Db, str]) -> None:
    db, uri = stored
    put_two_sites(db, uri)
    with at_now(uri) as browser:
        curve(browser)
        answer = send(browser, "simulate", policies="uniform")
        assert answer.status_code == 303
        job = ended(browser)
        assert job["state"] == "done", job["error"]
        names = [row["policy"] for row in job["result"]["results"]]
        assert names == ["uniform"]
        assert job["result"]["references"][0]["policy"] == "daily"
        shown = browser.get("/budget").text
        assert "Policies on your own history" in shown
        assert re.search(r'<th scope="row">uniform</th>', shown)
        none = send(browser, "simulate")
        assert none.status_code == 422
        assert "Choose at least one policy" in none.text
        unknown = send(browser, "simulate", policies="magic")
        assert unknown.status_code == 422


@pytest.mark.parametrize("budget", ["abc", "0", "-1", "1e12", "nan", "9" * 60, HOSTILE])
def test_invalid_budget_is_shown_next_to_the_field(local: Browser, budget: str) -> None:
    answer = send(local, "preview", budget=budget, objective="balanced")
    assert answer.status_code == 422
    assert HOSTILE not in answer.text
    answer = send_json(local, "preview", {"budget": budget})
    assert answer.status_code == 422
    planner = local.app.state.planner
    local._loop.run_until_complete(planner.close())
    assert planner.last("preview") is None


def test_stored_content_is_shown_as_text(stored: tuple[Db, str]) -> None:
    db, uri = stored
    rows = [page(f"https://x.example/{HOSTILE}{i}", spread(i, 12), spider="x") for i in range(5)]
    rows += [page("javascript:alert(1)", spread(9, 3), spider="x"),
             page("https://x.example/" + "a" * 5000, spread(8, 3), spider="x")]  # fmt: skip
    put(db, uri, rows)
    with at_now(uri) as browser:
        curve(browser)
        send_json(browser, "preview", {"budget": 3})
        job = ended(browser)
        assert job["state"] == "done", job["error"]
        assert max(len(move["url"]) for move in job["result"]["moves"]) <= 2000
        shown = browser.get("/budget?budget=3").text
        assert "alert(1)&lt;/script&gt;" in shown
        assert HOSTILE not in shown
        assert 'href="javascript' not in shown


def test_viewers_see_the_curve_but_cannot_write(stored: tuple[Db, str]) -> None:
    from crawler.storage.users import Role

    db, uri = stored
    put_two_sites(db, uri)
    put_user(db, "vic", Role.VIEWER)
    with browsers_of(uri, OPEN, clock_offset_hours=clock()) as make:
        vic = make()
        assert vic.sign_in("vic").status_code == 303
        curve(vic)
        shown = vic.get("/budget").text
        assert "Effect on each site" in shown
        token = re.search(r'name="csrf-token" content="(\w+)"', shown)
        assert token
        for action in ("preview", "apply", "simulate", "cancel", "again"):
            assert f'action="/budget/{action}"' not in shown
            form = {"csrf": token[1], "budget": "12", "policies": "optimal"}
            assert vic.post(f"/budget/{action}", form).status_code == 403


@pytest.mark.soak
def test_smaller_sites_are_grouped(stored: tuple[Db, str]) -> None:
    db, uri = stored
    put(db, uri, [page(f"https://s{i}.example/", spread(i % 9, 12), spider=f"s{i}")
                  for i in range(MAX_SITES + 5)])  # fmt: skip
    with at_now(uri) as browser:
        found = curve(browser)
        assert len(found["parts"]) == MAX_SITES + 1, "the smaller sites are shown together"
        assert sum(site["amount"] for site in found["parts"]) == MAX_SITES + 5
        part = browser.get(f"/budget?budget={found['requests_per_day'][1]}", headers=PARTIAL)
        assert part.status_code == 200
        assert "All smaller sites" in part.text
