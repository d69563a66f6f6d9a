"""How often the verdict is wrong where the truth is known: cells of `benchmarks/conclusions.py`, with fixed seeds."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.conclusions import TWELVE_POINTS, World, list_cells, measure
from evsys_sdk.experiment.conclusion.verdict import conclude_from

pytestmark = pytest.mark.slow

CELLS = {name: (what, world) for name, what, world, _ in list_cells()}


# Each limit is the measured share and two standard errors of so few experiments.
@pytest.mark.parametrize(
    ("cell", "experiments", "most", "coverage"),
    [
        ("K7 S3 T100", 400, 0.03, 0.96),
        ("K7, baseline x5", 300, 0.065, 0.92),
        ("K7, candidate x5", 300, 0.04, 0.95),
        ("K2 S3, seed sd x2.5", 250, 0.045, 0.93),
        ("K7, 10 clusters", 150, 0.03, 0.96),
        ("K7, 10 % of wrong lost", 100, 0.04, 0.96),
    ],
)
def test_almost_nothing_is_called_better_where_nothing_is(
    cell: str, experiments: int, most: float, coverage: float
) -> None:
    false, _, _, covered = measure(*CELLS[f"false: {cell}"], experiments, seed=1)
    assert false <= most
    assert covered >= coverage


def test_tasks_of_five_documents_that_nobody_names_are_taken_for_independent() -> None:
    random, world = np.random.default_rng(1), World(7, tasks=500, clusters=5)
    drawn = (world.draw(random) for _ in range(60))
    unnamed = [
        replace(
            one,
            runs=[
                replace(
                    run,
                    arms=[
                        replace(arm, scorings={key: replace(s, clusters={}) for key, s in arm.scorings.items()})
                        for arm in run.arms
                    ],
                )
                for run in one.runs
            ],
        )
        for one in drawn
    ]
    assert np.mean([conclude_from(one).verdict == "supported" for one in unnamed]) > 0.1


def test_a_gain_of_twelve_points_is_found() -> None:
    power, _, _, covered = measure(*CELLS["power: K7 S3 T100, +12 points"], 150, seed=1)
    assert power >= 0.77
    assert covered >= 0.95


def test_the_minimum_detectable_effect_is_detected_four_times_in_five() -> None:
    random, gains = np.random.default_rng(3), np.linspace(0.2, 1.0, 41)
    effect = float(np.median([World(7).conclude(random)[0].smallest_detectable or 0.0 for _ in range(60)]))
    gain = float(np.interp(effect, [World(7, gain=gain).true_gain for gain in gains.tolist()], gains))
    power, *_ = measure("power", World(7, gain=gain), 400, seed=2)
    assert 0.72 <= power <= 0.88


def test_five_trials_together_err_no_more_than_one() -> None:
    random, wrong = np.random.default_rng(4), 0
    for _ in range(120):
        drawn = [replace(World(2).draw(random), attempt=number) for number in range(1, 6)]
        wrong += any(conclude_from(one).verdict == "supported" for one in drawn)
    assert wrong / 120 <= 0.07


def test_a_single_seed_is_never_more_than_promising() -> None:
    random = np.random.default_rng(2)
    found = [World(7, seeds=1, gain=2.5 * TWELVE_POINTS).conclude(random)[0].verdict for _ in range(30)]
    assert set(found) == {"promising_unconfirmed"}
