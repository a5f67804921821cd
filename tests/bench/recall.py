"""Recall and precision of near-duplicate detection on the posts of a file.

`make bench ARGS="--recall posts.jsonl.xz"`: claims all posts in random order, then copies with 1 to
5 words replaced, inserted or deleted; then repeats this with posts truncated to some lengths.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random

import numpy as np
from rich.console import Console
from rich.table import Table

from crawler.config import Config
from crawler.dedup.minhash import jaccard
from crawler.dedup.posts import Candidate, Verdicts
from crawler.dedup.schemes import scheme_of
from crawler.dedup.sketch import EXACT, Sketch
from crawler.storage.dedup import claims
from crawler.storage.dedup.signatures import Registry
from crawler.storage.embedded import EmbeddedServer
from crawler.storage.store import Store
from tests.bench.dedup.corpus import KINDS, File, edited, is_cjk, words_of
from tests.bench.exactpairs import earlier_at_least

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
SCHEME = scheme_of("characters", 0.7)
TOLERANCE = 0.03
BATCH = 200
COPIES, MAX_EDITS = 1_000, 5
WORDS = ((1, 20), (20, 50), (50, 100), (100, 200), (200, 1000))
LENGTHS = (10, 20, 40, 80, 160, 320, 800)
MIN_WORDS = 20
ENGLISH_BAR, ALL_BAR = 0.99, 0.96


@dataclass(frozen=True, slots=True)
class Text:
    """A post or a copy of a post."""

    key: str
    text: str
    cjk: bool
    words: int
    source: str = ""
    edits: int = 0


@dataclass(slots=True)
class Index:
    """A separate index, and the results of claims."""

    registry: Registry
    verdicts: Verdicts = field(default_factory=dict)
    sketches: dict[str, Sketch] = field(default_factory=dict)

    async def add(self, texts: Sequence[Text]) -> None:
        """Claim texts in this order."""
        for start in range(0, len(texts), BATCH):
            candidates = []
            for text in texts[start : start + BATCH]:
                if (sketch := SCHEME.sketch(text.text)) is not None:
                    created = BEGIN + timedelta(seconds=len(self.sketches))
                    self.sketches[text.key] = sketch
                    candidates.append(Candidate(text.key, created, sketch))
            self.verdicts |= await claims.claim(self.registry, candidates, BEGIN)

    async def clusters(self) -> dict[str, object]:
        """Return the cluster of each text that has one."""
        cursor = self.registry.signatures.find(
            {"cluster": {"$exists": True}}, {"post": 1, "cluster": 1}
        )
        return {row["post"]: row["cluster"] async for row in cursor}


def run(path: Path, copies: int = COPIES, seed: int = 1) -> int:
    """Measure and print the results; return exit code 1 if a requirement is not met."""
    with tempfile.TemporaryDirectory(prefix="fr-") as folder:
        config = Config.load(data_dir=Path(folder), mongo_uri=None)
        try:
            return asyncio.run(_run(config, path, copies, seed))
        finally:
            EmbeddedServer.of(config).stop()


async def _run(config: Config, path: Path, copies: int, seed: int) -> int:
    posts = [_text(f"p{number}", text) for number, text in enumerate(File(path, None).texts())]
    Random(seed).shuffle(posts)
    store = await Store.open(config)
    registry = Registry(store.db.bench_signatures, store.db.bench_clusters, SCHEME)
    try:
        whole = await _measured(registry, posts, copies, seed)
        passed = _show_whole(*whole)
        _show_judged(*whole)
        await _show_lengths(registry, posts, copies, seed)
    finally:
        await registry.signatures.drop()
        await registry.clusters.drop()
        await store.close()
    return 0 if passed else 1


async def _measured(
    registry: Registry, posts: list[Text], copies: int, seed: int
) -> tuple[Index, list[Text], list[tuple[Text, bool]]]:
    """Claim posts, then copies of some of them; return the index, posts and copies found."""
    await registry.signatures.drop()
    await registry.clusters.drop()
    await registry.create_indexes()
    index, random = Index(registry), Random(seed)
    await index.add(posts)
    others = words_of(" ".join(random.choice(posts).text for _ in range(2000)))
    made = [_copy(random.choice(posts), number, others, random) for number in range(copies)]
    await index.add(made)
    clusters = await index.clusters()
    hits = [
        (one, one.key in clusters and clusters[one.key] == clusters.get(one.source)) for one in made
    ]
    return index, posts, hits


def _text(key: str, text: str) -> Text:
    return Text(key, text, is_cjk(text), len(words_of(text)))


def _copy(post: Text, number: int, others: list[str], random: Random) -> Text:
    edits = 1 + number % MAX_EDITS
    text = edited(post.text, edits, KINDS["all"], others, random)
    return Text(f"c{number}", text, post.cjk, post.words, post.key, edits)


def _show_whole(index: Index, posts: list[Text], hits: list[tuple[Text, bool]]) -> bool:
    """Print the recall of copies by post length."""
    table = Table("words", "language", *map(str, range(1, MAX_EDITS + 1)), "all", "copies")
    for cjk in (False, True):
        for least, most in WORDS:
            group = [e for e in hits if e[0].cjk == cjk and least <= e[0].words < most]
            if group:
                table.add_row(
                    f"{least} to {most}", "Chinese" if cjk else "English", *_shares(group)
                )
    Console().print(table)
    english = _share([e for e in hits if not e[0].cjk and e[0].words >= 50])
    all_copies = _share([e for e in hits if e[0].words >= MIN_WORDS])
    print(f"recall, English, 50 words or more: {english:.4f} (required {ENGLISH_BAR})")
    print(f"recall, all, {MIN_WORDS} words or more: {all_copies:.4f} (required {ALL_BAR})")
    return english >= ENGLISH_BAR and all_copies >= ALL_BAR


def _shares(hits: list[tuple[Text, bool]]) -> list[str]:
    by_edits = [[e for e in hits if e[0].edits == n] for n in range(1, MAX_EDITS + 1)]
    return [*(f"{_share(group):.3f}" for group in by_edits), f"{_share(hits):.3f}", str(len(hits))]


def _share(hits: list[tuple[Text, bool]]) -> float:
    return statistics.fmean(hit for _, hit in hits) if hits else float("nan")


def _show_judged(index: Index, posts: list[Text], _: list[tuple[Text, bool]]) -> None:
    """Print precision and recall of the flagged posts, by exact Jaccard."""
    texts = {post.key: post.text for post in posts}
    flagged = {p.key: index.verdicts[p.key] for p in posts if p.key in index.verdicts}
    copies = {key: one for key, one in flagged.items() if one.duplicate_of is not None}
    exact = [_exact(index, texts, key, str(one.duplicate_of)) for key, one in copies.items()]
    right = float(np.mean(np.array(exact) >= SCHEME.threshold - TOLERANCE))
    clusters = {one.cluster for one in copies.values()}
    print(f"{len(posts)} posts: {len(copies)} flagged, in {len(clusters)} clusters")
    print(f"with exact Jaccard >= {SCHEME.threshold - TOLERANCE:.2f}: {right:.4f} (required 0.97)")
    for least, bar in ((0.8, 0.97), (0.85, 0.995)):
        having = [posts[n].key for n in earlier_at_least([p.text for p in posts], least)]
        share = statistics.fmean(key in copies for key in having)
        print(f"of {len(having)} with J >= {least} to an earlier one: {share:.4f} (required {bar})")


def _exact(index: Index, texts: dict[str, str], one: str, other: str) -> float:
    shared = index.sketches[one].parts.keys() & index.sketches[other].parts.keys()
    return max(1.0 if s == EXACT else jaccard(texts[one], texts[other], s) for s in shared)


async def _show_lengths(registry: Registry, posts: list[Text], copies: int, seed: int) -> None:
    """Print the recall with posts truncated to some numbers of characters."""
    columns = ("characters", "language", *map(str, range(1, MAX_EDITS + 1)), "all", "copies")
    table = Table(*columns, title="recall by edited words", title_justify="left")
    for length in LENGTHS:
        for cjk in (False, True):
            cut = [
                _text(p.key, p.text[:length])
                for p in posts
                if p.cjk == cjk and len(p.text) >= length
            ]
            _, _, hits = await _measured(registry, cut, copies, seed)
            table.add_row(str(length), "Chinese" if cjk else "English", *_shares(hits))
    Console().print(table)
