"""Push: subscriptions and polls, secrets, renewal times, and allowed hosts."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import ipaddress
import random
import sys
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crawler.errors import ConfigError, StorageError
from crawler.fetch import guard
from crawler.fetch.guard import Named, NotAllowed, addresses_for, is_public
from crawler.storage.websub import is_active
from crawler.web.options import add_push_options, push_options_of
from crawler.web.websub.subscriptions import (
    MAX_RUNNING,
    MAX_RUNNING_PER_HOST,
    MAX_WAITING_PER_HOST,
    HubBackoff,
    TaskPool,
    Tokens,
    is_signed,
    lease_of,
    new_secret,
    renewal,
    retry_pause,
)
from pipelines.feed_posts import poll_hours

NOON = datetime(2026, 5, 1, 12, tzinfo=UTC)
DAY, HOUR, MINUTE = timedelta(days=1), timedelta(hours=1), timedelta(minutes=1)
RARE = 72.0


def push(**fields: Any) -> dict[str, Any]:
    """Return a subscription confirmed two days ago for ten days, with a delivery yesterday."""
    return {
        "state": "active", "requested_at": NOON - 2 * DAY, "leased_at": NOON - 2 * DAY,
        "lease_until": NOON + 8 * DAY, "delivered_at": NOON - DAY,
    } | fields  # fmt: skip


def test_delivering_hub_makes_polls_rare() -> None:
    assert is_active(push(), NOON)
    assert poll_hours(2, push(), NOON, RARE) == RARE


def test_rarer_plan_takes_precedence() -> None:
    assert poll_hours(100, push(), NOON, RARE) == 100


@pytest.mark.parametrize(
    "subscription",
    [
        None, {}, push(state="requested"), push(state="refused"), push(state="ended"),
        push(lease_until=NOON), push(lease_until=None), push(delivered_at=None),
        push(delivered_at=NOON - 11 * DAY),
    ],
    ids=["none", "empty", "requested", "refused", "ended", "expired lease", "no lease",
         "never delivered", "not within a lease"],
)  # fmt: skip
def test_inactive_subscription_keeps_planned_polls(subscription: dict[str, Any] | None) -> None:
    assert poll_hours(2, subscription, NOON, RARE) == 2


def test_renewed_lease_keeps_earlier_deliveries() -> None:
    renewed = push(leased_at=NOON, lease_until=NOON + 10 * DAY, delivered_at=NOON - 5 * DAY)
    assert poll_hours(2, renewed, NOON, RARE) == RARE


@given(st.floats(0.1, 1e4), st.floats(0.1, 1e4), st.integers(-400, 400))
def test_polls_are_never_more_frequent_than_planned(
    planned: float, rare: float, hours: int
) -> None:
    every = poll_hours(planned, push(), NOON + hours * HOUR, rare)
    assert every in (planned, max(planned, rare))


@pytest.mark.parametrize("method", ["sha1", "sha256", "sha384", "sha512", "SHA256"])
def test_accepts_signatures_of_standard_methods(method: str) -> None:
    body, secret = b"<rss>\xff</rss>", new_secret()
    digest = hmac.new(secret.encode(), body, getattr(hashlib, method.lower())).hexdigest()
    assert is_signed(f"{method}={digest}", body, secret)
    assert is_signed(f" {method}={digest.upper()} ", body, secret)
    assert not is_signed(f"{method}={digest}", body + b" ", secret)
    assert not is_signed(f"{method}={digest}", body, new_secret())
    assert not is_signed(f"{method}={digest[:-1]}", body, secret)


@pytest.mark.parametrize("header", [None, "", "=", "sha256", "sha256=", "sha256=\xfc", "a" * 9999])
def test_rejects_malformed_signatures(header: str | None) -> None:
    assert not is_signed(header, b"", "secret")


def test_rejects_md5_signature() -> None:
    digest = hmac.new(b"secret", b"body", hashlib.md5).hexdigest()
    assert not is_signed(f"md5={digest}", b"body", "secret")


def test_token_is_valid_only_for_its_key() -> None:
    tokens, others = Tokens(b"k" * 32), Tokens(b"o" * 32)
    token = tokens.new()
    assert tokens.knows(token)
    assert not others.knows(token)
    assert token != tokens.new()


@given(st.text(max_size=60))
def test_arbitrary_text_is_not_a_token(text: str) -> None:
    assert not Tokens(b"k" * 32).knows(text)


def test_changed_letter_invalidates_token() -> None:
    tokens = Tokens(b"k" * 32)
    token = tokens.new()
    altered = [token[:i] + ("A" if token[i] != "A" else "B") + token[i + 1 :] for i in range(48)]
    assert not any(tokens.knows(other) for other in altered)


def test_retry_pauses_double_from_ten_minutes_to_a_day() -> None:
    pauses = [retry_pause(attempts, 0.5) for attempts in (1, 2, 3, 8, 9, 1000)]
    assert pauses == [10 * MINUTE, 20 * MINUTE, 40 * MINUTE, 1280 * MINUTE, DAY, DAY]


@given(st.integers(1, 50), st.floats(0, 1, exclude_max=True))
def test_retry_pause_has_10_percent_jitter(attempts: int, chance: float) -> None:
    middle = retry_pause(attempts, 0.5)
    assert 0.9 * middle <= retry_pause(attempts, chance) <= 1.1 * middle


@pytest.mark.parametrize(
    ("named", "length"),
    [("86400", DAY), (None, 10 * DAY), ("", 10 * DAY), ("soon", 10 * DAY), ("-5", 10 * DAY),
     ("1e9", 10 * DAY), ("1", MINUTE), ("9" * 5000, 30 * DAY), ("٣", 10 * DAY)],
)  # fmt: skip
def test_lease_of_hub_is_used_within_bounds(named: str | None, length: timedelta) -> None:
    assert lease_of(named, 10 * DAY) == length


@given(st.floats(0, 1, exclude_max=True))
def test_lease_is_renewed_within_two_thirds(chance: float) -> None:
    assert 0.6 * 9 * DAY <= renewal(9 * DAY, chance) <= 6 * DAY


def test_failing_hub_is_held_with_growing_pauses() -> None:
    holds, now, pauses = HubBackoff(random.Random(1)), NOON, []
    for _ in range(12):
        holds.failed("hub", now)
        holds.failed("hub", now)  # Failures at the same time count once.
        end = holds.first_end(["hub"])
        pauses.append(end - now)
        assert holds.is_on_hold("hub", end - MINUTE)
        assert not holds.is_on_hold("hub", end)
        now = end
    assert pauses[0] <= 2.2 * MINUTE
    assert pauses[-1] >= 5 * HOUR
    holds.answered("hub")
    holds.failed("hub", now)
    assert holds.first_end(["hub"]) - now <= 2.2 * MINUTE


@pytest.mark.parametrize(
    ("address", "public"),
    [
        ("93.184.216.34", True), ("2606:2800:220:1::1", True), ("127.0.0.1", False),
        ("10.1.2.3", False), ("192.168.0.1", False), ("172.16.0.1", False),
        ("169.254.169.254", False), ("100.64.0.1", False), ("0.0.0.0", False),
        ("224.0.0.1", False), ("255.255.255.255", False), ("::1", False), ("fe80::1", False),
        ("fd00::1", False), ("::ffff:127.0.0.1", False), ("::ffff:93.184.216.34", True),
        ("64:ff9b::7f00:1", False), ("64:ff9b::5db8:d822", True), ("2002:7f00:1::", False),
    ],
)  # fmt: skip
def test_public_addresses(address: str, public: bool) -> None:
    assert is_public(ipaddress.ip_address(address)) == public


PUBLIC_FEED = "http://93.184.216.34/feed"


def allowed(hub: str, feed: str, *listed: str) -> list[str]:
    return asyncio.run(addresses_for(hub, feed, Named.of(listed=listed)))


def test_private_hub_must_match_address_and_port_of_feed() -> None:
    feed = "http://127.0.0.1:8000/feed"
    assert allowed("http://127.0.0.1:8000/hub", feed) == ["127.0.0.1"]
    assert allowed("http://93.184.216.34:9200/hub", feed) == ["93.184.216.34"]
    for hub in ("http://127.0.0.1:9200/", "http://127.0.0.1/", "http://127.0.0.2:8000/hub"):
        with pytest.raises(NotAllowed, match="FRESHET_PRIVATE_HOSTS"):
            allowed(hub, feed)


def test_hub_name_with_private_address_must_be_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    async def private(host: str, port: int) -> list[guard.Address]:
        return [ipaddress.ip_address("10.0.0.5")]

    monkeypatch.setattr(guard, "resolved", private)
    feed = "http://news.example/feed"
    for hub in ("http://news.example/hub", "http://10.0.0.5/hub", "http://hub.example:9200/"):
        with pytest.raises(NotAllowed, match="FRESHET_PRIVATE_HOSTS"):
            allowed(hub, feed)
    assert allowed("http://hub.example:9200/", feed, "hub.example:9200") == ["10.0.0.5"]
    with pytest.raises(NotAllowed):
        allowed("http://hub.example:9201/", feed, "hub.example:9200")


@pytest.mark.parametrize("host", ["127.0.0.1", "2130706433", "0x7f.1", "::1", "localhost"])
def test_rejects_all_notations_of_localhost(host: str) -> None:
    with pytest.raises(NotAllowed):
        allowed(f"http://{f'[{host}]' if ':' in host else host}/", PUBLIC_FEED)


@pytest.mark.parametrize("host", ["169.254.169.254", "0.0.0.0", "224.0.0.1", "fe80::1"])
def test_rejects_unusable_addresses_for_any_feed(host: str) -> None:
    with pytest.raises(NotAllowed, match="no usable address"):
        allowed(f"http://{f'[{host}]' if ':' in host else host}/", "http://127.0.0.1/feed")


@pytest.mark.parametrize("host", ["no-such-host.invalid", "a..b", "x" * 300, "\udc80"])
def test_rejects_host_without_address(host: str) -> None:
    with pytest.raises(NotAllowed):
        allowed(f"http://{host}/", "http://127.0.0.1/feed")


def test_prefers_public_address_of_hub(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def both(host: str, port: int) -> list[guard.Address]:
        return [ipaddress.ip_address(text) for text in ("10.0.0.1", "93.184.216.34")]

    monkeypatch.setattr(guard, "resolved", both)
    assert allowed("http://hub.example/", "http://127.0.0.1/feed") == ["93.184.216.34"]


async def max_concurrency(pool: TaskPool, works: int, hosts: int) -> tuple[int, int]:
    """Return the maximum number of concurrent jobs in total and per host."""
    running: list[str] = []
    most = [0, 0]

    async def work(host: str) -> None:
        running.append(host)
        most[0] = max(most[0], len(running))
        most[1] = max(most[1], running.count(host))
        await asyncio.sleep(0.001)
        running.remove(host)

    for n in range(works):
        host = f"h{n % hosts}"
        await pool.put(f"k{n}", host, lambda host=host: work(host))
    await pool.drain(10)
    return most[0], most[1]


def test_concurrent_requests_per_hub_are_limited() -> None:
    assert asyncio.run(max_concurrency(TaskPool(), 300, 100))[0] == MAX_RUNNING
    assert asyncio.run(max_concurrency(TaskPool(), 100, 3))[1] == MAX_RUNNING_PER_HOST


def test_queue_is_bounded_and_late_jobs_are_cancelled() -> None:
    async def never_ends() -> None:
        await asyncio.sleep(1000)

    async def run() -> None:
        pool = TaskPool()
        taken = [pool.offer(f"k{n}", "slow", never_ends) for n in range(1000)]
        assert sum(taken) == MAX_WAITING_PER_HOST
        assert not pool.offer("k0", "other", never_ends), "one job per feed at a time"
        assert pool.offer("other", "other", never_ends)
        await asyncio.wait_for(pool.drain(0.01), 5)
        assert pool.offer("k0", "slow", never_ends), "all slots are free again"
        await pool.drain(0)

    asyncio.run(run())


def test_failing_job_does_not_affect_others() -> None:
    done: list[int] = []

    async def fails() -> None:
        raise StorageError("no database")

    async def works() -> None:
        done.append(1)

    async def run() -> None:
        pool = TaskPool()
        pool.offer("a", "hub", fails)
        pool.offer("b", "hub", works)
        await pool.drain(5)

    asyncio.run(run())
    assert done == [1]


def parsed_options(*words: str) -> Any:
    import argparse

    parser = argparse.ArgumentParser()
    add_push_options(parser)
    return push_options_of(parser.parse_args(words))


def test_parses_push_options() -> None:
    parsed = parsed_options(
        "--callback", "https://public.example/push/", "--for", "5", "--port", "0"
    )
    assert parsed.subscriptions.callback == "https://public.example/push"
    assert (parsed.bind, parsed.port, parsed.seconds, parsed.unsubscribe) == (
        "127.0.0.1",
        0,
        5,
        False,
    )
    assert parsed.subscriptions.lease == 10 * DAY


@pytest.mark.parametrize(
    ("words", "error_text"),
    [
        ([], "--callback is required"),
        (["--callback", "public.example"], "--callback: 'public.example' is not an http"),
        (["--callback", "https://a.example/?x=1"], "--callback"),
        (["--callback", "https://u:p@a.example/"], "--callback"),
        (["--callback", "https://[bad/"], "--callback"),
        (["--callback", "https://a.example/", "--port", "x"], "--port: 'x' is not a port"),
        (["--callback", "https://a.example/", "--port", "70000"], "--port"),
        (["--callback", "https://a.example/", "--lease-days", "nan"], "--lease-days"),
        (["--callback", "https://a.example/", "--port", "80.5"], "--port"),
        (["--callback", "https://a.example/", "--for", "-1"], "--for"),
    ],
)
def test_rejects_invalid_options_in_one_line(words: list[str], error_text: str) -> None:
    with pytest.raises(ConfigError, match=error_text) as raised:
        parsed_options(*words)
    assert "\n" not in str(raised.value)


def test_import_does_not_load_twisted_server() -> None:
    import subprocess

    modules = "crawler.cli.commands.feeds, crawler.feeds.discovery, crawler.reports.feeds"
    code = f"import sys, {modules}; print('twisted.web.server' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
