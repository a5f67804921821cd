"""The tables of `scrapy duplicates bench`."""

from __future__ import annotations

from rich.box import SIMPLE_HEAD
from rich.table import Table

from crawler.cli.duplicates import copies
from crawler.duplication.published import DOCUMENTS
from crawler.storage.client import Document
from crawler.utils.terminal import stdout
from crawler.utils.text import amount, count


def show(done: Document) -> None:
    """Print what `scrapy duplicates bench --json` would."""
    console = stdout()
    console.print(_heading(done), soft_wrap=True)
    console.print(_methods(done["methods"]))
    if beside := [row for row in done["methods"] if row["paper"]]:
        console.print(f"The paper's schemes: here, and as printed for {DOCUMENTS:,} documents")
        console.print(_beside_paper(beside))
    console.print("Recall by words of the post and number of words changed")
    console.print(_recalls(done["recall"]))


def _heading(done: Document) -> str:
    least, most = done["edits"]
    edits = count(most, "word") if least == most else f"{least} to {most} words"
    how = "replaced" if done["kinds"] == "replace" else "replaced, inserted or deleted"
    what = "made posts (synthetic)" if done["synthetic"] else f"posts of {done['posts']}"
    return f"{done['documents']:,} {what}; {copies(done['queries'])}, {edits} {how}"


def _methods(rows: list[Document]) -> Table:
    names = ("p50 ms", "mean", "p99", "ping", "probes", "posts", "B/post", "recall", "wrong")
    table = _table("method", *names)
    for row in rows:
        times = row["milliseconds"].values()
        table.add_row(
            row["method"],
            *("" if time is None else f"{time:.2f}" for time in times),
            f"{row['ping_milliseconds']:.2f}",
            amount(row["probes"]),
            amount(row["examined"]),
            f"{row['index_bytes_per_post']:,.0f}",
            _share(row["recall"]),
            _share(row["wrong"]),
        )
    return table


def _beside_paper(rows: list[Document]) -> Table:
    """What is counted here are trees; the published page reads are shown as such too."""
    table = _table(
        "scheme",
        "seconds\nhere",
        "there",
        "trees read\nhere",
        "there",
        "page reads\nthere",
        "at worst\nhere",
        "there",
    )
    for row in rows:
        paper, mean = row["paper"], row["milliseconds"]["mean"]
        table.add_row(
            row["method"],
            "" if mean is None else f"{mean / 1000:.4f}",
            f"{paper['measured_seconds']:.3f}",
            f"{row['probes']:.1f}",
            f"{paper['measured_trees']:.1f}",
            f"{paper['measured_page_reads']:.1f}",
            f"{paper['worst_page_reads']:.1f}",
            f"{paper['printed_worst_page_reads']:.1f}",
        )
    return table


def _recalls(rows: list[Document]) -> Table:
    rules = list(rows[0]["recall"])
    table = _table("words", "edits", "copies", *rules)
    before = ""
    for row in rows:
        values = [_share(row["recall"][rule]) for rule in rules]
        shown = "" if (length := _length(row)) == before else length
        table.add_row(shown, str(row["edits"]), f"{row['copies']:,}", *values)
        before = length
    return table


def _length(row: Document) -> str:
    least, most = row["words"]
    words = f"{least}+" if most is None else f"{least}-{most}"
    return f"CJK {words}" if row["cjk"] else words


def _share(value: float) -> str:
    return f"{value:.3f}"


def _table(first: str, *others: str) -> Table:
    table = Table(first, box=SIMPLE_HEAD, padding=0, pad_edge=False)
    for name in others:
        table.add_column(name, justify="right")
    return table
