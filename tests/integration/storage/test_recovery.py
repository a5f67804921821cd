"""Recovery from interrupted visits: their new posts are removed, and late writes are rejected."""

from __future__ import annotations

from dataclasses import replace

from crawler.items import Fetched, Kind, Outcome, Target, Visit
from crawler.storage import feeds, identity, recovery
from crawler.storage.client import Database
from crawler.storage.dedup.signatures import Registry
from crawler.storage.leases import FENCES_OF_A_VISIT, fence_of
from crawler.storage.targets import new_document
from tests.integration.claiming import HOUR, NOW, Posts, candidate, text
from tests.integration.harness import Db
from tests.integration.known_pages import on

FEED = "https://blog.example/feed"
KEY = f"x {FEED} first"


def put_post(db: Db, key: str, **times: object) -> None:
    """Store a post of the feed; its visit is not in the change log."""
    names = {"_id": key, "spider": "x", "feed": FEED, "visit": f"visit of {key}"}
    db.get_collection("posts").insert_one(names | times, bypass_document_validation=True)


def put_feed(db: Db, **state: object) -> None:
    db.targets.insert_one(new_document("x", FEED, Kind.FEED, NOW, NOW) | state)


def test_undo_removes_new_posts_and_keeps_edited_ones(
    stored: tuple[Db, str],
) -> None:
    db, uri = stored
    put_feed(db)
    put_post(db, "x new", first_seen=NOW, changed_at=NOW)
    put_post(db, "x edited", first_seen=NOW - HOUR, changed_at=NOW)
    put_post(db, "x before", first_seen=NOW - HOUR, changed_at=NOW - HOUR)
    on(uri, lambda adb: recovery.undo(adb, None, "x", NOW, NOW + HOUR))
    assert sorted(db.posts.distinct("_id")) == ["x before", "x edited"]
    assert db.targets.count_documents({"again": True}) == 1


def test_takeover_fences_the_feed_but_not_pages_of_its_posts(
    stored: tuple[Db, str],
) -> None:
    db, uri = stored
    feed = Target("x", FEED, Kind.FEED, fence=5 * FENCES_OF_A_VISIT)
    page = Target("x", "https://blog.example/first", Kind.ITEM, post=KEY, fence=FENCES_OF_A_VISIT)
    put_feed(db, fence=feed.fence)
    posts, contents = Posts(uri), [text(seed) for seed in range(3)]

    def claim(content: str, target: Target, *, edit: bool = True) -> None:
        posts.claim(replace(candidate(KEY, content, edit=edit), fences=dict([fence_of(target)])))

    def sketch() -> bytes:
        async def read(_: Database, registry: Registry) -> bytes:
            row = await registry.signatures.find_one({"post": KEY})
            assert row is not None
            return bytes(row["sketch"])

        found: bytes = posts.on(read)
        return found

    claim(contents[0], feed, edit=False)
    db.posts.update_one({"_id": KEY}, {"$set": {"feed": FEED, "guid": "first"}})
    before = sketch()
    on(uri, lambda adb: recovery.take_over(adb, [f"x {FEED}"]))
    claim(contents[1], feed)
    assert sketch() == before
    claim(contents[2], page)
    assert sketch() != before


def test_takeover_and_renaming_read_only_the_posts_of_the_feed(stored: tuple[Db, str]) -> None:
    db, uri = stored
    for number in range(20):
        own: dict[str, object] = {"feed": FEED, "guid": "first"} if number == 0 else {}
        row = {"_id": f"x {number}", "spider": "x", "url": None, "first_seen": NOW}
        db.posts.insert_one(row | {"content_hash": "hash"} | own)
    put_feed(db, moves=2, moved_to="https://blog.example/new")
    db.command("profile", 2)
    try:
        on(uri, lambda adb: recovery.take_over(adb, [f"x {FEED}"]))
        on(uri, lambda adb: identity.rename_moved(adb, "x", 2))
    finally:
        db.command("profile", 0)
    of_posts = {"ns": f"{db.name}.posts", "docsExamined": {"$exists": True}}
    examined = [row["docsExamined"] for row in db.system.profile.find(of_posts)]
    assert examined == [1, 1, 1]
    assert db.posts.distinct("feed") == ["https://blog.example/new"]


def test_late_feed_visit_does_not_change_its_state(stored: tuple[Db, str]) -> None:
    db, uri = stored
    # A push delivery does not increase the feed's fence, so the next visit has the same one.
    states = ((2, None), (1, "late"), (2, "after a delivery"), (3, "newer"))
    for number, error in states:
        feed = Target("x", FEED, Kind.FEED, fence=number * FENCES_OF_A_VISIT)
        outcome = Outcome.ERROR if error else Outcome.NOT_MODIFIED
        visit = Visit(Fetched(feed, NOW, "s1", 200), outcome, NOW + HOUR, error)
        on(uri, lambda adb, visit=visit: feeds.note(adb, [visit]))
        expected = None if error == "late" else error
        assert db.feeds.distinct("error") == [expected]
