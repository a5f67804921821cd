"""Generate the reference pages from the code, so that they describe the version they belong to.

A page of `docs/reference` holds lines such as `<!-- generated: settings -->`. When Sphinx reads the
page, this extension replaces each of them with Markdown from the settings model, the commands'
parsers, the validators of the collections, the metrics registry or the site definition's model.
"""

from __future__ import annotations

import argparse
import asyncio
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from scrapy.cmdline import ScrapyArgumentParser
from scrapy.commands import ScrapyCommand
from scrapy.utils.misc import walk_modules
from scrapy.utils.project import get_project_settings

from crawler.cli.base import ActionsCommand
from crawler.config import PREFIX, PROJECT, UNPREFIXED, Config
from crawler.extract.cells import Cell, Source
from crawler.extract.fields import Field
from crawler.extract.wrapper import Wrapper
from crawler.storage.validators import VALIDATORS

if TYPE_CHECKING:
    from sphinx.application import Sphinx

PLACEHOLDER = re.compile(r"^<!-- generated: (\w+) -->$", re.MULTILINE)
BSON_NAMES = {
    "bool": "boolean",
    "binData": "binary",
    "int": "number",
    "long": "number",
    "double": "number",
}
MODELS: dict[str, type[BaseModel]] = {
    "Site": Wrapper, "Field": Field, "Cell": Cell, "Database": Source,
}  # fmt: skip


def variable(field: str) -> str:
    """Return the environment variable of a setting."""
    return next((name for name, of in UNPREFIXED.items() if of == field), PREFIX + field.upper())


def settings() -> Iterator[str]:
    """Yield a table of the settings: variable, meaning, default."""
    yield "| variable | meaning | default |"
    yield "| --- | --- | --- |"
    for name, field in Config.model_fields.items():
        yield f"| `{variable(name)}` | {_cell(field.description)} | {_default(field)} |"


def site_keys() -> Iterator[str]:
    """Yield a table of the keys of a site definition, and of each table within it."""
    for title, model in MODELS.items():
        yield f"\n## {title}\n"
        yield "| key | meaning | default |"
        yield "| --- | --- | --- |"
        for name, field in model.model_fields.items():
            yield f"| `{name}` | {_cell(field.description)} | {_default(field)} |"


def commands() -> Iterator[str]:
    """Yield a section for each command: what it does, its usage and its options."""
    for name, command in project_commands():
        yield f"\n## scrapy {name}\n"
        yield f"{command.short_desc()}.\n"
        parser = parser_of(name, command)
        if not isinstance(command, ActionsCommand):
            yield from _usage(parser, getattr(command, "example", None))
            continue
        for action, description in command.actions.items():
            yield f"\n### scrapy {name} {action}\n"
            yield f"{description.what}.\n"
            yield from _usage(command.parser_of(action), description.example)


def collections() -> Iterator[str]:
    """Yield a section for each collection: what it holds, and its fields."""
    for name, validator in VALIDATORS.items():
        schema = validator["$jsonSchema"]
        yield f"\n## {name}\n"
        yield f"{schema.get('description', '')}\n"
        yield "| field | type | meaning |"
        yield "| --- | --- | --- |"
        yield from _fields(schema, "")


def metrics() -> Iterator[str]:
    """Yield a table of the metrics: name, labels, meaning."""
    from crawler.ops.metrics_catalog import catalog

    yield "| metric | type | labels | meaning |"
    yield "| --- | --- | --- | --- |"
    for name, kind, labels, text in asyncio.run(catalog()):
        yield f"| `{name}` | {kind} | {', '.join(labels)} | {_cell(text)} |"


GENERATORS: dict[str, Callable[[], Iterable[str]]] = {
    "settings": settings,
    "site_keys": site_keys,
    "commands": commands,
    "collections": collections,
    "metrics": metrics,
}


def project_commands() -> Iterator[tuple[str, ScrapyCommand]]:
    """Yield the project's commands by name, each with the project's settings."""
    for module in walk_modules("crawler.commands"):
        kind = getattr(module, "Command", None)
        if kind is not None:
            command: ScrapyCommand = kind()
            command.settings = get_project_settings()
            yield module.__name__.rpartition(".")[2], command


def parser_of(name: str, command: ScrapyCommand) -> argparse.ArgumentParser:
    """Return the parser of a command, as Scrapy makes it."""
    parser = ScrapyArgumentParser(
        usage=f"scrapy {name} {command.syntax()}", conflict_handler="resolve", add_help=False
    )
    command.add_options(parser)
    return parser


def _usage(parser: argparse.ArgumentParser, example: str | None) -> Iterator[str]:
    usage = " ".join(parser.format_usage().removeprefix("usage: ").split())
    yield f"```text\n{usage}\n```\n"
    rows = [
        (_invocation(action), _cell((action.help or "").replace("%%", "%")))
        for group in parser._action_groups
        if group.title != "Global Options"
        for action in group._group_actions
        if action.help is not argparse.SUPPRESS
    ]
    if rows:
        yield "| option | meaning |"
        yield "| --- | --- |"
        yield from (f"| `{option}` | {text} |" for option, text in rows)
        yield ""
    if example:
        yield f"Example: `{example}`\n"


def _invocation(action: argparse.Action) -> str:
    value = action.metavar or ("|".join(map(str, action.choices)) if action.choices else "")
    if not action.option_strings:
        return str(value or action.dest)
    names = ", ".join(action.option_strings)
    takes_value = action.nargs != 0
    return f"{names} {value or action.dest.upper()}" if takes_value else names


def _fields(schema: Mapping[str, Any], prefix: str) -> Iterator[str]:
    for name, kind in schema.get("properties", {}).items():
        yield f"| `{prefix}{name}` | {_type(kind)} | {_cell(kind.get('description'))} |"
        if "properties" in kind:
            yield from _fields(kind, f"{prefix}{name}.")


def _type(kind: Mapping[str, Any]) -> str:
    if "enum" in kind:
        return " ".join(f"`{value}`" for value in kind["enum"])
    names = kind["bsonType"]
    listed = [names] if isinstance(names, str) else names
    return " or ".join(dict.fromkeys(BSON_NAMES.get(name, name) for name in listed))


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    value = field.default_factory() if field.default_factory else field.default  # type: ignore[call-arg]
    if value is None or value in ("", (), {}):
        return "unset"
    if isinstance(value, bool):
        return "on" if value else "off"
    text = f"{value:g}" if isinstance(value, float) else str(value)
    return f"`{text.removeprefix(f'{PROJECT}/')}`"


def _cell(text: str | None) -> str:
    return " ".join((text or "").split()).replace("|", "\\|")


def _replace(_: Sphinx, __: str, source: list[str]) -> None:
    source[0] = PLACEHOLDER.sub(lambda match: "\n".join(GENERATORS[match.group(1)]()), source[0])


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the extension with Sphinx."""
    app.connect("source-read", _replace)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
