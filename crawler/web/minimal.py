"""Apps for programs: one router of the web app, without pages, users and API.

A process that is not `scrapy web` serves its metrics or the WebSub callback this way, with the
limits and headers of the web app. Errors are lines of plain text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fastapi import APIRouter, FastAPI
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.types import Scope

from crawler.web.middleware import BodyLimit, Errors, ProxyAndHost, SecurityHeaders
from crawler.web.options import WebOptions

# For routes that do not set their own limit: none of them reads a body.
MAX_BODY_BYTES = 100_000


def create_minimal_app(
    options: WebOptions,
    routers: Sequence[APIRouter],
    *,
    any_host: bool = False,
    uploads: Mapping[str, int] | None = None,
) -> FastAPI:
    """Return an app of some routers, whose routes need no user.

    any_host: accept all Host headers, because the routes check signatures
    uploads:  see `crawler.web.middleware.BodyLimit`
    """
    app = FastAPI(
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        telemetry={"tracing": False, "metrics": False, "logs": False},
    )
    app.state.options = options
    app.add_exception_handler(HTTPException, _http_error)
    for router in routers:
        app.include_router(router)
    # The last one added is the outermost.
    app.add_middleware(BodyLimit, max_bytes=MAX_BODY_BYTES, uploads=uploads or {}, error_page=_line)
    if not any_host:
        app.add_middleware(ProxyAndHost, options=options, error_page=_line)
    app.add_middleware(Errors, error_page=_line)
    app.add_middleware(SecurityHeaders)
    return app


def _line(_: Scope, status: int, detail: str) -> Response:
    return PlainTextResponse(f"{detail}\n", status)


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return PlainTextResponse(f"{error.detail}\n", error.status_code, error.headers)
