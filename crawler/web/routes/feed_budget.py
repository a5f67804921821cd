"""The budget of feeds: expected missed posts by number of fetches a day, and plans."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from fastapi import APIRouter, Request
from pydantic import BaseModel, Field
from starlette.responses import Response

from crawler.errors import ConfigError
from crawler.planning.budget_curve import (
    FeedBudgetCurve,
    FeedBudgetForecast,
    feed_points,
    forecast_of_feeds,
    usual_budget,
)
from crawler.reports.jobs import FEED_APPLY, FEED_CURVE, FEED_PREVIEW
from crawler.utils.text import count, rounded_up
from crawler.web.auth import EditorDep, UserDep
from crawler.web.dependencies import NowDep, StoreDep
from crawler.web.forms import Form
from crawler.web.pages import page
from crawler.web.routes.budget import (
    Application,
    ApplicationForm,
    Area,
    Budget,
    BudgetText,
    JobState,
    PlannerDep,
    budget_in,
    forecast_in,
    not_ready,
    required_budget,
    started,
    status_of,
)
from crawler.web.subprocesses import Planner

router = APIRouter(prefix="/budget/feeds")
api = APIRouter(prefix="/budget/feeds", tags=["budget"])


class FeedChoice(BaseModel):
    """A budget of feeds; None is the current one."""

    budget: Budget = Field(None, description="fetches a day, such as 265 or 265/day")


class FeedPreviewForm(BaseModel):
    """The form of a dry run of feeds."""

    budget: Annotated[float, required_budget("fetches a day, such as 265")] = Field(
        0.0, validate_default=True
    )


@router.get("", name="feed_budget.index")
async def index(
    request: Request, user: UserDep, _: StoreDep, now: NowDep, budget: str = ""
) -> Response:
    """Show the curve of feeds, and the expected results of a budget."""
    return _page(request, user.name, now, Form.of({"budget": budget}))


@router.post("/again", name="feed_budget.again")
async def compute_again(request: Request, _: EditorDep, planner: PlannerDep) -> Response:
    """Compute the curve again from the current history."""
    form = await Form.read(request)
    planner.forget_curves()
    return FEEDS.back(request, form)


@router.post("/preview", name="feed_budget.preview")
async def preview(request: Request, user: EditorDep, now: NowDep, planner: PlannerDep) -> Response:
    """Start a dry run."""

    def start(order: FeedPreviewForm) -> str:
        planner.start(FEED_PREVIEW, user.name, now, budget=order.budget)
        return f"dry run of feeds: {count(order.budget, 'fetch')} a day"

    return await FEEDS.start_job(request, user, now, FeedPreviewForm, start)


@router.post("/apply", name="feed_budget.apply")
async def apply(request: Request, user: EditorDep, now: NowDep, planner: PlannerDep) -> Response:
    """Start the replan of the last dry run."""

    def start(order: ApplicationForm) -> str:
        job = planner.apply(FEED_APPLY, order.preview, user.name, now)
        return f"replan of feeds: {count(job.request.budget or 0, 'fetch')} a day"

    return await FEEDS.start_job(request, user, now, ApplicationForm, start)


def _page(request: Request, by: str, now: datetime, form: Form, status: int = 200) -> Response:
    """Show the page with the choice of a form, or with its problems."""
    planner: Planner = request.app.state.planner
    choice = form.parse(FeedChoice)
    curve, result = planner.feed_curve(), None
    if curve is None:
        planner.want_feed_curve(by, now)
    else:
        result = forecast_in(form, choice.budget if choice else None, curve, forecast_of_feeds)
    return page(
        request, "budget/feeds.html", fragment="figures", status=status_of(form, status), form=form,
        curve=curve, least=rounded_up(curve["requests_per_day"][0]) if curve else "",
        forecast=result, points=feed_points(curve) if curve else [], job=planner.job,
        is_empty=planner.has_no_targets(FEED_CURVE), failed=planner.failed,
        preview=planner.last(FEED_PREVIEW), applied=planner.last(FEED_APPLY), area="budget",
    )  # fmt: skip


FEEDS = Area("feed_budget.index", _page)


@api.get("", name="feed_budget.api")
async def curve(user: UserDep, now: NowDep, planner: PlannerDep) -> FeedBudgetCurve:
    """Return the expected results of feeds for a range of budgets.

    While the curve is being computed, the status is 503. Try again after the time in Retry-After.
    """
    ready_curve = planner.feed_curve()
    if ready_curve is None:
        planner.want_feed_curve(user.name, now)
        raise not_ready(planner)
    return ready_curve


@api.get("/forecast", name="feed_budget.api_forecast")
async def forecast_of(
    user: UserDep, now: NowDep, planner: PlannerDep, budget: BudgetText
) -> FeedBudgetForecast:
    """Return the expected results of a budget, by feed, next to the current schedules."""
    chosen = budget_in(budget)
    ready_curve = await curve(user, now, planner)
    return forecast_of_feeds(ready_curve, chosen or usual_budget(ready_curve))


@api.post("/preview", name="feed_budget.api_preview", status_code=202)
async def start_preview(
    choice: FeedChoice, user: EditorDep, now: NowDep, planner: PlannerDep
) -> JobState:
    """Start a dry run of a replan of feeds; its result is FeedBudgetPreview."""
    if choice.budget is None:
        raise ConfigError("budget: missing. Example: 265")
    return started(planner.start(FEED_PREVIEW, user.name, now, budget=choice.budget))


@api.post("/apply", name="feed_budget.api_apply", status_code=202)
async def start_apply(
    application: Application, user: EditorDep, now: NowDep, planner: PlannerDep
) -> JobState:
    """Start the replan of the last dry run, as `scrapy replan --kind feeds` does."""
    return started(planner.apply(FEED_APPLY, application.preview, user.name, now))
