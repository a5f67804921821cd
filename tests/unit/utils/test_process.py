"""Cancelled tasks end, even if a callee swallows the first cancellation."""

from __future__ import annotations

import asyncio

import pytest

from crawler.utils.process import MAX_CANCELS, end_tasks


async def works_on(lost: int) -> None:
    """Run until cancelled, but swallow the first `lost` cancellations, as a driver does."""
    while True:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            lost -= 1
            if lost < 0:
                raise


@pytest.mark.parametrize("lost", [0, 1, 4])
def test_a_task_that_loses_a_cancellation_is_cancelled_again(
    lost: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run() -> asyncio.Task[None]:
        task = asyncio.create_task(works_on(lost))
        await asyncio.sleep(0)
        await end_tasks(task)
        return task

    monkeypatch.setattr("crawler.utils.process.RETRY_SECONDS", 0.01)
    assert asyncio.run(run()).cancelled()


def test_a_task_that_never_ends_is_named_and_not_waited_for(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def run() -> None:
        task = asyncio.create_task(works_on(MAX_CANCELS), name="stubborn")
        await asyncio.sleep(0)
        await end_tasks(task)
        assert not task.done()
        await end_tasks(task)

    monkeypatch.setattr("crawler.utils.process.RETRY_SECONDS", 0.01)
    asyncio.run(run())
    assert caplog.messages == [f"Task did not end after {MAX_CANCELS} cancellations: stubborn"]


def test_errors_of_tasks_that_have_ended_are_dropped() -> None:
    async def fail() -> None:
        raise ValueError

    async def run() -> None:
        task = asyncio.create_task(fail())
        await asyncio.wait([task])
        await end_tasks(task)

    asyncio.run(run())
