from itertools import pairwise

from evsys_sdk.training.batch import Schedule


def test_constant_stays_at_the_peak() -> None:
    assert [Schedule("constant").factor(step, 4) for step in range(4)] == [1.0] * 4


def test_linear_starts_at_the_peak_and_never_wastes_a_step_at_zero() -> None:
    assert [Schedule("linear").factor(step, 4) for step in range(4)] == [1.0, 0.75, 0.5, 0.25]


def test_cosine_is_halfway_down_at_half_time_and_falls_monotonically() -> None:
    factors = [Schedule("cosine").factor(step, 100) for step in range(100)]
    assert factors[0] == 1.0
    assert abs(factors[50] - 0.5) < 1e-12
    assert all(before > after for before, after in pairwise(factors))


def test_warmup_rises_to_the_peak_and_the_decay_starts_there() -> None:
    schedule = Schedule("linear", warmup_steps=3)
    assert [schedule.factor(step, 7) for step in range(5)] == [0.25, 0.5, 0.75, 1.0, 0.75]


def test_the_decay_ends_at_the_final_fraction() -> None:
    assert Schedule("linear", final_fraction=0.1).factor(100, 100) == 0.1


def test_a_warmup_longer_than_the_run_never_reaches_the_peak() -> None:
    assert all(Schedule("cosine", warmup_steps=10).factor(step, 3) < 1 for step in range(3))
