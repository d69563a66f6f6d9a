"""The statistics of a comparison, against tables and against numbers worked out by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from evsys_sdk.experiment.statistics.attempts import attempt_error, look_errors, pool_attempts, spent_error
from evsys_sdk.experiment.statistics.charges import charge_run
from evsys_sdk.experiment.statistics.luck import noise_floor, shrunk
from evsys_sdk.experiment.statistics.power import Prospect
from evsys_sdk.experiment.statistics.reference import Reference, adjust_to_rate
from evsys_sdk.experiment.statistics.student_t import chi2_quantile, f_above, t_cdf, t_quantile
from evsys_sdk.experiment.statistics.two_level import (
    Differences,
    RunScores,
    SeedNoise,
    are_paired,
    compare,
    contrast,
    is_noisier,
    run_mean,
    seed_noise,
)
from evsys_sdk.experiment.statistics.worlds import Design


def scores(*rows: list[float], by_task: bool = True, trained: bool = True) -> RunScores:
    return RunScores(np.array(rows, dtype=float), by_task=by_task, trained=trained)


def differences(estimates: list[float], covariance: list[list[float]], df: float = 30.0) -> Differences:
    size = len(estimates)
    wide = np.array(covariance)
    return Differences(np.array(estimates), np.sqrt(np.diag(wide)), wide, np.full(size, df), np.zeros(size), None)


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
        assert f_above(3.885, 2, 12) == pytest.approx(0.05, rel=1e-3)

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
        # The seeds of both lie equally far apart, so both are charged the pooled component of 0.01.
        assert found.covariance[0, 0] == pytest.approx(0.01 + 0.01 / 2 + 0.01 / 2)

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


class TestClusters:
    def test_tasks_of_one_cluster_count_as_one(self) -> None:
        """Three clusters of two tasks; their sums of d - D are what varies."""
        clusters = np.array([0, 0, 1, 1, 2, 2])
        base = RunScores(np.zeros((1, 6)), trained=False, clusters=clusters)
        run = RunScores(np.array([[0.1, 0.1, 0.4, 0.6, 0.9, 0.9]]), clusters=clusters)
        found = compare(base, [run])
        assert found is not None
        sums = np.array([0.2 - 1.0, 1.0 - 1.0, 1.8 - 1.0])  # D is 0.5, so that each pair should sum to 1.0
        assert found.covariance[0, 0] == pytest.approx(3 / 2 * (sums**2).sum() / 6**2)
        assert (found.tasks_df, found.df[0]) == (2, 2)

    def test_clusters_of_one_task_change_nothing(self) -> None:
        draw = np.random.default_rng(0)
        values = draw.random((2, 3, 20))
        plain = compare(*(lambda one: (one[0], one[1:]))([RunScores(each) for each in values]))
        own = compare(*(lambda one: (one[0], one[1:]))([RunScores(each, clusters=np.arange(20)) for each in values]))
        assert plain is not None
        assert own is not None
        assert own.covariance == pytest.approx(plain.covariance)
        assert own.df == pytest.approx(plain.df)

    def test_clusters_of_very_different_size_tell_less_than_their_number(self) -> None:
        clusters = np.array([0] * 18 + [1, 2])
        assert RunScores(np.zeros((1, 20)), clusters=clusters).tasks_df == pytest.approx(400 / 326 - 1)
        assert RunScores(np.zeros((1, 20)), clusters=np.zeros(20, dtype=int)).tasks_df == 0


def level(*means: float) -> RunScores:
    """A run whose seeds score these, on every task the same."""
    return scores(*([mean] for mean in means), by_task=False)


class TestErraticRuns:
    others = (level(0.49, 0.50, 0.51), level(0.50, 0.51, 0.52), level(0.48, 0.49, 0.50), level(0.49, 0.50, 0.51))

    def test_a_run_is_charged_its_own_noise_only_where_that_is_striking(self) -> None:
        ratios = np.array([0.5, 1.0, 1.7, 3.5])
        assert charge_run(ratios) == pytest.approx([1.0, 1.0, 1.0, 3.5 * 2])

    def test_a_baseline_in_line_with_the_others_is_as_noisy_as_they_are(self) -> None:
        found = compare(level(0.49, 0.50, 0.51), [level(0.59, 0.60, 0.61), *self.others])
        assert found is not None
        assert found.stderr[0] == pytest.approx(0.01 * math.sqrt(2 / 3))

    def test_a_baseline_below_all_others_may_be_unlucky_and_must_be_beaten_by_more(self) -> None:
        usual = compare(level(0.49, 0.50, 0.51), [level(0.59, 0.60, 0.61), *self.others])
        low = compare(level(0.44, 0.45, 0.46), [level(0.54, 0.55, 0.56), *self.others])
        assert usual is not None
        assert low is not None
        assert low.stderr[0] == pytest.approx(1.4 * usual.stderr[0])

    def test_what_is_compared_does_not_make_its_baseline_look_unlucky(self) -> None:
        little, much = (
            compare(level(0.49, 0.50, 0.51), [level(mean - 0.01, mean, mean + 0.01), *self.others])
            for mean in (0.5, 0.9)
        )
        assert little is not None
        assert much is not None
        assert much.stderr[0] == pytest.approx(little.stderr[0])

    def test_a_baseline_whose_seeds_lie_far_apart_is_charged_what_they_say_and_more(self) -> None:
        found = compare(level(0.45, 0.50, 0.55), self.others)
        assert found is not None
        assert found.noise is not None
        expected = 1.4 * math.sqrt((0.05**2 + found.noise.between) / 3)
        assert found.stderr == pytest.approx(np.full(4, expected))

    @pytest.mark.filterwarnings("error")
    def test_a_baseline_that_varies_among_runs_without_any_noise_is_charged_a_number(self) -> None:
        found = compare(level(0.45, 0.50, 0.55), [level(0.6, 0.6, 0.6), level(0.5, 0.5, 0.5), level(0.5, 0.5, 0.5)])
        assert found is not None
        assert np.isfinite(found.stderr).all()
        assert (found.stderr > 0.05 / math.sqrt(3)).all()

    def test_of_two_runs_alone_nobody_can_tell_which_one_is_erratic(self) -> None:
        found = compare(level(0.45, 0.50, 0.55), [level(0.59, 0.60, 0.61)])
        assert found is not None
        assert found.stderr[0] == pytest.approx(math.sqrt((0.05**2 + 0.01**2) / 3))

    def test_two_runs_that_are_equally_noisy_are_charged_nothing(self) -> None:
        found = compare(level(0.49, 0.50, 0.51), [level(0.59, 0.60, 0.61)])
        assert found is not None
        assert found.stderr[0] == pytest.approx(0.01 * math.sqrt(2 / 3))


class TestSeeds:
    def test_luck_that_all_runs_share_by_their_seed_is_in_no_difference(self) -> None:
        draw = np.random.default_rng(1)
        luck = draw.normal(0, 0.1, (4, 1))
        runs = [RunScores(0.5 + luck + draw.normal(0, 0.05, (4, 50)), seeds=(1, 2, 3, 4)) for _ in range(5)]
        assert are_paired(runs)
        paired = compare(runs[0], runs[1:])
        apart = compare(*(lambda one: (one[0], one[1:]))([RunScores(run.values) for run in runs]))
        assert paired is not None
        assert apart is not None
        assert paired.stderr[0] < 0.3 * apart.stderr[0]

    def test_the_same_numbers_alone_do_not_make_pairs(self) -> None:
        draw = np.random.default_rng(2)
        runs = [
            RunScores(0.5 + draw.normal(0, 0.1, (4, 1)) + draw.normal(0, 0.05, (4, 50)), seeds=(1, 2, 3, 4))
            for _ in range(5)
        ]
        assert not are_paired(runs)
        assert not are_paired(runs[:3])

    def test_seeds_of_other_experiments_lend_certainty(self) -> None:
        draw = np.random.default_rng(3)
        runs = [RunScores(draw.random((2, 30))) for _ in range(2)]
        alone, helped = compare(runs[0], runs[1:]), compare(runs[0], runs[1:], lent=[SeedNoise(0.01, 0.002, 8)])
        assert alone is not None
        assert helped is not None
        assert alone.noise is not None
        assert helped.noise is not None
        assert (alone.noise.df, helped.noise.df, helped.lent_df) == (2, 10, 8)

    @pytest.mark.parametrize(
        ("earlier", "noisier"),
        [(SeedNoise(0.0001, 0.0, 40), False), (SeedNoise(0.00001, 0.0, 40), True), (SeedNoise(0.00001, 0.0, 1), False)],
        ids=["as noisy", "far quieter", "quieter by luck"],
    )
    def test_runs_are_noisier_than_earlier_ones_where_luck_does_not_explain_it(
        self, earlier: SeedNoise, noisier: bool
    ) -> None:
        assert is_noisier([level(0.49, 0.50, 0.51), level(0.59, 0.60, 0.61)], earlier) is noisier

    def test_runs_of_one_seed_are_noisier_than_nothing(self) -> None:
        assert not is_noisier([level(0.49), level(0.59)], SeedNoise(0.0001, 0.0, 40))

    def test_a_contrast_of_two_runs_is_their_difference(self) -> None:
        draw = np.random.default_rng(4)
        runs = [RunScores(draw.random((3, 40))) for _ in range(2)]
        found, pair = contrast(runs, np.array([-1.0, 1.0])), compare(runs[0], runs[1:])
        assert found is not None
        assert pair is not None
        assert found[0] == pytest.approx(pair.estimates[0])
        assert found[1] <= pair.stderr[0] * (1 + 1e-9)  # the baseline of a comparison may be charged more


class TestReference:
    def test_one_run_and_its_seeds_alone_are_students_t(self) -> None:
        found = Reference(Design((8,), seed_share=10))
        assert found.critical() == pytest.approx(t_quantile(0.975, 7), rel=0.04)
        assert found.plain == found.critical()
        assert found.p_value(found.critical()) == pytest.approx(0.05, rel=0.02)

    def test_more_comparisons_need_more(self) -> None:
        sizes = [Reference(Design((3,) * size, 3, 99, seed_share=5, task_share=1)).critical() for size in (6, 12, 19)]
        assert sizes == sorted(sizes)
        alone = Reference(Design((3,), 3, 99, seed_share=5, task_share=1))
        among = Reference(Design((3,), 3, 99, unseen=5, seed_share=5, task_share=1))
        assert among.critical() > alone.critical()
        assert among.plain == pytest.approx(alone.plain, rel=0.1)

    def test_what_is_known_from_few_clusters_or_seeds_needs_more(self) -> None:
        def critical(seeds: int, clusters: int) -> float:
            return Reference(Design((seeds,) * 2, seeds, clusters - 1, seed_share=3, task_share=4)).critical()

        assert critical(3, 5) > critical(3, 10) > critical(3, 100)
        assert critical(2, 100) > critical(3, 100) > critical(5, 100)

    def test_the_run_that_validation_prefers_needs_less_than_any_other(self) -> None:
        found = Reference(Design((3,) * 19, 3, 49, seed_share=5, task_share=1, validation=10))
        assert (
            found.critical(preferred=True) < Reference(Design((3,) * 19, 3, 49, seed_share=5, task_share=1)).critical()
        )
        assert found.critical(preferred=True) < found.critical()

    def test_a_smaller_error_rate_needs_more(self) -> None:
        design = Design((3,) * 6, 3, 99, seed_share=5)
        assert Reference(design, 0.001).critical() > Reference(design, 0.01).critical() > Reference(design).critical()
        assert Reference(design, 0.001).p_value(3.0) > Reference(design).p_value(3.0)

    def test_it_is_the_same_every_time(self) -> None:
        design = Design((3, 3), 3, 20, seed_share=4)
        assert Reference(design).critical() == Reference(Design((3, 3), 3, 20, seed_share=4)).critical()


class TestNoise:
    def test_the_floor_is_that_of_two_equal_recipes(self) -> None:
        floor = noise_floor(SeedNoise(0.01, 0.0, 2), seeds=3)
        assert floor is not None
        assert floor.seed_sd == pytest.approx(0.1)
        assert floor.difference == pytest.approx(4.302653 * 0.1 * math.sqrt(2 / 3), rel=1e-6)

    def test_seeds_that_agree_by_chance_do_not_make_it_zero(self) -> None:
        floor = noise_floor(SeedNoise(0.0, 0.0004, 1), seeds=2)
        assert floor is not None
        assert floor.seed_sd == pytest.approx(0.02)
        assert noise_floor(SeedNoise(0.0, 0.0, 1), seeds=2) is None
        assert noise_floor(None, seeds=2) is None


class TestRates:
    def test_in_the_middle_small_effects_stay_what_they_are(self) -> None:
        assert adjust_to_rate(0.02, 0.5, 1, trained_baseline=True) == pytest.approx(0.02, rel=0.01)

    @pytest.mark.parametrize("sign", [1, -1])
    def test_towards_a_bound_smaller_ones_are_seen_and_away_from_it_larger_ones_are_needed(self, sign: int) -> None:
        near, far = (0.8, 0.2) if sign > 0 else (0.2, 0.8)
        towards, away = (adjust_to_rate(0.15, rate, sign, trained_baseline=True) for rate in (near, far))
        assert towards < 0.15 < away

    def test_it_is_the_effect_whose_own_noise_shows_it(self) -> None:
        found = adjust_to_rate(0.3, 0.5, 1, trained_baseline=True)
        times = (0.5 + found) * (0.5 - found) / 0.25
        assert found == pytest.approx(0.3 * math.sqrt((1 + times) / 2), abs=1e-6)

    def test_a_baseline_that_is_not_trained_has_no_share_in_the_noise(self) -> None:
        trained, frozen = (adjust_to_rate(0.3, 0.5, 1, trained_baseline=one) for one in (True, False))
        assert frozen < trained

    @pytest.mark.parametrize("rate", [0.0, 1.0])
    def test_where_nothing_varies_nothing_is_foretold(self, rate: float) -> None:
        assert adjust_to_rate(0.3, rate, 1, trained_baseline=True) == 0.3


class TestPower:
    prospect = Prospect(training=0.0004, answers=0.0005, suiting=0.0001, tasks_df=99, candidates=6)

    def test_more_seeds_see_smaller_effects_until_the_tasks_set_the_limit(self) -> None:
        seen = [self.prospect.detectable(seeds) for seeds in (2, 3, 5, 10, 64)]
        assert seen == sorted(seen, reverse=True)
        needed = self.prospect.seeds_needed(0.08)
        assert needed is not None
        assert self.prospect.detectable(needed) <= 0.08 < self.prospect.detectable(needed - 1)
        assert self.prospect.seeds_needed(0.001) is None

    def test_a_baseline_that_is_known_better_sees_more_for_the_same_arms(self) -> None:
        base, each = self.prospect.split(49)
        assert base + 6 * each == 49
        assert base > each
        assert self.prospect.detectable(each, base) < self.prospect.detectable(7)

    def test_two_seeds_hide_so_much_that_more_of_the_baseline_do_not_make_up_for_it(self) -> None:
        assert self.prospect.split(21) == (3, 3)


class TestAttempts:
    def test_all_attempts_together_err_no_more_than_one(self) -> None:
        assert attempt_error(1) == pytest.approx(0.01875)
        assert attempt_error(2) == pytest.approx(0.00625 * 6 / math.pi**2)
        assert sum(attempt_error(number) for number in range(1, 10_000)) == pytest.approx(0.025, rel=1e-3)
        with pytest.raises(ValueError, match="counted from 1"):
            attempt_error(0)

    def test_early_looks_spend_next_to_nothing(self) -> None:
        assert spent_error(1.0) == pytest.approx(0.025)
        assert spent_error(0.2) < 1e-5
        with pytest.raises(ValueError, match="above 0"):
            spent_error(0.0)

    def test_looks_together_err_as_often_as_they_may(self) -> None:
        fractions = tuple(count / 10 for count in range(2, 11))
        levels = look_errors(fractions)
        draw = np.random.default_rng(0)
        steps = draw.normal(0, np.sqrt(np.diff([0.0, *fractions])), (200_000, len(fractions)))
        z = steps.cumsum(axis=1) / np.sqrt(fractions)
        bounds = np.array([t_quantile(1 - level, 1e6) if level > 1e-7 else 5.5 for level in levels])
        assert np.mean((z > bounds).any(axis=1)) == pytest.approx(0.025, abs=0.0012)
        assert levels[-1] > 0.015  # most is left for the end
        with pytest.raises(ValueError, match="must grow"):
            look_errors((0.5, 0.5))

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
        assert look_errors((1.0,))[0] == pytest.approx(0.025, rel=1e-3)

    def test_attempts_are_pooled_by_what_they_know(self) -> None:
        found = pool_attempts([0.1, 0.3], [0.1, 0.2])
        assert found.estimate == pytest.approx((0.1 * 100 + 0.3 * 25) / 125)
        assert found.stderr == pytest.approx(1 / math.sqrt(125))
        assert found.disagreement == pytest.approx(0.2**2 / (0.1**2 + 0.2**2))
        with pytest.raises(ValueError, match="standard error above 0"):
            pool_attempts([0.1], [0.0])


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
