"""A worker's lease book: leased and lost targets."""

from __future__ import annotations

from crawler.frontier.leases import LeaseBook
from crawler.frontier.redis_queue import Lease


def test_renewed_lease_clears_the_lost_mark() -> None:
    book, lease = LeaseBook(), Lease("x http://x.test/", "", 1)
    for times in range(2):
        book.take([lease])
        book.assign(lease.entry, [lease.entry])
        assert not book.is_lost(lease.entry), times
        book.lose([lease.entry])
        assert book.is_lost(lease.entry)
        assert book.held == {}
