"""Samples of a worker's leased entries over time."""

from __future__ import annotations

from tests.faults.samples import Held, Sample, trend


def samples(memory_mb: list[float], descriptors: list[int]) -> list[Sample]:
    held = zip(memory_mb, descriptors, strict=True)
    return [
        Sample(10.0 * k, {1: Held(mb, open_, 4, 0.0)}, 100.0, 0.0, 0)
        for k, (mb, open_) in enumerate(held)
    ]


def test_growth_uses_second_half_of_samples() -> None:
    growth = trend(samples([*range(0, 400, 10), *(400 + k for k in range(40))], [9] * 80), 1)
    assert round(growth.mb_per_hour, 6) == 360
    assert round(growth.grown_mb, 6) == 39
    assert growth.mean_mb == 419.5


def test_temporary_descriptors_are_not_a_leak() -> None:
    busy, leak = [9, 9, 30] * 27, [9] * 40 + [12] * 41
    assert trend(samples([100.0] * 81, busy), 1).descriptors == (9, 9)
    assert trend(samples([100.0] * 81, leak), 1).descriptors == (9, 12)
