"""The add-on changes Scrapy's settings, and user settings take precedence."""

from __future__ import annotations

from inspect import isclass

import pytest
from scrapy.settings import Settings
from scrapy.utils.misc import load_object

from crawler.addon import COMPONENTS, FreshetAddon, politeness_settings
from crawler.config import Config


def with_addon(priority: str = "project", **given: object) -> Settings:
    """Return Scrapy's settings after applying a project's settings and then the add-on."""
    settings = Settings()
    settings.setdict(given, priority=priority)
    FreshetAddon().update_settings(settings)
    return settings


@pytest.mark.parametrize(
    "path",
    [path for parts in COMPONENTS.values() for path, order in parts.items() if order is not None],
)
def test_every_component_can_be_loaded(path: str) -> None:
    assert isclass(load_object(path))


@pytest.mark.parametrize("name", sorted(COMPONENTS))
def test_the_components_are_added(name: str) -> None:
    assert COMPONENTS[name].items() <= with_addon().getdict(name).items()


@pytest.mark.parametrize("priority", ["project", "spider", "cmdline"])
def test_project_can_add_and_disable_components(priority: str) -> None:
    pipelines = with_addon(
        priority,
        ITEM_PIPELINES={"own.Pipeline": 5, "pipelines.change_detection.ChangesPipeline": None},
    ).getdict("ITEM_PIPELINES")
    assert pipelines["own.Pipeline"] == 5
    assert pipelines["pipelines.change_detection.ChangesPipeline"] is None
    assert pipelines["pipelines.storage.StoragePipeline"] == 900


def test_project_settings_take_precedence() -> None:
    settings = with_addon(ROBOTSTXT_OBEY=False, USER_AGENT="mine")
    assert not settings.getbool("ROBOTSTXT_OBEY")
    assert settings["USER_AGENT"] == "mine"


def test_user_agent_includes_contact_if_set() -> None:
    assert politeness_settings(Config.load(contact="a@b.example"))["USER_AGENT"].endswith(
        " (+a@b.example)"
    )
    assert "+" not in politeness_settings(Config.load(contact=""))["USER_AGENT"]


def test_politeness_settings_use_scrapys_units() -> None:
    scrapy = politeness_settings(
        Config.load(response_mb=2, response_seconds=7, throttle_concurrency=3)
    )
    assert scrapy["DOWNLOAD_MAXSIZE"] == 2 * 1024 * 1024
    assert scrapy["DOWNLOAD_TIMEOUT"] == 7
    assert scrapy["AUTOTHROTTLE_TARGET_CONCURRENCY"] == 3


def test_crawling_is_polite_by_default() -> None:
    settings = with_addon()
    assert settings.getbool("ROBOTSTXT_OBEY")
    assert settings.getbool("AUTOTHROTTLE_ENABLED")
    assert 429 not in settings.getlist("RETRY_HTTP_CODES")
