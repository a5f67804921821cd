"""The budget: expected results by number of requests a day, and plans for one number."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any, TypeVar
from urllib.parse import urlencode

from fastapi import APIRouter, Depends, HTTPException, Query, Request
from pydantic import BaseModel, BeforeValidator, Field, field_validator
from starlette.responses import Response

from crawler.errors import Busy, ConfigError
from crawler.planning.budget_curve import (
    BudgetCurve,
    BudgetForecast,
    FeedBudgetCurve,
    Objective,
    forecast,
    sample_points,
    usual_budget,
)
from crawler.reports.jobs import (
    APPLY,
    CURVE,
    FEED_APPLY,
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
from crawler.web.forms import Form
from crawler.web.pages import page, path_to, redirect, redirect_to
from crawler.web.subprocesses import Job, Planner

router = APIRouter()
api = APIRouter(prefix="/budget", tags=["budget"])
MAX_BUDGET_CHARACTERS = 40
MAX_BUDGET = 1e9
Order = TypeVar("Order", bound=BaseModel)
Curve = TypeVar("Curve", BudgetCurve, FeedBudgetCurve)
Forecast = TypeVar("Forecast")


def _planner(request: Request) -> Planner:
    planner: Planner = request.app.state.planner
    return planner


PlannerDep = Annotated[Planner, Depends(_planner)]
ObjectiveQuery = Annotated[Objective, Query(description="objective of the plan")]
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


def required_budget(example: str) -> BeforeValidator:
    """Return the validator of the budget of a form, which reports an absent one with an example."""

    def required(value: Any) -> float:
        if (budget := parsed_budget(value or None)) is None:
            raise ValueError(f"is missing. Enter {example}")
        return budget

    return BeforeValidator(required)


class Choice(BaseModel):
    """A budget and an objective; the budget None is the current one."""

    budget: Budget = Field(None, description="requests a day, such as 265 or 265/day")
    objective: Objective = Field("balanced", description="objective of the plan")


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

    budget: Annotated[float, required_budget("requests a day, such as 265")] = Field(
        0.0, validate_default=True
    )
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


class Jobs(BaseModel):
    """The latest job, and the last one of each kind that was done."""

    latest: JobState | None = Field(description="running or latest job")
    preview: JobState | None = Field(description="last dry run")
    apply: JobState | None = Field(description="last plan that was applied")
    simulate: JobState | None = Field(description="last simulation")
    feed_preview: JobState | None = Field(description="last dry run of feeds")
    feed_apply: JobState | None = Field(description="last plan of feeds that was applied")


@router.get("/budget", name="budget.index")
async def index(
    request: Request, user: UserDep, _: StoreDep, now: NowDep, budget: str = "",
    objective: str = "balanced",
) -> Response:  # fmt: skip
    """Show the curve, and the expected results of a budget."""
    form = Form.of({"budget": budget, "objective": objective})
    return _page(request, user.name, now, form)


@router.get("/budget/jobs", name="budget.jobs")
async def jobs_panel(request: Request, _: UserDep, now: NowDep, planner: PlannerDep) -> Response:
    """Show the running job and the last results, for a page that waits for a job."""
    response = page(request, "budget/jobs.html", **_jobs_context(planner), now=now)
    if planner.job is None or not planner.job.is_running:
        # The job has ended: load the page with its result.
        response.headers["HX-Refresh"] = "true"
    return response


@router.post("/budget/again", name="budget.again")
async def compute_again(request: Request, _: EditorDep, planner: PlannerDep) -> Response:
    """Compute the curve again from the current history."""
    form = await Form.read(request)
    planner.forget_curves()
    return PAGES.back(request, form)


@dataclass(frozen=True, slots=True)
class Area:
    """The budget of pages or of feeds.

    route: name of the route of its page
    show:  returns the page, given the request, the name of the user, the time, a form and a status
    """

    route: str
    show: Callable[[Request, str, datetime, Form, int], Response]

    async def start_job(
        self,
        request: Request,
        user: User,
        now: datetime,
        wanted: type[Order],
        start: Callable[[Order], str],
    ) -> Response:
        """Start the job that a form requests, and return to its page.

        Shows the form with its problems and status 422 if it is not valid, and 409 if the job
        cannot be started.

        wanted: model of the fields of the form
        start:  starts the job and returns its line for the audit list; raises Busy and ConfigError
        """
        form = await Form.read(request)
        order = form.parse(wanted)
        if order is None:
            return self.show(request, user.name, now, form, 422)
        try:
            request.state.audit = start(order)
        except (Busy, ConfigError) as error:
            form.reject("", error)
            return self.show(request, user.name, now, form, 409)
        return self.back(request, form)

    def back(self, request: Request, form: Form) -> Response:
        """Return to the page with the same budget."""
        kept = {name: form[name] for name in ("budget", "objective") if form[name]}
        query = f"?{urlencode(kept)}" if kept else ""
        return redirect_to(request, path_to(request, self.route) + query)


@router.post("/budget/preview", name="budget.preview")
async def preview(request: Request, user: EditorDep, now: NowDep, planner: PlannerDep) -> Response:
    """Start a dry run."""

    def start(order: PreviewForm) -> str:
        planner.start(PREVIEW, user.name, now, **order.model_dump())
        return f"dry run: {count(order.budget, 'request')} a day, {order.objective}"

    return await PAGES.start_job(request, user, now, PreviewForm, start)


@router.post("/budget/apply", name="budget.apply")
async def apply(request: Request, user: EditorDep, now: NowDep, planner: PlannerDep) -> Response:
    """Start the replan of the last dry run."""

    def start(order: ApplicationForm) -> str:
        job = planner.apply(APPLY, order.preview, user.name, now)
        return f"replan: {count(job.request.budget or 0, 'request')} a day, {job.request.objective}"

    return await PAGES.start_job(request, user, now, ApplicationForm, start)


@router.post("/budget/simulate", name="budget.simulate")
async def simulate(request: Request, user: EditorDep, now: NowDep, planner: PlannerDep) -> Response:
    """Start a simulation of policies on the recorded history."""

    def start(order: SimulationForm) -> str:
        planner.start(SIMULATE, user.name, now, **order.model_dump())
        return f"simulation: {', '.join(order.policies)}"

    return await PAGES.start_job(request, user, now, SimulationForm, start)


@router.post("/budget/cancel", name="budget.cancel")
async def cancel(request: Request, _: EditorDep, planner: PlannerDep) -> Response:
    """Cancel the running job."""
    form = await Form.read(request)
    await planner.cancel(form["job"])
    if form["area"] == "feeds":
        return redirect(request, "feed_budget.index")
    return PAGES.back(request, form)


def _page(request: Request, by: str, now: datetime, form: Form, status: int = 200) -> Response:
    """Show the page with the choice of a form, or with its problems."""
    planner, choice = _planner(request), form.parse(Choice)
    objective: Objective = choice.objective if choice else "balanced"
    curve, result = planner.curve(objective), None
    if curve is None:
        planner.want_curve(objective, by, now)
    else:
        result = forecast_in(form, choice.budget if choice else None, curve, forecast)
    return page(
        request, "budget/index.html", fragment="figures", status=status_of(form, status), form=form,
        curve=curve, least=rounded_up(curve["requests_per_day"][0]) if curve else "",
        forecast=result, objective=objective, policies=POLICY_NAMES,
        chosen=form.lists.get("policies", ["optimal", "uniform"]),
        points=sample_points(curve) if curve else [], is_empty=planner.has_no_targets(CURVE),
        **_jobs_context(planner),
    )  # fmt: skip


PAGES = Area("budget.index", _page)


def forecast_in(
    form: Form, budget: float | None, curve: Curve, forecast_of: Callable[[Curve, float], Forecast]
) -> Forecast:
    """Return the forecast for a budget; enter the current budget into a form without one.

    A budget that is too small is rejected, and the forecast is for the minimum budget instead.

    budget: budget in the form; None: the current one
    """
    chosen = budget or usual_budget(curve)
    try:
        result = forecast_of(curve, chosen)
    except ConfigError as error:
        form.reject("budget", error)
        result = forecast_of(curve, curve["requests_per_day"][0])
    if not form["budget"]:
        form.values["budget"] = plain(chosen)
    return result


def status_of(form: Form, status: int) -> int:
    """Return the status of a page: 422 instead of 200 if its form has problems."""
    return 422 if status == 200 and not form.is_valid else status


def _jobs_context(planner: Planner) -> dict[str, Any]:
    return {
        "job": planner.job,
        "failed": planner.failed,
        "preview": planner.last(PREVIEW),
        "applied": planner.last(APPLY),
        "simulation": planner.last(SIMULATE),
    }


@api.get("", name="budget.api")
async def curve(
    user: UserDep, now: NowDep, planner: PlannerDep, objective: ObjectiveQuery = "balanced"
) -> BudgetCurve:
    """Return the expected results for a range of budgets.

    While the curve is being computed, the status is 503. Try again after the time in Retry-After.
    """
    page_curve = planner.curve(objective)
    if page_curve is None:
        planner.want_curve(objective, user.name, now)
        raise not_ready(planner)
    return page_curve


@api.get("/forecast", name="budget.api_forecast")
async def forecast_of(
    user: UserDep, now: NowDep, planner: PlannerDep, budget: BudgetText,
    objective: ObjectiveQuery = "balanced",
) -> BudgetForecast:  # fmt: skip
    """Return the expected results of a budget, by site, next to the current schedules."""
    chosen = budget_in(budget)
    page_curve = await curve(user, now, planner, objective)
    return forecast(page_curve, chosen or usual_budget(page_curve))


def budget_in(text: str) -> float | None:
    """Return the budget in a query, None without text; raises HTTPException (422)."""
    try:
        return parsed_budget(text)
    except ValueError:
        raise HTTPException(422, f"budget: invalid request rate: {text!r}. Example: 265") from None


def not_ready(planner: Planner) -> HTTPException:
    """Return the error for a curve that is still being computed."""
    job = planner.job
    detail = f"The curve is not ready: {job.error or job.progress}" if job else "Not ready"
    return HTTPException(503, detail, {"Retry-After": "2"})


@api.get("/jobs", name="budget.api_jobs")
async def jobs(_: UserDep, planner: PlannerDep) -> Jobs:
    """Return the latest job, and the last results."""
    return Jobs(
        latest=_state(planner.job),
        preview=_state(planner.last(PREVIEW)),
        apply=_state(planner.last(APPLY)),
        simulate=_state(planner.last(SIMULATE)),
        feed_preview=_state(planner.last(FEED_PREVIEW)),
        feed_apply=_state(planner.last(FEED_APPLY)),
    )


@api.post("/preview", name="budget.api_preview", status_code=202)
async def start_preview(
    choice: Choice, user: EditorDep, now: NowDep, planner: PlannerDep
) -> JobState:
    """Start a dry run of a replan; its result is BudgetPreview."""
    if choice.budget is None:
        raise ConfigError("budget: missing. Example: 265")
    return started(planner.start(PREVIEW, user.name, now, **choice.model_dump()))


@api.post("/apply", name="budget.api_apply", status_code=202)
async def start_apply(
    application: Application, user: EditorDep, now: NowDep, planner: PlannerDep
) -> JobState:
    """Start the replan of the last dry run, as `scrapy replan` does."""
    return started(planner.apply(APPLY, application.preview, user.name, now))


@api.post("/simulate", name="budget.api_simulate", status_code=202)
async def start_simulation(
    choice: SimulationChoice, user: EditorDep, now: NowDep, planner: PlannerDep
) -> JobState:
    """Start `scrapy simulate pages --history`; its result is that of the command."""
    return started(planner.start(SIMULATE, user.name, now, **choice.model_dump()))


@api.post("/jobs/{job_id}/cancel", name="budget.api_cancel")
async def cancel_job(job_id: str, _: EditorDep, planner: PlannerDep) -> Jobs:
    """Cancel a running job, except one that applies a plan."""
    await planner.cancel(job_id)
    return await jobs(_, planner)


def started(job: Job) -> JobState:
    """Return the state of a job that has just been started."""
    state = _state(job)
    assert state is not None
    return state


def _state(job: Job | None) -> JobState | None:
    return None if job is None else JobState.model_validate(job, from_attributes=True)
