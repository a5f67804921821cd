"""The modules that start first, because their tests take longest."""

from pathlib import Path

from tests.conftest import LONGEST

TESTS = Path(__file__).parents[2]


def test_longest_modules_exist() -> None:
    assert [name for name in LONGEST if not (TESTS / name).is_file()] == []
