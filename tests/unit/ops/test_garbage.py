"""The garbage collector is tuned to skip objects that stay loaded during a crawl."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest
from scrapy import signals
from scrapy.utils.test import get_crawler

from crawler.ops.extensions import WARM_UP_ITEMS, Garbage
from crawler.utils.process import DEFAULTS, LOADING, spare_loading


@pytest.fixture
def frozen_before() -> Iterator[int]:
    # An earlier crawl in this process may have frozen everything.
    gc.unfreeze()
    yield gc.get_freeze_count()
    gc.unfreeze()


def test_loaded_objects_are_frozen_once_after_warm_up(frozen_before: int) -> None:
    crawler = get_crawler(settings_dict={"EXTENSIONS": {Garbage: 0}})
    for _ in range(WARM_UP_ITEMS - 1):
        crawler.signals.send_catch_log(signals.item_scraped)
    assert gc.get_freeze_count() <= frozen_before
    crawler.signals.send_catch_log(signals.item_scraped)
    frozen = gc.get_freeze_count()
    assert frozen > frozen_before + 10_000
    crawler.signals.send_catch_log(signals.item_scraped)
    assert gc.get_freeze_count() <= frozen


def test_collections_are_rare_until_the_engine_starts(frozen_before: int) -> None:
    spare_loading()
    assert gc.get_threshold() == LOADING
    crawler = get_crawler(settings_dict={"EXTENSIONS": {Garbage: 0}})
    crawler.signals.send_catch_log(signals.engine_started)
    assert gc.get_threshold() == DEFAULTS
    assert gc.get_freeze_count() > frozen_before + 10_000
