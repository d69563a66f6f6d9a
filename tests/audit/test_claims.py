"""Every attempt at a claim is counted, whatever else is changed; going on with one is no new attempt."""

from __future__ import annotations

import hashlib
import shutil
import time
from pathlib import Path
from typing import Any

import pytest

from evsys_sdk import ExperimentConfig, register_algorithm
from evsys_sdk.algorithms.sft import SFT
from evsys_sdk.experiment import Experiment
from evsys_sdk.experiment.audit.audit import audit_experiment
from evsys_sdk.experiment.claims import identify_claim
from evsys_sdk.experiment.conclusion.reading import read_evidence
from evsys_sdk.record.events import Kind
from evsys_sdk.record.project_files.claims import share_questions, sketch_questions
from evsys_sdk.record.reader import ExperimentRecord
from evsys_sdk.training.batch import TrainingBatch

from .project import edit_lines, make_project, read_lines, task, write_lines

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def project(tmp_path: Path) -> Path:
    make_project(tmp_path, tasks=3)
    return tmp_path


def make(**changes: Any) -> ExperimentConfig:
    """A claim about two recipes of a single step."""
    recipe = {"data": {"path": "data/train.jsonl"}, "model": {"name": "tiny"}, "backend": {"kind": "mock"}}
    runs = [
        recipe | {"name": name, "algorithm": {"kind": "sft", "params": {"max_steps": 1, "batch_size": size}}}
        for name, size in (("small", 1), ("large", 2))
    ]
    benchmark = {"name": "tools", "path": "data/test.jsonl", "max_tokens": 4}
    claim = {"claim": "more rows help", "metric": "test/tools/pass@1", "baseline": "small"}
    metadata = {"hypothesis": claim, "benchmark": benchmark}
    here = {"kind": "local", "params": {"arms_in": "threads"}}
    given = {"name": "study", "output_dir": "outputs", "launcher": here, "metadata": metadata, "runs": runs}
    return ExperimentConfig.model_validate(given | changes)


def run(*, resume: bool = False, **changes: Any) -> Path:
    return Experiment(make(**changes)).run(resume=resume).path


def family(config: ExperimentConfig) -> str | None:
    claim = identify_claim(config)
    return None if claim is None else claim.family


def attempt(path: Path) -> int | None:
    return read_evidence(path).attempt


def test_five_fresh_attempts_are_counted_whatever_they_are_called_and_wherever_they_are_written(project: Path) -> None:
    paths = [run()]
    paths.append(run())
    edit_lines(project / "data/test.jsonl", lambda task: task.update(metadata={"note": "looked at again"}))
    paths.append(run(name="another_name"))
    paths.append(run(output_dir="elsewhere"))
    metadata = make().metadata.model_dump(mode="json", exclude_defaults=True)
    metadata["benchmark"] = {"name": "renamed", "path": "data/test.jsonl", "max_tokens": 4}
    metadata["hypothesis"]["metric"] = "test/renamed/pass@1"
    paths.append(run(metadata=metadata))
    assert [attempt(path) for path in paths] == [1, 2, 3, 4, 5]
    assert '"attempt": 5' in (paths[-1] / "conclusion.json").read_text(encoding="utf-8")
    for path in paths:
        assert "claim" not in {check.name for check in audit_experiment(path).flags}


def test_going_on_with_an_experiment_is_no_new_attempt() -> None:
    first = run()
    assert run(resume=True) == first
    assert attempt(first) == 1
    assert attempt(run()) == 2


def test_removing_an_attempt_does_not_take_it_back(project: Path) -> None:
    shutil.rmtree(run())
    assert attempt(run()) == 2
    (project / ".evsys/claims.jsonl").unlink()
    assert attempt(run()) == 3  # the record that is left tells of itself, and of the one that it knew of


def test_what_lies_among_rehearsals_is_an_attempt_unless_it_is_one() -> None:
    first = run(output_dir="outputs/dry")
    assert attempt(first) == 1
    assert attempt(run()) == 2
    metadata = make().metadata.model_dump(mode="json", exclude_defaults=True)
    metadata["benchmark"] = {"name": "tools", "path": "data/test.jsonl", "max_tokens": 4, "n_tasks": 2}
    assert attempt(run(output_dir="outputs/dry", metadata=metadata)) is None


def test_tasks_left_out_or_added_are_no_new_claim(project: Path) -> None:
    tasks = read_lines(project / "data/test.jsonl")
    first = run()
    assert "tasks" not in remarked(first)
    write_lines(project / "data/some.jsonl", tasks[:2])
    metadata = make().metadata.model_dump(mode="json", exclude_defaults=True)
    metadata["benchmark"] = {"name": "tools", "path": "data/some.jsonl", "max_tokens": 4}
    fewer = run(name="fewer", metadata=metadata)
    assert (attempt(fewer), attempt(run(name="again"))) == (2, 3)
    assert "tasks" in remarked(fewer)
    again = [task | {"instruction": f" {task['instruction'].upper()} "} for task in tasks]
    write_lines(project / "data/more.jsonl", [*again, task("start radio 1", "RADIO")])
    metadata["benchmark"]["path"] = "data/more.jsonl"
    more = run(name="more", metadata=metadata)
    assert attempt(more) == 4
    assert "tasks" not in remarked(more)


def test_who_sets_the_clock_back_comes_later_all_the_same(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(name="first")
    write_lines(project / "data/some.jsonl", read_lines(project / "data/test.jsonl")[:2])
    metadata = make().metadata.model_dump(mode="json", exclude_defaults=True)
    metadata["benchmark"] = {"name": "tools", "path": "data/some.jsonl", "max_tokens": 4}
    now = time.time
    with monkeypatch.context() as clock:
        clock.setattr(time, "time", lambda: now() - 86400)
        fewer = run(name="fewer", metadata=metadata)
    assert attempt(fewer) == 2
    assert "tasks" in remarked(fewer)


def test_tasks_that_no_longer_belong_together_are_a_remark(project: Path) -> None:
    tasks = read_lines(project / "data/test.jsonl")
    grouped = [task | {"metadata": {"cluster": f"c{at % 2}"}} for at, task in enumerate(tasks)]
    write_lines(project / "data/grouped.jsonl", grouped)
    metadata = make().metadata.model_dump(mode="json", exclude_defaults=True)
    metadata["benchmark"] = {"name": "tools", "path": "data/grouped.jsonl", "max_tokens": 4}
    assert "tasks" not in remarked(run(name="first", metadata=metadata))
    assert "tasks" in remarked(run(name="second"))


def remarked(path: Path) -> set[str]:
    return {check.name for check in audit_experiment(path).remarks}


def test_half_of_a_large_set_is_known_by_its_sketch() -> None:
    hashes = [hashlib.sha256(f"{at}".encode()).hexdigest()[:12] for at in range(6000)]
    whole = sketch_questions({*hashes[:4000]})
    assert share_questions(whole["sketch"], sketch_questions({*hashes[:2000]})["sketch"]) == 1.0
    assert share_questions(whole["sketch"], sketch_questions({*hashes[4000:]})["sketch"]) == 0.0
    shifted = share_questions(whole["sketch"], sketch_questions({*hashes[1000:5000]})["sketch"])
    assert 0.55 < shifted < 0.95


def test_other_tasks_another_metric_or_another_baseline_are_another_claim(project: Path) -> None:
    first = family(make())
    assert first == family(make(name="other", n_repeats=3))
    metadata = make().metadata.model_dump(mode="json", exclude_defaults=True)
    others: list[ExperimentConfig] = []
    for change in ({"baseline": "large"}, {"metric": "test/tools/mean_reward"}, {"direction": "decrease"}):
        others.append(make(metadata=metadata | {"hypothesis": metadata["hypothesis"] | change}))
    found = [family(other) for other in others]
    edit_lines(project / "data/test.jsonl", lambda task: task.update(instruction=task["instruction"] + " now"))
    assert len({first, *found, family(make())}) == 5


def test_who_claims_nothing_tries_nothing() -> None:
    metadata = {"benchmark": {"name": "tools", "path": "data/test.jsonl", "max_tokens": 4}}
    path = run(metadata=metadata)
    assert attempt(path) is None
    assert not Path(".evsys/claims.jsonl").exists()


@register_algorithm("sometimes_sft")
class SometimesSFT(SFT):
    """Supervised fine-tuning that fails as long as there is a file `broken`."""

    name = "sometimes_sft"

    async def build_batch(self, step_idx: int) -> TrainingBatch:
        if Path("broken").exists():
            raise RuntimeError("there is no training today")
        return await super().build_batch(step_idx)


def test_what_ended_without_a_score_was_no_attempt(project: Path) -> None:
    runs = [one.model_dump(mode="json", exclude_defaults=True) for one in make().all_runs()]
    for one in runs:
        one["algorithm"]["kind"] = "sometimes_sft"
    (project / "broken").touch()
    failed = run(runs=runs)
    assert attempt(failed) == 1
    assert not [event for event in ExperimentRecord(failed).events if event.kind == Kind.SCORED]
    (project / "broken").unlink()
    assert attempt(run(runs=runs)) == 1
    assert attempt(run(runs=runs)) == 2


def test_a_journal_that_counts_fewer_attempts_than_the_project_is_flagged() -> None:
    run()
    path = run()
    edit_lines(path / "journal.jsonl", lambda event: event.update(attempt=1) if "family" in event else None)
    assert "claim" in {check.name for check in audit_experiment(path).flags}
