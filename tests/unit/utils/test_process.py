"""Ending of tasks, even if a callee swallows the first cancellation."""

from __future__ import annotations

import asyncio

import pytest

from crawler.utils.process import MAX_CANCELS, end_tasks


async def run_until_cancelled(lost: int) -> None:
    """Run until cancelled, but swallow the first `lost` cancellations, as a driver does."""
    while True:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            lost -= 1
            if lost < 0:
                raise


@pytest.mark.parametrize("lost", [0, 1, 4])
def test_swallowed_cancellation_is_repeated(lost: int, monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> asyncio.Task[None]:
        task = asyncio.create_task(run_until_cancelled(lost))
        await asyncio.sleep(0)
        await end_tasks(task)
        return task

    monkeypatch.setattr("crawler.utils.process.RETRY_SECONDS", 0.01)
    assert asyncio.run(run()).cancelled()


def test_task_that_never_ends_is_logged_and_abandoned(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def run() -> None:
        task = asyncio.create_task(run_until_cancelled(MAX_CANCELS), name="stubborn")
        await asyncio.sleep(0)
        await end_tasks(task)
        assert not task.done()
        await end_tasks(task)

    monkeypatch.setattr("crawler.utils.process.RETRY_SECONDS", 0.01)
    asyncio.run(run())
    # asyncio logs, too, if an earlier test has enabled debug messages.
    messages = [record.message for record in caplog.records if record.name != "asyncio"]
    assert messages == [f"Task did not end after {MAX_CANCELS} cancellations: stubborn"]


def test_errors_of_finished_tasks_are_ignored() -> None:
    async def fail() -> None:
        raise ValueError

    async def run() -> None:
        task = asyncio.create_task(fail())
        await asyncio.wait([task])
        await end_tasks(task)

    asyncio.run(run())
