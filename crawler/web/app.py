"""The web app: pages for people, and the same data as JSON, built on FastAPI.

`create_app` connects the layers of `middleware`, the dependency `auth.guard`, and the areas in
`routes`. `server` runs the app. The reference of the JSON API at /api/docs is rendered here, from
the OpenAPI description.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from types import GenericAlias
from typing import TYPE_CHECKING, Any, get_args

from fastapi import APIRouter, Depends, FastAPI, Request
from fastapi.security import HTTPBearer
from pydantic import BaseModel, ConfigDict, TypeAdapter
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute
from starlette.staticfiles import StaticFiles
from starlette.types import Scope
from typing_extensions import get_type_hints, is_typeddict

import crawler
from crawler.config import Config
from crawler.errors import StorageError
from crawler.reports.inbox import Windows
from crawler.reports.site_history import ChangeCounts, VisitCounts
from crawler.storage import users
from crawler.web import metrics
from crawler.web.auth import guard, is_signed_route, public
from crawler.web.backups import Backups
from crawler.web.dependencies import WebDatabase
from crawler.web.middleware import (
    UNLIMITED,
    Audit,
    BodyLimit,
    Errors,
    ProxyAndHost,
    SecurityHeaders,
)
from crawler.web.options import CALLBACK, SubscriptionOptions, WebOptions
from crawler.web.pages import STATIC, add_error_handlers, error_page, page, path_to
from crawler.web.passwords import FailureLimit, Hashing
from crawler.web.routes import AREAS, sites
from crawler.web.routes.board import Streams
from crawler.web.routes.site_actions import Removals
from crawler.web.service import AppService
from crawler.web.site_pages import Fetch, SitePages
from crawler.web.site_views import Figures
from crawler.web.subprocesses import Crawls, DuplicateJobs, Planner, Subprocesses

if TYPE_CHECKING:
    from crawler.web.websub.service import PushOfApp


logger = logging.getLogger(__name__)
# Areas may set other limits for their own paths.
MAX_BODY_BYTES = 2_000_000
API_V1 = "/api/v1"
GUARDED = (Depends(guard),)
# The URL of a static file contains the digest of its content.
FOREVER = "public, max-age=31536000, immutable"
REFERENCE = "#/components/schemas/"


class Problem(BaseModel):
    """An error (RFC 9457)."""

    type: str = "about:blank"
    title: str
    status: int
    detail: str


def create_app(
    config: Config,
    options: WebOptions | None = None,
    fetch: Fetch | None = None,
    spider_names: frozenset[str] = frozenset(),
) -> FastAPI:
    """Return the app. It opens the database when it is first needed.

    fetch:        fetches pages of new sites; None: sites cannot be added
    spider_names: names that sites must not have, because spider classes have them
    """
    options = options or WebOptions()

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            stack.push_async_callback(close, app)
            if options.service:
                app.state.service.start()
            if push is not None:
                await stack.enter_async_context(push.requesting())
            yield

    app = FastAPI(
        title="Freshet",
        version=crawler.__version__,
        lifespan=lifespan,
        routes=[*_routes()],
        # For the routes of `_add_push`.
        dependencies=GUARDED,
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
        telemetry={"tracing": False, "metrics": False, "logs": False},
        # Otherwise, paths with a wrong trailing slash would be redirected before `guard` runs.
        redirect_slashes=False,
    )
    app.state.options = options
    app.state.database = WebDatabase(config)
    database_metrics = metrics.DatabaseMetrics(app.state.database)
    app.state.database_metrics, app.state.metrics = database_metrics, database_metrics.source
    app.state.planner, app.state.duplicate_jobs = Planner(config), DuplicateJobs(config)
    app.state.hashing, app.state.failures = Hashing(), FailureLimit()
    app.state.site_pages = SitePages(config, fetch)
    app.state.spider_names = spider_names
    app.state.figures, app.state.crawls = Figures(), Crawls(options.settings)
    app.state.removals = Removals(app.state.database)
    app.state.backups = Backups(config)
    app.state.service = AppService(options.settings, config.grace_seconds)
    app.state.inbox_windows = Windows()
    app.state.spreadsheets = asyncio.Semaphore(sites.MAX_SPREADSHEETS)
    app.state.visit_counts, app.state.change_counts = VisitCounts(), ChangeCounts()
    app.state.streams, app.state.path_templates = Streams(), {}
    app.state.navigation = [area for area in AREAS if area.title]
    push = _add_push(app, options.push) if options.push is not None else None
    add_error_handlers(app)
    # The last one added is the outermost.
    app.add_middleware(Audit, record=_record)
    uploads = {path: limit for area in AREAS for path, limit in area.uploads}
    uploads[f"{CALLBACK}/"] = UNLIMITED
    app.add_middleware(BodyLimit, max_bytes=MAX_BODY_BYTES, uploads=uploads, error_page=error_page)
    app.add_middleware(ProxyAndHost, options=options, error_page=error_page)
    app.add_middleware(Errors, error_page=error_page)
    app.add_middleware(SecurityHeaders)
    return app


async def close(app: FastAPI) -> None:
    """Stop background work and close the database."""
    await app.state.service.close()
    await app.state.crawls.close()
    await app.state.removals.close()
    await app.state.backups.close()
    await Subprocesses.of(app).close()
    await app.state.planner.close()
    await app.state.duplicate_jobs.jobs.close()
    await app.state.database_metrics.close()
    await app.state.figures.close()
    await app.state.database.close()


def _add_push(app: FastAPI, requested: SubscriptionOptions) -> PushOfApp:
    """Add the callback for WebSub hubs; return the object that requests subscriptions."""
    # Slow to import, and most apps receive no pushes.
    from crawler.web.websub.service import PushOfApp, router

    push = PushOfApp(app.state.database, requested)
    app.state.receiver = push.find_receiver
    app.include_router(router, prefix=CALLBACK, include_in_schema=False)
    return push


@cache
def _routes() -> Sequence[BaseRoute]:
    """Return the routes of all apps of the process; FastAPI takes 0.2 s to prepare them."""
    router = APIRouter(dependencies=GUARDED, redirect_slashes=False)
    router.add_api_route("/health", health, methods=["GET"], name="health", include_in_schema=False)
    api = APIRouter(
        prefix=API_V1,
        # For the reference only: `guard` reads the token.
        dependencies=[Depends(HTTPBearer(auto_error=False, description="scrapy web token add"))],
        responses={code: {"model": Problem} for code in (401, 403, 422, 503)},
    )
    for area in AREAS:
        router.include_router(area.router, include_in_schema=False)
        api.include_router(area.api)
    router.include_router(api)
    router.include_router(metrics.router, include_in_schema=False)
    router.add_api_route(
        "/api/openapi.json", openapi, methods=["GET"], name="api.schema", include_in_schema=False
    )
    router.add_api_route(
        "/api/docs", docs_page, methods=["GET"], name="api.docs", include_in_schema=False
    )
    router.mount("/static", _Files(directory=STATIC), name="static")
    return router.routes


@public
async def health(request: Request) -> JSONResponse:
    """Return whether the app and its database work, and nothing else; needs no sign-in."""
    database: WebDatabase = request.app.state.database
    problem = await database.problem()
    content = {"status": "ok" if problem is None else "database unavailable"}
    return JSONResponse(content, 200 if problem is None else 503)


async def openapi(request: Request) -> JSONResponse:
    """Return the OpenAPI description of the JSON API."""
    return JSONResponse(await asyncio.to_thread(_described, request.app))


def _described(app: FastAPI) -> dict[str, Any]:
    """Return the OpenAPI description, with the docstrings of the fields of all reports.

    FastAPI cannot pass pydantic the configuration that reads them.
    """
    if app.openapi_schema is None:
        schemas = app.openapi()["components"]["schemas"]
        reports: dict[str, Any] = {}
        for route in (route for area in AREAS for route in area.api.routes):
            _add_reports(getattr(route, "response_model", None), reports)
        reading = ConfigDict(use_attribute_docstrings=True)
        every: Any = GenericAlias(tuple, tuple(reports.values()))
        adapter: TypeAdapter[Any] = TypeAdapter(every, config=reading)
        for name, schema in adapter.json_schema()["$defs"].items():
            for field, described in schema.get("properties", {}).items():
                of_field = schemas.get(name, {}).get("properties", {}).get(field, {})
                if "description" in described and "$ref" not in of_field:
                    of_field["description"] = described["description"]
    return app.openapi()


def _add_reports(kind: Any, reports: dict[str, Any]) -> None:
    """Add the TypedDicts in a type, by name."""
    if is_typeddict(kind):
        if kind.__name__ in reports:
            return
        reports[kind.__name__] = kind
        parts = list(get_type_hints(kind, include_extras=True).values())
    elif isinstance(kind, type) and issubclass(kind, BaseModel):
        parts = [field.annotation for field in kind.model_fields.values()]
    else:
        parts = list(get_args(kind))
    for part in parts:
        _add_reports(part, reports)


@dataclass(frozen=True, slots=True)
class Operation:
    """A method of a path.

    parameters: name, place, type and description of each
    responses:  status, description and JSON schema of each
    """

    method: str
    path: str
    summary: str
    parameters: list[tuple[str, str, str, str]]
    body: str
    responses: list[tuple[str, str, str]]


async def docs_page(request: Request) -> Response:
    """Show all operations of the API with their parameters and schemas.

    Swagger UI would be 1.7 MB of scripts for a list of paths, parameters and schemas.
    """
    description = await asyncio.to_thread(_described, request.app)
    schemas = description.get("components", {}).get("schemas", {})
    operations = []
    for path, methods in sorted(description["paths"].items()):
        for method, operation in methods.items():
            parameters = [
                (
                    each["name"],
                    each["in"],
                    " or ".join(
                        str(kind.get("type", "any"))
                        for kind in each["schema"].get("anyOf", [each["schema"]])
                    ),
                    each.get("description", ""),
                )
                for each in operation.get("parameters", ())
            ]
            responses = [
                (status, response["description"], _schema(response.get("content", {}), schemas))
                for status, response in operation["responses"].items()
                if status < "4"
            ]
            text = operation.get("description") or operation.get("summary", "")
            body = _schema(operation.get("requestBody", {}).get("content", {}), schemas)
            operations.append(Operation(method.upper(), path, text, parameters, body, responses))
    schema_path = path_to(request, "api.schema")
    return page(request, "api/docs.html", operations=operations, schema_path=schema_path)


def _schema(content: dict[str, Any], schemas: dict[str, Any]) -> str:
    """Return the first schema of a body as JSON, with references resolved; empty without one."""
    for media in content.values():
        return json.dumps(_resolved(media.get("schema", {}), schemas, ()), indent=2)
    return ""


def _resolved(value: Any, schemas: dict[str, Any], path: tuple[str, ...]) -> Any:
    """Replace references with the schemas; recursive references are kept."""
    if isinstance(value, list):
        return [_resolved(each, schemas, path) for each in value]
    if not isinstance(value, dict):
        return value
    name = str(value.get("$ref", "")).removeprefix(REFERENCE)
    if name in schemas and name not in path:
        return _resolved(schemas[name], schemas, (*path, name))
    return {key: _resolved(each, schemas, path) for key, each in value.items()}


class _Files(StaticFiles):
    """The files of `static`; browsers cache those that are requested with a digest."""

    async def get_response(self, path: str, scope: Scope) -> Response:
        response = await super().get_response(path, scope)
        is_named = b"v=" in scope["query_string"] and response.status_code in (200, 304)
        response.headers["Cache-Control"] = FOREVER if is_named else "no-cache"
        return response


async def _record(scope: Scope, status: int) -> None:
    """Add a write to the audit list; a failure is only logged: the write has been made."""
    if is_signed_route(scope):
        return
    user = scope.get("state", {}).get("user")
    app: FastAPI = scope["app"]
    database: WebDatabase = app.state.database
    request = Request(scope)
    action = f"{request.method} {request.url.path}"
    now: datetime = database.config.clock.now()
    name = user.name if user else "?"
    try:
        async with database.opened() as store:
            await users.record(
                store.db, now, name, action,
                detail=scope.get("state", {}).get("audit", ""),
                address=request.client.host if request.client else "", status=status,
            )  # fmt: skip
    except StorageError:
        logger.exception("Audit entry not stored: %s by %s", action, name)
