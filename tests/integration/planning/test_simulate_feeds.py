"""`scrapy simulate feeds`: output, files, rejected input, and the quality of the policies."""

from __future__ import annotations

import csv
import gzip
import os
import random
import runpy
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from crawler.items import Kind
from crawler.planning.simulate_feeds import check
from crawler.storage.targets import history_document, in_minutes
from schedules.evaluation.world import Span
from schedules.history import History, Times
from tests.integration.harness import Db, Freshet, Row
from tests.integration.inside import in_json, run
from tests.integration.known_pages import BEGIN, DAY, HOUR, NOW, clock, page, put, spread

# EVAL_DATA: a folder with feeds/busy/posts.csv.gz and feeds.csv, the trace of real feeds.
# # REFEREE: an optional independent scorer for files of visits against this trace.
EVAL_DATA, REFEREE = os.environ.get("EVAL_DATA"), os.environ.get("REFEREE")
needs_eval = pytest.mark.skipif(
    not EVAL_DATA, reason="EVAL_DATA is not set to a folder with the trace of real feeds"
)

START = datetime(2024, 1, 1, tzinfo=UTC)
SPLIT, STOP = START + timedelta(weeks=3), START + timedelta(weeks=6)
SPAN = ("--from", "2024-01-01", "--split", "2024-01-22T00:00:00Z", "--to", "2024-02-12")
POLICIES = ("optimal", "uniform", "min-delay", "min-missing")
FIGURES = ("missed_pct", "uncollected_pct", "lost_pct", "delay_hours")
Moments = dict[str, list[float]]


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """Write a small trace: 20 feeds of feed size 5, with zero to ten posts a day."""
    chance, posts = random.Random(7), []
    for i in range(20):
        for day in range(6 * 7):
            n = sum(chance.random() < (i / 20) ** 2 for _ in range(10))
            seconds = sorted(chance.randrange(8 * 3600, 20 * 3600) for _ in range(n))
            posts += [(f"f{i}", START + timedelta(days=day, seconds=at)) for at in seconds]
    write(tmp_path / "posts.csv", ("feed_id", "posted_at_utc"),
          [(feed, at.isoformat()) for feed, at in posts])  # fmt: skip
    write(tmp_path / "feeds.csv", ("feed_id", "window_size_S"), [(f"f{i}", "5") for i in range(20)])
    return tmp_path


def write(path: Path, header: tuple[str, ...], rows: list[tuple[str, ...]]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([header, *rows])


def append(path: Path, *lines: str) -> None:
    path.write_text(path.read_text() + "".join(f"{line}\n" for line in lines))


@pytest.fixture
def bare(tmp_path: Path) -> Iterator[Freshet]:
    """Return commands without a server: simulating a trace needs no database."""
    with Freshet(tmp_path, MONGO_URI="mongodb://127.0.0.1:1", FRESHET_DATA_DIR=tmp_path) as runner:
        yield runner


def words(folder: Path, *args: object) -> tuple[object, ...]:
    """Return the command for the trace in a folder."""
    return ("simulate", "feeds", "--posts", folder / "posts.csv", *SPAN, *args)


def simulated(freshet: Freshet, folder: Path, *args: object) -> dict[str, Any]:
    """Simulate a trace and return the results."""
    return in_json(freshet, *words(folder, *args))


def option(name: str, *values: object) -> list[object]:
    """Repeat an option for each value."""
    return [word for value in values for word in (name, value)]


# Independent post-by-post scoring of a file of visits.


def moments_in(path: Path, name: str, at: str) -> Moments:
    """Read sorted times in seconds since 1970, by target."""
    moments: Moments = defaultdict(list)
    with (gzip.open if path.suffix == ".gz" else open)(path, "rt", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            moments[row[name]].append(datetime.fromisoformat(row[at]).timestamp())
    return {target: sorted(times) for target, times in moments.items()}


def until(moments: Moments, end: float) -> Moments:
    return {target: [at for at in times if at <= end] for target, times in moments.items()}


def feed_sizes_in(path: Path) -> dict[str, int]:
    with path.open(encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["window_size_S"]]
    return {row["feed_id"]: int(row["window_size_S"]) for row in rows}


def score_visits(posts: Moments, visits: Moments, windows: dict[str, int]) -> dict[str, Any]:
    """Score visits post by post: missed, uncollected and collected posts, and the delay."""
    start, stop = SPLIT.timestamp(), STOP.timestamp()
    counts: dict[str, int] = {"missed": 0, "uncollected": 0, "collected": 0}
    total_delay = never = spent = 0.0
    for feed, window in windows.items():
        inside = [at for at in posts.get(feed, ()) if start < at <= stop]
        fetches = [at for at in visits.get(feed, ()) if start <= at <= stop]
        never, spent = never + (not fetches), spent + len(fetches)
        for place, at in enumerate(inside):
            index = bisect_left(fetches, at)
            until = fetches[index] if index < len(fetches) else stop
            if bisect_right(inside, until) - 1 - place >= window:
                counts["missed"] += 1
            elif index < len(fetches):
                counts["collected"] += 1
                total_delay += until - at
            else:
                counts["uncollected"] += 1
    total = sum(counts.values())
    shares = {f"{fate}_pct": 100 * counts[fate] / total for fate in ("missed", "uncollected")}
    return shares | {
        "lost_pct": sum(shares.values()),
        "delay_hours": total_delay / counts["collected"] / 3600 if counts["collected"] else None,
        "never_visited": never,
        "spent": spent,
        "posts": total,
        "collected": counts["collected"],
    }


def check_figures(
    trace: Path, out: Path, simulation: dict[str, Any], posts: str = "posts.csv"
) -> None:
    """Check the figures of all rows against the visits they wrote."""
    posted = moments_in(trace / posts, "feed_id", "posted_at_utc")
    windows = feed_sizes_in(trace / "feeds.csv")
    for row in simulation["results"]:
        path = out / f"{row['policy']}_{row['visits']}.csv.gz"
        truth = score_visits(posted, moments_in(path, "target", "at"), windows)
        assert {name: row[name] for name in truth} == pytest.approx(truth, abs=1e-6)


@pytest.mark.soak
def test_writes_visits_for_each_policy_and_number(bare: Freshet, trace: Path) -> None:
    out = trace / "new" / "visits"
    options = [*option("--policy", *POLICIES), *option("--visits", 40, 7, "5x", "5N", 100)]
    simulation = simulated(bare, trace, *options, "--visits-out", out)
    pairs = [(row["policy"], row["visits"]) for row in simulation["results"]]
    assert pairs == [(policy, visits) for policy in POLICIES for visits in (40, 7, 100)]
    assert {path.name for path in out.iterdir()} == {f"{p}_{v}.csv.gz" for p, v in pairs}
    check_figures(trace, out, simulation)
    assert all(row["spent"] <= row["visits"] for row in simulation["results"])
    assert [row["policy"] for row in simulation["means"]] == list(POLICIES)
    assert (simulation["kind"], simulation["feeds"]) == ("feeds", 20)
    assert [simulation[name] for name in ("start", "split", "stop")] == [
        "2024-01-01T00:00:00Z", "2024-01-22T00:00:00Z", "2024-02-12T00:00:00Z",
    ]  # fmt: skip


def test_means_average_over_all_numbers_of_visits(bare: Freshet, trace: Path) -> None:
    simulation = simulated(bare, trace, *option("--visits", 20, 100, 400), "--policy", "uniform")
    (mean,) = simulation["means"]
    for name in FIGURES:
        values = [row[name] for row in simulation["results"]]
        assert mean[name] == pytest.approx(sum(values) / 3)


def test_rate_aware_policies_miss_fewer_posts(bare: Freshet, trace: Path) -> None:
    simulation = simulated(bare, trace, *option("--policy", *POLICIES), "--visits", 120)
    optimal, uniform, *others = (row["missed_pct"] for row in simulation["results"])
    assert max(optimal, *others) < uniform


def test_policies_do_not_see_future_posts(bare: Freshet, trace: Path) -> None:
    options = [*option("--policy", *POLICIES), "--visits", 200, "--visits-out"]
    simulated(bare, trace, *options, trace / "one")
    append(trace / "posts.csv", *(f"f3,2024-02-0{day}T{hour:02}:10:00Z"
                                  for day in (2, 3, 4) for hour in range(24)))  # fmt: skip
    simulated(bare, trace, *options, trace / "other")
    burst_start = datetime(2024, 2, 2, tzinfo=UTC).timestamp()
    for policy in POLICIES:
        visits, other = (
            moments_in(trace / out / f"{policy}_200.csv.gz", "target", "at")
            for out in ("one", "other")
        )
        assert until(visits, burst_start) == until(other, burst_start)
        assert visits == other or policy == "optimal", "only optimal learns from its visits"


def test_omitted_posts_and_feeds_are_reported(bare: Freshet, trace: Path) -> None:
    before = simulated(bare, trace, "--visits", 40)
    append(trace / "feeds.csv", "silent,3", "unknown,")
    append(trace / "posts.csv", "unknown,2024-01-25T00:00:00Z", "other,2024-01-25T00:00:00Z")
    after = simulated(bare, trace, "--visits", 40)
    assert after["feeds"] == before["feeds"] + 1
    assert after["posts"] == before["posts"]
    assert before["left_out"] == {"feeds": 0, "posts": 0}
    assert after["left_out"] == {"feeds": 1, "posts": 1}
    shown = run(bare, *words(trace, "--visits", 40)).out.splitlines()
    assert shown[-2:] == [
        "left out: 1 post of unlisted feeds",
        "left out: 1 feed of unknown size",
    ]


def test_output_has_a_line_for_each_policy_and_the_means(bare: Freshet, trace: Path) -> None:
    options = [*option("--policy", "min-missing", "uniform"), *option("--visits", "2x", 100)]
    result = run(bare, *words(trace, *options))
    assert (result.code, result.err) == (0, "")
    lines = [line.rstrip() for line in result.out.splitlines()]
    assert lines[0].startswith("20 feeds, ")
    assert lines[0].endswith(" posts, 2024-01-22 to 2024-02-12")
    assert max(map(len, lines)) <= 80
    for policy in ("min-missing", "uniform"):
        rows = [line.split() for line in lines if line.split()[:1] == [policy]]
        assert [len(row) for row in rows] == [8, 8, 5]
        assert [row[1:3] for row in rows[:2]] == [["40", "2"], ["100", "5"]]
    single = run(bare, *words(trace, "--visits", 40)).out
    assert "mean over" not in single


@pytest.mark.soak
@pytest.mark.parametrize(("name", "begins"), [("p.png", b"\x89PNG"), ("new/p.svg", b"<?xml")])
def test_plot_is_written_and_reproducible(
    bare: Freshet, trace: Path, name: str, begins: bytes
) -> None:
    options = [*option("--policy", "optimal", "uniform"), *option("--visits", 20, 60)]
    simulated(bare, trace, *options, "--plot", trace / name)
    drawn = (trace / name).read_bytes()
    assert drawn.startswith(begins)
    assert sorted(path.name for path in (trace / name).parent.glob(".p*")) == []
    simulated(bare, trace, *options, "--plot", trace / name)
    assert (trace / name).read_bytes() == drawn


def test_undefined_figures_are_null(bare: Freshet, trace: Path) -> None:
    write(trace / "posts.csv", ("feed_id", "posted_at_utc"), [("f0", "2024-01-03T00:00:00Z")])
    simulation = simulated(bare, trace, "--visits", 20, "--plot", trace / "p.svg")
    (row,), (mean,) = simulation["results"], simulation["means"]
    assert (row["posts"], row["collected"]) == (0, 0)
    assert {row[name] for name in FIGURES} == {mean[name] for name in FIGURES} == {None}


def test_closed_loop_learns_only_from_its_own_visits(bare: Freshet, trace: Path) -> None:
    loop = simulated(bare, trace, "--closed-loop", "--replan-every", 2, "--visits", "6x")
    assert (loop["closed_loop"], loop["replan_every_days"]) == (True, 2)
    informed = simulated(bare, trace, "--visits", "6x")
    assert (informed["closed_loop"], informed["replan_every_days"]) == (False, 1)
    (row,), (other,) = loop["results"], informed["results"]
    assert 0 < row["spent"] <= 120
    assert row["posts"] == other["posts"]
    assert row["lost_pct"] > other["lost_pct"]


def test_replan_every_sets_the_interval_between_plans(bare: Freshet, trace: Path) -> None:
    with (trace / "posts.csv").open(encoding="utf-8") as file:
        header, *rows = csv.reader(file)
    # The busiest feeds stop posting immediately after the first plan.
    silent = {"f17", "f18", "f19"}
    rows = [row for row in rows if row[0] not in silent or datetime.fromisoformat(row[1]) <= SPLIT]
    write(trace / "posts.csv", (header[0], header[1]), [(row[0], row[1]) for row in rows])
    often, once = (
        simulated(
            bare, trace, "--replan-every", days, "--visits", "6x", "--visits-out", trace / out
        )
        for days, out in ((1, "often"), (21, "once"))
    )
    assert (often["replan_every_days"], once["replan_every_days"]) == (1, 21)
    visits = [moments_in(trace / out / "optimal_120.csv.gz", "target", "at")
              for out in ("often", "once")]  # fmt: skip
    assert visits[0] != visits[1], "a replan uses the visits since the last replan"
    # A single plan covers the whole period: all weeks are alike, except for rare visits.
    weekly = [at for at in visits[1].values() if len(at) >= 6]
    assert weekly
    for at in weekly:
        slots = {round(moment) % (7 * 86_400) for moment in at}
        assert len(slots) <= len(at) / 2


def test_warns_if_visits_cannot_cover_the_longest_interval(bare: Freshet, trace: Path) -> None:
    note = "plans visit each feed at least every 24 weeks, which takes 3 visits"
    assert note in run(bare, *words(trace, "--visits", 2)).out
    assert note not in run(bare, *words(trace, "--visits", 3)).out
    assert note not in run(bare, *words(trace, "--visits", 2, "--policy", "uniform")).out


def test_default_period_spans_the_trace(bare: Freshet, trace: Path) -> None:
    write(trace / "posts.csv", ("feed_id", "posted_at_utc"),
          [("f0", f"2024-01-0{day}T00:00:00Z") for day in (4, 1, 8)])  # fmt: skip
    simulation = in_json(bare, "simulate", "feeds", "--posts", trace / "posts.csv", "--visits", 20)
    assert simulation["start"] == "2024-01-01T00:00:00Z"
    assert simulation["split"] == "2024-01-03T08:00:00Z"
    assert simulation["stop"] == "2024-01-08T00:00:00Z"


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--visits", "0"], "--visits 0: must be greater than 0"),
        (["--visits", "40", "--visits", "0x"], "--visits 0x: must be greater than 0"),
        *(
            ([f"--visits={text}"],
             f"--visits: invalid number {text!r}. Use a whole number of fetches for all feeds, "
             "such as 20000, or for each, such as 3x")
            for text in ("-3", "2.5", "many", "3y", "nan", "1,000", "١")
        ),
        (["--visits", "999999999"], "--visits 999999999: too many visits (maximum 100,000,000 in"),
        (["--visits", "9999999x"], "--visits 9999999x: too many visits (maximum 100,000,000 in"),
        (["--visits", "40", "--policy", "age"],
         "--policy: policy not found for feeds: 'age'. Available: optimal, uniform, min-delay, "
         "min-missing"),
        (["--visits", "40", "--split", "2024-01-01"],
         "--from 2024-01-01T00:00:00Z must be before --split 2024-01-01T00:00:00Z"),
        (["--visits", "40", "--split", "2024-01-01T00:00:00.1Z"],
         "--from, --split and --to must be at least one second apart"),
        (["--visits", "40", "--from", "0001-01-01T00:00:00+14:00"],
         "the span from 0000-12-31T10:00:00Z to 2024-02-12T00:00:00Z exceeds 100 years. Change "
         "--from or --to"),
        (["--visits", "40", "--to", "tomorrow"],
         "--to: invalid time 'tomorrow'. Use a format such as 2024-01-31T08:00:00Z"),
        (["--visits", "40", "--plot", "p.pdf"],
         "--plot p.pdf: unsupported format. Use .png or .svg"),
        (["--visits", "40", "--visits-out", "posts.csv/v"],
         "--visits-out posts.csv/v: not a writable folder: posts.csv"),
        (["--visits", "40", "--posts", "none.csv"], "none.csv: No such file or directory"),
        (["--visits", "40", "--feeds", "none.csv"], "none.csv: No such file or directory"),
        (["--visits", "40", "--posts", "feeds.csv"],
         "feeds.csv, line 1: column not found: posted_at_utc"),
    ],
)  # fmt: skip
def test_invalid_input_is_one_line_and_writes_nothing(
    bare: Freshet, trace: Path, args: list[str], message: str
) -> None:
    before = {path.name for path in trace.iterdir()}
    args = [str(trace / arg) if "csv" in arg else arg for arg in args]
    result = run(bare, *words(trace, "--visits-out", trace / "visits", *args))
    assert (result.code, result.out) == (1, "")
    assert result.complaint.replace(f"{trace}/", "").startswith(f"scrapy simulate: {message}")
    assert {path.name for path in trace.iterdir()} == before


def test_trace_without_posts_of_its_feeds_is_a_one_line_error(bare: Freshet, trace: Path) -> None:
    write(trace / "posts.csv", ("feed_id", "posted_at_utc"), [("x", "2024-01-03T00:00:00Z")])
    result = run(bare, *words(trace, "--visits", 40))
    assert result.complaint == (
        "scrapy simulate: no posts found of any listed feed with a known size"
    )


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["feeds", "--visits", "12"], "--posts FILE or --history is missing"),
        (["feeds", "--posts", "p.csv"], "--visits N (fetches in all) is missing"),
        (["feeds", "--history", "--posts", "p.csv", "--visits", "1"], "--history and --posts can"),
        (["feeds", "--history", "--feeds", "f.csv", "--visits", "1"], "--history and --feeds can"),
        *(
            (["feeds", "--posts", "p.csv", "--visits", "1", *args],
             f"{args[0]} is for simulate pages, not for feeds")
            for args in (["--budget", "12"], ["--changes", "c.csv"], ["--pages", "p.csv"],
                         ["--daily-cap", "12"])
        ),
        *(
            (["pages", "--changes", "c.csv", "--budget", "1", *args],
             f"{args[0]} is for simulate feeds, not for pages")
            for args in (["--visits", "12"], ["--posts", "p.csv"], ["--feeds", "f.csv"])
        ),
    ],
)  # fmt: skip
def test_invalid_usage_exits_with_2(bare: Freshet, args: list[str], message: str) -> None:
    result = run(bare, "simulate", *args)
    assert result.code == 2
    assert message in result.out + result.err


def test_help_lists_options_by_kind_with_examples(bare: Freshet) -> None:
    shown = run(bare, "simulate", "--help").out
    both, _, rest = shown.partition("\nPages\n")
    pages, _, feeds = rest.partition("\nFeeds\n")
    assert "--policy NAME" in both
    assert "--budget N" in pages
    assert "--visits N" in feeds
    for kind in ("pages --changes", "feeds --posts"):
        assert f"\nExample: scrapy simulate {kind}" in shown


def test_check_rejects_policies_over_their_budget() -> None:
    span = Span(0, 10, 20)
    check("uniform", 2, Times(np.array([0, 2]), np.array([10.0, 20.0])), span)
    with pytest.raises(RuntimeError, match="uniform used 2 of 1 visits"):
        check("uniform", 1, Times(np.array([0, 2]), np.array([11.0, 12.0])), span)
    with pytest.raises(RuntimeError, match="uniform made 1 visits outside the period"):
        check("uniform", 2, Times(np.array([0, 2]), np.array([9.0, 12.0])), span)


# Your own history.


def feed(url: str, posts: Iterable[datetime], feed_size: int = 5, **own: object) -> Row:
    """Build a feed that was polled every 20 minutes for three weeks."""
    return page(url, posts, spider="feeds", kind=Kind.FEED, feed_size=feed_size, **own)


def test_stored_history_is_simulated(stored: tuple[Db, str], freshet: Freshet) -> None:
    command = ("simulate", "feeds", "--visits", "7x", "--policy", "uniform", "--history")
    nothing = run(freshet, *command)
    assert nothing.complaint == (
        "scrapy simulate: no feed has been read yet. Run scrapy crawl first"
    )
    daily = [feed(f"https://feeds.example/{n}", spread(n, 9)) for n in (0, 3, 21)]
    unread = feed("https://feeds.example/new", (), feed_size=0)
    put(*stored, [*daily, unread, page("https://shop.example/1", spread(14, 9))])
    simulation = in_json(freshet, *command, "--visits-out", freshet.folder, hours=clock())
    assert (simulation["feeds"], simulation["left_out"]) == (3, {"feeds": 1, "posts": 0})
    assert simulation["posts"] == 16, "of the two weeks of evaluation, after one week of training"
    (row,) = simulation["results"]
    assert (row["spent"], row["missed_pct"], row["collected"]) == (21, 0, 16)
    assert 15 < row["delay_hours"] < 40
    assert set(moments_in(freshet.folder / "uniform_21.csv.gz", "target", "at")) == {
        row["_id"] for row in daily
    }
    assert in_json(freshet, *command, "feeds", hours=clock()) == simulation
    assert "no targets of 'feed'" in run(freshet, *command, "feed", hours=clock()).complaint
    planned = run(freshet, "replan", "--kind", "feeds", "--budget", "2/day", hours=clock())
    assert planned.code == 0, planned.err
    as_planned = in_json(freshet, "simulate", "feeds", "--history", hours=clock())
    assert [row["visits"] for row in as_planned["results"]] == [28], "2 a day for two weeks"


def test_stated_post_dates_are_used(stored: tuple[Db, str], freshet: Freshet) -> None:
    began, seen = in_minutes(BEGIN), in_minutes(BEGIN + 14 * DAY)
    dates = [seen - 6 * 60, 0, seen + 60]
    past = History.begin(began).extended(seen, [(began, seen, date) for date in dates])
    past = past.seen(in_minutes(NOW - HOUR), changed=False)
    put(*stored, [feed("https://feeds.example/", (), history=history_document(past))])
    split = BEGIN + 14 * DAY - 7 * HOUR
    command = ("simulate", "feeds", "--history", "--visits", 1, "--policy", "uniform")
    times = ("--split", split.isoformat(), "--to", (split + 7 * HOUR).isoformat())
    (row,) = in_json(freshet, *command, *times, hours=clock())["results"]
    assert row["posts"] == 3
    assert row["delay_hours"] == pytest.approx(6 / 3), "six hours for one post, none for the others"


def test_feeds_are_excluded_from_simulate_pages(stored: tuple[Db, str], freshet: Freshet) -> None:
    put(*stored, [feed("https://feeds.example/", spread(21, 9)), page("https://shop.example/1")])
    simulation = in_json(freshet, "simulate", "pages", "--history", "--budget", 1, hours=clock())
    assert (simulation["pages"], simulation["changes"]) == (1, 0)


# Real feeds.

NUMBERS = (1_000, 2_000, 3_000, 5_000, 10_000, 20_000)
# Missed share in percent and delay in hours, averaged over all numbers of visits.
KNOWN = {"uniform": (48.8, 79), "min-delay": (23.9, 48), "min-missing": (15.9, 43.1)}


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], Path]:
    """Simulate all policies on real feeds: three weeks of training, three of evaluation."""
    out, busy = tmp_path_factory.mktemp("real"), Path(str(EVAL_DATA)) / "feeds" / "busy"
    files = "--posts", busy / "posts.csv.gz", "--feeds", busy / "feeds.csv"
    options = [*option("--policy", *POLICIES), *option("--visits", *NUMBERS)]
    with Freshet(out) as freshet:
        simulation = in_json(
            freshet, "simulate", "feeds", *files, *SPAN, *options, "--visits-out", out
        )
    return simulation, out


@needs_eval
@pytest.mark.soak
def test_figures_of_real_feeds_match_their_visits(real: tuple[dict[str, Any], Path]) -> None:
    simulation, out = real
    check_figures(Path(str(EVAL_DATA)) / "feeds" / "busy", out, simulation, "posts.csv.gz")
    assert (simulation["feeds"], simulation["posts"]) == (1_000, 23_607)


@needs_eval
@pytest.mark.soak
@pytest.mark.skipif(not REFEREE, reason="REFEREE is not set to a program that scores visits")
def test_independent_scorer_gives_the_same_figures(real: tuple[dict[str, Any], Path]) -> None:
    (simulation, out), scorer = real, runpy.run_path(str(REFEREE))
    busy = Path(str(EVAL_DATA)) / "feeds" / "busy"
    posts = scorer["grouped"](busy / "posts.csv.gz", "feed_id", "posted_at_utc")
    for row in simulation["results"]:
        path = out / f"{row['policy']}_{row['visits']}.csv.gz"
        visits = scorer["grouped"](path, "target", "at")
        moments = SPLIT.timestamp(), STOP.timestamp()
        truth = scorer["score_feeds"](posts, visits, feed_sizes_in(busy / "feeds.csv"), *moments)
        truth["delay_hours"] = truth["delay_h"]
        for name in (*FIGURES, "never_visited", "posts"):
            assert row[name] == pytest.approx(truth[name], abs=1e-6)


@needs_eval
@pytest.mark.soak
def test_missed_post_targets_on_real_feeds(real: tuple[dict[str, Any], Path]) -> None:
    means = {row["policy"]: row for row in real[0]["means"]}
    for policy, (missed, delay) in KNOWN.items():
        assert means[policy]["missed_pct"] == pytest.approx(missed, abs=0.3)
        assert means[policy]["delay_hours"] == pytest.approx(delay, abs=0.5)
    optimal = means["optimal"]
    assert optimal["missed_pct"] <= 14.3
    assert optimal["delay_hours"] <= 26.5
    assert optimal["lost_pct"] <= 23.5
    rows = {(row["policy"], row["visits"]): row for row in real[0]["results"]}
    # With one fetch per feed, both policies miss about the same number of posts.
    for number in NUMBERS[1:]:
        optimal_row, paper = rows["optimal", number], rows["min-missing", number]
        assert optimal_row["missed_pct"] < paper["missed_pct"]
        assert optimal_row["delay_hours"] < paper["delay_hours"]
