"""Honest experiments by other ways than a plain run: lost scores, loops, campaigns, tidied folders."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import evsys_sdk
from evsys_sdk import ExperimentConfig, LoopRun, register_algorithm, register_verifier_fn
from evsys_sdk.algorithms.sft import SFT
from evsys_sdk.experiment import Experiment
from evsys_sdk.experiment.audit.audit import audit_experiment
from evsys_sdk.training.batch import TrainingBatch

from .project import chat, evsys, main_in, make_project, read_lines, write_lines
from .test_honest import KINDS, config, run, with_params
from .test_honest_shapes import SHAPES

pytestmark = pytest.mark.slow

RATES = [0.001, 0.01, 0.02, 0.05]
TASKS = Path("data/test.jsonl")


@pytest.fixture(autouse=True)
def project(tmp_path: Path) -> Path:
    make_project(tmp_path, tasks=6)
    return tmp_path


@register_verifier_fn("honest_judge")
def honest_judge(output: str, expected: Any, params: Any) -> float:
    """Contains, by a judge that is away for as many calls as a file says."""
    away = Path("away")
    left = int(away.read_text(encoding="utf-8")) if away.exists() else 0
    if left:
        away.write_text(str(left - 1), "utf-8")
        raise RuntimeError("the judge is away")
    return float(str(expected) in output)


@register_algorithm("failing_sft")
class FailingSFT(SFT):
    """Supervised fine-tuning that fails at its second step."""

    name = "failing_sft"

    async def build_batch(self, step_idx: int) -> TrainingBatch:
        if step_idx:
            raise RuntimeError("the disk is full")
        return await super().build_batch(step_idx)


def judge_by_hand(away: int) -> None:
    """Have the tasks judged by a judge that is away for so many answers."""
    Path("away").write_text(str(away), "utf-8")
    write_lines(TASKS, [one | {"verifier": one["verifier"] | {"fn_name": "honest_judge"}} for one in read_lines(TASKS)])


def lose_the_score_of_an_arm() -> Path:
    judge_by_hand(1)
    return run()


def lose_all_scores() -> Path:
    judge_by_hand(10**6)
    return run()


def lose_all_scores_and_resume() -> Path:
    lose_all_scores()
    Path("away").unlink()
    return run(resume=True)


def fail_all_arms() -> Path:
    return run(runs=with_params("failing_sft"))


def draw_runs_at_random() -> Path:
    base = with_params()[1]
    params = base["algorithm"]["params"]
    rates = [
        base | {"name": f"rate{rate}", "algorithm": {"kind": "sft", "params": params | {"learning_rate": rate}}}
        for rate in RATES
    ]
    metadata = config()["metadata"] | {"hypothesis": "the rate matters"}
    return run(search={"kind": "random", "n": 3}, runs=rates, metadata=metadata)


def end_when_decided() -> Path:
    base, better = with_params(max_steps=30)
    base["algorithm"]["params"]["max_steps"] = 1
    return run(runs=[base, better], n_repeats=6, until="decided")


def lose_seeds_until_decided() -> Path:
    judge_by_hand(1)
    return run(runs=with_params(max_steps=3), n_repeats=6, until="decided")


def train(loop: LoopRun, steps: int = 4) -> None:
    for step in loop.steps(steps, save_every=2):
        rows = [one["messages"] for one in read_lines(Path("data/train.jsonl"))[2 * step : 2 * step + 2]]
        loop.log(loop.model.train([(ask["content"], reply["content"]) for ask, reply in rows]).metrics)


def record() -> Any:
    metadata = config()["metadata"]
    claim = metadata["hypothesis"] | {"baseline": "one"}
    arms = {"one": {"steps": 1}, "four": {"steps": 4}}
    given = {"benchmark": metadata["benchmark"], "hypothesis": claim, "arms": arms, "seeds": 2, "output_dir": "outputs"}
    return evsys_sdk.record("study", model="tiny", backend="mock", **given)


def write_the_loop(until: int | None = None) -> Path:
    with record() as experiment:
        for at, loop in enumerate(experiment.runs()):
            train(loop, loop.args["steps"])
            if at == until:
                raise KeyError("a cell was interrupted")
    return experiment.result.path


def break_the_loop_and_resume() -> Path:
    with pytest.raises(KeyError):
        write_the_loop(until=2)
    return write_the_loop()


SCRIPT = """
import evsys_sdk
with evsys_sdk.record("study", model="tiny", backend="mock") as experiment:
    for run in experiment.runs():
        for step in run.steps(run.args["steps"]):
            run.log(run.model.train([("start taxi", "TAXI")]).metrics)
"""


def run_a_script() -> Path:
    Path("loop.py").write_text(SCRIPT, encoding="utf-8")
    runs = [
        one | {"algorithm": {"kind": "script", "params": {"file": "loop.py", "args": {"steps": steps}}}}
        for one, steps in zip(config()["runs"], (1, 4), strict=True)
    ]
    return run(runs=runs)


def prefer() -> Path:
    pairs = [
        {"prompt": ask["content"], "chosen": reply["content"], "rejected": "none"}
        for ask, reply in (one["messages"] for one in read_lines(Path("data/train.jsonl"))[:20])
    ]
    write_lines(Path("data/pairs.jsonl"), pairs)
    return run(runs=[one | {"data": {"path": "data/pairs.jsonl"}} for one in with_params("dpo")])


def score_without_training() -> Path:
    """Both runs keep the weights that they started from: the learning rate is as good as nothing."""
    return run(runs=with_params(learning_rate=1e-9))


def start_from_a_checkpoint() -> Path:
    first = run(name="first")
    runs = [
        one | {"model": {"name": "tiny", "init_from_checkpoint": str(first / "steps4__seed42")}}
        for one in with_params()
    ]
    return run(runs=runs)


def delete_the_weights() -> Path:
    """To save space, once the experiment is over."""
    path = run()
    for folder in path.glob("*/checkpoints"):
        shutil.rmtree(folder)
    return path


def delete_the_weights_of_the_losers() -> Path:
    path = run()
    for folder in path.glob("steps1__*/checkpoints/*"):
        shutil.rmtree(folder)
    return path


def put_other_files_into_the_folder() -> Path:
    path = run()
    for name in (".DS_Store", "plot.png", "steps4__seed42/notes.txt", "analysis/notebook.ipynb"):
        (path / name).parent.mkdir(exist_ok=True)
        (path / name).write_text("{}", encoding="utf-8")
    return path


def touch_and_lock_all_files() -> Path:
    """As a backup that is restored, or an archive that is unpacked, leaves them."""
    path = run()
    for file in path.rglob("*"):
        os.utime(file, (1e9, 1e9))
        if file.is_file():
            file.chmod(0o444)
    return path


def move_the_project() -> Path:
    path = run()
    move_folder()
    return path


def move_folder() -> None:
    here = Path.cwd()
    os.chdir(here.rename(here.with_name(f"moved-{here.name}")))


def move_the_project_and_resume() -> Path:
    run(budget={"tokens": 60})
    move_folder()
    return run(resume=True, budget={"tokens": 10**9})


def add_an_arm() -> Path:
    run()
    base, better = with_params()
    return extend(runs=[base, better, better | {"name": "again", "seed": 9}])


def extend(**changes: Any) -> Path:
    return Experiment(ExperimentConfig.model_validate(config(**changes))).run(extend=True).path


def extend_twice() -> Path:
    run()
    extend(n_repeats=3)
    return extend(n_repeats=4)


def stop_at_the_deadline() -> Path:
    return run(runs=with_params(max_steps=10**6), budget={"wall_s": 6}, n_repeats=1)


def work_in_a_campaign() -> Path:
    here = Path.cwd()
    assert main_in(here, "campaign", "new", "sort", "--question", "How well?", "--experiments", "3")[0] == 0
    Path("config.yaml").write_text(
        json.dumps(config(metadata=config()["metadata"] | {"tags": ["campaign:sort"]})), encoding="utf-8"
    )
    assert main_in(here, "run", "config.yaml", "--quiet")[0] == 0
    return Path("outputs/study")


def continue_from_a_parent() -> Path:
    first = run(name="first")
    parent = json.loads((first / "config.json").read_text(encoding="utf-8"))["name"]
    return run(runs=with_params(batch_size=2), parent_experiment_id=parent)


def deploy_and_export() -> Path:
    path, here = run(), Path.cwd()
    assert evsys(here, "export", str(path), "--output", "copy", "--arm", "steps4__seed42").returncode == 0
    return path


def edit_the_training_rows_afterwards() -> Path:
    """The next experiment needs more of them."""
    path = run()
    write_lines(Path("data/train.jsonl"), [*read_lines(Path("data/train.jsonl")), chat("play a song", "MUSIC")])
    TASKS.unlink()
    return path


WAYS: list[Callable[[], Path]] = [
    lose_the_score_of_an_arm,
    lose_all_scores,
    lose_all_scores_and_resume,
    fail_all_arms,
    draw_runs_at_random,
    end_when_decided,
    lose_seeds_until_decided,
    write_the_loop,
    break_the_loop_and_resume,
    run_a_script,
    prefer,
    score_without_training,
    start_from_a_checkpoint,
    delete_the_weights,
    delete_the_weights_of_the_losers,
    put_other_files_into_the_folder,
    touch_and_lock_all_files,
    move_the_project,
    move_the_project_and_resume,
    add_an_arm,
    extend_twice,
    stop_at_the_deadline,
    work_in_a_campaign,
    continue_from_a_parent,
    deploy_and_export,
    edit_the_training_rows_afterwards,
]


def test_there_are_enough_honest_experiments() -> None:
    assert len(WAYS) + len(KINDS) + len(SHAPES) >= 155


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_an_honest_experiment_raises_no_flag(way: Callable[[], Path]) -> None:
    report = audit_experiment(way())
    assert report.clean, [check.to_dict() for check in report.flags]
