"""`scrapy replan` of feeds: separate policies and budget, or a budget shared with pages."""

from __future__ import annotations

from datetime import timedelta

import numpy as np
import pytest

from tests.integration.harness import Db, Freshet, Row
from tests.integration.inside import in_json, run
from tests.integration.known_feeds import some_feeds
from tests.integration.known_pages import NOW, clock, page, put, spread

Stored = tuple[Db, str]
pytestmark = pytest.mark.usefixtures("warm")


def planned(freshet: Freshet, *args: object) -> Row:
    """Run a replan of the feeds at NOW, and return its JSON."""
    (plan,) = list[Row](in_json(freshet, "replan", *args, hours=clock()))
    return plan


def plans(db: Db) -> dict[str, Row]:
    """Return the plan of each feed."""
    return {row["url"].rpartition("/")[2]: row["plan"] for row in db.targets.find({"kind": "feed"})}


def test_fetches_are_planned_when_posts_appear_and_drop_out(
    stored: Stored, freshet: Freshet
) -> None:
    db, uri = stored
    put(db, uri, some_feeds())
    done = planned(freshet, "--budget", "6/day")
    assert (done["kind"], done["policy"], done["targets"]) == ("feeds", "optimal", 5)
    totals = done["totals"]
    assert totals["requests_per_day"] <= 6
    assert 0 < totals["missed_share"] < 0.2

    by_feed = plans(db)
    visit_rates = {name: plan["visits_per_week"] for name, plan in by_feed.items()}
    assert (
        visit_rates["busy"]
        > visit_rates["office"]
        > visit_rates["rare"]
        >= visit_rates["silent"]
        >= 0.25
    )
    assert by_feed["busy"]["missed_per_week"] > by_feed["rare"]["missed_per_week"]
    slots = np.array(by_feed["office"]["slots"])
    assert (slots // 24 < 5).all(), "no posts appear on weekends"
    again = planned(freshet)
    assert (again["updated"], again["budget_kept"]) == (0, True)


@pytest.mark.parametrize("policy", ["uniform", "min-delay", "min-missing"])
def test_paper_policies_have_even_intervals_within_budget(
    stored: Stored, freshet: Freshet, policy: str
) -> None:
    db, uri = stored
    put(db, uri, some_feeds())
    done = planned(freshet, "--policy", policy, "--budget", "6")
    assert done["totals"]["requests_per_day"] <= 6
    by_feed = plans(db)
    assert all(plan["every_hours"] > 0 and not plan["slots"] for plan in by_feed.values())
    visit_rates = [
        by_feed[name]["visits_per_week"] for name in ("busy", "office", "rare", "silent")
    ]
    assert visit_rates == sorted(visit_rates, reverse=True)
    # Rounding to whole fetches per four weeks leaves a remainder.
    assert (max(visit_rates) - min(visit_rates) <= 0.25) == (policy == "uniform")


def test_pages_and_feeds_are_planned_separately_or_share_a_budget(
    stored: Stored, freshet: Freshet
) -> None:
    db, uri = stored
    pages = [page(f"https://shop.example/{i}", spread(i, 9)) for i in range(12)]
    put(db, uri, [*pages, *some_feeds()])
    refused = run(freshet, "replan", "--budget", "9", hours=clock())
    assert refused.code == 1
    assert "--kind pages, --kind feeds" in refused.complaint

    both = list[Row](in_json(freshet, "replan", hours=clock()))
    assert [plan["kind"] for plan in both] == ["pages", "feeds"]
    assert [plan["spiders"] for plan in both] == [["shop"], ["feeds"]]

    sharing = ("replan", "--budget", "9", "--shared-budget")
    of_pages, of_feeds = list[Row](in_json(freshet, *sharing, hours=clock()))
    budgets = of_pages["budget_per_day"], of_feeds["budget_per_day"]
    assert sum(budgets) == pytest.approx(9)
    assert all(budget > 0.5 for budget in budgets)
    page_equivalent = of_feeds["shadow_price"] * 24
    assert page_equivalent == pytest.approx(of_pages["shadow_price"], rel=0.6), (
        "the marginal value per request is equal"
    )

    _, dear = list[Row](in_json(freshet, *sharing, hours=clock(), FRESHET_POST_HOURS=500))
    assert dear["budget_per_day"] > budgets[1]


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("--budget", "0.01"), "budget 0.01/day is too small: 5 targets visited every 168 days"),
        (("--policy", "groups"), "policy not found: 'groups'. Available: optimal, uniform, min"),
        (("--freshness", "0.9"), "--freshness applies to pages only"),
        (("--shared-budget", "--kind", "pages"), "no pages to plan"),
    ],
)
def test_invalid_options_are_one_line_errors(
    stored: Stored, freshet: Freshet, words: tuple[str, ...], complaint: str
) -> None:
    db, uri = stored
    put(db, uri, some_feeds())
    done = run(freshet, "replan", *words, hours=clock())
    assert done.code == 1
    assert done.complaint.startswith(f"scrapy replan: {complaint}")


def test_explain_describes_a_feed(stored: Stored, freshet: Freshet) -> None:
    db, uri = stored
    put(db, uri, some_feeds())
    db.feeds.insert_one(
        {
            "_id": "feeds https://feeds.test/busy", "spider": "feeds", "full": True,
            "url": "https://feeds.test/busy", "format": "rss20", "feed_size": 10, "posts": 400,
            "missed_posts": 12.3, "gaps": 2, "bounds": {"every_hours": 1.0, "skip_days": [6]},
        }
    )  # fmt: skip
    run(freshet, "replan", "--budget", "6", hours=clock())
    explanation = in_json(freshet, "explain", "https://feeds.test/busy", hours=clock())
    text = " ".join(explanation["reasons"])
    assert "The last planned fetch saves" in text
    assert "The feed holds 10 posts; older posts drop out and are missed." in text
    assert "were gone. Freshet missed about 12 posts." in text
    assert "The feed asks not to be fetched on Sun." in text
    assert explanation["feed"]["missed_posts"] == 12.3
    planned, rate = plans(db)["busy"], explanation["expected"]["rate"]
    for name, of_plan in (
        ("per_week", "rate_per_week"),
        ("low", "rate_low"),
        ("high", "rate_high"),
    ):
        assert rate[name] == pytest.approx(planned[of_plan], abs=1e-3)
    shown = run(freshet, "explain", "https://feeds.test/busy", hours=clock())
    assert "400 posts, about 12 missed" in shown.out
    table = run(freshet, "plan", "feeds", hours=clock())
    assert "posts missed a week" in " ".join(table.out.split())


def test_weighted_category_gets_more_visits(stored: Stored, freshet: Freshet) -> None:
    db, uri = stored
    put(db, uri, some_feeds())
    visit_rates = []
    for weight in (0.05, 20.0):
        note = {"of": "category:News", "weight": weight}
        site = {
            "timezone": "UTC", "visiting_hours": [], "blackout": [], "weight": 1.0,
            "weights": [note], "cost": 1.0, "at": NOW - timedelta(days=1),
        }  # fmt: skip
        db.sites.replace_one({"_id": "feeds"}, site, upsert=True)
        in_json(freshet, "replan", "--budget", "4", hours=clock())
        visit_rates.append(plans(db)["office"]["visits_per_week"])
    assert visit_rates[1] > visit_rates[0]
