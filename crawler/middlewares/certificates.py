"""Certificates of sites, verified by what this machine trusts; what is wrong with one is said."""

from __future__ import annotations

from typing import Any

from OpenSSL import SSL
from scrapy.core.downloader.contextfactory import (
    _ScrapyCertificateOptions,
    _ScrapyClientContextFactory,
)
from service_identity import VerificationError
from service_identity.exceptions import CertificateError
from service_identity.hazmat import DNS_ID, IPAddress_ID, verify_service_identity
from service_identity.pyopenssl import extract_patterns
from twisted.internet._sslverify import ClientTLSOptions
from twisted.internet.ssl import platformTrust
from twisted.python.failure import Failure

from crawler.errors import Misbehaves

WAY_OUT = "verify_tls = false in the wrapper takes it"
# OpenSSL's numbers (X509_V_ERR_…) in words; the others are said as numbers.
FAULTS = {
    9: "is not valid yet",
    10: "has expired",
    18: "is signed by itself",
    19: "is signed by an authority that this machine does not trust",
    20: "is signed by an authority that this machine does not know",
    21: "comes without those of its authority",
    23: "was revoked",
}


class VerifyingContextFactory(_ScrapyClientContextFactory):
    """Scrapy's context factory; Scrapy 2.19 can verify, but would not tell what was wrong.

    One context for all connections: to read what the machine trusts takes longer than a page.
    """

    def __init__(self, *args: Any, **given: Any) -> None:
        super().__init__(*args, **given)
        trusted = platformTrust()  # type: ignore[no-untyped-call]
        options = self._get_cert_options_kwargs()
        self._options = _ScrapyCertificateOptions(trustRoot=trusted, **options)

    def creatorForNetloc(self, hostname: bytes, port: int) -> Any:  # noqa: N802 - Twisted's name
        """What makes connections to a host."""
        return Verifying(self._options._makeTLSConnection, hostname.decode("ascii"))


class Verifying(ClientTLSOptions):
    """Makes connections that end with a reason where the certificate is no good."""

    def clientConnectionForTLS(self, tlsProtocol: Any) -> SSL.Connection:  # noqa: N802, N803
        """As Twisted has it, with a check of its own."""
        connection = super().clientConnectionForTLS(tlsProtocol)
        name = self._hostnameASCII
        wanted = DNS_ID(name) if self._hostnameIsDnsName else IPAddress_ID(name)

        def check(_: Any, certificate: Any, error: int, depth: int, ok: int) -> bool:
            fault = None if ok else FAULTS.get(error, f"is no good (OpenSSL error {error})")
            if fault is None and depth == 0:
                fault = _other_host(certificate, wanted, name)
            if fault is not None:
                said = Misbehaves(f"the certificate {fault} ({WAY_OUT})")
                tlsProtocol.failVerification(Failure(said))  # type: ignore[no-untyped-call]
            return fault is None

        connection.set_verify(SSL.VERIFY_PEER | SSL.VERIFY_FAIL_IF_NO_PEER_CERT, check)
        return connection


def _other_host(certificate: Any, wanted: Any, name: str) -> str | None:
    """What is wrong where the certificate is not this host's."""
    try:
        verify_service_identity(extract_patterns(certificate), [wanted], [])
    except (VerificationError, CertificateError):
        return f"is not one of {name}"
    return None
