"""Rules of notifications: which events of which pages are sent to which channels.

Rules are tables of `notify.toml` or of a site definition (`notify`), or are written in the web app.
A crawl needs only the events that they name (`Wanted`); `Rule.is_about` and `Rule.holds` decide
later, from the stored contents of the page.

A condition is `FIELD TEST`, for example `price < 10`, `price falls by 5 %`, `stock becomes 0`,
`title contains "sale"`. Its parser reads words from left to right, so it takes linear time.
"""

from __future__ import annotations

import math
import operator
import re
import tomllib
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    TypeAdapter,
    ValidationError,
    field_validator,
)
from pydantic import Field as Key

from crawler.errors import ConfigError, first_problem
from crawler.extract.keys import Names, Patterns, as_tuple
from crawler.extract.prices import read_number
from crawler.items import Event, Wanted
from crawler.utils.regex import compiled
from crawler.utils.text import differs

# Stands for all values of an item together.
ALL_FIELDS = "content"
MAX_RULES = 200
MAX_CONDITION_CHARACTERS = 300
# Sites, categories or URL patterns of a rule, and the length of each.
MAX_NAMES, MAX_NAME_CHARACTERS = 100, 1000
# Characters of a value that a condition searches.
MAX_SEARCHED = 1_000_000
DEFAULT_FAILURES = 3
NAME = r"^[A-Za-z0-9][\w.-]{0,63}$"
Content = Mapping[str, Any]


PAGE_EVENTS = (Event.NEW, Event.CHANGED, Event.GONE, Event.BACK)

_COMPARED: dict[str, Callable[[Any, Any], bool]] = {
    "<=": operator.le, ">=": operator.ge, "!=": operator.ne, "==": operator.eq,
    "<": operator.lt, ">": operator.gt, "=": operator.eq,
}  # fmt: skip
# Tests in words, the longest first, and whether a value follows.
_WORDS = {
    "does not contain": True, "starts containing": True, "stops containing": True,
    "falls by": True, "rises by": True, "is missing": False, "is present": False,
    "contains": True, "becomes": True, "changes": False, "falls": False, "rises": False,
}  # fmt: skip
EXAMPLES = "'price < 10', 'price falls by 5 %', 'stock becomes 0', 'title contains sale'"


@dataclass(frozen=True, slots=True)
class Condition:
    """A parsed condition.

    test:   a comparison such as `<`, or words such as `falls by`
    text:   value to compare with, in lower case
    number: `text` as a number; None if it is not a number
    is_percent: `number` is a share of the value before, in percent
    """

    field: str
    test: str
    text: str = ""
    number: float | None = None
    is_percent: bool = False

    @classmethod
    def parse(cls, written: str) -> Self:
        """Parse a condition; raises ValueError with examples."""
        text = " ".join(written.split())
        invalid = ValueError(f"invalid condition: {written[:80]!r}. Examples: {EXAMPLES}")
        if not text or len(written) > MAX_CONDITION_CHARACTERS:
            raise invalid
        end = next((i for i, char in enumerate(text) if not (char.isalnum() or char in "_.-")), 0)
        field, rest = text[:end], text[end:].strip()
        test = next((sign for sign in _COMPARED if rest.startswith(sign)), None)
        if test is None:
            lowered = rest.lower()
            test = next((w for w in _WORDS if lowered == w or lowered.startswith(f"{w} ")), None)
        if not field or test is None:
            raise invalid
        value = rest[len(test) :].strip()
        if bool(value) != _WORDS.get(test, True) or (test in _COMPARED and value[0] in "<>="):
            raise invalid
        if len(value) > 1 and value[0] == value[-1] and value[0] in "\"'":
            return cls(field, test, value[1:-1].lower())
        is_percent = test.endswith(" by") and value.endswith("%")
        number = _as_number(value.rstrip("%").strip() if is_percent else value)
        if test.endswith(" by") and (number is None or number < 0):
            raise invalid
        if test in ("<", "<=", ">", ">=") and number is None:
            raise invalid
        return cls(field, test, value.lower(), number, is_percent)

    def names_one_of(self, names: Collection[str]) -> bool:
        """Return whether the field of the condition is one of a page's fields, or a part of one."""
        return self.field in names or self.field.partition(".")[0] in {*names, ALL_FIELDS}

    def holds(self, before: Content | None, after: Content | None) -> bool:
        """Return whether the condition holds. before, after: contents; None: there is none."""
        old, new = _value(before, self.field), _value(after, self.field)
        if self.test in _COMPARED:
            return self._compares(new)
        if self.test == "becomes":
            equal = Condition(self.field, "=", self.text, self.number)
            return equal._compares(new) and not equal._compares(old)
        if self.test == "changes":
            return before is not None and after is not None and differs(old, new)
        if self.test.startswith(("falls", "rises")):
            return self._moves(old, new)
        return self._contains(before, after, old, new)

    def _contains(self, before: Content | None, after: Content | None, old: Any, new: Any) -> bool:
        """Return whether a value is present, or contains the text; old, new: field values."""
        if self.test.startswith("is "):
            is_missing = new in (None, "", [])
            return after is not None and is_missing == (self.test == "is missing")
        had, has = self.text in _text(old), self.text in _text(new)
        return {
            "contains": after is not None and has,
            "does not contain": after is not None and not has,
            "starts containing": after is not None and has and not (before is not None and had),
            "stops containing": before is not None and after is not None and had and not has,
        }[self.test]

    def _compares(self, value: Any) -> bool:
        compare = _COMPARED[self.test]
        if self.number is not None:
            found = _number(value)
            # A value that is not a number differs from every number.
            return compare(found, self.number) if found is not None else self.test == "!="
        return compare(_text(value).strip(), self.text)

    def _moves(self, old: Any, new: Any) -> bool:
        """Return whether a number falls or rises, by at least the given amount.

        Prices in different currencies do neither.
        """
        first, last = _number(old), _number(new)
        if first is None or last is None or len({*_currency(old), *_currency(new)}) > 1:
            return False
        rise = last - first if self.test.startswith("rises") else first - last
        least = self.number or 0.0
        if self.is_percent:
            least *= abs(first) / 100
        # Prices are binary fractions: 5 % of 19.9 must not fail by the last digit.
        return rise > 0 and (rise >= least or math.isclose(rise, least))


def _value(content: Content | None, field: str) -> Any:
    if content is None:
        return None
    if field in content:
        return content[field]
    if field == ALL_FIELDS:
        return list(content.values())
    value: Any = content
    for name in field.split("."):
        value = value.get(name) if isinstance(value, Mapping) else None
    return value


def _as_number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def _number(value: Any) -> float | None:
    """Return the number in a value: a number, the amount of a price, the first one in a text."""
    if isinstance(value, Mapping):
        value = value.get("amount")
    if isinstance(value, bool) or value is None:
        return None
    if isinstance(value, int | float):
        return float(value)
    read = read_number(value[:200]) if isinstance(value, str) else None
    return None if read is None else float(read)


def _currency(value: Any) -> list[str]:
    """Return the currency of a price; empty if it has none, and for other values."""
    currency = value.get("currency") if isinstance(value, Mapping) else None
    return [currency] if isinstance(currency, str) else []


def _text(value: Any) -> str:
    """Return the text of a value in lower case; lists and tables by line."""
    parts: list[str] = []
    room = MAX_SEARCHED
    waiting = [value]
    while waiting and room > 0:
        each = waiting.pop()
        if isinstance(each, Mapping):
            waiting += reversed(list(each.values()))
        elif isinstance(each, list | tuple):
            waiting += reversed(each)
        elif each is not None:
            parts.append(str(each)[:room].lower())
            room -= len(parts[-1])
    return "\n".join(parts)


def _checked_condition(value: str) -> str:
    Condition.parse(value)
    return value


Conditions = Annotated[
    tuple[Annotated[str, AfterValidator(_checked_condition)], ...],
    BeforeValidator(as_tuple),
]
Events = Annotated[tuple[Event, ...], BeforeValidator(as_tuple)]


class Rule(BaseModel):
    """A rule: events, the pages that it is about, and the channels that receive a message."""

    model_config = ConfigDict(extra="forbid", frozen=True, regex_engine="python-re")

    name: str = Key(pattern=NAME, description="name of the rule, which is part of message ids")
    events: Events = Key(
        PAGE_EVENTS,
        min_length=1,
        description="events: `new`, `changed`, `gone`, `back`, `near-duplicate`, `failing`, "
        "`silent`, `broken`; unset: `new`, `changed`, `gone`, `back`",
    )
    sites: Names = Key(
        (),
        max_length=MAX_NAMES,
        description="names of sites; unset: all, in a site definition its own",
    )
    categories: Names = Key(
        (), max_length=MAX_NAMES, description="categories, one of which the page has; unset: all"
    )
    urls: Patterns = Key(
        (), max_length=MAX_NAMES, description="URL patterns, one of which matches; unset: all"
    )
    when: Conditions = Key(
        (),
        max_length=20,
        description="conditions on fields, all of which hold; unset: always",
    )
    channels: Names = Key(min_length=1, max_length=20, description="names of channels")
    failures: int = Key(
        DEFAULT_FAILURES,
        ge=1,
        le=1000,
        description="number of consecutive errors at which a page is `failing`",
    )

    @field_validator("sites", "categories", "urls", "channels")
    @classmethod
    def _check_length(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if any(len(text) > MAX_NAME_CHARACTERS for text in value):
            raise ValueError(f"a value is longer than {MAX_NAME_CHARACTERS:,} characters")
        return value

    def is_about(self, event: Event, site: str, url: str, categories: Iterable[str]) -> bool:
        """Return whether the rule applies to an event of a page, regardless of its content."""
        if event not in self.events or (self.sites and site not in self.sites):
            return False
        if self.categories and not set(self.categories) & set(categories):
            return False
        return not self.urls or any(compiled(pattern).search(url) for pattern in self.urls)

    def holds(self, before: Content | None, after: Content | None) -> bool:
        """Return whether all conditions hold for a page or post. before, after: its contents."""
        return all(Condition.parse(text).holds(before, after) for text in self.when)


Rules = tuple[Rule, ...]
_RULES: TypeAdapter[Rules] = TypeAdapter(Annotated[Rules, Key(max_length=MAX_RULES)])


def read_keys(path: Path) -> dict[str, Any]:
    """Return the keys of `notify.toml`, none if there is no file; raises ConfigError."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or error}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: not valid TOML: {error}") from None


def rules_in(written: object, source: str) -> Rules:
    """Validate rules; raises ConfigError with source, rule and key. source: file or site."""
    try:
        rules = _RULES.validate_python(written or ())
    except ValidationError as error:
        key, cause = first_problem(error)
        position, _, name = key.partition(".")
        rule = "rules"
        if isinstance(written, list) and re.fullmatch(r"\d{1,4}", position):
            entry = written[int(position)]
            title = entry.get("name") if isinstance(entry, Mapping) else None
            rule = f"rule {title!r}" if title else f"rule {int(position) + 1}"
        raise ConfigError(f"{source}: {rule}: {name}: {cause}") from None
    try:
        return checked_rules(rules)
    except ValueError as error:
        raise ConfigError(f"{source}: {error}") from None


def checked_rules(rules: Rules) -> Rules:
    """Return the rules; raises ValueError for repeated names and for too many rules."""
    names = [rule.name for rule in rules]
    if repeated := {name for name in names if names.count(name) > 1}:
        raise ValueError(f"two rules are named {min(repeated)!r}. Rename one of them")
    if len(rules) > MAX_RULES:
        raise ValueError(f"more than {MAX_RULES} rules")
    return rules


def wanted_by(rules: Iterable[Rule], site: str) -> Wanted:
    """Return the events that the rules for a site match. Pure."""
    events: set[Event] = set()
    failures: set[int] = set()
    for rule in rules:
        if not rule.sites or site in rule.sites:
            events.update(rule.events)
            if Event.FAILING in rule.events:
                failures.add(rule.failures)
    return Wanted(frozenset(events), frozenset(failures))
