"""The statistics of a comparison, against tables and against numbers worked out by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from evsys_sdk.experiment.statistics.multiplicity import max_t
from evsys_sdk.experiment.statistics.noise import Plan, noise_floor, smallest_detectable
from evsys_sdk.experiment.statistics.student_t import t_cdf, t_quantile
from evsys_sdk.experiment.statistics.two_level import Differences, RunScores, SeedNoise, compare, run_mean, seed_noise
from evsys_sdk.experiment.statistics.winner import shrunk


def scores(*rows: list[float], by_task: bool = True, trained: bool = True) -> RunScores:
    return RunScores(np.array(rows, dtype=float), by_task=by_task, trained=trained)


def differences(estimates: list[float], covariance: list[list[float]], df: float = 30.0) -> Differences:
    size = len(estimates)
    return Differences(np.array(estimates), np.array(covariance), np.full(size, df), np.zeros(size), None)


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
        assert found.estimates[0] == pytest.approx(0.4)
        # By task: 0.6 - 0.1 and 0.8 - 0.5, that is 0.5 and 0.3: variance 0.02, over 2 tasks.
        assert found.task_variance[0] == pytest.approx(0.01)
        # The baseline's own seeds lie further apart (0.02) than the pooled 0.01, so it is taken at its word.
        assert found.covariance[0, 0] == pytest.approx(0.01 + 0.01 / 2 + 0.02 / 2)

    def test_the_degrees_of_freedom_come_from_the_seeds(self) -> None:
        found = compare(self.base, [self.better])
        assert found is not None
        variance, doubt = 0.01 + 1.0 * 0.01, 0.01**2 / 1 + (1.0 * 0.02) ** 2 / 2
        assert found.df[0] == pytest.approx(max(1.0, variance**2 / doubt))

    def test_differences_share_the_noise_of_their_baseline(self) -> None:
        found = compare(self.base, [self.better, self.better])
        assert found is not None
        assert found.covariance[0, 1] > 0
        assert found.covariance == pytest.approx(found.covariance.T)

    def test_a_metric_without_tasks_is_compared_by_its_seeds(self) -> None:
        base, other = scores([1.0], [1.2], [1.4], by_task=False), scores([2.0], [2.2], [2.4], by_task=False)
        found = compare(base, [other])
        assert found is not None
        assert found.estimates[0] == pytest.approx(1.0)
        assert found.covariance[0, 0] == pytest.approx(0.04 * 2 / 3)  # the plain two-sample t test
        assert found.df[0] == 4

    def test_a_model_that_was_not_trained_has_no_luck_of_seeds(self) -> None:
        frozen = scores([0.1, 0.5], trained=False)
        found = compare(frozen, [self.better])
        assert found is not None
        assert found.noise is not None
        assert found.noise.df == 1
        assert found.covariance[0, 0] == pytest.approx(found.task_variance[0] + found.noise.component / 2)

    def test_one_seed_leaves_the_luck_of_tasks_alone(self) -> None:
        found = compare(scores([0.0, 0.4, 0.5]), [scores([0.5, 0.5, 1.0])])
        assert found is not None
        assert found.noise is None
        assert found.df[0] == 2
        assert found.covariance[0, 0] == pytest.approx(np.var([0.5, 0.1, 0.5], ddof=1) / 3)

    def test_without_seeds_and_tasks_there_is_no_interval(self) -> None:
        assert compare(scores([0.1], by_task=False), [scores([0.3], by_task=False)]) is None
        agreeing = scores([0.1], [0.1], by_task=False), scores([0.3], [0.3], by_task=False)
        assert compare(agreeing[0], [agreeing[1]]) is None

    def test_tasks_that_all_agree_still_leave_doubt(self) -> None:
        found = compare(scores([0.0] * 5, [0.0] * 5), [scores([1.0] * 5, [1.0] * 5)])
        assert found is not None
        assert found.stderr[0] == pytest.approx(math.sqrt(1 / 6 / 5))  # as if a sixth task had not been solved

    def test_runs_may_have_different_numbers_of_seeds(self) -> None:
        draw = np.random.default_rng(0)
        base, one = RunScores(draw.random((5, 40))), RunScores(draw.random((1, 40)))
        found = compare(base, [one, RunScores(draw.random((3, 40)))])
        assert found is not None
        assert found.noise is not None
        assert found.noise.df == 6
        assert found.stderr[0] > found.stderr[1]

    def test_the_mean_of_a_run_has_the_same_two_kinds_of_luck(self) -> None:
        noise = SeedNoise(between=0.02, explained=0.01, df=2)
        found = run_mean(self.better, noise)
        assert found is not None
        by_task = np.var([0.6, 0.8], ddof=1) / 2
        assert found[0] == pytest.approx(math.sqrt(by_task + 0.01 / 2))
        assert run_mean(scores([0.5], by_task=False), None) is None


class TestMaxT:
    def test_a_single_difference_needs_no_correction(self) -> None:
        found = max_t(differences([0.1], [[0.01]], df=7))
        assert found.critical() == pytest.approx(t_quantile(0.975, 7))
        assert found.p_value(found.critical()) == pytest.approx(0.05)

    @pytest.mark.parametrize(
        ("size", "df", "expected"),
        [
            # Dunnett's two-sided 5 % points: comparisons with one control, equal numbers, correlation one half.
            (2, 10, 2.57),
            (6, 14, 2.97),
            (6, 30, 2.72),
            (9, 60, 2.75),
        ],
    )
    def test_comparisons_with_one_baseline_give_the_table_of_dunnett(
        self, size: int, df: float, expected: float
    ) -> None:
        covariance = np.full((size, size), 0.5) + np.eye(size) / 2
        found = max_t(differences([0.0] * size, covariance.tolist(), df=df))
        assert found.critical() == pytest.approx(expected, abs=0.05)

    def test_runs_that_were_dropped_before_they_had_a_difference_count_as_well(self) -> None:
        alone = differences([0.0], [[0.01]], df=30)
        assert max_t(alone, unseen=5).critical() == pytest.approx(2.72, abs=0.05)  # as for six comparisons
        two = differences([0.0, 0.0], [[0.01, 0.005], [0.005, 0.01]], df=30)
        assert max_t(two, unseen=4).critical() == pytest.approx(2.72, abs=0.05)

    def test_copies_of_one_run_count_once(self) -> None:
        found = max_t(differences([0.1, 0.1, 0.1], [[0.01] * 3] * 3, df=12))
        assert found.critical() == pytest.approx(t_quantile(0.975, 12), abs=0.06)

    def test_hundreds_of_runs_need_no_more_memory_than_they_should(self) -> None:
        size = 400
        covariance = np.full((size, size), 0.5) + np.eye(size) / 2
        found = max_t(differences([0.0] * size, covariance.tolist(), df=800))
        assert 3.3 < found.critical() < 3.8

    def test_it_is_the_same_every_time(self) -> None:
        given = differences([0.1, 0.2], [[0.01, 0.004], [0.004, 0.02]])
        assert max_t(given).critical() == max_t(given).critical()
        assert max_t(given).p_value(2.0) == max_t(given).p_value(-2.0)
        assert 0 < max_t(given).p_value(100) < 0.001


class TestNoise:
    def test_the_floor_is_that_of_two_equal_recipes(self) -> None:
        base = scores([0.4], [0.5], [0.6], by_task=False)
        floor = noise_floor(base, None, seeds=3)
        assert floor is not None
        assert floor.seed_sd == pytest.approx(0.1)
        assert floor.difference == pytest.approx(4.302653 * 0.1 * math.sqrt(2 / 3), rel=1e-6)
        assert floor.of_baseline

    def test_a_baseline_of_one_seed_borrows_the_noise_of_the_others(self) -> None:
        floor = noise_floor(scores([0.5, 0.6]), SeedNoise(0.04, 0.0, 6), seeds=2)
        assert floor is not None
        assert (floor.seed_sd, floor.df, floor.of_baseline) == (pytest.approx(0.2), 6, False)
        assert noise_floor(scores([0.5, 0.6]), None, seeds=1) is None

    def test_the_smallest_detectable_effect_is_seen_four_times_in_five(self) -> None:
        draw = np.random.default_rng(3)
        stderr, df, effect = 0.02, 14, smallest_detectable(0.02, t_quantile(0.975, 14), 14)
        means = draw.normal(effect, stderr, 20_000)
        widths = t_quantile(0.975, df) * stderr * np.sqrt(draw.chisquare(df, 20_000) / df)
        assert np.mean(means > widths) == pytest.approx(0.8, abs=0.03)

    def test_more_seeds_see_smaller_effects_until_the_tasks_set_the_limit(self) -> None:
        plan = Plan(0.0004, 3, SeedNoise(0.001, 0.0004, 14), runs=7, critical_now=2.9, df_now=14)
        seen = [plan.detectable(seeds) for seeds in (2, 3, 5, 10, 100)]
        assert seen == sorted(seen, reverse=True)
        needed = plan.seeds_needed(0.1)
        assert needed is not None
        assert plan.detectable(needed) <= 0.1 < plan.detectable(needed - 1)
        assert plan.seeds_needed(0.001) is None


class TestWinner:
    def test_runs_that_spread_by_luck_alone_get_their_mean(self) -> None:
        found = shrunk(differences([0.01, 0.02, 0.03], (np.eye(3) * 0.01).tolist()))
        assert found == pytest.approx([0.02] * 3)

    def test_a_run_that_stands_out_keeps_most_of_its_gain(self) -> None:
        found = shrunk(differences([0.3, 0.0, 0.0, 0.0], (np.eye(4) * 0.0001).tolist()))
        assert 0.29 < found[0] < 0.3

    def test_noise_of_the_shared_baseline_does_not_shrink(self) -> None:
        shared = np.full((3, 3), 0.5)
        assert shrunk(differences([0.1, 0.2, 0.3], shared.tolist())) == pytest.approx([0.1, 0.2, 0.3])

    def test_a_single_difference_was_not_chosen(self) -> None:
        assert shrunk(differences([0.1], [[1.0]])) == pytest.approx([0.1])
