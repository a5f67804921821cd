"""The sandboxes of the app, which limit how many subprocesses requests can start at a time."""

from __future__ import annotations

from fastapi import FastAPI

from crawler.reports import explanation, version_diff
from crawler.utils.sandbox import Sandbox


def comparing_sandbox(app: FastAPI) -> Sandbox:
    """Return the sandbox of the app in which texts are compared."""
    return _sandbox(app, "comparing", version_diff.MAX_SECONDS, version_diff.MAX_MB)


def explaining_sandbox(app: FastAPI) -> Sandbox:
    """Return the sandbox of the app in which the planner runs."""
    return _sandbox(app, "explaining", explanation.MAX_SECONDS, explanation.MAX_MB)


def _sandbox(app: FastAPI, name: str, seconds: float, megabytes: float) -> Sandbox:
    sandboxes: dict[str, Sandbox] = app.state.__dict__.setdefault("sandboxes", {})
    return sandboxes.setdefault(name, Sandbox(seconds, megabytes))
