"""Every attempt at a claim is counted, whatever else is changed; going on with one is no new attempt."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from evsys_sdk import ExperimentConfig, register_algorithm
from evsys_sdk.algorithms.sft import SFT
from evsys_sdk.experiment import Experiment
from evsys_sdk.experiment.audit.audit import audit_experiment
from evsys_sdk.experiment.benchmark_plan import load_entry
from evsys_sdk.experiment.claims import identify_claim
from evsys_sdk.experiment.conclusion.reading import read_evidence
from evsys_sdk.record.events import Kind
from evsys_sdk.record.reader import ExperimentRecord
from evsys_sdk.training.batch import TrainingBatch

from .project import edit_lines, evsys, make_project, read_lines, task, write_lines

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


def family(config: ExperimentConfig) -> tuple[str, ...]:
    """Tasks, question and changes of the claim."""
    claim = identify_claim(config, [load_entry(entry) for entry in config.metadata.benchmark], "")
    assert claim is not None
    return (*claim.tasks, claim.about, *claim.changes)


def attempt(path: Path) -> int | None:
    return read_evidence(path).attempt


def again(seed: int, **changes: Any) -> Path:
    """The same claim tested with fresh seeds."""
    return run(base_seed=seed, **changes)


def test_fresh_trials_are_counted_whatever_they_are_called_and_wherever_they_are_written(project: Path) -> None:
    paths = [again(1)]
    edit_lines(project / "data/test.jsonl", lambda task: task.update(metadata={"note": "looked at again"}))
    paths.append(again(2, name="another_name"))
    paths.append(again(3, output_dir="elsewhere"))
    metadata = make().metadata.model_dump(mode="json", exclude_defaults=True)
    entry = {"name": "renamed", "path": "data/test.jsonl", "max_tokens": 4, "metrics": ["mean_reward"]}
    metadata["benchmark"] = entry
    metadata["hypothesis"]["metric"] = "test/renamed/mean_reward"
    paths.append(run(metadata=metadata))
    assert [attempt(path) for path in paths] == [1, 2, 3, 4]
    assert '"attempt": 4' in (paths[-1] / "conclusion.json").read_text(encoding="utf-8")
    for path in paths:
        assert not audit_experiment(path).flags


def test_an_experiment_that_is_simply_run_again_is_the_same_evidence(caplog: pytest.LogCaptureFixture) -> None:
    first = run()
    known = ExperimentRecord(first).experiment_id
    caplog.clear()
    second, third = run(), run(name="renamed")
    assert caplog.text.count(f"as {known}: this is the same evidence, not a new trial") == 2
    assert [attempt(path) for path in (first, second, third)] == [1, 1, 1]
    page = (third / "conclusion.md").read_text(encoding="utf-8")
    assert f"Same arms, seeds, data and tasks as {known}: the same evidence, not a new trial." in page
    assert attempt(again(9)) == 2


@pytest.mark.parametrize("what", ["rows", "tasks", "code"])
def test_other_data_tasks_or_code_are_other_evidence(what: str, project: Path) -> None:
    (project / "mine.py").write_text(OWN_VERIFIER.format(value=1.0), encoding="utf-8")
    edit_lines(project / "data/test.jsonl", lambda task: task["verifier"].update(fn_name="own"))
    run_in_process(project)
    if what == "code":
        (project / "mine.py").write_text(OWN_VERIFIER.format(value=0.5), encoding="utf-8")
    elif what == "rows":
        edit_lines(project / "data/train.jsonl", lambda row: row["messages"][1].update(content="MAIL"))
    else:
        edit_lines(project / "data/test.jsonl", lambda task: task["verifier"].update(expected="MAIL"))
    run_in_process(project)
    assert [attempt(project / f"outputs/study{end}") for end in ("", ".2")] == [1, 2]


OWN_VERIFIER = """
from evsys_sdk import register_verifier

@register_verifier("own")
def own(model_output, expected, params):
    return {value} * float(str(expected) in model_output)
"""


def run_in_process(project: Path) -> None:
    (project / "config.json").write_text(make().model_dump_json(exclude_unset=True), encoding="utf-8")
    done = evsys(project, "run", "config.json", "--quiet", "--import", "mine.py")
    assert done.returncode == 0, done.stderr


def test_going_on_with_an_experiment_is_no_new_trial() -> None:
    first = again(1)
    assert run(resume=True, base_seed=1) == first
    assert attempt(first) == 1
    assert attempt(again(2)) == 2


def test_removing_a_trial_does_not_take_it_back(project: Path) -> None:
    shutil.rmtree(again(1))
    assert attempt(again(2)) == 2
    (project / ".evsys/claims.jsonl").unlink()
    assert attempt(again(3)) == 3  # the record that is left tells of itself, and of the one that it knew of


def test_what_lies_among_rehearsals_is_a_trial_unless_it_is_one() -> None:
    assert attempt(again(1, output_dir="outputs/dry")) == 1
    assert attempt(again(2)) == 2
    metadata = make().metadata.model_dump(mode="json", exclude_defaults=True)
    metadata["benchmark"] = {"name": "tools", "path": "data/test.jsonl", "max_tokens": 4, "n_tasks": 2}
    assert attempt(run(output_dir="outputs/dry", metadata=metadata)) is None


def test_tasks_left_out_added_or_reworded_in_form_are_no_new_claim(project: Path) -> None:
    tasks = read_lines(project / "data/test.jsonl")
    again(1)
    write_lines(project / "data/some.jsonl", tasks[:2])
    metadata = make().metadata.model_dump(mode="json", exclude_defaults=True)
    metadata["benchmark"] = {"name": "tools", "path": "data/some.jsonl", "max_tokens": 4}
    assert (attempt(run(name="fewer", metadata=metadata)), attempt(again(2, name="again"))) == (2, 3)
    loud = [task | {"instruction": f" {task['instruction'].upper()} "} for task in tasks]
    write_lines(project / "data/more.jsonl", [*loud, task("start radio 1", "RADIO")])
    metadata["benchmark"]["path"] = "data/more.jsonl"
    assert attempt(run(name="more", metadata=metadata)) == 4


def params(**changes: Any) -> list[dict[str, Any]]:
    """The runs, the second with other params."""
    runs = [one.model_dump(mode="json", exclude_defaults=True) for one in make().all_runs()]
    runs[1]["algorithm"]["params"] |= changes
    return runs


@pytest.mark.parametrize(
    ("changes", "same"),
    [
        ({"learning_rate": 1e-3}, False),
        ({"batch_size": 2, "save_every": 7}, True),
        ({"max_steps": 2}, False),
    ],
)
def test_another_change_is_another_claim_at_the_full_error_rate(changes: dict[str, Any], same: bool) -> None:
    again(1)
    assert attempt(again(2, name="other", runs=params(**changes))) == (2 if same else 1)


def test_values_that_agree_to_two_digits_are_the_same_change() -> None:
    again(1, runs=params(learning_rate=1e-3))
    assert attempt(again(2, runs=params(learning_rate=1e-3 + 1e-7))) == 2
    assert attempt(again(3, runs=params(learning_rate=2e-3))) == 1


def test_other_tasks_another_metric_direction_or_model_are_another_claim(project: Path) -> None:
    first = family(make())
    assert first == family(make(name="other", n_repeats=3))
    metadata = make().metadata.model_dump(mode="json", exclude_defaults=True)
    others = [
        make(metadata=metadata | {"hypothesis": metadata["hypothesis"] | change})
        for change in ({"baseline": "large"}, {"metric": "test/tools/pass@4"}, {"direction": "decrease"})
    ]
    runs = [one | {"model": {"name": "small"}} for one in params()]
    found = [family(other) for other in [*others, make(runs=runs)]]
    edit_lines(project / "data/test.jsonl", lambda task: task.update(instruction=task["instruction"] + " now"))
    assert len({first, *found, family(make())}) == 6


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
    assert attempt(again(1, runs=runs)) == 1
    assert attempt(again(2, runs=runs)) == 2


def test_a_journal_that_counts_fewer_attempts_than_the_project_is_flagged() -> None:
    again(1)
    path = again(2)
    edit_lines(path / "journal.jsonl", lambda event: event.update(attempt=1) if "family" in event else None)
    assert "claim" in {check.name for check in audit_experiment(path).flags}
