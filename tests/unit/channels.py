"""Channels of notifications as a file defines them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from crawler.errors import ConfigError
from crawler.notify.channels import Channel, valid_channels


def channels_in(keys: Mapping[str, Any], source: str) -> dict[str, Channel]:
    """Return the channels in the keys of `notify.toml`; raises ConfigError for an invalid one."""
    channels, problems = valid_channels(keys, source)
    for problem in problems.values():
        raise ConfigError(problem)
    return channels
