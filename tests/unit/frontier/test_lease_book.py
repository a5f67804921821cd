"""Leases of a worker: which targets it still holds."""

from __future__ import annotations

from crawler.frontier.redis_queue import Lease
from crawler.frontier.worker import LeaseBook


def test_a_lost_target_that_is_leased_again_is_not_lost() -> None:
    book, lease = LeaseBook(), Lease("x http://x.test/", "", 1)
    for times in range(2):
        book.take([lease])
        book.assign(lease.entry, [lease.entry])
        assert not book.is_lost(lease.entry), times
        book.lose([lease.entry])
        assert book.is_lost(lease.entry)
        assert book.held == {}
