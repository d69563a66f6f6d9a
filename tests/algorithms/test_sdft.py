"""Self-distillation: what the teacher is shown, what is learned from it, and which one a resumed run has."""

import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from evsys_sdk.algorithms.sdft import SDFT
from evsys_sdk.backends.client import TrainingClient
from evsys_sdk.errors import ConfigError, DataError
from evsys_sdk.record.run_files.checkpoints import CheckpointLog
from evsys_sdk.training.callback import Observers
from evsys_sdk.training.loop import TrainingLoop

type MakeClient = Callable[..., TrainingClient]
type SetUp = Callable[..., Awaitable[SDFT]]
type TakeStep = Callable[..., Awaitable[dict[str, float]]]

ROWS: list[dict[str, Any]] = [
    {"messages": [{"role": "user", "content": f"colour of {thing}?"}, {"role": "assistant", "content": colour}]}
    for thing, colour in (("grass", "green"), ("blood", "red"), ("the sky", "blue"), ("snow", "white"))
]
SMALL: dict[str, Any] = {"batch_size": 4, "sampling": {"max_tokens": 8}}


def shown_to_the_teacher(algorithm: SDFT, row: int) -> str:
    question, demonstration = algorithm.questions[row], algorithm._demonstrations[row]  # pyright: ignore[reportPrivateUsage]
    return algorithm._show_teacher(question, demonstration)[-1]["content"]  # pyright: ignore[reportPrivateUsage]


async def test_the_teacher_is_shown_question_and_demonstration(make_client: MakeClient, set_up: SetUp) -> None:
    algorithm = await set_up(SDFT(**SMALL, teacher_template="Q {question} A {demonstration}"), make_client(), ROWS)
    assert shown_to_the_teacher(algorithm, 0) == "Q colour of grass? A green"


async def test_a_question_that_looks_like_a_template_stays_as_it_is(make_client: MakeClient, set_up: SetUp) -> None:
    row = {
        "messages": [
            {"role": "user", "content": "{demonstration} \\1?"},
            {"role": "assistant", "content": "{question}"},
        ]
    }
    algorithm = await set_up(SDFT(**SMALL, teacher_template="{question}|{demonstration}"), make_client(), [row])
    assert shown_to_the_teacher(algorithm, 0) == "{demonstration} \\1?|{question}"


@pytest.mark.parametrize("template", ["{question}", "{demonstration}", "none"])
def test_a_template_that_hides_one_of_them_is_refused(template: str) -> None:
    with pytest.raises(ValidationError, match="teacher_template must contain"):
        SDFT(teacher_template=template)


@pytest.mark.parametrize("unused", ["agent", "environment", "engine", "concurrency"])
def test_what_the_recipe_does_not_use_is_refused(unused: str) -> None:
    with pytest.raises(ValidationError, match=unused):
        SDFT(**{unused: None})


@pytest.mark.parametrize(
    ("messages", "problem"),
    [
        ([{"role": "user", "content": "hello"}], "does not end with an assistant turn"),
        ([{"role": "user", "content": "a"}, {"role": "assistant", "content": "  "}], "no text to train on"),
    ],
)
async def test_a_row_without_a_demonstration_is_named(
    messages: Any, problem: str, make_client: MakeClient, set_up: SetUp
) -> None:
    with pytest.raises(DataError, match=f"row 5.*{problem}"):
        await set_up(SDFT(**SMALL), make_client(), [*ROWS, {"messages": messages}])


async def test_too_many_alternatives_are_refused_at_the_start(make_client: MakeClient, set_up: SetUp) -> None:
    with pytest.raises(ConfigError, match=r"top_k.*at most"):
        await set_up(SDFT(**SMALL, top_k=100_000), make_client(), ROWS)


async def test_prompts_and_answers_that_do_not_fit_are_cut_or_left_out_and_counted(
    make_client: MakeClient, set_up: SetUp, take_step: TakeStep
) -> None:
    long = {"role": "assistant", "content": "x"}
    rows = [
        *ROWS,
        {"messages": [{"role": "user", "content": "a" * 400}, long]},  # too long for the student
        {"messages": [{"role": "user", "content": "a" * 180}, long]},  # too long for the teacher, who reads more
    ]
    algorithm = await set_up(SDFT(batch_size=6, sampling={"max_tokens": 150}), make_client(context_length=256), rows)
    metrics = await take_step(algorithm, 0)
    assert metrics["answers/no_room"] == 2
    assert metrics["answers/cut_tokens"] > 0


async def test_a_batch_in_which_nothing_fits_is_empty(make_client: MakeClient, set_up: SetUp) -> None:
    row = {"messages": [{"role": "user", "content": "a" * 400}, {"role": "assistant", "content": "x"}]}
    algorithm = await set_up(SDFT(**SMALL), make_client(context_length=256), [row])
    batch = await algorithm.build_batch(0)
    assert not batch.data
    assert batch.metrics["answers/no_room"] == 1


@pytest.mark.parametrize("divergence", ["forward", "reverse", "jsd"])
async def test_student_and_teacher_come_to_agree(
    divergence: str, make_client: MakeClient, set_up: SetUp, take_step: TakeStep
) -> None:
    params = SMALL | {"batch_size": 16}
    algorithm = await set_up(SDFT(**params, divergence=divergence), make_client(), ROWS * 4)
    gaps = [(await take_step(algorithm, step, 3e-3))["teacher/reverse_kl"] for step in range(36)]
    assert max(gaps[:12]) > 0.5
    assert max(gaps[-4:]) < 0.2


def loop_of(algorithm: SDFT, folder: Path) -> TrainingLoop:
    return TrainingLoop(algorithm.client, algorithm, algorithm.settings(), CheckpointLog.in_dir(folder), Observers([]))


@pytest.mark.parametrize("teacher", ["static", "synced"])
async def test_a_run_that_was_interrupted_continues_with_the_teacher_it_had(
    teacher: str, make_client: MakeClient, set_up: SetUp, tmp_path: Path
) -> None:
    params = SMALL | {"teacher": teacher, "sync_every": 4, "max_steps": 10, "save_every": 6, "learning_rate": 3e-3}
    whole = await set_up(SDFT(**params), make_client(), ROWS)
    expected = (await loop_of(whole, tmp_path / "whole").run()).metrics

    client = make_client()
    broken = await set_up(SDFT(**params), client, ROWS)
    loop = loop_of(broken, tmp_path / "broken")
    original = broken.build_batch

    async def breaks(step: int) -> Any:
        if step == 9:  # after the sync at step 8, of which the checkpoint at 6 knows nothing
            raise OSError("power cut")
        return await original(step)

    broken.build_batch = breaks
    with pytest.raises(OSError, match="power cut"):
        await loop.run()

    [checkpoint] = CheckpointLog.in_dir(tmp_path / "broken").read()
    await client.load_state(await fresh_state(make_client(), client), with_optimizer=False)
    resumed = await set_up(SDFT(**params), client, ROWS, attempt=2)
    await client.load_state(checkpoint.state, with_optimizer=True)
    resumed.restore(json.loads(json.dumps(checkpoint.builder)))
    again = loop_of(resumed, tmp_path / "broken")
    again.attempt = 2
    end = await again.run(start=checkpoint.next_step)
    assert end.metrics == expected


async def fresh_state(untrained: TrainingClient, client: TrainingClient) -> str:
    """Where the weights are that training began with."""
    return await untrained.save_state("start")


def scores_of(run_dir: Path, step: int) -> dict[str, float]:
    """What a run scored on the old and on the new skill after a step."""
    lines = map(json.loads, (run_dir / "logs" / "metrics.jsonl").read_text(encoding="utf-8").splitlines())
    metrics = {key: value for line in lines if line["step"] == step for key, value in line.items()}
    return {skill: metrics[f"val/{skill}/pass@1"] for skill in ("old", "new")}


@pytest.mark.slow
def test_over_seeds_the_example_learns_the_new_and_forgets_less_of_the_old_than_sft(
    examples: Path, tmp_path: Path
) -> None:
    from evsys_sdk.config import load_yaml
    from evsys_sdk.experiment.experiment import run_experiment

    seeds, first_phase, steps = 3, 40, 200
    config = load_yaml(examples / "10_sdft" / "config.yaml")
    config = config.model_copy(update={"output_dir": str(tmp_path), "n_repeats": seeds})
    results = run_experiment(config)
    assert [result.status for result in results] == ["completed"] * 2 * seeds
    dropped: dict[str, list[float]] = {}
    learned: dict[str, list[float]] = {}
    for result in results:
        run_dir, arm = tmp_path / "sdft" / result.run_id, result.run_id.partition("__")[0]
        before, after = scores_of(run_dir, first_phase), scores_of(run_dir, steps)
        dropped.setdefault(arm, []).append(before["old"] - after["old"])
        learned.setdefault(arm, []).append(after["new"] - before["new"])
    assert min(learned["sdft"]) > 0.5
    less = np.array(dropped["sft"]) - np.array(dropped["sdft"])
    assert len(less) == seeds
    half_width = (
        4.303 * less.std(ddof=1) / np.sqrt(seeds)
    )  # the 97.5 % point of Student's t with two degrees of freedom
    assert less.mean() - half_width > 0, "sdft forgets less, and that is no luck of the seed"
