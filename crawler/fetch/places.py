"""Places that may receive the headers and cookies of a site definition."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Self

from crawler.extract.keys import domain_of
from crawler.extract.stored_definition import as_list
from crawler.utils.urls import PORTS, host_of, place_of, within

# Keys of a definition that name the places.
PLACE_KEYS = {"start_urls", "allowed_domains", "cells", "credentials_for"}


class OwnPlaces:
    """Places (scheme, host and port) that may receive a site's headers and cookies.

    urls:    URLs from the user: covers their hosts with and without `www.`, at the same scheme and
             port, and port 443 with https for each http URL at port 80
    domains: covers these domains and their subdomains, at default ports and at the ports of `urls`;
             only with https if one of `urls` is https
    """

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Self | None:
        """Return the places that the keys of a definition name; None if they name none."""
        cells = values.get("cells") or {}
        urls = (
            as_list(values.get("credentials_for"))
            or as_list(values.get("start_urls"))
            or [cell["url"] for cell in cells.values() if cell.get("url")]
        )
        return cls(urls, as_list(values.get("allowed_domains"))) if urls else None

    def __init__(self, urls: Sequence[str], domains: Sequence[str] = ()) -> None:
        self._places = {place for place in map(place_of, urls) if all(place)}
        self._places |= {
            ("https", host, 443)
            for scheme, host, port in self._places
            if (scheme, port) == ("http", 80)
        }
        self._ports = {(scheme, port) for scheme, _, port in self._places} | set(PORTS.items())
        if any(url[:6].lower() == "https:" for url in urls):
            self._ports = {(scheme, port) for scheme, port in self._ports if scheme == "https"}
        self._domains = [*map(domain_of, domains)]

    def cover(self, url: str) -> bool:
        """Return whether a URL leads to one of these places."""
        scheme, _, port = place = place_of(url)
        if place in self._places:
            return True
        return (scheme, port) in self._ports and within(host_of(url), self._domains)

    def beyond(self, others: OwnPlaces | None) -> str | None:
        """Return a place that is not one of the others, as SCHEME://HOST:PORT; None without one."""
        for scheme, host, port in sorted(self._places):
            place = f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"
            if others is None or not others.cover(place):
                return place
        # Fewer start URLs can mean more places: without one that is https, http counts, too.
        known = set() if others is None else others._ports
        for scheme, port in sorted(self._ports - known if self._domains else ()):
            return f"{scheme}://{self._domains[0]}:{port}"
        return None
