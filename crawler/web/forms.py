"""HTML forms: values that were sent, and what is wrong with each of them.

A form that is rejected is shown again with all values, and each problem next to its field.
`require_password` and `new_password_hash` check fields with passwords.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Self, TypeVar

from pydantic import BaseModel, ValidationError
from starlette.requests import Request

from crawler.errors import ConfigError, cause_of
from crawler.storage.accounts import users
from crawler.storage.client import Store
from crawler.web import passwords
from crawler.web.auth import User

MAX_FIELDS = 1000
# Values of these fields are not sent back to the browser.
SECRET = "password"
Model = TypeVar("Model", bound=BaseModel)


@dataclass(slots=True)
class Form:
    """The values of a form, and its problems.

    values:   first value by field
    lists:    all values by field, for checkboxes and multiple choices
    problems: message by field; the empty field stands for the whole form
    """

    values: dict[str, str] = field(default_factory=dict)
    lists: dict[str, list[str]] = field(default_factory=dict)
    problems: dict[str, str] = field(default_factory=dict)

    @classmethod
    async def read(cls, request: Request) -> Self:
        """Read the fields that a browser sent; files are left out."""
        return cls.of_items((await request.form(max_fields=MAX_FIELDS)).multi_items())

    @classmethod
    def of_items(cls, items: Iterable[tuple[str, Any]]) -> Self:
        """Return a form with these names and values, such as those of a query."""
        form = cls()
        for name, value in items:
            if isinstance(value, str):
                form.values.setdefault(name, value)
                form.lists.setdefault(name, []).append(value)
        return form

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Self:
        """Return a form filled with the current values."""
        texts = {name: "" if value is None else str(value) for name, value in values.items()}
        return cls(texts, {name: [text] for name, text in texts.items()})

    def __getitem__(self, name: str) -> str:
        """Return the value of a field, empty without one; never a password."""
        return "" if SECRET in name else self.values.get(name, "")

    def secret(self, name: str) -> str:
        """Return the value of a field with a password."""
        return self.values.get(name, "")

    def reject(self, name: str, problem: object) -> None:
        """Record a problem of a field, or of the whole form if the name is empty."""
        self.problems.setdefault(name, str(problem))

    def reject_values(self, error: ValidationError) -> None:
        """Record the problems of a model that does not accept the values."""
        for each in error.errors(include_url=False):
            self.reject(str(each["loc"][0]) if each["loc"] else "", cause_of(each))

    @property
    def is_valid(self) -> bool:
        """Return whether no problem was recorded."""
        return not self.problems

    def parse(self, model: type[Model]) -> Model | None:
        """Return the values as a model; None, with the problems recorded, if they do not fit.

        Fields of the model that are lists get all values of the field.
        """
        given: dict[str, Any] = {}
        for name, info in model.model_fields.items():
            if name in self.values:
                is_list = "list" in str(info.annotation) or "tuple" in str(info.annotation)
                given[name] = self.lists[name] if is_list else self.values[name]
        try:
            return model.model_validate(given)
        except ValidationError as error:
            self.reject_values(error)
            return None


async def require_password(request: Request, user: User, store: Store, form: Form) -> None:
    """Reject the form unless its field `password` is the password of the signed-in user.

    So an unattended browser or a stolen session is not enough. Failures count as failed sign-ins.
    The local user has no password.
    """
    if user.is_local:
        return
    limit: passwords.FailureLimit = request.app.state.failures
    hashing: passwords.Hashing = request.app.state.hashing
    key = f"user {user.name}"
    if limit.begin(key) > 0:
        form.reject("password", "Too many attempts. Try again later")
        return
    stored = await users.find(store.db, user.name)
    if await hashing.matches(stored.password_hash if stored else None, form.secret("password")):
        limit.succeeded(key)
    else:
        form.reject("password", "This is not your current password")


async def new_password_hash(request: Request, form: Form) -> str | None:
    """Return the hash of the field `new_password`, or None if the form has problems.

    A password that is too short or too long is recorded as a problem.
    """
    hashing: passwords.Hashing = request.app.state.hashing
    try:
        new = passwords.check(form.secret("new_password"))
    except ConfigError as error:
        form.reject("new_password", error)
    return await hashing.hashed(new) if form.is_valid else None
