"""What a crawl has loaded is not looked through for garbage again and again."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest
from scrapy import signals
from scrapy.utils.test import get_crawler

from crawler.extensions.garbage import ITEMS, Garbage


@pytest.fixture
def frozen_before() -> Iterator[int]:
    yield gc.get_freeze_count()
    gc.unfreeze()


def test_libraries_are_left_out_once_the_first_items_have_loaded_them(frozen_before: int) -> None:
    crawler = get_crawler(settings_dict={"EXTENSIONS": {Garbage: 0}})
    for _ in range(ITEMS - 1):
        crawler.signals.send_catch_log(signals.item_scraped)
    assert gc.get_freeze_count() == frozen_before
    crawler.signals.send_catch_log(signals.item_scraped)
    frozen = gc.get_freeze_count()
    assert frozen > frozen_before + 10_000
    crawler.signals.send_catch_log(signals.item_scraped)
    assert gc.get_freeze_count() == frozen
