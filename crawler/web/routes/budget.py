"""The budgets of pages and of feeds: expected results by number of requests, and plans.

Pages and feeds have the same routes; `BudgetKind` has their differences.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any, Self, TypeVar

from fastapi import APIRouter, Depends, HTTPException, Query, Request
from pydantic import BaseModel, BeforeValidator, Field, field_validator
from starlette.responses import Response

from crawler.errors import Busy, ConfigError
from crawler.planning import budget_curve
from crawler.planning.budget_curve import (
    BudgetCurve,
    BudgetForecast,
    Measure,
    Objective,
    forecast,
    sample_points,
    usual_budget,
)
from crawler.reports.jobs import (
    APPLY,
    CURVE,
    FEED_APPLY,
    FEED_CURVE,
    FEED_PREVIEW,
    POLICY_NAMES,
    PREVIEW,
    SIMULATE,
    JobKind,
    Policy,
)
from crawler.utils.text import count, plain, rounded_up
from crawler.utils.time import per_day
from crawler.web.auth import EditorDep, User, UserDep
from crawler.web.dependencies import NowDep, StoreDep
from crawler.web.pages import Form, page, redirect
from crawler.web.subprocesses import Job, Planner

router = APIRouter()
api = APIRouter(prefix="/budget", tags=["budget"])
MAX_BUDGET_CHARACTERS = 40
MAX_BUDGET = 1e9
Order = TypeVar("Order", bound=BaseModel)


def _planner(request: Request) -> Planner:
    planner: Planner = request.app.state.planner
    return planner


@dataclass(frozen=True, slots=True)
class BudgetKind:
    """The budget of pages or of feeds.

    area: beginning of the names of its routes
    noun: what the budget counts
    """

    measure: Measure
    area: str
    noun: str
    curve: JobKind
    preview: JobKind
    apply: JobKind

    def objective(self, chosen: Objective) -> Objective | None:
        """Return the chosen objective of pages; None for feeds, which have none."""
        return chosen if self is PAGES else None

    def in_words(self, work: str, budget: float, objective: str | None) -> str:
        """Return the line of a job for the audit list."""
        what = work if self is PAGES else f"{work} of feeds"
        end = "" if objective is None else f", {objective}"
        return f"{what}: {count(budget, self.noun)} a day{end}"


PAGES = BudgetKind(budget_curve.PAGES, "budget", "request", CURVE, PREVIEW, APPLY)
FEEDS = BudgetKind(budget_curve.FEEDS, "feed_budget", "fetch", FEED_CURVE, FEED_PREVIEW, FEED_APPLY)


def _kind_of(request: Request) -> BudgetKind:
    return FEEDS if request.scope["route"].name.startswith("feed_budget.") else PAGES


KindDep = Annotated[BudgetKind, Depends(_kind_of)]
PlannerDep = Annotated[Planner, Depends(_planner)]
ObjectiveQuery = Annotated[Objective, Query(description="for pages: objective of the plan")]
BudgetText = Annotated[
    str,
    Query(max_length=MAX_BUDGET_CHARACTERS, description="requests a day, such as 265 or 265/day"),
]


def parsed_budget(value: Any) -> float | None:
    """Return a number of requests a day, None without text; raises ValueError."""
    text = str(value if value is not None else "").strip()
    if not text:
        return None
    if len(text) > MAX_BUDGET_CHARACTERS:
        raise ValueError("too long. Examples: 265, 265/day, 0.5")
    budget = per_day(text)
    if not 0 < budget <= MAX_BUDGET:
        raise ValueError("must be more than 0 and at most 1,000,000,000")
    return budget


Budget = Annotated[float | None, BeforeValidator(parsed_budget)]


def _required_budget(value: Any) -> float:
    """Return the budget in a form; raises ValueError without one."""
    if (budget := parsed_budget(value or None)) is None:
        raise ValueError("is missing. Enter a number a day, such as 265")
    return budget


class Choice(BaseModel):
    """A budget and an objective; the budget None is the current one."""

    budget: Budget = Field(None, description="requests a day, such as 265 or 265/day")
    objective: Objective = Field("balanced", description="for pages: objective of the plan")


class SimulationChoice(Choice):
    """Policies to compare on your own history."""

    policies: list[Policy] = Field(
        ["optimal", "uniform"],
        min_length=1,
        max_length=len(POLICY_NAMES),
        description="policies to compare",
    )


class Application(BaseModel):
    """The dry run whose plan is applied."""

    preview: str = Field(max_length=64, description="id of the job of the dry run")


class PreviewForm(BaseModel):
    """The form of a dry run."""

    budget: Annotated[float, BeforeValidator(_required_budget)] = Field(0.0, validate_default=True)
    objective: Objective = "balanced"


class SimulationForm(SimulationChoice):
    """The form of a simulation, which sends no policies if none is chosen."""

    policies: list[Policy] = Field([], max_length=len(POLICY_NAMES), validate_default=True)

    @field_validator("policies", mode="before")
    @classmethod
    def some(cls, value: Any) -> Any:
        """Return the policies; raises ValueError if there are none."""
        if not value:
            raise ValueError("Choose at least one policy")
        return value


class ApplicationForm(BaseModel):
    """The form that applies a dry run."""

    preview: str = ""


class JobState(BaseModel):
    """The state of a job."""

    id: str = Field(description="id of the job")
    kind: JobKind = Field(description="what the job does")
    by: str = Field(description="name of the user who started it")
    started: datetime = Field(description="start of the job")
    state: str = Field(description="running, done, failed or cancelled")
    progress: str = Field(description="what a running job is doing")
    error: str = Field(description="what went wrong; empty if nothing did")
    result: Any = Field(None, description="result of the job; null until it is done")

    @classmethod
    def of(cls, job: Job) -> Self:
        """Return the state of a job."""
        return cls.model_validate(job, from_attributes=True)


class Jobs(BaseModel):
    """The latest job, and the last one of each kind that was done."""

    latest: JobState | None = Field(description="running or latest job")
    preview: JobState | None = Field(description="last dry run")
    apply: JobState | None = Field(description="last plan that was applied")
    simulate: JobState | None = Field(description="last simulation")
    feed_preview: JobState | None = Field(description="last dry run of feeds")
    feed_apply: JobState | None = Field(description="last plan of feeds that was applied")


@router.get("/budget", name="budget.index")
@router.get("/budget/feeds", name="feed_budget.index")
async def index(
    request: Request, user: UserDep, _: StoreDep, now: NowDep, kind: KindDep, budget: str = "",
    objective: str = "balanced",
) -> Response:  # fmt: skip
    """Show the curve, and the expected results of a budget."""
    values = {"budget": budget} | ({"objective": objective} if kind is PAGES else {})
    return _page(request, kind, user.name, now, Form.of(values))


@router.get("/budget/jobs", name="budget.jobs")
async def jobs_panel(request: Request, _: UserDep, now: NowDep, planner: PlannerDep) -> Response:
    """Show the running job and the last failures, for a page that waits for a job."""
    job, failed = planner.job, planner.failed
    response = page(request, "budget/jobs.html", job=job, failed=failed, now=now)
    if job is None or not job.is_running:
        # The job has ended: load the page with its result.
        response.headers["HX-Refresh"] = "true"
    return response


@router.post("/budget/again", name="budget.again")
@router.post("/budget/feeds/again", name="feed_budget.again")
async def compute_again(
    request: Request, _: EditorDep, planner: PlannerDep, kind: KindDep
) -> Response:
    """Compute the curve again from the current history."""
    form = await Form.read(request)
    planner.forget_curves()
    return _back(request, kind, form)


@router.post("/budget/preview", name="budget.preview")
@router.post("/budget/feeds/preview", name="feed_budget.preview")
async def preview(
    request: Request, user: EditorDep, now: NowDep, planner: PlannerDep, kind: KindDep
) -> Response:
    """Start a dry run."""

    def start(order: PreviewForm) -> str:
        objective = kind.objective(order.objective)
        planner.start(kind.preview, user.name, now, budget=order.budget, objective=objective)
        return kind.in_words("dry run", order.budget, objective)

    return await _start_job(request, kind, user, now, PreviewForm, start)


@router.post("/budget/apply", name="budget.apply")
@router.post("/budget/feeds/apply", name="feed_budget.apply")
async def apply(
    request: Request, user: EditorDep, now: NowDep, planner: PlannerDep, kind: KindDep
) -> Response:
    """Start the replan of the last dry run."""

    def start(order: ApplicationForm) -> str:
        made = planner.apply(kind.apply, order.preview, user.name, now).request
        return kind.in_words("replan", made.budget or 0, made.objective)

    return await _start_job(request, kind, user, now, ApplicationForm, start)


@router.post("/budget/simulate", name="budget.simulate")
async def simulate(request: Request, user: EditorDep, now: NowDep, planner: PlannerDep) -> Response:
    """Start a simulation of policies on the recorded history."""

    def start(order: SimulationForm) -> str:
        planner.start(SIMULATE, user.name, now, **order.model_dump())
        return f"simulation: {', '.join(order.policies)}"

    return await _start_job(request, PAGES, user, now, SimulationForm, start)


@router.post("/budget/cancel", name="budget.cancel")
async def cancel(request: Request, _: EditorDep, planner: PlannerDep) -> Response:
    """Cancel the running job."""
    form = await Form.read(request)
    await planner.cancel(form["job"])
    return _back(request, FEEDS if form["area"] == "feeds" else PAGES, form)


async def _start_job(
    request: Request,
    kind: BudgetKind,
    user: User,
    now: datetime,
    wanted: type[Order],
    start: Callable[[Order], str],
) -> Response:
    """Start the job that a form requests, and return to its page.

    Shows the form with its problems and status 422 if it is not valid, and 409 if the job cannot be
    started.

    wanted: model of the fields of the form
    start:  starts the job and returns its line for the audit list; raises Busy and ConfigError
    """
    form = await Form.read(request)
    order = form.parse(wanted)
    if order is None:
        return _page(request, kind, user.name, now, form, 422)
    with form.rejecting("", (Busy, ConfigError)):
        request.state.audit = start(order)
        return _back(request, kind, form)
    return _page(request, kind, user.name, now, form, 409)


def _back(request: Request, kind: BudgetKind, form: Form) -> Response:
    """Return to the page with the same budget."""
    kept = {name: form[name] for name in ("budget", "objective") if form[name]}
    return redirect(request, f"{kind.area}.index", kept)


def _page(
    request: Request, kind: BudgetKind, by: str, now: datetime, form: Form, status: int = 200
) -> Response:
    """Show the page with the choice of a form, or with its problems."""
    planner, choice = _planner(request), form.parse(Choice)
    objective = kind.objective(choice.objective if choice else "balanced")
    curve, result = planner.curve(kind.curve, objective), None
    if curve is None:
        planner.want_curve(kind.curve, objective, by, now)
    else:
        result = _forecast_in(form, choice.budget if choice else None, curve)
    if status == 200 and not form.is_valid:
        status = 422
    return page(
        request, "budget/index.html", fragment="figures", status=status, form=form, curve=curve,
        least=rounded_up(curve["requests_per_day"][0]) if curve else "", forecast=result,
        points=sample_points(curve) if curve else [], objective=objective, kind=kind,
        is_empty=planner.has_no_targets(kind.curve), is_pages=kind is PAGES,
        policies=POLICY_NAMES, job=planner.job, failed=planner.failed,
        chosen=form.lists.get("policies", ["optimal", "uniform"]),
        preview=planner.last(kind.preview), applied=planner.last(kind.apply),
        simulation=planner.last(SIMULATE),
    )  # fmt: skip


def _forecast_in(form: Form, budget: float | None, curve: BudgetCurve) -> BudgetForecast:
    """Return the forecast for a budget; enter the current budget into a form without one.

    A budget that is too small is rejected, and the forecast is for the minimum budget instead.

    budget: budget in the form; None: the current one
    """
    chosen = budget or usual_budget(curve)
    try:
        result = forecast(curve, chosen)
    except ConfigError as error:
        form.reject("budget", error)
        result = forecast(curve, curve["requests_per_day"][0])
    if not form["budget"]:
        form.values["budget"] = plain(chosen)
    return result


@api.get("", name="budget.api")
@api.get("/feeds", name="feed_budget.api")
async def curve(
    user: UserDep, now: NowDep, planner: PlannerDep, kind: KindDep,
    objective: ObjectiveQuery = "balanced",
) -> BudgetCurve:  # fmt: skip
    """Return the expected results for a range of budgets.

    While the curve is being computed, the status is 503. Try again after the time in Retry-After.
    """
    found: BudgetCurve | None = planner.curve(kind.curve, kind.objective(objective))
    if found is not None:
        return found
    planner.want_curve(kind.curve, kind.objective(objective), user.name, now)
    job = planner.job
    detail = f"The curve is not ready: {job.error or job.progress}" if job else "Not ready"
    raise HTTPException(503, detail, {"Retry-After": "2"})


@api.get("/forecast", name="budget.api_forecast")
@api.get("/feeds/forecast", name="feed_budget.api_forecast")
async def forecast_of(
    user: UserDep, now: NowDep, planner: PlannerDep, kind: KindDep, budget: BudgetText,
    objective: ObjectiveQuery = "balanced",
) -> BudgetForecast:  # fmt: skip
    """Return the expected results of a budget by site or feed, next to the current schedules."""
    try:
        chosen = parsed_budget(budget)
    except ValueError:
        detail = f"budget: invalid request rate: {budget!r}. Example: 265"
        raise HTTPException(422, detail) from None
    ready = await curve(user, now, planner, kind, objective)
    return forecast(ready, chosen or usual_budget(ready))


@api.get("/jobs", name="budget.api_jobs")
async def jobs(_: UserDep, planner: PlannerDep) -> Jobs:
    """Return the latest job, and the last results."""
    kinds = (PREVIEW, APPLY, SIMULATE, FEED_PREVIEW, FEED_APPLY)
    last = {kind: planner.last(kind) for kind in kinds}
    return Jobs.model_validate({"latest": planner.job, **last}, from_attributes=True)


@api.post("/preview", name="budget.api_preview", status_code=202)
@api.post("/feeds/preview", name="feed_budget.api_preview", status_code=202)
async def start_preview(
    choice: Choice, user: EditorDep, now: NowDep, planner: PlannerDep, kind: KindDep
) -> JobState:
    """Start a dry run of a replan; its result is BudgetPreview."""
    if choice.budget is None:
        raise ConfigError("budget: missing. Example: 265")
    objective = kind.objective(choice.objective)
    job = planner.start(kind.preview, user.name, now, budget=choice.budget, objective=objective)
    return JobState.of(job)


@api.post("/apply", name="budget.api_apply", status_code=202)
@api.post("/feeds/apply", name="feed_budget.api_apply", status_code=202)
async def start_apply(
    application: Application, user: EditorDep, now: NowDep, planner: PlannerDep, kind: KindDep
) -> JobState:
    """Start the replan of the last dry run, as `scrapy replan` does."""
    return JobState.of(planner.apply(kind.apply, application.preview, user.name, now))


@api.post("/simulate", name="budget.api_simulate", status_code=202)
async def start_simulation(
    choice: SimulationChoice, user: EditorDep, now: NowDep, planner: PlannerDep
) -> JobState:
    """Start `scrapy simulate pages --history`; its result is that of the command."""
    return JobState.of(planner.start(SIMULATE, user.name, now, **choice.model_dump()))


@api.post("/jobs/{job_id}/cancel", name="budget.api_cancel")
async def cancel_job(job_id: str, _: EditorDep, planner: PlannerDep) -> Jobs:
    """Cancel a running job, except one that applies a plan."""
    await planner.cancel(job_id)
    return await jobs(_, planner)
