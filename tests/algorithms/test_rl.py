"""Reinforcement learning: the arithmetic of advantages, and what becomes of batches that go well, badly or nowhere."""

import asyncio
import json
import logging
import math
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from evsys_sdk.algorithms.rl import RL, group_advantages, normalise_advantages
from evsys_sdk.backends.client import TrainingClient
from evsys_sdk.backends.datum import Datum
from evsys_sdk.config import load_yaml
from evsys_sdk.errors import TrainingError
from evsys_sdk.protocols import VerificationResult
from evsys_sdk.record.run_files.checkpoints import CheckpointLog
from evsys_sdk.rollouts.rollout import Rollout, Turn
from evsys_sdk.training.callback import Observers, RunControl
from evsys_sdk.training.loop import TrainingLoop

type MakeClient = Callable[..., TrainingClient]
type SetUp = Callable[..., Awaitable[RL]]
type TakeStep = Callable[..., Awaitable[dict[str, float]]]

WORDS = ["red", "green", "blue", "white"]


def task(number: int, expected: str = "green") -> dict[str, Any]:
    verifier = {"kind": "in_process", "fn_name": "exact_match", "expected": expected}
    text = f"Number {number}, colours:\n- red\n- green\n- blue\n- white\nAnswer with one of them."
    return {"task_id": f"t{number}", "instruction": text, "verifier": verifier}


TASKS = [task(number) for number in range(4)]
SMALL: dict[str, Any] = {"batch_size": 2, "group_size": 8, "sampling": {"max_tokens": 8}, "max_steps": 6}


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("mean", [-0.5, -0.5, 0.5, 0.5]),
        ("std", [-1.0, -1.0, 1.0, 1.0]),
        ("rloo", [0 - 2 / 3, 0 - 2 / 3, 1 - 1 / 3, 1 - 1 / 3]),
    ],
)
def test_advantages_of_a_group(kind: Any, expected: list[float]) -> None:
    assert group_advantages([0, 0, 1, 1], kind) == pytest.approx(expected)


@pytest.mark.parametrize("kind", ["mean", "std", "rloo"])
@pytest.mark.parametrize("rewards", [[], [1.0], [0.3] * 5, [0.1 + 0.2, 0.1 + 0.2]])
def test_a_group_that_says_nothing_has_no_advantages(kind: Any, rewards: list[float]) -> None:
    assert group_advantages(rewards, kind) == [0.0] * len(rewards)


@pytest.mark.parametrize("kind", ["mean", "std", "rloo"])
def test_advantages_add_up_to_nothing_and_do_not_depend_on_the_level_of_the_rewards(kind: Any) -> None:
    rewards = np.random.default_rng(0).normal(size=7)
    advantages = group_advantages(rewards.tolist(), kind)
    assert sum(advantages) == pytest.approx(0, abs=1e-9)
    assert group_advantages((rewards + 50).tolist(), kind) == pytest.approx(advantages)


def datum(n_sampled: int, advantage: float = 1.0) -> Datum:
    return Datum.policy([1, 2], [3] * n_sampled, [-0.1] * n_sampled, advantage)


def pull(data: Sequence[Datum]) -> list[float]:
    return [float(d.advantages.sum()) for d in data if d.advantages is not None]


def test_normalisation_by_token_rollout_and_full_length() -> None:
    rollouts = [[datum(1)], [datum(3)]]
    assert pull(normalise_advantages(rollouts, "token", 10)) == pytest.approx([1 / 4, 3 / 4])
    assert pull(normalise_advantages(rollouts, "sequence", 10)) == pytest.approx([1 / 2, 1 / 2])
    assert pull(normalise_advantages(rollouts, "fixed", 10)) == pytest.approx([1 / 20, 3 / 20])


def test_a_rollout_in_several_pieces_counts_as_one() -> None:
    whole, pieces = [[datum(4)], [datum(4)]], [[datum(4)], [datum(1), datum(3)]]
    for kind in ("token", "sequence", "fixed"):
        first, other = pull(normalise_advantages(whole, kind, 10)), pull(normalise_advantages(pieces, kind, 10))
        assert sum(other[1:]) == pytest.approx(first[1])
        assert other[0] == pytest.approx(first[0])


def test_clip_thresholds_without_a_clipping_loss_are_refused() -> None:
    with pytest.raises(ValidationError, match="does not clip"):
        RL(clip_high=1.3)
    assert RL(clip_high=1.3, loss_fn="ppo").cfg.clip_high == 1.3


def test_agent_and_import_path_exclude_each_other() -> None:
    with pytest.raises(ValidationError, match="Keep one of them"):
        RL(agent={"kind": "chat"}, agent_import_path="a:B")


def rollout(reward: float | None, status: Any = "ok", n: int = 2) -> Rollout:
    turn = Turn({"role": "assistant", "content": ""}, [1, 2], [3] * n, [-0.5] * n)
    return Rollout("t", 0, "infra" if reward is None else status, reward, [turn])


async def learnable(algorithm: RL, groups: Sequence[Sequence[Rollout]]) -> tuple[list[Datum], dict[str, float]]:
    experience = await algorithm._learnable(groups)  # pyright: ignore[reportPrivateUsage]
    return experience.data, experience.metrics


async def test_failed_members_are_left_out_of_a_group_and_never_count_as_zero(
    make_client: MakeClient, set_up: SetUp
) -> None:
    algorithm = await set_up(RL(**SMALL), make_client(), TASKS)
    groups = [
        [rollout(1.0), rollout(0.0), rollout(None), rollout(None)],
        [rollout(1.0), rollout(None), rollout(None), rollout(None)],
        [rollout(None)] * 4,
        [rollout(1.0)] * 4,
    ]
    data, metrics = await learnable(algorithm, groups)
    assert len(data) == 2
    assert metrics["rollouts/infra"] == 9
    assert metrics["groups/constant"] == 0.75
    assert metrics["reward/mean"] == pytest.approx(6 / 7)


async def test_attempts_that_were_cut_off_are_penalised(make_client: MakeClient, set_up: SetUp) -> None:
    algorithm = await set_up(RL(**SMALL, overlong_penalty=0.5), make_client(), TASKS)
    data, metrics = await learnable(algorithm, [[rollout(1.0), rollout(1.0, "truncated")]])
    assert pull(data) == pytest.approx([2 * 0.25 / 4, -2 * 0.25 / 4])
    assert metrics["reward/mean"] == 1.0, "the reward that is reported is the verifier's"


@pytest.mark.parametrize(("limit", "asked", "learnable_groups"), [(0, [2], 0), (1, [2, 1], 1), (9, [2, 2, 1], 2)])
async def test_groups_that_say_nothing_are_refilled_with_other_tasks_up_to_a_limit(
    limit: int, asked: list[int], learnable_groups: int, make_client: MakeClient, set_up: SetUp
) -> None:
    params = SMALL | {"batch_size": 2, "group_size": 2, "max_refills": limit, "max_steps": 1}
    algorithm = await set_up(RL(**params), make_client(), [task(number) for number in range(8)])
    batches: list[list[str]] = []

    async def sample_groups(sampler: Any, tasks: Any, n_samples: int, *, iteration: int) -> Any:
        groups = [[rollout(1.0), rollout(float(len(batches) < 1 or at % 2))] for at, _ in enumerate(tasks)]
        batches.append([one.task_id for one in tasks])
        return groups

    algorithm.roll_out_with = sample_groups
    batch = await algorithm.build_batch(0)
    assert [len(names) for names in batches] == asked
    assert len({name for names in batches for name in names}) == sum(asked), "no task is sampled twice"
    assert len(batch.data) == 2 * learnable_groups
    assert batch.metrics.get("groups/refilled", 0.0) == sum(asked[1:])
    first, batches[:] = list(batches), []
    algorithm._experience = None  # pyright: ignore[reportPrivateUsage]
    algorithm._next_iteration = 0  # pyright: ignore[reportPrivateUsage]
    await algorithm.build_batch(0)
    assert batches == first, "a resumed run refills with the same tasks"


async def test_refills_are_part_of_the_plan(make_client: MakeClient, set_up: SetUp) -> None:
    params = SMALL | {"batch_size": 2, "group_size": 2, "max_steps": 3}
    plain, refilled = [
        await (await set_up(RL(**params, max_refills=limit), make_client(), TASKS)).plan(8) for limit in (0, 4)
    ]
    assert refilled.answers_sampled - plain.answers_sampled == 3 * 4 * 2


async def test_a_batch_without_differences_is_empty_and_says_why(make_client: MakeClient, set_up: SetUp) -> None:
    algorithm = await set_up(RL(**SMALL), make_client(), [task(0, "no such colour")])
    batch = await algorithm.build_batch(0)
    assert not batch.data
    assert (batch.metrics["groups/constant"], batch.metrics["reward/mean"]) == (1.0, 0.0)


def loop_of(algorithm: RL, folder: Path, control: RunControl | None = None) -> TrainingLoop:
    checkpoints = CheckpointLog.in_dir(folder)
    settings = algorithm.settings()
    return TrainingLoop(algorithm.client, algorithm, settings, checkpoints, Observers([]), control or RunControl())


async def test_a_run_whose_rewards_never_differ_is_stopped_with_a_diagnosis(
    make_client: MakeClient, set_up: SetUp, tmp_path: Path
) -> None:
    algorithm = await set_up(RL(**SMALL), make_client(), [task(0, "no such colour")])
    with pytest.raises(TrainingError, match="rewards of all rollouts of steps 1 to 5 are 0"):
        await loop_of(algorithm, tmp_path).run()


async def test_failures_are_reported_with_their_reason(
    make_client: MakeClient, set_up: SetUp, caplog: pytest.LogCaptureFixture
) -> None:
    async def verify(task: Any, rollout: Rollout, _: Any) -> VerificationResult:
        if rollout.sample:
            raise OSError("the judge is asleep")
        return VerificationResult(1.0)

    algorithm = await set_up(RL(**SMALL), make_client(), TASKS, verify=verify)
    with caplog.at_level(logging.WARNING):
        batch = await algorithm.build_batch(0)
    assert not batch.data, "one attempt has nothing to be compared with"
    assert (batch.metrics["rollouts/infra"], batch.metrics["reward/mean"]) == (14, 1.0)
    assert "14 of 16 rollouts failed" in caplog.text
    assert "the judge is asleep" in caplog.text


async def test_a_step_without_a_single_rollout_ends_the_run_with_the_first_cause(
    make_client: MakeClient, set_up: SetUp
) -> None:
    async def verify(*_: Any) -> VerificationResult:
        raise OSError("the judge is asleep")

    algorithm = await set_up(RL(**SMALL), make_client(), TASKS, verify=verify)
    with pytest.raises(TrainingError, match=r"all 16 rollouts of a step failed.*task 't\d': .*the judge is asleep"):
        await algorithm.build_batch(0)


async def test_advantages_of_ones_own_are_checked_and_used(make_client: MakeClient, set_up: SetUp) -> None:
    class Own(RL):
        value, short = 2.0, False

        def compute_advantages(self, groups: Any) -> Any:
            return [[self.value] * len(group) for group in groups][: 1 if self.short else None]

    algorithm = await set_up(Own(**SMALL), make_client(), TASKS)
    assert isinstance(algorithm, Own)
    batch = await algorithm.build_batch(0)
    assert {np.sign(one.advantages[one.weights > 0]).min() for one in batch.data if one.advantages is not None} == {1.0}
    assert batch.metrics["groups/constant"] == 0
    algorithm.short = True
    with pytest.raises(TrainingError, match="Return one per rollout"):
        await algorithm.build_batch(1)
    algorithm.short, algorithm.value = False, math.nan
    with pytest.raises(TrainingError, match="not finite"):
        await algorithm.build_batch(2)


async def test_parts_of_the_reward_and_numbers_of_the_verifier_are_logged(
    make_client: MakeClient, set_up: SetUp
) -> None:
    async def verify(*_: Any) -> VerificationResult:
        return VerificationResult(
            0.5, {"components": {"form": 0.5, "answer": 0.0}, "words": 3, "why": "no", "ok": True}
        )

    algorithm = await set_up(RL(**SMALL), make_client(), TASKS, verify=verify)
    metrics = (await algorithm.build_batch(0)).metrics
    expected = {"reward/components/form": 0.5, "reward/components/answer": 0.0, "info/words": 3.0, "info/ok": 1.0}
    assert {name: metrics.get(name) for name in expected} == expected
    assert "info/why" not in metrics
    assert metrics["policy/entropy"] > 0


async def test_a_run_that_has_learned_everything_ends_well(
    make_client: MakeClient, set_up: SetUp, tmp_path: Path
) -> None:
    calls = 0

    async def verify(*_: Any) -> VerificationResult:
        nonlocal calls
        calls += 1
        return VerificationResult(0.0 if calls == 1 else 1.0)

    control = RunControl()
    algorithm = await set_up(RL(**SMALL | {"max_steps": 50}), make_client(), TASKS, verify=verify, control=control)
    end = await loop_of(algorithm, tmp_path, control).run()
    assert "nothing left to learn" in (control.stop_reason or "")
    assert end.final
    assert end.next_step == 4


async def test_rollouts_are_used_for_several_updates_and_checkpoints_fall_between_them(
    make_client: MakeClient, set_up: SetUp
) -> None:
    params = SMALL | {"updates_per_batch": 3, "loss_fn": "ppo", "save_every": 4, "save_at_fractions": [0.2, 0.9]}
    algorithm = await set_up(RL(**params | {"max_steps": 12, "eval_every": 3}), make_client(), TASKS)
    batches = [await algorithm.build_batch(step) for step in range(4)]
    assert batches[0].data is batches[1].data is batches[2].data
    assert batches[3].data is not batches[0].data
    settings = algorithm.settings()
    saves = [step for step in range(1, 13) if settings.saves_after(step)]
    assert saves == [3, 6, 12]
    assert settings.eval_every == 3
    epochs = await set_up(RL(batch_size=2, num_epochs=2, updates_per_batch=3), make_client(), TASKS)
    assert epochs.total_steps() == 12


async def test_the_second_update_on_the_same_rollouts_sees_a_policy_that_moved(
    make_client: MakeClient, set_up: SetUp, take_step: TakeStep
) -> None:
    algorithm = await set_up(RL(**SMALL, updates_per_batch=2, loss_fn="ppo"), make_client(), TASKS)
    first, second = await take_step(algorithm, 0, 5e-3), await take_step(algorithm, 1, 5e-3)
    assert first["policy/kl"] == pytest.approx(0, abs=1e-8)
    assert second["policy/kl"] > 1e-6


@pytest.mark.parametrize("staleness", [0, 2])
async def test_rollouts_lag_behind_by_no_more_than_allowed_and_none_are_made_for_nothing(
    staleness: int, make_client: MakeClient, set_up: SetUp
) -> None:
    algorithm = await set_up(RL(**SMALL, max_staleness=staleness), make_client(), TASKS)
    sampled_at: dict[int, int] = {}
    building = 0
    original = algorithm.roll_out_with

    async def noted(sampler: Any, tasks: Any, n_samples: int, *, iteration: int) -> Any:
        sampled_at[iteration] = building
        return await original(sampler, tasks, n_samples, iteration=iteration)

    algorithm.roll_out_with = noted
    for building in range(6):
        await algorithm.build_batch(building)
        await asyncio.sleep(0)
    assert sorted(sampled_at) == list(range(6))
    lags = [iteration - at for iteration, at in sampled_at.items()]
    assert max(lags) == staleness
    assert min(lags) >= 0


async def test_closing_with_rollouts_under_way_leaves_no_task(make_client: MakeClient, set_up: SetUp) -> None:
    algorithm = await set_up(RL(**SMALL, max_staleness=2), make_client(latency_ms=5), TASKS)
    await algorithm.build_batch(0)
    algorithm.close()
    await asyncio.sleep(0.05)
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_the_kl_penalty_pulls_back_towards_the_start(
    make_client: MakeClient, set_up: SetUp, take_step: TakeStep
) -> None:
    async def moved(coefficient: float) -> float:
        """KL(policy || start) after some steps, estimated on fresh samples."""
        client = make_client()
        base = await client.sampler()
        params = SMALL | {"batch_size": 4, "max_steps": 12}
        algorithm = await set_up(RL(**params, kl_coefficient=coefficient), client, TASKS)
        for step in range(12):
            await take_step(algorithm, step, 1e-3)
        groups = await algorithm.roll_out(algorithm.tasks, 16, iteration=99)
        gaps: list[float] = []
        for turn in (turn for group in groups for rollout in group for turn in rollout.turns):
            start = await base.logprobs([*turn.prompt_tokens, *turn.completion_tokens])
            gaps.append(sum(turn.logprobs) - float(start[len(turn.prompt_tokens) :].sum()))
        return float(np.mean(gaps))

    loose, tight = await moved(0.0), await moved(0.5)
    assert loose > 0.3
    assert tight < loose / 2


async def test_the_kl_penalty_lowers_the_advantage_of_what_became_more_probable(
    make_client: MakeClient, set_up: SetUp
) -> None:
    algorithm = await set_up(RL(**SMALL, kl_coefficient=0.5), make_client(), TASKS)
    base = await algorithm.client.sampler()
    tokens = [1, 2, 3, 4]
    start = (await base.logprobs(tokens))[2:]
    turn = Turn({}, [1, 2], [3, 4], [float(start[0]) + 1.0, float(start[1]) - 2.0])
    plain, same = replace(rollout(1.0), turns=[turn]), rollout(0.0)
    data, metrics = await learnable(algorithm, [[plain, same]])
    assert data[0].advantages is not None
    np.testing.assert_allclose(data[0].advantages[-2:] * 4, [0.5 - 0.5 * 1.0, 0.5 + 0.5 * 2.0], atol=1e-4)
    assert np.isfinite(metrics["policy/kl_to_start"])


async def test_iterations_sample_afresh_and_a_repeated_one_samples_the_same(
    make_client: MakeClient, set_up: SetUp
) -> None:
    client = make_client()

    async def tokens(iteration: int) -> list[Any]:
        algorithm = await set_up(RL(**SMALL | {"batch_size": 4}), client, TASKS)
        groups = await algorithm.roll_out(algorithm.tasks, 4, iteration=iteration)
        return [[turn.completion_tokens for rollout in group for turn in rollout.turns] for group in groups]

    first, again, other = await tokens(0), await tokens(0), await tokens(1)
    assert first == again != other
    assert len({str(group) for group in first}) == 4, "tasks do not share their random numbers"


@pytest.mark.slow
@pytest.mark.usefixtures("examples")
def test_the_example_learns_from_rewards_alone(tmp_path: Path) -> None:
    rewards = rewards_of(run_example("06_rl", tmp_path))
    assert rewards[0] < 0.2, "the first step samples the untrained policy"
    assert np.mean(rewards[-10:]) > 0.8


@pytest.mark.slow
@pytest.mark.usefixtures("examples")
def test_a_harness_of_ones_own_with_three_turns_is_learned_and_evaluated_in(tmp_path: Path) -> None:
    run_dir = run_example("07_tool_use", tmp_path)
    rewards = rewards_of(run_dir)
    assert rewards[0] < 0.2, "the first step samples the untrained policy"
    assert np.mean(rewards[-10:]) > 0.8
    metrics = json.loads((run_dir / "run_result.json").read_text(encoding="utf-8"))["metrics"]
    assert metrics["baseline/test/unseen_wishes/base/pass@1"] < 0.2
    assert metrics["test/unseen_wishes/pass@1"] > 0.6, "only the harness it was trained in gives a reward"


def run_example(name: str, folder: Path) -> Path:
    """Run an example's own YAML with another seed and output folder; returns the folder of its run."""
    from evsys_sdk.experiment.experiment import run_experiment

    config = load_yaml(f"examples/{name}/config.yaml")
    run = config.run.model_copy(update={"seed": 0})
    config = config.model_copy(update={"output_dir": str(folder), "run": run})
    [result] = run_experiment(config)
    assert result.status == "completed", result.error
    return folder / config.name / run.name


def rewards_of(run_dir: Path) -> list[float]:
    lines = (run_dir / "logs" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [metrics["reward/mean"] for line in lines if "reward/mean" in (metrics := json.loads(line))]
