"""Reasons for repeated fetches of a page, from the site's log and the injected faults."""

from __future__ import annotations

from typing import Any

from tests.faults.fetches import Fault, fetches

KILLED = Fault("worker", 10.0, 10.1, "worker-1")
OUTAGE = Fault("Redis", 20.0, 22.0)


def row(at: float, agent: str = "worker-1", path: str = "/a", **more: Any) -> dict[str, Any]:
    return {"at": at, "answered": at + 0.1, "agent": agent, "path": path, "complete": True} | more


def test_single_fetch_of_each_page() -> None:
    result = fetches([row(1), row(2, path="/b")], [KILLED, OUTAGE])
    assert (result.answered, result.again, result.cut) == (2, 0, 0)
    assert result.pages == {"/a": 1, "/b": 1}


def test_fetch_in_flight_at_kill_may_be_repeated() -> None:
    result = fetches([row(9.5), row(11, "worker-2")], [KILLED])
    assert (result.again, result.in_flight, result.unexplained) == (1, 1, [])
    assert round(result.longest_seconds, 1) == 0.5


def test_kill_does_not_explain_fetches_of_other_workers() -> None:
    assert fetches([row(9.5, "worker-2"), row(11)], [KILLED]).unexplained == ["/a"]


def test_kill_after_second_fetch_does_not_explain_it() -> None:
    assert fetches([row(1), row(2, "worker-2")], [KILLED]).unexplained == ["/a"]


def test_outage_between_fetches_explains_the_second() -> None:
    result = fetches([row(19.5), row(25, "worker-2")], [OUTAGE])
    assert (result.while_away, result.in_flight, result.unexplained) == (1, 0, [])
    assert fetches([row(5), row(25, "worker-2")], [OUTAGE]).unexplained == ["/a"], (
        "the fault was long before"
    )


def test_incomplete_response_is_not_an_answer() -> None:
    result = fetches([row(9.9, complete=False), row(11, "worker-2")], [KILLED])
    assert (result.cut, result.answered, result.again) == (1, 1, 0)
