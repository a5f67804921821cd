"""Error responses: a page for browsers, an alert for htmx, problem JSON (RFC 9457) for the API."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any
from urllib.parse import quote

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.types import Scope

from crawler.errors import Busy, FreshetError, StorageError
from crawler.web.auth import SignInRequired, is_for_programs
from crawler.web.pages import page, path_to, wants_fragment

RETRY_SECONDS = "5"
# Reasons that HTTPException has if nothing better is given.
USUAL = {status.phrase for status in HTTPStatus}
ADVICE = {
    404: "Check the address, or go on from one of the areas above",
    405: "This address does not support the method of the request",
    413: "The data that was sent is too large",
}


def problem_response(
    request: Request, status: int, detail: str, headers: dict[str, str] | None = None, **more: Any
) -> Response:
    """Return an error response in the form that the client reads.

    detail: what is wrong and what to do, one line
    more:   further members of the problem JSON
    """
    title = HTTPStatus(status).phrase
    if is_for_programs(request):
        content = {"type": "about:blank", "title": title, "status": status, "detail": detail}
        return JSONResponse(content | more, status, headers, media_type="application/problem+json")
    response: Response
    if wants_fragment(request):
        response = page(
            request, "errors/alert.html", status=status, title=title, detail=detail, code=status
        )
        response.headers["HX-Retarget"] = "#notices"
        response.headers["HX-Reswap"] = "innerHTML"
    else:
        response = page(
            request, "errors/page.html", status=status, title=title, detail=detail, code=status
        )
    response.headers.update(headers or {})
    return response


def error_page(scope: Scope, status: int, detail: str) -> Response:
    """Return the response for an error outside of the routes."""
    return problem_response(Request(scope), status, detail)


def add_handlers(app: FastAPI) -> None:
    """Register the responses to errors in routes."""
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(FreshetError, _freshet_error)
    app.add_exception_handler(SignInRequired, _sign_in)


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    detail = str(error.detail)
    if detail in USUAL:
        detail = ADVICE.get(error.status_code, detail)
    return problem_response(request, error.status_code, detail, dict(error.headers or {}))


async def _invalid(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    problems = [
        {"field": ".".join(str(part) for part in each["loc"][1:]), "problem": each["msg"]}
        for each in error.errors()
    ]
    first = problems[0]
    detail = f"{first['field'] or 'request'}: {first['problem']}"
    return problem_response(request, 422, detail, errors=problems)


async def _freshet_error(request: Request, error: Exception) -> Response:
    if isinstance(error, StorageError):
        return problem_response(request, 503, str(error), {"Retry-After": RETRY_SECONDS})
    return problem_response(request, 409 if isinstance(error, Busy) else 422, str(error))


async def _sign_in(request: Request, _: Exception) -> Response:
    """Return the way to the sign-in page, and back to where the user was for pages."""
    if is_for_programs(request):
        headers = {"WWW-Authenticate": 'Bearer realm="Freshet"'}
        return problem_response(
            request, 401, "Sign in, or send Authorization: Bearer TOKEN", headers
        )
    path = path_to(request, "account.sign_in")
    if request.headers.get("hx-request") == "true":
        return Response(status_code=401, headers={"HX-Redirect": path})
    if request.method == "GET":
        here = request.url.path + (f"?{request.url.query}" if request.url.query else "")
        path += f"?next={quote(here, safe='/')}"
    return RedirectResponse(path, 303)
