"""Targets with a plan that are due, as the dispatcher sees them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from schedules.dispatch import Due
from schedules.history import Floats, Ints
from schedules.ratios import expected_ratio, gain_of_visit


@dataclass(frozen=True, slots=True)
class Waiting:
    """n targets that are due; (n,) each, times in hours.

    worth:   of a visit in time, by the plan; NaN where there is none
    every:   mean time between visits by the plan; NaN or inf where there is none
    waited:  since the last visit, or since the target was found
    overdue: since the visit was due
    visits:  made so far
    missed:  visits of plans that were not made so far, without those that are overdue
    seconds: that the last visit took; NaN where there was none
    host:    number of the host
    """

    worth: Floats
    every: Floats
    waited: Floats
    overdue: Floats
    visits: Floats
    missed: Floats
    seconds: Floats
    host: Ints

    def __len__(self) -> int:
        return len(self.worth)

    def due(self, longest_hours: float, *, by_time: bool = False) -> Due:
        """What the dispatcher has to know.

        longest_hours: no target is to wait longer
        by_time:       what is short is time, and a visit costs the seconds that it takes; else
                       requests are short, and one costs what another does
        """
        period = np.where(self.every > 0, self.every, np.inf)
        late = np.floor(self.overdue / period)
        took = np.where(self.seconds > 0, self.seconds, np.nan)
        usual = _mean(took, 1.0)
        cost = np.where(np.isfinite(took), took, usual) if by_time else np.ones(len(self))
        return Due(
            requested=self.visits + self.missed + late + 1,
            refreshed=self.visits,
            period=period,
            longest=np.full(len(self), longest_hours),
            waited=self.waited,
            asked=np.mod(self.overdue, period),
            cost=cost,
            value=worth_now(self.worth, self.waited, period),
            expected=_expected(period, cost),
            host=self.host,
        )


def worth_now(worth: Floats, waited: Floats, period: Floats) -> Floats:
    """(n,) what a visit now is worth.

    worth: (n,) of a visit in time; NaN where no plan says it
    waited, period: (n,) time since the last visit, and between visits by the plan

    A visit that is put off gains by as much as the planned interval is exceeded. Of those with a
    period alone a change in each period is expected; of those without one, the others' mean worth.
    """
    known = np.where(np.isfinite(worth), worth, _mean(worth, 0.0))
    result: Floats = known * np.maximum(waited / period, 1.0)
    by_period = np.isfinite(period) & ~np.isfinite(worth)
    result[by_period] = gain_of_visit(1 / period[by_period], waited[by_period])
    return result


def _expected(period: Floats, cost: Floats) -> Floats:
    """The paper's expected ratio of those that have a period; 1 of the others."""
    expected = np.ones(len(period))
    some = np.isfinite(period)
    if some.any():
        expected[some] = expected_ratio(period[some], cost[some], 1.0)
    return expected


def _mean(values: Floats, otherwise: float) -> float:
    known = values[np.isfinite(values)]
    return float(known.mean()) if len(known) else otherwise
