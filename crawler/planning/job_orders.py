"""Order a planning job from `crawler.planning.jobs`; imports neither NumPy nor Numba."""

from __future__ import annotations

from typing import Any, Literal, get_args

from pydantic import BaseModel

Kind = Literal["curve", "preview", "apply", "simulate", "feed_curve", "feed_preview", "feed_apply"]
CURVE: Kind = "curve"
PREVIEW: Kind = "preview"
APPLY: Kind = "apply"
SIMULATE: Kind = "simulate"
FEED_CURVE: Kind = "feed_curve"
FEED_PREVIEW: Kind = "feed_preview"
FEED_APPLY: Kind = "feed_apply"
# The policies for pages, as `options.POLICIES`.
Policy = Literal[
    "optimal", "groups", "groups6", "uniform", "sqrt", "freshness", "harmonic", "age", "adaptive"
]
POLICY_NAMES: tuple[Policy, ...] = get_args(Policy)


class JobOrder(BaseModel):
    """An order of a job.

    config:    settings of the app
    budget:    requests a day; None for curves, and in simulations for the current budget
    objective: of pages; None: the objective in the settings
    policies:  of a simulation; empty: the default
    plans:     to apply: ids of the plans in effect at the dry run
    """

    kind: Kind
    config: dict[str, Any]
    budget: float | None = None
    objective: str | None = None
    policies: tuple[str, ...] = ()
    plans: tuple[str, ...] = ()
