"""Edits of site definitions: the keys that the web app edits; all others stay as they are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, field_validator
from pydantic import Field as Key

from crawler.config import VARIABLE
from crawler.errors import ConfigError
from crawler.extract.fields import FieldType

MAX_PATTERNS = 50
MAX_FIELDS = 60
PATTERN_KEYS = ("list_pages", "item_pages", "not_list_pages", "not_item_pages")
# Keys with a single input in a form, which may be empty.
SINGLE_KEYS = ("main_text", "delay_seconds", "concurrency", "robots", "user_agent")
USER_AGENT = "User-Agent"


class FieldEdit(BaseModel):
    """A field of a site definition."""

    model_config = ConfigDict(extra="forbid")

    name: str = Key(max_length=100, description="name of the field")
    selector: str = Key(max_length=2000, description="selector of the value")
    language: str = Key(
        default="css", pattern="^(css|xpath|jmespath)$", description="`css`, `xpath` or `jmespath`"
    )
    type: FieldType = Key(default=FieldType.TEXT, description="type of the value")


class CategoryEdit(BaseModel):
    """The category of a site's items."""

    model_config = ConfigDict(extra="forbid")

    by: Literal["text", "pattern", "css", "xpath"] = Key(
        description="`text`: the value is the category; `pattern`: regular expression for the URLs "
        "of list pages; `css`, `xpath`: selector of a text on list pages"
    )
    value: str = Key(min_length=1, max_length=2000, description="text, pattern or selector")

    @classmethod
    def of(cls, written: Any) -> CategoryEdit | None:
        """Return the category as written in a definition; None without one."""
        if not written:
            return None
        if isinstance(written, str):
            return cls(by="text", value=written)
        ((by, value),) = written.items()
        return cls(by=by, value=value)

    @property
    def written(self) -> str | dict[str, str]:
        """Return the category as it is written in a definition."""
        return self.value if self.by == "text" else {self.by: self.value}


class DefinitionEdit(BaseModel):
    """The keys of a site definition that the web app edits; all others stay as they are.

    `category`, `main_text`, `delay_seconds`, `concurrency`, `robots` and `user_agent` also stay as
    they are if they are not given.
    """

    model_config = ConfigDict(extra="forbid")

    name: str = Key(default="", max_length=64, description="name of the site")
    start_urls: list[str] = Key(
        default=[], max_length=MAX_PATTERNS, description="URLs to start from"
    )
    list_pages: list[str] = Key(
        default=[], max_length=MAX_PATTERNS, description="list page patterns"
    )
    item_pages: list[str] = Key(
        default=[], max_length=MAX_PATTERNS, description="item page patterns"
    )
    not_list_pages: list[str] = Key(
        default=[], max_length=MAX_PATTERNS, description="patterns excluded from `list_pages`"
    )
    not_item_pages: list[str] = Key(
        default=[], max_length=MAX_PATTERNS, description="patterns excluded from `item_pages`"
    )
    category: CategoryEdit | None = Key(
        default=None,
        description="category of items; null: group `category` of `list_pages`, if there is one",
    )
    timezone: str = Key(default="UTC", max_length=64, description="IANA time zone of the site")
    fields: list[FieldEdit] = Key(
        default=[], max_length=MAX_FIELDS, description="fields of an item"
    )
    main_text: bool | None = Key(
        default=None, description="extract title and main text; null: only without fields"
    )
    delay_seconds: float | None = Key(
        default=None, ge=0, le=24 * 3600,
        description="minimum delay between requests to one host, in seconds; null: the default",
    )  # fmt: skip
    concurrency: int | None = Key(
        default=None, ge=1, le=64,
        description="maximum concurrent requests to one host; null: the default",
    )  # fmt: skip
    robots: bool | None = Key(default=None, description="obey robots.txt; null: `true`")
    user_agent: str | None = Key(
        default=None, max_length=500, description="header `User-Agent`; null: the default"
    )

    @field_validator("user_agent")
    @classmethod
    def _check_user_agent(cls, value: str | None) -> str | None:
        if value is not None and not value.isprintable():
            raise ValueError("contains a line break or another control character")
        return value

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> DefinitionEdit:
        """Return an edit with the keys of a definition as written."""
        fields = []
        for name, value in (values.get("fields") or {}).items():
            table = {"css": value} if isinstance(value, str) else dict(value)
            kind = table.pop("type", FieldType.TEXT)
            ((language, selector),) = table.items()
            fields.append(
                FieldEdit(name=name, selector=selector, language=language, type=FieldType(kind))
            )
        lines = {key: as_list(values.get(key)) for key in ("start_urls", *PATTERN_KEYS)}
        headers = values.get("headers") or {}
        return cls(
            name=values.get("name", ""),
            category=CategoryEdit.of(values.get("category")),
            timezone=values.get("timezone", "UTC"),
            fields=fields,
            main_text=values.get("main_text"),
            delay_seconds=values.get("delay_seconds"),
            concurrency=values.get("concurrency"),
            robots=values.get("robots"),
            user_agent=headers.get(_user_agent_key(headers)),
            **lines,
        )

    @property
    def wants_main_text(self) -> bool:
        """Return whether title and main text of items are extracted."""
        return not self.fields if self.main_text is None else self.main_text

    def values(self, base: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Return the keys of the definition, with all other keys of `base`.

        Raises ConfigError if two fields have the same name, or for a new environment variable.
        """
        names = [field.name for field in self.fields]
        if duplicate := next((name for name in names if names.count(name) > 1), None):
            raise ConfigError(f"fields: two fields have the name {duplicate!r}")
        edited: dict[str, Any] = {"name": self.name, "start_urls": self.start_urls}
        for key in PATTERN_KEYS:
            patterns: list[str] = getattr(self, key)
            edited[key] = patterns[0] if len(patterns) == 1 else patterns
        edited["timezone"] = "" if self.timezone == "UTC" else self.timezone
        if "category" in self.model_fields_set:
            edited["category"] = self.category and self.category.written
        if "main_text" in self.model_fields_set:
            edited["main_text"] = self.main_text
        edited |= self.request_values(base)
        edited["fields"] = {
            field.name: field.selector
            if (field.language, field.type) == ("css", FieldType.TEXT)
            else {field.language: field.selector, "type": str(field.type)}
            for field in self.fields
        }
        kept = {key: value for key, value in (base or {}).items() if key not in edited}
        # Keys without a value are left out; 0 and false are values.
        values = {
            key: value
            for key, value in edited.items()
            if value is not None and value not in ("", [], {})
        } | kept
        is_same = base is not None and DefinitionEdit.of(values) == DefinitionEdit.of(base)
        return dict(base) if base is not None and is_same else values

    def request_values(self, base: Mapping[str, Any] | None) -> dict[str, Any]:
        """Return the given keys for requests, and all headers of `base`; unset ones are empty.

        Raises ConfigError if the edit adds a variable: a site could read secrets of this machine
        from the header.
        """
        headers = dict((base or {}).get("headers") or {})
        key = _user_agent_key(headers)
        before = headers.pop(key, None)
        agent = self.user_agent if "user_agent" in self.model_fields_set else before
        if agent and agent != before and VARIABLE.search(agent):
            raise ConfigError(
                "user_agent: variables such as ${NAME} cannot be added here. Edit the TOML file"
            )
        if agent:
            headers[key] = agent
        delay = self.delay_seconds
        values = {
            "delay_seconds": int(delay) if delay is not None and delay.is_integer() else delay,
            "concurrency": self.concurrency,
            "robots": self.robots,
        }
        given = {name: value for name, value in values.items() if name in self.model_fields_set}
        return {**given, "headers": headers}


def as_list(value: Any) -> list[str]:
    """Return the texts of a key that may have one text or a list."""
    if value is None:
        return []
    return [value] if isinstance(value, str) else [str(each) for each in value]


def _user_agent_key(headers: Mapping[str, Any]) -> str:
    """Return the name of the header as written; names of headers are case-insensitive."""
    return next((name for name in headers if name.lower() == USER_AGENT.lower()), USER_AGENT)
