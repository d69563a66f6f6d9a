"""Metrics: unbiased, with a standard error clustered by task, and silent about nothing."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import evsys_sdk
from evsys_sdk import MetricSpec, register_metric, schema_for
from evsys_sdk.errors import ConfigError, DuplicateNameError, EvalError, UnknownNameError
from evsys_sdk.eval.metric import MetricValue, ScoredSample, TaskSamples, build_metric, jackknife_stderr, stderr_of_mean
from evsys_sdk.eval.metrics.passing import chance_of_all, chance_of_any
from evsys_sdk.eval.metrics.rewards import ExactMatchRate, toolkit_of
from evsys_sdk.registry import registry

REWARDS = st.lists(st.lists(st.sampled_from([0.0, 0.5, 1.0]), min_size=3, max_size=6), min_size=2, max_size=6)


def tasks(rewards: Sequence[Sequence[float | None]], **usage: Any) -> list[TaskSamples]:
    return [
        TaskSamples(
            f"t{number}", [ScoredSample(reward, None if reward is None else "x", **usage) for reward in samples]
        )
        for number, samples in enumerate(rewards)
    ]


def texts(*answers: tuple[str, Any]) -> list[TaskSamples]:
    return [TaskSamples(f"t{at}", [ScoredSample(prediction=said)], target) for at, (said, target) in enumerate(answers)]


def measured(name: str | MetricSpec, rewards: Sequence[Sequence[float]], **usage: Any) -> MetricValue:
    return build_metric(name)(tasks(rewards, **usage))


@given(st.integers(1, 8), st.data())
def test_the_chances_are_those_of_all_ways_to_choose(n: int, data: st.DataObject) -> None:
    passed, k = data.draw(st.integers(0, n)), data.draw(st.integers(1, n))
    outcomes = [True] * passed + [False] * (n - passed)
    choices = list(itertools.combinations(outcomes, k))
    assert chance_of_any(n, passed, k) == pytest.approx(sum(map(any, choices)) / len(choices), abs=1e-12)
    assert chance_of_all(n, passed, k) == pytest.approx(sum(map(all, choices)) / len(choices), abs=1e-12)


@given(REWARDS, st.integers(1, 3))
def test_pass_at_k_does_not_depend_on_the_order_of_samples_and_tasks(rewards: list[list[float]], k: int) -> None:
    turned = [list(reversed(samples)) for samples in reversed(rewards)]
    for name in (f"pass@{k}", f"pass^{k}"):
        first, other = measured(name, rewards), measured(name, turned)
        assert first.value == pytest.approx(other.value)
        assert first.stderr == pytest.approx(other.stderr)
    assert measured(f"pass^{k}", rewards).value <= measured(f"pass@{k}", rewards).value + 1e-12
    assert measured("pass@1", rewards).value == pytest.approx(measured("pass_rate", rewards).value)
    assert measured("pass^1", rewards).value == pytest.approx(measured("pass@1", rewards).value)


def test_pass_at_k_is_unbiased_where_looking_at_the_first_k_wastes_samples() -> None:
    rewards = [[0.0, 0.0, 1.0, 1.0]]
    assert measured("pass@2", rewards).value == pytest.approx(1 - 1 / 6)
    assert measured("pass^2", rewards).value == pytest.approx(1 / 6)
    assert measured("pass@4", rewards).value == 1.0
    assert measured("pass^4", rewards).value == 0.0


def test_k_of_thousands_is_computed() -> None:
    rewards = [[1.0] + [0.0] * 1999]
    assert measured("pass@1000", rewards).value == pytest.approx(0.5)
    assert measured("pass^2000", rewards).value == 0.0


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("mean_reward", 0.5625),
        ("avg", 0.5625),
        ("pass_rate", 0.375),
        ("pass@1", 0.375),
        ("pass@2", 0.5),
        ("pass^2", 0.25),
    ],
)
def test_known_values(name: str, value: float) -> None:
    measurement = measured(name, [[1.0, 1.0], [0.5, 1.0], [0.5, 0.5], [0.0, 0.0]])
    assert measurement.value == pytest.approx(value)
    assert (measurement.n_tasks, measurement.n_samples, measurement.n_missing) == (4, 8, 0)
    assert measurement.per_task is not None
    assert statistics.fmean(measurement.per_task) == pytest.approx(value)
    assert measurement.stderr == pytest.approx(statistics.stdev(measurement.per_task) / 2)


@pytest.mark.parametrize("spec", ["pass@3", "pass^3", MetricSpec(kind="pass_at_k", params={"k": 3})])
def test_more_samples_than_there_are_is_an_error_that_reports_it(spec: Any) -> None:
    with pytest.raises(
        EvalError, match=r"k is 3, but 1 of 2 tasks have fewer samples \(at least 2\)\. Draw at least 3"
    ):
        measured(spec, [[1.0] * 3, [1.0] * 2])


def test_pass_at_k_takes_its_k_as_a_param_too() -> None:
    rewards = [[1.0, 0.0, 0.0], [0.0, 0.0, 0.0]]
    for kind in ("pass_at_k", "pass@k"):
        assert measured(MetricSpec(kind=kind, params={"k": 2}), rewards) == measured("pass@2", rewards)
        assert measured(kind, rewards) == measured("pass@1", rewards)
    assert measured(MetricSpec(kind="pass^k", params={"k": 2}), rewards).value == 0.0
    lenient = MetricSpec(kind="pass@1", params={"threshold": 0.4})
    assert measured(lenient, [[0.5, 0.0]]).value == 0.5
    with pytest.raises(ConfigError, match=r"metric 'pass@2': params.k: unknown key 'k'"):
        build_metric(MetricSpec(kind="pass@2", params={"k": 3}))
    with pytest.raises(ConfigError, match=r"metric 'pass_at_k': params.k: should be at least 1"):
        build_metric(MetricSpec(kind="pass_at_k", params={"k": 0}))


def test_names_with_a_number_are_found_without_being_listed() -> None:
    metrics = registry("metric")
    assert "pass@17" in metrics
    assert "pass^5" in metrics
    assert metrics.get("pass@17") is metrics.get("pass@17")
    assert (metrics.get("pass@17").name, metrics.get("pass^5").name) == ("pass@17", "pass^5")
    assert metrics.get("pass@17").__doc__ == "Unbiased probability that at least one of 17 samples passes."
    assert schema_for("metric", "pass@17")["properties"].keys() == {"threshold"}
    assert schema_for("metric", "pass_at_k")["properties"]["k"]["description"] == "Samples per subset."
    assert {"pass@k", "pass^k", "pass_at_k"} <= set(metrics.names())
    assert "pass@17" not in metrics.names()


@pytest.mark.parametrize(
    "name", ["pass@0", "pass@", "pass@-1", "pass@1.5", "pass@3x", "xpass@3", "pass@99999999", "pass@1\u0663"]
)
def test_names_that_are_no_members_are_unknown(name: str) -> None:
    assert name not in registry("metric")
    with pytest.raises(UnknownNameError, match=f"metric '{name}' is not registered"):
        build_metric(name)


def test_a_project_may_have_a_pass_at_2_of_its_own_as_the_documented_example_does() -> None:
    @register_metric("pass@2")
    class PassAt2:
        name: ClassVar[str] = "pass@2"

        def compute(self, task_rewards: Sequence[Sequence[float]]) -> float:
            return sum(any(reward >= 1.0 for reward in task[:2]) for task in task_rewards) / len(task_rewards)

    assert evsys_sdk.get_metric("pass@2") is PassAt2
    assert measured("pass@2", [[0.0, 0.0, 1.0], [1.0, 0.0, 0.0]]).value == 0.5
    assert measured("pass@3", [[0.0, 0.0, 1.0], [1.0, 0.0, 0.0]]).value == 1.0
    with pytest.raises(DuplicateNameError):
        register_metric("pass@2")(ExactMatchRate)


def test_the_standard_error_is_that_of_tasks_and_not_of_samples() -> None:
    """Ten samples of a task that always agree are worth one."""
    once = measured("pass_rate", [[1.0], [0.0], [1.0], [0.0]])
    ten_times = measured("pass_rate", [[1.0] * 10, [0.0] * 10, [1.0] * 10, [0.0] * 10])
    assert ten_times.stderr == once.stderr == pytest.approx(math.sqrt(1 / 12))


@pytest.mark.parametrize("name", ["mean_reward", "pass@1", "pass@2", "pass^3"])
def test_the_standard_error_is_what_drawing_other_tasks_would_give(name: str) -> None:
    generator = np.random.default_rng(7)
    chances = generator.beta(0.7, 0.7, size=60)
    rewards = [list(map(float, generator.random(4) < chance)) for chance in chances]
    measurement = measured(name, rewards)
    metric = evsys_sdk.get_metric(name)()
    drawn = [metric.compute([rewards[at] for at in generator.integers(0, 60, 60)]) for _ in range(3000)]
    assert measurement.stderr == pytest.approx(float(np.std(drawn)), rel=0.06)


@given(st.lists(st.floats(-10, 10), min_size=2, max_size=30))
def test_leaving_tasks_out_gives_the_error_of_a_mean(values: list[float]) -> None:
    assert jackknife_stderr(statistics.fmean, values) == pytest.approx(stderr_of_mean(values), abs=1e-9)


def test_many_tasks_are_left_out_in_groups() -> None:
    values = list(np.random.default_rng(1).normal(size=5000))
    assert jackknife_stderr(statistics.fmean, values) == pytest.approx(stderr_of_mean(values), rel=0.15)


def test_one_task_says_nothing_about_others() -> None:
    assert measured("mean_reward", [[1.0, 0.0]]).stderr is None


@pytest.mark.parametrize("name", ["mean_reward", "pass@1", "exact_match", "cost_per_task"])
def test_no_tasks_are_an_error(name: str) -> None:
    with pytest.raises(EvalError, match=f"metric '{name}' has no tasks to score"):
        build_metric(name)([])


def test_a_task_without_samples_or_twice_is_an_error() -> None:
    with pytest.raises(EvalError, match="1 tasks have no samples, the first one is 't1'"):
        measured("mean_reward", [[1.0], []])
    with pytest.raises(EvalError, match=r"task 't0' occurs twice\. Put all of its samples together"):
        build_metric("mean_reward")(tasks([[1.0]]) * 2)


def test_failed_samples_are_left_out_and_counted() -> None:
    scored = tasks([[1.0, None], [1.0, 1.0], [0.0, None]])
    measurement = build_metric("mean_reward")(scored)
    assert (measurement.value, measurement.n_samples, measurement.n_missing) == (pytest.approx(2 / 3), 4, 2)
    with pytest.raises(EvalError, match="1 tasks have no samples, the first one is 't1'"):
        build_metric("mean_reward")(tasks([[1.0], [None]]))
    with pytest.raises(EvalError, match="k is 2, but 2 of 3 tasks have fewer"):
        build_metric("pass@2")(scored)


@pytest.mark.parametrize("reward", [math.nan, math.inf])
def test_a_reward_that_is_no_number_is_named(reward: float) -> None:
    with pytest.raises(EvalError, match="sample 1 of task 't0' has the reward"):
        measured("mean_reward", [[1.0, reward]])


def test_a_sample_that_was_answered_but_not_verified_has_no_reward() -> None:
    with pytest.raises(EvalError, match="metric 'mean_reward': sample 0 of task 't0' has no reward"):
        build_metric("mean_reward")(texts(("a", "a")))


def test_texts_are_compared_with_targets() -> None:
    measurement = build_metric("exact_match")(texts(("a", "a"), (" b ", "b"), ("c", "x"), ("4", 4)))
    assert measurement.value == 0.75
    assert measurement.per_task == (1.0, 1.0, 0.0, 1.0)
    with pytest.raises(EvalError, match="task 't0' has no target to compare with"):
        build_metric("exact_match")(texts(("a", None)))
    assert ExactMatchRate().compute(predictions=["a"], targets=["a"]) == 1.0
    with pytest.raises(ValueError, match="as many predictions as targets"):
        ExactMatchRate().compute(predictions=[], targets=[])


@pytest.mark.parametrize(
    ("tool", "toolkit"),
    [
        ("GMAIL_SEND_EMAIL", "gmail"),
        ("github.create_issue", "github"),
        ("google_drive/upload", "google_drive"),
        ("slack:post", "slack"),
        ("my_server__tool", "my_server"),
        ("solo", "solo"),
        (" Gmail_X ", "gmail"),
        ("", ""),
    ],
)
def test_the_toolkit_of_a_tool(tool: str, toolkit: str) -> None:
    assert toolkit_of(tool) == toolkit


def test_toolkits_are_compared() -> None:
    answers = [("GMAIL_SEND", "GMAIL_READ"), ("GMAIL_SEND", "SLACK_POST"), ("gmail_x", {"toolkit": "Gmail"})]
    answers += [("SLACK_X", {"tool_slug": "SLACK_POST", "other": 1})]
    assert build_metric("toolkit_match")(texts(*answers)).value == 0.75
    for target in ("", {}, {"toolkit": None}):
        with pytest.raises(EvalError, match="names no toolkit"):
            build_metric("toolkit_match")(texts(("GMAIL_SEND", target)))


def test_expenses_are_those_of_one_attempt() -> None:
    scored = [
        TaskSamples("t0", [ScoredSample(1.0, "x", 0.1, 1.0, 10), ScoredSample(0.0, "x", 0.3, 3.0, 30)]),
        TaskSamples("t1", [ScoredSample(0.0, "x", 0.4, 4.0, 40)]),
    ]
    for name, value in (("cost_per_task", 0.3), ("time_per_task", 3.0), ("tokens_per_task", 30.0)):
        measurement = build_metric(name)(scored)
        assert measurement.value == pytest.approx(value)
        assert measurement.stderr == pytest.approx(value / 3)
        correct = build_metric(name.replace("task", "correct"))(scored)
        assert correct.value == pytest.approx(value / 0.25)
        assert correct.per_task is None


def test_the_error_of_an_expense_per_correct_answer_is_that_of_a_ratio() -> None:
    generator = np.random.default_rng(3)
    scored = [
        TaskSamples(
            f"t{at}", [ScoredSample(float(generator.random() < 0.6), "x", cost_usd=float(generator.exponential()))]
        )
        for at in range(120)
    ]
    measurement = build_metric("cost_per_correct")(scored)
    metric = evsys_sdk.get_metric("cost_per_correct")()

    def ratio(chosen: list[TaskSamples]) -> float:
        return metric.compute(tasks=chosen, task_rewards=[[sample.reward for sample in one.samples] for one in chosen])

    drawn = [ratio([scored[at] for at in generator.integers(0, 120, 120)]) for _ in range(1500)]
    assert measurement.stderr == pytest.approx(float(np.std(drawn)), rel=0.1)


def test_expenses_that_are_not_known_are_an_error() -> None:
    with pytest.raises(EvalError, match="cost_usd is unknown for 2 of 2 samples of task 't0'"):
        measured("cost_per_task", [[1.0, 1.0]])
    with pytest.raises(EvalError, match="no answer is correct, so there is no seconds per correct answer"):
        measured("time_per_correct", [[0.0], [0.5]], seconds=1.0)
    only_one = measured("tokens_per_correct", [[1.0], [0.0]], tokens=5)
    assert (only_one.value, only_one.stderr) == (10.0, None)


def test_metrics_of_ones_own_are_called_as_their_signature_wants() -> None:
    register_metric("best")(type("Best", (), {"compute": lambda self, tasks: max(max(task) for task in tasks)}))
    register_metric("same")(type("Same", (), {"compute": lambda self, predictions, targets: predictions == targets}))
    register_metric("open")(type("Open", (), {"compute": lambda self, **given: len(given["predictions"])}))
    register_metric("count")(type("Count", (), {"compute": lambda self, *, tasks: len(tasks)}))
    register_metric("function")(lambda task_rewards: sum(map(sum, task_rewards)))
    assert measured("best", [[0.0, 1.0], [0.5]]).value == 1.0
    assert build_metric("same")(texts(("a", "a"), ("b", "b"))).value == 1.0
    assert build_metric("open")(texts(("a", "a"), ("b", "b"))).value == 2.0
    assert measured("count", [[0.0], [1.0], [1.0]]).value == 3.0
    assert measured("function", [[0.5], [1.0]]).value == 1.5


def test_a_metric_that_is_no_mean_of_tasks_has_a_standard_error_and_no_scores_of_tasks() -> None:
    register_metric("root")(lambda task_rewards: math.sqrt(statistics.fmean(map(statistics.fmean, task_rewards))))
    measurement = measured("root", [[0.2], [0.4], [0.9], [0.5]])
    assert measurement.per_task is None
    mean = measured("mean_reward", [[0.2], [0.4], [0.9], [0.5]])
    assert mean.stderr is not None
    assert measurement.stderr == pytest.approx(mean.stderr / (2 * measurement.value), rel=0.1)


@pytest.mark.parametrize(
    ("compute", "message"),
    [
        (lambda self, task_rewards: math.nan, "metric 'odd' returned nan"),
        (lambda self, task_rewards: None, "metric 'odd' failed: TypeError"),
        (lambda self, task_rewards: 1 / 0, "metric 'odd' failed: ZeroDivisionError"),
        (
            lambda self, *, nonsense: 1.0,
            "metric 'odd': compute has an unknown parameter 'nonsense'. Known: task_rewards, predictions",
        ),
        (None, "metric 'odd' has no method 'compute'"),
    ],
)
def test_a_metric_that_gives_no_number_is_an_error_with_its_name(compute: Any, message: str) -> None:
    register_metric("odd")(type("Odd", (), {"compute": compute}))
    with pytest.raises(EvalError, match=message):
        measured("odd", [[1.0], [0.0]])


def test_an_unknown_metric_suggests_the_closest() -> None:
    with pytest.raises(UnknownNameError, match="metric 'mean_rewards' is not registered; did you mean 'mean_reward'"):
        build_metric("mean_rewards")
    with pytest.raises(ConfigError, match=r"metric 'exact_match' cannot be built with the params {'k': 1}"):
        build_metric(MetricSpec(kind="exact_match", params={"k": 1}))


def test_a_thousand_tasks_are_scored() -> None:
    rewards = [[float(at % 3 == 0), float(at % 5 == 0), 0.0, 1.0] for at in range(1000)]
    for name in ("mean_reward", "pass@2", "pass^2"):
        assert measured(name, rewards).n_tasks == 1000
