"""What follows from having seen a page: its past with this look, and when to look again. Pure."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from zoneinfo import ZoneInfo

from crawler.items import Fetched, Kind, Outcome, Planned
from schedules import calendar
from schedules.adaptive import next_interval
from schedules.first import Intervals
from schedules.history import History
from schedules.schedule import WEEK_HOURS

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
LATE_VISITS = 20
MINUTE, HOUR = timedelta(minutes=1), timedelta(hours=1)


def past(fetched: Fetched, outcome: Outcome) -> History:
    """The target's past with this look at it."""
    at, before = (fetched.at - EPOCH) // MINUTE, fetched.target.history
    if before is None or outcome is Outcome.NEW:
        return History.begin(at)
    if outcome is not Outcome.CHANGED:
        return before.seen(at, changed=False)
    return before.seen(at, changed=True, said=said(fetched))


def said(fetched: Fetched) -> int:
    """When the page changed by its own account, in minutes since 1970; 0: it says nothing new."""
    written = fetched.validators.last_modified
    if not written or written == fetched.target.validators.last_modified:
        return 0
    try:
        moment = parsedate_to_datetime(written)
        moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
        return max(0, (moment - EPOCH) // MINUTE) if moment <= fetched.at else 0
    except (ValueError, OverflowError):
        return 0


def lies(fetched: Fetched, outcome: Outcome) -> int:
    """Visits so far at which Last-Modified was another and the content the same."""
    before, now = fetched.target.validators.last_modified, fetched.validators.last_modified
    lied = outcome is Outcome.UNCHANGED and None not in (before, now) and before != now
    return fetched.target.lies + lied


def next_visit(
    fetched: Fetched, outcome: Outcome, zone: ZoneInfo, intervals: Intervals
) -> tuple[datetime, float | None]:
    """The time of the next visit, and the interval that an adaptive plan has from here on."""
    plan, at = fetched.target.plan, fetched.at
    if plan is None or not _holds(plan, at):
        return intervals.after_seen(at), None
    every = _adapted(plan, outcome) if plan.adaptive else None
    planned = at + timedelta(hours=every) if every else calendar.next_visit(plan.schedule, zone, at)
    longest = intervals.planned_hours or intervals.longest_hours
    return min(planned, at + timedelta(hours=longest)), every


def missed(fetched: Fetched) -> int:
    """Visits of the plan that did not happen between the one that was due and this one."""
    plan, due = fetched.target.plan, fetched.target.next_visit
    if plan is None or due is None or fetched.push is not None or not _holds(plan, fetched.at):
        return 0
    periods = (fetched.at - due) / HOUR * plan.schedule.visits_per_week / WEEK_HOURS
    return max(0, int(periods))


def execution_ms(fetched: Fetched) -> float | None:
    """The paper's avg(Eq): mean time of a cell's refreshes, the late ones counting more."""
    target = fetched.target
    if target.kind is not Kind.CELL or not fetched.elapsed_ms:
        return target.execution_ms
    before = fetched.elapsed_ms if target.execution_ms is None else target.execution_ms
    return before + (fetched.elapsed_ms - before) / min(target.visits + 1, LATE_VISITS)


def _holds(plan: Planned, at: datetime) -> bool:
    return plan.until is None or plan.until > at


def _adapted(plan: Planned, outcome: Outcome) -> float:
    every = plan.schedule.every_hours
    if outcome is Outcome.NEW:
        return every
    changed = outcome is Outcome.CHANGED
    return next_interval(every, plan.least_hours, plan.most_hours, changed=changed)
