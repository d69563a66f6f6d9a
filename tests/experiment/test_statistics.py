"""The statistics of a comparison, against tables and against numbers worked out by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from evsys_sdk.experiment.statistics.attempts import attempt_error, look_errors, spent_error
from evsys_sdk.experiment.statistics.power import Prospect
from evsys_sdk.experiment.statistics.student_t import chi2_quantile, t_cdf, t_quantile
from evsys_sdk.experiment.statistics.two_level import (
    RunScores,
    SeedNoise,
    compare,
    contrast,
    seed_noise,
)


def scores(*rows: list[float], trained: bool = True) -> RunScores:
    return RunScores(np.array(rows, dtype=float), trained=trained)


class TestStudentT:
    @pytest.mark.parametrize(
        ("p", "df", "expected"),
        [
            (0.975, 1, 12.7062047362),
            (0.975, 2, 4.30265272975),
            (0.975, 4, 2.77644510520),
            (0.975, 10, 2.22813885196),
            (0.995, 30, 2.74999565357),
            (0.95, 14, 1.76131013577),
            (0.8, 5, 0.919543780236),
            (0.9995, 3, 12.9239786366),
            (0.975, 1e7, 1.95996422177),
        ],
    )
    def test_quantiles_are_those_of_the_tables(self, p: float, df: float, expected: float) -> None:
        assert t_quantile(p, df) == pytest.approx(expected, rel=1e-9)
        assert t_quantile(1 - p, df) == pytest.approx(-expected, rel=1e-9)

    @pytest.mark.parametrize("df", [1, 1.5, 2, 3.7, 14, 99, 12345.6])
    def test_the_quantile_undoes_the_distribution(self, df: float) -> None:
        for p in (0.001, 0.2, 0.5, 0.6, 0.975, 0.99999):
            assert t_cdf(t_quantile(p, df), df) == pytest.approx(p, rel=1e-11)

    def test_one_degree_of_freedom_is_the_cauchy_distribution(self) -> None:
        assert t_cdf(0.3, 1) == pytest.approx(0.5 + math.atan(0.3) / math.pi, rel=1e-13)
        assert (t_cdf(math.inf, 3), t_cdf(-math.inf, 3)) == (1.0, 0.0)

    def test_other_distributions_are_those_of_the_tables(self) -> None:
        assert chi2_quantile(0.5, 10) == pytest.approx(9.342, rel=0.002)

    @pytest.mark.parametrize(("p", "df"), [(0.0, 3), (1.0, 3), (0.5, 0), (math.nan, 3)])
    def test_what_has_no_quantile_is_refused(self, p: float, df: float) -> None:
        with pytest.raises(ValueError, match="0 < p < 1"):
            t_quantile(p, df)


class TestTwoLevel:
    """Two runs, two seeds, two tasks: small enough to work out on paper."""

    base = scores([0.0, 0.4], [0.2, 0.6])
    """Seed means 0.2 and 0.4: variance 0.02, none of it explained by single tasks."""
    better = scores([0.6, 0.6], [0.6, 1.0])
    """Seed means 0.6 and 0.8: variance 0.02. Beyond run and seed, each answer is off by 0.1."""

    def test_the_noise_of_seeds_is_pooled_and_cleared_of_what_single_tasks_explain(self) -> None:
        noise = seed_noise([self.base, self.better])
        assert noise is not None
        assert (noise.between, noise.df) == (pytest.approx(0.02), 2)
        # Of `better`: four residuals of 0.1, squared and summed 0.04, over (2-1)(2-1), over 2 tasks; of `base` none.
        assert noise.explained == pytest.approx((0.04 / 2 + 0) / 2)
        assert noise.component == pytest.approx(0.01)

    def test_the_variance_of_a_difference_is_that_of_tasks_and_of_seeds(self) -> None:
        found = compare(self.base, [self.better])
        assert found is not None
        assert found.estimates[0].value == pytest.approx(0.4)
        # By task: 0.6 - 0.1 and 0.8 - 0.5, that is 0.5 and 0.3: variance 0.02, over 2 tasks.
        assert found.estimates[0].task_variance == pytest.approx(0.01)
        # The seeds of both lie equally far apart, so both are charged the pooled component of 0.01.
        assert found.estimates[0].stderr ** 2 == pytest.approx(0.01 + 0.01 / 2 + 0.01 / 2)

    def test_the_degrees_of_freedom_come_from_the_seeds(self) -> None:
        found = compare(self.base, [self.better])
        assert found is not None
        variance, doubt = 0.01 + 1.0 * 0.01, 0.01**2 / 1 + 2 * (0.5 * 0.02) ** 2 / 2
        assert found.estimates[0].df == pytest.approx(max(1.0, variance**2 / doubt))

    def test_a_metric_without_tasks_is_compared_by_its_seeds(self) -> None:
        base, other = scores([1.0], [1.2], [1.4]), scores([2.0], [2.2], [2.4])
        found = compare(base, [other])
        assert found is not None
        assert found.estimates[0].value == pytest.approx(1.0)
        assert found.estimates[0].stderr ** 2 == pytest.approx(0.04 * 2 / 3)  # the plain two-sample t test
        assert found.estimates[0].df == 4

    def test_a_model_that_was_not_trained_has_no_luck_of_seeds(self) -> None:
        frozen = scores([0.1, 0.5], trained=False)
        found = compare(frozen, [self.better])
        assert found is not None
        assert found.noise is not None
        assert found.noise.df == 1
        assert found.estimates[0].stderr ** 2 == pytest.approx(
            found.estimates[0].task_variance + found.noise.component / 2
        )

    def test_one_seed_leaves_the_luck_of_tasks_alone(self) -> None:
        found = compare(scores([0.0, 0.4, 0.5]), [scores([0.5, 0.5, 1.0])])
        assert found is not None
        assert found.noise is None
        assert found.estimates[0].df == 2
        assert found.estimates[0].stderr ** 2 == pytest.approx(np.var([0.5, 0.1, 0.5], ddof=1) / 3)

    def test_without_seeds_and_tasks_there_is_no_interval(self) -> None:
        assert compare(scores([0.1]), [scores([0.3])]) is None
        agreeing = scores([0.1], [0.1]), scores([0.3], [0.3])
        assert compare(agreeing[0], [agreeing[1]]) is None

    def test_tasks_that_all_agree_still_leave_doubt(self) -> None:
        found = compare(scores([0.0] * 5, [0.0] * 5), [scores([1.0] * 5, [1.0] * 5)])
        assert found is not None
        assert found.estimates[0].stderr == pytest.approx(
            math.sqrt(1 / 6 / 5)
        )  # as if a sixth task had not been solved

    def test_runs_may_have_different_numbers_of_seeds(self) -> None:
        draw = np.random.default_rng(0)
        base, one = RunScores(draw.random((5, 40))), RunScores(draw.random((1, 40)))
        found = compare(base, [one, RunScores(draw.random((3, 40)))])
        assert found is not None
        assert found.noise is not None
        assert found.noise.df == 6
        assert found.estimates[0].stderr > found.estimates[1].stderr

    def test_the_mean_of_a_run_has_the_same_two_kinds_of_luck(self) -> None:
        noise = SeedNoise(between=0.02, explained=0.01, df=2)
        found = contrast([self.better], [1.0], noise)
        assert found is not None
        by_task = np.var([0.6, 0.8], ddof=1) / 2
        assert found.stderr == pytest.approx(math.sqrt(by_task + 0.01 / 2))
        assert contrast([scores([0.5])], [1.0]) is None


class TestClusters:
    def test_tasks_of_one_cluster_count_as_one(self) -> None:
        """Three clusters of two tasks; their sums of d - D are what varies."""
        clusters = np.array([0, 0, 1, 1, 2, 2])
        base = RunScores(np.zeros((1, 6)), trained=False, clusters=clusters)
        run = RunScores(np.array([[0.1, 0.1, 0.4, 0.6, 0.9, 0.9]]), clusters=clusters)
        found = compare(base, [run])
        assert found is not None
        sums = np.array([0.2 - 1.0, 1.0 - 1.0, 1.8 - 1.0])  # D is 0.5, so that each pair should sum to 1.0
        assert found.estimates[0].stderr ** 2 == pytest.approx(3 / 2 * (sums**2).sum() / 6**2)
        assert (found.candidates[0].tasks_df, found.estimates[0].df) == (2, 2)

    def test_clusters_of_one_task_change_nothing(self) -> None:
        draw = np.random.default_rng(0)
        values = draw.random((2, 3, 20))
        plain = compare(*(lambda one: (one[0], one[1:]))([RunScores(each) for each in values]))
        own = compare(*(lambda one: (one[0], one[1:]))([RunScores(each, clusters=np.arange(20)) for each in values]))
        assert plain is not None
        assert own is not None
        for one, other in zip(own.estimates, plain.estimates, strict=True):
            assert (one.stderr, one.df) == pytest.approx((other.stderr, other.df))

    def test_clusters_of_very_different_size_tell_less_than_their_number(self) -> None:
        clusters = np.array([0] * 18 + [1, 2])
        assert RunScores(np.zeros((1, 20)), clusters=clusters).tasks_df == pytest.approx(400 / 326 - 1)
        assert RunScores(np.zeros((1, 20)), clusters=np.zeros(20, dtype=int)).tasks_df == 0


class TestContrast:
    def test_a_contrast_of_two_runs_is_their_difference(self) -> None:
        draw = np.random.default_rng(4)
        runs = [RunScores(draw.random((3, 40))) for _ in range(2)]
        found, pair = contrast(runs, [-1.0, 1.0]), compare(runs[0], runs[1:])
        assert found is not None
        assert pair is not None
        assert found == pair.estimates[0]


class TestFarEnd:
    def test_own_degrees_of_freedom_do_not_grow_with_the_seeds_of_other_runs(self) -> None:
        draw = np.random.default_rng(0)
        noisy = [RunScores(draw.normal(0, 0.1, (3, 1)) + draw.normal(0, 0.1, (3, 50))) for _ in range(7)]
        alone, among = compare(noisy[0], noisy[1:2]), compare(noisy[0], noisy[1:])
        assert alone is not None
        assert among is not None
        assert among.estimates[0].df > 2 * among.estimates[0].own_df
        assert all(one.own_df <= one.df for one in among.estimates)
        assert among.estimates[0].own_df < 8


class TestPower:
    prospect = Prospect(training=0.0004, answers=0.0005, interaction=0.0001, tasks_df=99, candidates=6)

    def test_more_seeds_see_smaller_effects_until_the_tasks_set_the_limit(self) -> None:
        seen = [self.prospect.detectable(seeds) for seeds in (2, 3, 5, 10, 64)]
        assert seen == sorted(seen, reverse=True)
        needed = self.prospect.seeds_needed(0.08)
        assert needed is not None
        assert self.prospect.detectable(needed) <= 0.08 < self.prospect.detectable(needed - 1)
        assert self.prospect.seeds_needed(0.001) is None


class TestAttempts:
    def test_all_attempts_together_err_no_more_than_one(self) -> None:
        assert attempt_error(1) == pytest.approx(0.015)
        assert attempt_error(2) == pytest.approx(0.005 * 6 / math.pi**2)
        assert sum(attempt_error(number) for number in range(1, 10_000)) == pytest.approx(0.02, rel=1e-3)

    def test_early_looks_spend_next_to_nothing(self) -> None:
        assert spent_error(1.0) == pytest.approx(0.02)
        assert spent_error(0.2) < 1e-5

    def test_looks_together_err_as_often_as_they_may(self) -> None:
        fractions = tuple(count / 10 for count in range(2, 11))
        levels = look_errors(fractions)
        draw = np.random.default_rng(0)
        steps = draw.normal(0, np.sqrt(np.diff([0.0, *fractions])), (200_000, len(fractions)))
        z = steps.cumsum(axis=1) / np.sqrt(fractions)
        bounds = np.array([t_quantile(1 - level, 1e6) if level > 1e-7 else 5.5 for level in levels])
        assert np.mean((z > bounds).any(axis=1)) == pytest.approx(0.02, abs=0.0012)
        assert levels[-1] > 0.012  # most is left for the end

    @pytest.mark.parametrize("looks", [(2, 25), (2, 10, 20), (2, 12), (2, 100)])
    @pytest.mark.parametrize("attempt", [1, 2, 20])
    def test_a_look_long_before_the_end_decides_nothing_and_costs_nothing(
        self, looks: tuple[int, ...], attempt: int
    ) -> None:
        error = attempt_error(attempt)
        levels = look_errors(tuple(count / looks[-1] for count in looks), error)
        assert levels[0] < 1e-6
        assert error / 2 < levels[-1] <= error * (1 + 1e-3)

    def test_one_look_is_no_look_ahead(self) -> None:
        assert look_errors((1.0,))[0] == pytest.approx(0.02, rel=1e-3)
