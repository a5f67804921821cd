"""Configuration: defaults, environment, `.env`, Scrapy settings, and errors for invalid values."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from pydantic import ValidationError
from scrapy.settings import Settings

from crawler.config import Config, expanded, expanded_url, unknown_variables
from crawler.dedup.sketch import NAMES
from crawler.errors import ConfigError
from crawler.planning.options import OBJECTIVES
from crawler.storage.embedded import default_cache_gb
from schedules.dispatch import POLICIES as DISPATCH_POLICIES
from schedules.evaluation.feeds import FEED_POLICIES
from schedules.schedule import MAX_FEED_WEEKS, MAX_WEEKS, WEEK_HOURS
from schedules.terms import POLICIES


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove all Freshet settings from the environment."""
    for name in list(os.environ):
        if name.startswith("FRESHET_") or name == "MONGO_URI":
            monkeypatch.delenv(name)
    monkeypatch.setitem(Config.model_config, "env_file", None)


def test_every_setting_has_a_default_and_a_description() -> None:
    Config.load()
    undescribed = [name for name, field in Config.model_fields.items() if not field.description]
    assert undescribed == []


@pytest.mark.parametrize(
    ("name", "choices"),
    [
        ("policy", POLICIES),
        ("objective", tuple(OBJECTIVES)),
        ("feed_policy", FEED_POLICIES),
        ("dispatch", DISPATCH_POLICIES),
        ("duplicates", (*NAMES, "off")),
    ],
)
def test_descriptions_list_all_choices(name: str, choices: tuple[str, ...]) -> None:
    description = Config.model_fields[name].description or ""
    assert f": {', '.join(choices)}" in description


@pytest.mark.parametrize(
    ("name", "default"),
    [
        ("mongo_uri", None),
        ("database", "freshet"),
        ("list_interval_hours", 6.0),
        ("item_interval_hours", 24.0),
        ("max_interval_hours", None),
        ("error_interval_hours", 1.0),
        ("gone_confirmations", 3),
        ("host_requests", 0),
        ("strip_parameters", None),
        ("keep_versions", 20),
        ("keep_visits_days", 365),
        ("keep_runs_days", 90),
    ],
)
def test_defaults_match_the_documentation(name: str, default: object) -> None:
    assert getattr(Config.load(), name) == default


def test_default_max_interval_is_longer_for_feeds() -> None:
    default_config = Config.load()
    assert default_config.longest_hours(feeds=False) == MAX_WEEKS * WEEK_HOURS
    assert default_config.longest_hours(feeds=True) == MAX_FEED_WEEKS * WEEK_HOURS
    limited = Config.load(max_interval_hours=100)
    assert (limited.longest_hours(feeds=False), limited.longest_hours(feeds=True)) == (100, 100)


@pytest.mark.parametrize(
    ("variable", "text", "name", "value"),
    [
        ("FRESHET_LIST_INTERVAL_HOURS", "0.5", "list_interval_hours", 0.5),
        ("FRESHET_IN_FLIGHT", "7", "in_flight", 7),
        ("FRESHET_PROGRESS", "0", "progress", False),
        ("FRESHET_DATABASE", "my-copy", "database", "my-copy"),
        ("FRESHET_DATA_DIR", "/somewhere/else", "data_dir", Path("/somewhere/else")),
        ("freshet_in_flight", "8", "in_flight", 8),
        ("MONGO_URI", "mongodb://one/", "mongo_uri", "mongodb://one/"),
        ("FRESHET_MONGO_URI", "mongodb://two/", "mongo_uri", "mongodb://two/"),
    ],
)
def test_environment_variable_sets_a_setting(
    variable: str, text: str, name: str, value: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, text)
    assert getattr(Config.load(), name) == value


def test_mongo_uri_takes_precedence_over_prefixed_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("FRESHET_MONGO_URI", "mongodb://prefixed/")
    monkeypatch.setenv("MONGO_URI", "mongodb://common/")
    assert Config.load().mongo_uri == "mongodb://common/"


def test_environment_takes_precedence_over_env_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / ".env"
    file.write_text("FRESHET_IN_FLIGHT=5\nFRESHET_COMMIT_SIZE=6\n", encoding="utf-8")
    monkeypatch.setenv("FRESHET_COMMIT_SIZE", "7")
    config = Config.load(_env_file=file)
    assert (config.in_flight, config.commit_size) == (5, 7)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("utm_* sid", ("utm_*", "sid")),
        ("  one\ttwo\n three ", ("one", "two", "three")),
        ("", ()),
    ],
    ids=["two names", "any white space", "empty: strip nothing"],
)
def test_strip_parameters_are_split_on_white_space(text: str, names: tuple[str, ...]) -> None:
    assert Config.of(Settings({"FRESHET_STRIP_PARAMETERS": text})).strip_parameters == names


def test_scrapy_settings_take_precedence_over_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FRESHET_IN_FLIGHT", "7")
    monkeypatch.setenv("FRESHET_COMMIT_SIZE", "8")
    config = Config.of(Settings({"FRESHET_IN_FLIGHT": "9"}))
    assert (config.in_flight, config.commit_size) == (9, 8)


@pytest.mark.parametrize("name", ["MONGO_URI", "FRESHET_MONGO_URI"])
def test_scrapy_settings_accept_both_names_of_the_uri(name: str) -> None:
    assert Config.of(Settings({name: "mongodb://three/"})).mongo_uri == "mongodb://three/"


def test_settings_without_the_prefix_are_ignored() -> None:
    assert Config.of(Settings({"IN_FLIGHT": "9", "BOT_NAME": "x"})) == Config.load()


@pytest.mark.parametrize(
    ("variable", "text"),
    [
        ("FRESHET_LIST_INTERVAL_HOURS", "soon"),
        ("FRESHET_LIST_INTERVAL_HOURS", "0"),
        ("FRESHET_LIST_INTERVAL_HOURS", "nan"),
        ("FRESHET_ITEM_INTERVAL_HOURS", "1e9"),
        ("FRESHET_IN_FLIGHT", "0"),
        ("FRESHET_IN_FLIGHT", "1.5"),
        ("FRESHET_DATABASE", "a/b"),
        ("FRESHET_DATABASE", "a b"),
        ("FRESHET_PROGRESS", "maybe"),
        ("FRESHET_COMMIT_SIZE", "5001"),
        ("FRESHET_RETRY_AFTER_SECONDS", "-1"),
        ("FRESHET_CLOCK_OFFSET_HOURS", "inf"),
        ("FRESHET_CLOCK_OFFSET_HOURS", "nan"),
        ("FRESHET_KEEP_VISITS_DAYS", "inf"),
        ("FRESHET_WEB_URL", "freshet.example"),
        ("FRESHET_WEB_URL", "https://freshet.example/?q"),
        ("FRESHET_WEB_URL", "https://anna:secret@freshet.example"),
    ],
)
@pytest.mark.parametrize("source", ["environment", "settings"])
def test_invalid_value_error_is_one_line_naming_the_variable(
    source: str, variable: str, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = Settings()
    if source == "environment":
        monkeypatch.setenv(variable, text)
    else:
        settings.set(variable, text)
    with pytest.raises(ConfigError) as caught:
        Config.of(settings)
    assert str(caught.value).startswith(f"{variable}: ")
    assert "\n" not in str(caught.value)


def test_invalid_value_error_hides_the_original_exception(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FRESHET_IN_FLIGHT", "many")
    with pytest.raises(ConfigError) as caught:
        Config.load()
    assert caught.value.__suppress_context__


def test_unknown_variables_are_those_that_look_like_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / ".env"
    file.write_text("freshet_bugdet=5\nFRESHET_CONTACT=me\nSHOP_PASSWORD=x\n", encoding="utf-8")
    monkeypatch.setattr("crawler.config.ENV_FILE", file)
    for name in ("MONGODB_URI", "FRESHET_XYZZY", "REDIS_HOST", "freshet_in_flight"):
        monkeypatch.setenv(name, "1")
    assert list(unknown_variables()) == [
        ("FRESHET_BUGDET", str(file), "FRESHET_BUDGET"),
        ("FRESHET_XYZZY", "", None),
        ("MONGODB_URI", "", "MONGO_URI"),
    ]
    monkeypatch.setenv("MONGO_URI", "mongodb://one/")
    assert "MONGODB_URI" not in {unknown.name for unknown in unknown_variables()}


def test_variables_of_site_definitions_may_be_in_the_env_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / ".env"
    file.write_text("SHOP_PASSWORD='a b'\nSHOP_TOKEN=in-file\nEMPTY\n", encoding="utf-8")
    monkeypatch.setattr("crawler.config.ENV_FILE", file)
    monkeypatch.setenv("SHOP_TOKEN", "in-environment")
    assert expanded("${SHOP_TOKEN} ${SHOP_PASSWORD}") == "in-environment a b"
    assert expanded_url("http://me:${SHOP_PASSWORD}@shop.example/") == (
        "http://me:a%20b@shop.example/"
    )
    for name in ("EMPTY", "NOT_SET"):
        with pytest.raises(ValueError, match=f"^environment variable {name} is not set; set it"):
            expanded(f"${{{name}}}")


def test_config_is_immutable() -> None:
    with pytest.raises(ValidationError):
        Config.load().in_flight = 3


@pytest.mark.parametrize(("memory_gb", "cache_gb"), [(1, 0.5), (4, 0.5), (8, 1), (24, 2), (64, 2)])
def test_embedded_server_cache_depends_on_memory(memory_gb: float, cache_gb: float) -> None:
    assert default_cache_gb(memory_gb) == cache_gb
