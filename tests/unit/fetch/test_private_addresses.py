"""Private addresses: notations, and hosts that the user allows."""

from __future__ import annotations

from ipaddress import ip_address

import pytest

from crawler.config import Config
from crawler.errors import ConfigError
from crawler.fetch.guard import Named, host_and_port, literal, usable

PRIVATE = [
    "127.0.0.1", "127.8.9.10", "10.1.2.3", "172.16.0.1", "192.168.1.1", "100.64.0.1", "::1",
    "fd00::1", "fec0::1", "::ffff:10.0.0.1", "64:ff9b::10.0.0.1", "2002:a00:1::1",
]  # fmt: skip
NEVER = [
    "0.0.0.0", "::", "169.254.169.254", "fe80::1", "224.0.0.1", "ff02::1", "255.255.255.255",
    "240.0.0.1", "::ffff:169.254.169.254", "::127.0.0.1",
]  # fmt: skip
PUBLIC = ["1.1.1.1", "2606:4700::1111", "::ffff:1.1.1.1", "64:ff9b::1.1.1.1"]


@pytest.mark.parametrize("address", PRIVATE)
def test_private_addresses_are_usable_only_if_allowed(address: str) -> None:
    resolved = [ip_address(address)]
    assert usable(resolved, private=True) == resolved
    assert usable(resolved, private=False) == []


@pytest.mark.parametrize("address", NEVER)
def test_reserved_addresses_are_never_usable(address: str) -> None:
    assert usable([ip_address(address)], private=True) == []


@pytest.mark.parametrize("address", PUBLIC)
def test_public_addresses_are_always_usable(address: str) -> None:
    assert usable([ip_address(address)], private=False) == [ip_address(address)]


def test_public_addresses_take_precedence_over_private_ones() -> None:
    both = [ip_address("10.0.0.1"), ip_address("1.1.1.1")]
    assert usable(both, private=True) == [ip_address("1.1.1.1")]


@pytest.mark.parametrize(
    ("host", "address"),
    [
        ("127.0.0.1", "127.0.0.1"), ("127.1", "127.0.0.1"), ("2130706433", "127.0.0.1"),
        ("0x7f.1", "127.0.0.1"), ("0x7f000001", "127.0.0.1"), ("0177.0.0.01", "127.0.0.1"),
        ("127.0.0.1.", "127.0.0.1"), ("localhost", "127.0.0.1"), ("a.LOCALHOST.", "127.0.0.1"),
        ("::1", "::1"), ("[fe80::1%eth0]", "fe80::1"), ("::ffff:7f00:1", "::ffff:127.0.0.1"),
    ],
)  # fmt: skip
def test_address_notations_are_recognized(host: str, address: str) -> None:
    assert literal(host) == ip_address(address)


@pytest.mark.parametrize("host", ["shop.example", "127.0.0.1.nip.io", "256.1.1.1", "", "1.2.3.4.5"])
def test_host_names_are_not_addresses(host: str) -> None:
    assert literal(host) is None


def test_address_in_a_url_is_allowed_at_its_port() -> None:
    named = Named.of(["http://10.0.0.5:8080/list", "http://localhost/", "http://0x7f.1:9/"])
    assert named.cover("http://10.0.0.5:8080/item")
    assert named.cover("https://localhost/")
    assert named.cover("http://0x7f.1:9/a")
    assert not named.cover("http://10.0.0.5:9200/")
    assert not named.cover("http://10.0.0.6:8080/")
    assert not named.cover("http://10.0.0.5/")


def test_host_name_in_a_url_is_not_allowed() -> None:
    named = Named.of(["http://intranet/", "http://127.0.0.1.nip.io/"])
    assert not named.cover("http://intranet/")
    assert not named.cover("http://127.0.0.1.nip.io/")


def test_listed_host_is_allowed_at_its_port() -> None:
    named = Named.of(listed=["intranet:80", "wiki.lan:8080", "[fd00::1]:81", "10.0.0.5:9200"])
    assert named.cover("http://intranet/")
    assert named.cover("https://www.intranet:443/")
    assert named.cover("http://WIKI.lan:8080/a")
    assert named.cover("http://[fd00::1]:81/")
    assert named.cover("http://10.0.0.5:9200/")
    assert not named.cover("https://intranet:8443/")
    assert not named.cover("http://wiki.lan/")
    assert not named.cover("http://a.wiki.lan:8080/")


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("http://Intranet/a", "intranet:80"), ("https://wiki.lan", "wiki.lan:443"),
        ("http://[fd00::1]:81/", "[fd00::1]:81"), ("http://10.0.0.5:9200/", "10.0.0.5:9200"),
    ],
)  # fmt: skip
def test_host_and_port_can_be_listed_as_printed(url: str, shown: str) -> None:
    assert host_and_port(url) == shown
    assert Config.load(private_hosts=shown).private_hosts == (shown,)
    assert Named.of(listed=[shown]).cover(url)


@pytest.mark.parametrize(
    "text",
    ["intranet", "intranet:", ":80", "intranet:0", "intranet:x", "intranet:99999", "*.lan:80",
     "http://intranet:80", "intranet:80/path", "me@intranet:80", "a.lan:80;b.lan:80"],
)  # fmt: skip
def test_private_host_without_a_port_is_rejected(text: str) -> None:
    with pytest.raises(ConfigError, match=r"FRESHET_PRIVATE_HOSTS: .* is not HOST:PORT"):
        Config.load(private_hosts=f"good.lan:80, {text}")


def test_private_hosts_are_separated_by_commas() -> None:
    hosts = Config.load(private_hosts="Intranet.lan:8080, wiki.lan:80").private_hosts
    assert hosts == ("intranet.lan:8080", "wiki.lan:80")


@pytest.mark.parametrize("url", ["http://", "http://[x", "http://a:b/", "", "sql://shop/cell"])
def test_invalid_url_is_never_allowed(url: str) -> None:
    assert not Named.of(["http://127.0.0.1/", url.replace("sql", "http")]).cover(url)
