"""Whoever has nothing to hide is not suspected, however often an experiment was stopped, moved or taken up again."""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from evsys_sdk import ExperimentConfig, register_algorithm
from evsys_sdk.algorithms.sft import SFT
from evsys_sdk.experiment import Experiment
from evsys_sdk.experiment.audit.audit import audit_experiment
from evsys_sdk.experiment.conclusion import write_conclusion
from evsys_sdk.history.notes import add_note, invalidate, reinstate
from evsys_sdk.record.evidence import seal_run
from evsys_sdk.training.batch import TrainingBatch

from .project import (
    edit_json,
    edit_lines,
    evsys,
    make_project,
    read_lines,
    rehash,
    rows,
    task,
    write_lines,
)

pytestmark = pytest.mark.slow


def config(**changes: Any) -> dict[str, Any]:
    """Two recipes with two seeds each, scored on a few tasks."""
    recipe = {"data": {"path": "data/train.jsonl"}, "model": {"name": "tiny"}, "backend": {"kind": "mock"}}
    params = {"batch_size": 4, "learning_rate": 0.02}
    runs = [
        {"name": f"steps{steps}", **recipe, "algorithm": {"kind": "sft", "params": {**params, "max_steps": steps}}}
        for steps in (1, 4)
    ]
    benchmark = [{"name": "tools", "path": "data/test.jsonl", "split": "test", "max_tokens": 8}]
    hypothesis = {"claim": "more steps help", "metric": "test/tools/pass@1", "baseline": "steps1"}
    metadata = {"hypothesis": hypothesis, "benchmark": benchmark}
    own = {"name": "study", "output_dir": "outputs", "n_repeats": 2, "max_concurrent_arms": 1}
    here = {"launcher": {"kind": "local", "params": {"arms_in": "threads"}}}  # a process for each would take its time
    return {**own, **here, "metadata": metadata, "runs": runs, **changes}


def run(*, resume: bool = False, **changes: Any) -> Path:
    return Experiment(ExperimentConfig.model_validate(config(**changes))).run(resume=resume).path


def with_params(algorithm: str = "sft", **params: Any) -> list[dict[str, Any]]:
    """The same two recipes with other params."""
    plain = config()["runs"]
    return [
        one | {"algorithm": {"kind": algorithm, "params": {**one["algorithm"]["params"], **params}}} for one in plain
    ]


@pytest.fixture(autouse=True)
def project(tmp_path: Path) -> Path:
    make_project(tmp_path, tasks=6)
    return tmp_path


@register_algorithm("tripping_sft")
class TrippingSFT(SFT):
    """Supervised fine-tuning that fails once, in the first arm that gets to its third step."""

    name = "tripping_sft"

    async def build_batch(self, step_idx: int) -> TrainingBatch:
        mark = Path("tripped")
        if step_idx >= 2 and not mark.exists():
            mark.touch()
            raise RuntimeError("a cable was pulled")
        return await super().build_batch(step_idx)


def run_plainly() -> Path:
    return run()


def resume_what_has_ended() -> Path:
    run()
    return run(resume=True)


def add_notes() -> Path:
    path = run()
    add_note(path, "The batch is small.", author="someone")
    return path


def take_a_mark_back() -> Path:
    path = run()
    invalidate(path, "The tasks look odd.")
    reinstate(path, "They are not.")
    return path


def conclude_again() -> Path:
    path = run()
    write_conclusion(path)
    return path


def move_the_folder() -> Path:
    run().rename("elsewhere")
    return Path("elsewhere")


def carry_it_to_another_disk() -> Path:
    path = run()
    shutil.copytree(path, "copied/study")
    shutil.rmtree(path)
    return Path("copied/study")


def try_again_with_more_seeds() -> Path:
    first = run()
    again = run(n_repeats=3)
    assert again != first
    return again


def raise_the_budget() -> Path:
    run(budget={"tokens": 60})
    path = run(resume=True, budget={"tokens": 10**9})
    page = (path / "conclusion.md").read_text(encoding="utf-8")
    assert "It was resumed." in page
    assert "`budget.tokens` was 60 and then 1000000000." in page
    return path


def search_at_random() -> Path:
    metadata = config()["metadata"]
    [benchmark] = metadata["benchmark"]
    val = benchmark | {"split": "val", "run_every": 3}
    rates = [0.001, 0.01, 0.02, 0.05]
    [_, base] = with_params(max_steps=12)
    runs = [
        base | {"name": f"rate{rate}", "algorithm": {"kind": "sft", "params": {"max_steps": 12, "learning_rate": rate}}}
        for rate in rates
    ]
    claim = {"hypothesis": "the rate matters", "success_metric": "pass@1", "benchmark": [val]}
    return run(search={"kind": "random", "n": 3}, n_repeats=1, runs=runs, metadata=claim)


def retry_a_failed_arm() -> Path:
    failed = run(runs=with_params("tripping_sft"))
    assert "a cable was pulled" in (failed / "steps4__seed42/run_result.json").read_text(encoding="utf-8")
    return run(resume=True, runs=with_params("tripping_sft"))


def score_on_the_way() -> Path:
    metadata = config()["metadata"]
    [benchmark] = metadata["benchmark"]
    tasks = read_lines(Path(benchmark["path"]))
    write_lines(Path("data/val.jsonl"), [one | {"instruction": f"Once more: {one['instruction']}"} for one in tasks])
    val = {"name": "val", "path": "data/val.jsonl", "split": "val", "run_every": 2, "samples": 2}
    several = [benchmark, benchmark | val]
    return run(metadata=metadata | {"benchmark": several})


def learn_from_rewards() -> Path:
    train = [task(question, answer) for question, answer in rows(random.Random(3), 20)]
    write_lines(Path("data/tasks.jsonl"), train)
    params = {"group_size": 4, "sampling": {"max_tokens": 8}}
    runs = [one | {"data": {"path": "data/tasks.jsonl"}} for one in with_params("rl", **params)]
    return run(runs=runs)


def learn_in_stages() -> Path:
    train = read_lines(Path("data/train.jsonl"))
    write_lines(Path("data/first.jsonl"), train[:40])
    write_lines(Path("data/second.jsonl"), train[40:80])
    stages = [{"name": name, "data": {"path": f"data/{name}.jsonl"}} for name in ("first", "second")]
    runs = [
        {key: one[key] for key in one if key != "data"} | {"continual": {"stages": stages}} for one in with_params()
    ]
    return run(runs=runs)


def train_two_at_a_time() -> Path:
    return run(max_concurrent_arms=2, launcher={"kind": "local", "params": {"arms_in": "processes"}})


KILL = '''
import os, signal
from pathlib import Path
from evsys_sdk import Callback, register_callback

@register_callback("kill")
class Kill(Callback):
    """Kill this process at the third step, twice in all."""

    def on_step(self, step, metrics):
        killed = len(list(Path(".").glob("killed*")))
        if step >= 2 and killed < 2:
            Path(f"killed{killed}").touch()
            os.kill(os.getpid(), signal.SIGKILL)
'''


def kill_and_resume() -> Path:
    here = Path.cwd()
    Path("kill.py").write_text(KILL, encoding="utf-8")
    Path("config.yaml").write_text(json.dumps(config(callbacks=[{"kind": "kill"}])), encoding="utf-8")
    ends = [
        evsys(here, "run", "config.yaml", "--quiet", "--resume", "--import", "kill.py").returncode for _ in range(3)
    ]
    assert ends == [2, 2, 0]  # the supervisor reports each kill
    return Path("outputs/study")


def clone_the_project() -> Path:
    """Other times, another place, and no workspace: that is in no repository."""
    run()
    shutil.copytree(".", "../clone", copy_function=shutil.copyfile, ignore=shutil.ignore_patterns(".evsys"))
    os.chdir("../clone")
    return Path("outputs/study")


def work_behind_a_link() -> Path:
    here = Path.cwd()
    here.with_name("link").symlink_to(here)
    os.chdir(here.with_name("link"))
    run(budget={"tokens": 60})
    os.chdir(here)
    run(resume=True, budget={"tokens": 10**9})
    os.chdir(here.with_name("link"))
    return Path("outputs/study")


def write_with_other_line_ends() -> Path:
    text, data = yaml.safe_dump(config()), Path("data/test.jsonl")
    Path("config.yaml").write_bytes(text.encode())
    first = Experiment.from_yaml("config.yaml").run().path
    Path("config.yaml").write_bytes(text.replace("\n", "\r\n").encode())
    data.write_bytes(data.read_bytes().replace(b"\n", b"\r\n"))
    shutil.rmtree(first / "steps4__seed43")
    assert Experiment.from_yaml("config.yaml").run(resume=True).path == first
    return first


def read_what_an_earlier_version_wrote() -> Path:
    path = run()
    forget_what_is_new(path)
    return path


def upgrade_on_the_way() -> Path:
    forget_what_is_new(run(budget={"tokens": 60}))
    return run(resume=True, budget={"tokens": 10**9})


def forget_what_is_new(path: Path) -> None:
    """Make a record look as if a version had written it that knew less."""
    for identity in path.glob("*/identity.json"):
        edit_json(identity, lambda found: {name: value for name, value in found.items() if name != "backend"})
        edit_json(identity, lambda found: [one.pop("settings") for one in found["benchmarks"].values()] and found)

    def forget(event: dict[str, Any]) -> None:
        for name in ("recorded_config", "page"):
            event.pop(name, None)
        if "sealed" in event:
            now = seal_run(path / event["arm"])
            event["sealed"] = {name: content for name, content in now.items() if name != "checkpoints.jsonl"}

    edit_lines(path / "journal.jsonl", forget)
    rehash(path / "journal.jsonl")
    shutil.rmtree(".evsys")


def try_again_under_other_names() -> Path:
    run()
    runs = [one | {"name": f"other-{one['name']}"} for one in config()["runs"]]
    metadata = config()["metadata"]
    hypothesis = metadata["hypothesis"] | {"baseline": "other-steps1"}
    return run(runs=runs, metadata=metadata | {"hypothesis": hypothesis})


def resume_at_another_pace() -> Path:
    run(budget={"tokens": 60})
    metadata = config()["metadata"]
    [benchmark] = metadata["benchmark"]
    slower = metadata | {"benchmark": [benchmark | {"concurrency": 1, "timeout_s": 900.0}]}
    return run(resume=True, budget={"tokens": 10**9}, metadata=slower, description="it was too fast")


def compare_rows_of_the_config() -> Path:
    train = read_lines(Path("data/train.jsonl"))
    runs = [
        one | {"data": {"source_kind": "in_memory", "rows": train[: 20 * at]}}
        for at, one in enumerate(config()["runs"], 1)
    ]
    metadata = config()["metadata"]
    [benchmark] = metadata["benchmark"]
    base = metadata | {"benchmark": [benchmark | {"models": ["base"]}]}
    return run(runs=runs, metadata=base | {"hypothesis": metadata["hypothesis"] | {"baseline": "base"}})


def conclude_by_hand() -> Path:
    path = run()
    (path / "conclusion.json").unlink()
    assert evsys(Path.cwd(), "conclude", "outputs/study").returncode == 0
    return path


KINDS: list[Callable[[], Path]] = [
    run_plainly,
    resume_what_has_ended,
    add_notes,
    take_a_mark_back,
    conclude_again,
    move_the_folder,
    carry_it_to_another_disk,
    try_again_with_more_seeds,
    raise_the_budget,
    search_at_random,
    retry_a_failed_arm,
    score_on_the_way,
    learn_from_rewards,
    learn_in_stages,
    train_two_at_a_time,
    kill_and_resume,
    clone_the_project,
    work_behind_a_link,
    write_with_other_line_ends,
    read_what_an_earlier_version_wrote,
    upgrade_on_the_way,
    try_again_under_other_names,
    resume_at_another_pace,
    conclude_by_hand,
    compare_rows_of_the_config,
]


def assert_clean(path: Path) -> None:
    report = audit_experiment(path)
    assert report.clean, [check.to_dict() for check in report.flags]
    checked = {check.name for check in report.checks if check.state == "ok"}
    assert {"chain", "claim", "arms", "files", "scores", "conclusion"} <= checked


@pytest.mark.parametrize("honest", KINDS, ids=lambda honest: honest.__name__)
def test_an_honest_experiment_raises_no_flag(honest: Callable[[], Path]) -> None:
    assert_clean(honest())
