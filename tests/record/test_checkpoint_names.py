"""Names of checkpoints that stay the same, and the few that keep their weights."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from evsys_sdk import ExperimentConfig
from evsys_sdk.errors import EvsysError, TrainingError
from evsys_sdk.experiment import Experiment, ExperimentResult
from evsys_sdk.record.run_files.checkpoints import Checkpoint, CheckpointLog, find_checkpoint, locate_weights
from evsys_sdk.registry import get_inference

ROWS = [
    {"messages": [{"role": "user", "content": word}, {"role": "assistant", "content": word.upper()}]}
    for word in ("ash", "bay", "elm", "fir")
]


@pytest.fixture
def log(tmp_path: Path) -> CheckpointLog:
    """A run that was killed after step 100 and did it again, and went on to 150."""
    log = CheckpointLog.in_dir(tmp_path / "run")
    for name, step, loss in (
        ("step000050", 50, 1.0),
        ("step000100", 100, 0.5),
        ("step000100-attempt2", 100, 0.5),
        ("step000150-attempt2", 150, 0.7),
    ):
        folder = f"{tmp_path}/run/checkpoints/{name}"
        log.append(Checkpoint(name, step, f"{folder}/state", f"{folder}/sampler", metrics={"loss": loss}))
    return log


@pytest.mark.parametrize(
    ("alias", "name"),
    [
        ("", "step000150-attempt2"),
        ("last", "step000150-attempt2"),
        ("best", "step000100"),
        ("step000050", "step000050"),
        ("step50", "step000050"),
        ("step000100", "step000100-attempt2"),
        ("checkpoints/step000150", "step000150-attempt2"),
        ("checkpoints/step000150/state", "step000150-attempt2"),
        ("checkpoints/step000150/sampler", "step000150-attempt2"),
    ],
)
def test_a_name_means_the_same_however_often_the_run_was_interrupted(alias: str, name: str, log: CheckpointLog) -> None:
    checkpoint = find_checkpoint(log.files.folder / alias)
    assert checkpoint is not None
    assert checkpoint.name == name
    assert locate_weights(str(log.files.folder / alias)) == checkpoint.state
    assert locate_weights(str(log.files.folder / alias), sampler=True) == checkpoint.sampler


def test_a_step_that_was_not_saved_names_those_that_were(log: CheckpointLog) -> None:
    with pytest.raises(TrainingError, match=r"no checkpoint after step 60\. Name last, best or step000050, step000100"):
        find_checkpoint(log.files.folder / "step000060")


def test_other_references_are_left_as_they_are(tmp_path: Path, log: CheckpointLog) -> None:
    assert find_checkpoint(tmp_path / "elsewhere") is None
    for reference in ("tinker://run/weights/1", str(tmp_path / "elsewhere"), str(log.files.folder / "other")):
        assert locate_weights(reference) == reference


def test_the_best_of_an_unfinished_run_goes_by_its_validation_score(log: CheckpointLog) -> None:
    log.add_scores(50, {"val/tools/pass@1": 0.9, "val/tools/pass@1/stderr": 0.1})
    log.add_scores(150, {"val/tools/pass@1": 0.8})
    checkpoint = find_checkpoint(log.files.folder / "best")
    assert checkpoint is not None
    assert checkpoint.name == "step000050"


def test_what_was_dropped_is_neither_last_nor_best_and_its_metrics_stay(log: CheckpointLog) -> None:
    log.drop(log.read()[1])
    assert [checkpoint.name for checkpoint in log.read_kept()] == [
        "step000050",
        "step000100-attempt2",
        "step000150-attempt2",
    ]
    assert len(log.read()) == 4
    best = log.best("loss", "min")
    assert best is not None
    assert best.name == "step000100-attempt2"


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., ExperimentResult]:
    def execute(name: str, model: dict[str, Any] | None = None, **params: Any) -> ExperimentResult:
        config = {
            "name": name,
            "output_dir": str(tmp_path / "outputs"),
            "run": {
                "name": "r",
                "data": {"source_kind": "in_memory", "rows": ROWS},
                "model": {"name": "tiny", **(model or {})},
                "algorithm": {"kind": "sft", "params": {"max_steps": 8, "batch_size": 2, "save_every": 1, **params}},
                "backend": {"kind": "mock"},
            },
        }
        return Experiment(ExperimentConfig.model_validate(config)).run()

    return execute


def stored(result: ExperimentResult) -> list[str]:
    return sorted(path.parent.name for path in result.path.glob("r/checkpoints/*/state"))


def test_only_the_last_and_the_best_keep_their_weights(run: Callable[..., ExperimentResult]) -> None:
    everything = run("all")
    assert len(stored(everything)) == 8
    few = run("few", keep_checkpoints={"last": 2, "best": 1})
    assert few.runs[0].metrics == everything.runs[0].metrics
    names = stored(few)
    assert {"step000007", "step000008-final"} <= set(names)
    assert len(names) <= 3
    for artifact in ("best_checkpoint", "final_checkpoint", "best_sampler", "final_sampler"):
        assert Path(few.runs[0].artifacts[artifact]).is_dir()
    lines = (few.path / "r" / "checkpoints.jsonl").read_text("utf-8").splitlines()
    assert all("loss" in json.loads(line)["metrics"] for line in lines)
    assert len(lines) == 8


def test_a_run_starts_from_a_named_checkpoint_of_another(run: Callable[..., ExperimentResult]) -> None:
    first = run("first")
    [named] = run("named", {"init_from_checkpoint": str(first.path / "r" / "step000004")}).runs
    exact = str(first.path / "r" / "checkpoints" / "step000004" / "state")
    [by_path] = run("by_path", {"init_from_checkpoint": exact}).runs
    assert named.metrics == by_path.metrics
    with pytest.raises(EvsysError, match=r"run\.model\.init_from_checkpoint: .*no checkpoint after step 9"):
        run("wrong", {"init_from_checkpoint": str(first.path / "r" / "step000009")})


def test_a_client_answers_from_a_named_checkpoint(run: Callable[..., ExperimentResult]) -> None:
    first = run("first")
    answers: list[str] = []
    for checkpoint in ("best", "checkpoints/step000008-final/sampler"):
        client = get_inference("mock")(checkpoint=str(first.path / "r" / checkpoint))
        answers.append(client.generate(prompt="ash", max_tokens=4, temperature=0.0, stop=None))
        client.close()
    assert len(answers) == 2
