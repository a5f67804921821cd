"""The paper's experiment: its formulas, copies, posts, and detection criteria."""

from __future__ import annotations

import argparse
import gzip
import json
import lzma
import math
from collections import Counter
from pathlib import Path
from random import Random

import numpy as np
import pytest

from crawler.errors import ConfigError
from tests.bench.dedup.corpus import KINDS, File, Synthetic, edited, is_cjk, words_of
from tests.bench.dedup.experiment import Measured, Query, alikeness, copies, judge, prepare
from tests.bench.dedup.indexes import METHODS, RULES, first_owned
from tests.bench.dedup.layouts import Found
from tests.bench.dedup.results import SCHEMES, of_method, recalls

REPLACE = KINDS["replace"]
OTHERS = ["stone", "river", "cloud"]
CHINESE = "今天的天气很好我们去公园"


def ignore(_: str) -> None:
    """Discard progress messages."""


# Numbers printed in the paper


@pytest.mark.parametrize(
    ("scheme", "at_1_5_million", "printed"),
    [("B6D1", 15.4, 14.9), ("R15D2", 44.0, 42.6), ("R1D3", 57.2, 55.0)],
)
def test_printed_worst_cases_are_for_a_million_documents(
    scheme: str, at_1_5_million: float, printed: float
) -> None:
    paper = SCHEMES[scheme]
    assert paper.worst == printed
    assert paper.worst_reads(1_500_000) == pytest.approx(at_1_5_million, abs=0.05)
    assert paper.worst_reads(1_000_000) == pytest.approx(printed, rel=0.015)


def test_worst_reads_are_trees_times_height() -> None:
    million = math.log2(1_000_000)
    assert SCHEMES["B6D1"].worst_reads(1_000_000) == pytest.approx(0.75 * million)
    assert SCHEMES["R15D2"].worst_reads(1_000_000) == pytest.approx(2.14 * million, rel=0.002)
    # The printed 2.34 (log2 D + 3.9) assumes pages of 85 1/3 entries.
    assert SCHEMES["R1D3"].worst_reads(1_000_000) == pytest.approx(2.34 * (million + 3.9), rel=1e-3)


def test_printed_page_reads_imply_ten_trees_for_pair_schemes() -> None:
    assert SCHEMES["R15D2"].trees_read == pytest.approx(10.2, abs=0.05)
    assert SCHEMES["R1D3"].trees_read == pytest.approx(10.2, abs=0.05)
    # More than the six trees of B6D1.
    assert SCHEMES["B6D1"].trees_read == pytest.approx(9.1, abs=0.05)


# Copies


@pytest.mark.parametrize("edits", [1, 3, 5])
def test_edits_replace_the_given_number_of_words(edits: int) -> None:
    text = " ".join(f"word{i}" for i in range(50)) + "\nend."
    words, new = words_of(text), words_of(edited(text, edits, REPLACE, OTHERS, Random(edits)))
    changed = [i for i, (old, now) in enumerate(zip(words, new, strict=True)) if old != now]
    assert len(changed) == edits
    assert {new[i] for i in changed} <= set(OTHERS)


def test_edits_keep_white_space() -> None:
    assert edited("one\n two\t", 2, REPLACE, ["x"], Random(1)) == "x\n x\t"


def test_a_chinese_word_is_two_characters() -> None:
    assert words_of("今天 weather 很好 ok吗") == ["今天", "weather", "很好", "ok", "吗"]
    new = edited(CHINESE, 1, REPLACE, ["公司", "stone"], Random(3))
    assert len(new) == len(CHINESE)
    assert sum(a != b for a, b in zip(CHINESE, new, strict=True)) == 2
    assert "公司" in new


def test_edits_can_insert_or_delete_words() -> None:
    assert edited("one two", 2, ("insert",), ["x"], Random(1)) == "one x two x"
    assert edited("今天", 1, ("insert",), ["公司"], Random(1)) == "今天公司"
    assert edited("one two", 2, ("delete",), ["x"], Random(1)) == " "


def test_edits_are_limited_to_the_number_of_words() -> None:
    assert edited("one two", 5, REPLACE, ["x"], Random(1)) == "x x"
    assert edited("", 5, REPLACE, ["x"], Random(1)) == ""


def test_a_word_is_never_replaced_by_itself() -> None:
    assert edited("x", 1, REPLACE, ["x"], Random(1)) == "xx"


def test_is_cjk_follows_the_majority_of_characters() -> None:
    assert is_cjk(CHINESE)
    assert is_cjk("今天天气 ok")
    assert not is_cjk("the word 天气")
    assert not is_cjk("")


def test_copies_record_their_original() -> None:
    sample = [(7, "one two three four"), (9, CHINESE)]
    first, second = copies(sample, (2, 2), REPLACE, Random(1))
    assert (first.original, first.words, first.edits, first.cjk) == (7, 4, 2, False)
    assert (second.original, second.words, second.edits, second.cjk) == (9, 6, 2, True)
    assert copies(sample, (2, 2), REPLACE, Random(1)) == [first, second]


# Posts


def lines(*posts: object) -> bytes:
    return b"".join(json.dumps(post).encode() + b"\n" for post in posts)


POSTS = lines({"id": "1", "text": "one"}, {"id": "2", "text": "two", "title": "T"})


@pytest.mark.parametrize(
    ("name", "compressed"),
    [("p.jsonl", POSTS), ("p.jsonl.gz", gzip.compress(POSTS)), ("p.xz", lzma.compress(POSTS))],
    ids=["plain", "gzip", "xz"],
)
def test_reads_plain_and_compressed_files(tmp_path: Path, name: str, compressed: bytes) -> None:
    (tmp_path / name).write_bytes(compressed)
    assert list(File(tmp_path / name, None).texts()) == ["one", "two"]
    assert list(File(tmp_path / name, 1).texts()) == ["one"]


def test_invalid_lines_are_counted_reported_and_skipped(tmp_path: Path) -> None:
    path = tmp_path / "posts.jsonl"
    bad = b'no\n[1]\n{"id": 3}\n\n\xff\n{"text": "no id"}\n{"id": 4, "text": " "}\n'
    path.write_bytes(b'{"id": 1, "text": "one"}\n' + bad + POSTS)
    corpus = File(path, None)
    assert list(corpus.texts()) == ["one", "one", "two"]
    assert corpus.skipped == 6
    assert len(corpus.problems) == 5
    assert corpus.problems[0] == f"{path}, line 2: not valid JSON; skipped"
    assert corpus.problems[2] == f"{path}, line 4: text is missing; skipped"
    assert corpus.texts_of([2, 0]) == {0: "one", 2: "two"}


def test_unreadable_file_raises_a_one_line_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.jsonl: No such file or directory"):
        list(File(tmp_path / "none.jsonl", None).texts())
    for name, data in (("a.xz", lzma.compress(POSTS)), ("a.gz", gzip.compress(POSTS))):
        (tmp_path / name).write_bytes(data[:-9])
        with pytest.raises(ConfigError, match="broken data"):
            list(File(tmp_path / name, None).texts())


def test_synthetic_posts_have_10_to_800_zipf_distributed_words() -> None:
    corpus = Synthetic(300, seed=1)
    texts = list(corpus.texts())
    assert list(Synthetic(300, seed=1).texts()) == texts
    assert list(Synthetic(300, seed=2).texts()) != texts
    assert len(set(texts)) == 300
    assert corpus.texts_of([5, 299]) == {5: texts[5], 299: texts[299]}
    lengths = [len(text.split()) for text in texts]
    assert min(lengths) >= 10
    assert max(lengths) <= 800
    assert np.median(lengths) == pytest.approx(math.sqrt(10 * 800), rel=0.3)
    (_, most), (_, second) = Counter(word for text in texts for word in text.split()).most_common(2)
    assert most / second == pytest.approx(2, rel=0.15)


# The experiment


def test_prepare_returns_keys_of_all_posts_and_a_sample() -> None:
    corpus = Synthetic(50, seed=1)
    rules = ["features", "LSH words"]
    prepared = prepare(corpus, rules, 10, Random(1), ignore)
    texts = list(corpus.texts())
    assert prepared.documents == 50
    assert prepared.keys == {rule: [RULES[rule](text) for text in texts] for rule in rules}
    assert len({number for number, _ in prepared.sample}) == 10
    assert all(texts[number] == text for number, text in prepared.sample)
    assert len(prepare(corpus, [], 60, Random(1), ignore).sample) == 50


def test_posts_are_sampled_uniformly() -> None:
    class Numbers(Synthetic):
        def _text(self, number: int) -> str:
            return str(number)

    drawn: Counter[int] = Counter()
    corpus = Numbers(10, 1)
    for seed in range(2000):
        sample = prepare(corpus, [], 3, Random(seed), ignore).sample
        drawn.update(number for number, _ in sample)
    assert set(drawn) == set(range(10))
    assert all(count == pytest.approx(600, rel=0.15) for count in drawn.values())


def test_a_band_belongs_to_the_first_post_that_has_it() -> None:
    bands = [np.array(keys, np.int64) for keys in ([1, 2], [2, 3], [1, 3], [4])]
    assert [owned.tolist() for owned in first_owned(bands)] == [[1, 2], [3], [], [4]]
    assert first_owned([]) == []


def test_a_post_shorter_than_a_shingle_has_no_signature() -> None:
    assert RULES["LSH words"]("too few words") is None
    assert RULES["LSH characters"]("few") is None
    assert RULES["characters"](" ") is None


class Three(Synthetic):
    """Three posts: a post, the same post with one word added, and a different post."""

    def _text(self, number: int) -> str:
        same = " ".join(f"word{i}" for i in range(40))
        return (same, same + " more", "quite another text of some more words than five")[number]


def measured(*matches: list[int]) -> Measured:
    posts = [Found(numbers, 15, len(numbers)) for numbers in matches]
    return Measured("R15D2", posts, np.array([0.001, 0.002, 0.003, 0.004]), 0.0002, 1200, 1.0)


def test_recall_counts_the_original_or_an_equal_match() -> None:
    corpus = Three(3, 1)
    text = corpus.texts_of([0])[0]
    queries = [Query(0, text, 40, edits, cjk=False) for edits in (1, 1, 2, 2)]
    result = measured([0], [1], [2], [])
    verdicts = judge(corpus, queries, [result])["R15D2"]
    assert verdicts.tolist() == [True, True, False, False]

    row = of_method(result, verdicts, documents=3)
    assert (row["recall"], row["wrong"]) == (0.5, 0.25)
    assert row["milliseconds"] == pytest.approx({"p50": 2.5, "mean": 2.5, "p99": 3.97})
    assert row["ping_milliseconds"] == pytest.approx(0.2)
    assert (row["probes"], row["examined"]) == (15, 0.75)
    assert (row["index_bytes"], row["index_bytes_per_post"]) == (1200, 400)
    assert row["paper"]["measured_seconds"] == 0.214

    rows = recalls(queries, [result], {"R15D2": verdicts})
    assert [(row["words"], row["edits"], row["copies"], row["recall"]) for row in rows] == [
        ([20, 49], 1, 2, {"features": 1.0}),
        ([20, 49], 2, 2, {"features": 0.0}),
    ]


def test_alikeness_is_exact() -> None:
    assert alikeness("the same text", "The  same text") == 1
    assert alikeness("abcdefgh", "abcdefgx") == pytest.approx(3 / 5)
    assert alikeness(CHINESE, CHINESE[:-1]) == pytest.approx(9 / 10)
    assert alikeness("english words", CHINESE) == 0
    assert alikeness("", "") == 0


# Options


def parsed_options(*words: str) -> argparse.Namespace:
    # Loads all benchmarks.
    from tests.bench.__main__ import arguments

    return arguments().parse_args(["--experiment", *words])


def test_defaults_match_the_paper() -> None:
    opts = parsed_options()
    assert (opts.queries, opts.edits, opts.kinds, opts.method) == (1000, (1, 5), "replace", None)


def test_methods_match_schemes_and_rules() -> None:
    assert set(SCHEMES) <= set(METHODS)
    assert {method.rule for method in METHODS.values()} == set(RULES)


@pytest.mark.parametrize(
    "words",
    [
        ("--documents", "0"), ("--documents", "1e3"), ("--queries", "-5"), ("--edits", "5-1"),
        ("--edits", "0-3"), ("--edits", "many"), ("--kinds", "swap"), ("--method", "B7"),
    ],
)  # fmt: skip
def test_invalid_options_are_rejected(words: tuple[str, ...]) -> None:
    with pytest.raises(SystemExit):
        parsed_options(*words)


def test_edits_option_accepts_a_single_number() -> None:
    assert parsed_options("--edits", "3").edits == (3, 3)
