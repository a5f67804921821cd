"""Which addresses may be asked, and what a user has named."""

from __future__ import annotations

from ipaddress import ip_address

import pytest

from crawler.addresses import Named, literal, usable

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
def test_private_addresses_are_asked_only_where_that_is_wanted(address: str) -> None:
    found = [ip_address(address)]
    assert usable(found, private=True) == found
    assert usable(found, private=False) == []


@pytest.mark.parametrize("address", NEVER)
def test_some_addresses_are_never_asked(address: str) -> None:
    assert usable([ip_address(address)], private=True) == []


@pytest.mark.parametrize("address", PUBLIC)
def test_public_addresses_are(address: str) -> None:
    assert usable([ip_address(address)], private=False) == [ip_address(address)]


def test_of_a_host_with_both_only_public_ones_are_asked() -> None:
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
def test_ways_to_write_an_address(host: str, address: str) -> None:
    assert literal(host) == ip_address(address)


@pytest.mark.parametrize("host", ["shop.example", "127.0.0.1.nip.io", "256.1.1.1", "", "1.2.3.4.5"])
def test_names_are_no_addresses(host: str) -> None:
    assert literal(host) is None


def test_a_start_url_names_its_host_and_port() -> None:
    named = Named.of(["http://10.0.0.5:8080/list", "http://intranet/"])
    assert named.cover("http://10.0.0.5:8080/item")
    assert not named.cover("http://10.0.0.5:9200/")
    assert not named.cover("http://10.0.0.6:8080/")
    assert not named.cover("http://10.0.0.5/")


def test_a_site_on_the_usual_port_may_move_to_https() -> None:
    named = Named.of(["http://intranet/"])
    assert named.cover("https://intranet/")
    assert named.cover("https://www.intranet:443/")
    assert not named.cover("https://intranet:8443/")


def test_a_domain_names_all_its_hosts_and_ports() -> None:
    named = Named.of([], ["lan.example"])
    assert named.cover("http://a.lan.example:9000/")
    assert not named.cover("http://lan.example.org/")


@pytest.mark.parametrize("url", ["http://", "http://[x", "http://a:b/", "", "sql://shop/cell"])
def test_what_is_no_url_is_never_named(url: str) -> None:
    assert not Named.of(["http://a/", url.replace("sql", "http")]).cover(url)
