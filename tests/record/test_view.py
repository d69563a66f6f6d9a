"""One folder in, one view out, whatever state the folder is in."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from evsys_sdk.record.reader import ExperimentRecord
from evsys_sdk.record.view.build import Liveness, view
from evsys_sdk.record.view.model import ExperimentView
from tests.history.recorded import BEGAN, write_experiment


def view_of(path: Path) -> ExperimentView:
    return view(ExperimentRecord(path), Liveness(running=False))


def test_a_finished_experiment_is_described_from_journal_and_conclusion(tmp_path: Path) -> None:
    path = write_experiment(tmp_path, "rates", verdict="supported", parent_experiment_id="older-1")
    shown = view_of(path)
    assert (shown.id, shown.name, shown.status) == ("rates-0a1b2c3d", "rates", "completed")
    assert (shown.started, shown.ended) == (BEGAN, BEGAN + 60)
    assert (shown.verdict, shown.best_run, shown.best_score) == ("supported", "changed", 0.6)
    assert (shown.best_low, shown.best_high, shown.best_seeds, shown.best_tasks) == (0.5, 0.7, 2, 20)
    assert (shown.metric, shown.mode) == ("val/bench/pass@1", "max")
    assert (shown.n_runs, shown.n_arms, shown.n_seeds, shown.n_done) == (2, 4, 2, 4)
    assert shown.spend == {
        "tokens_trained": 4000,
        "tokens_sampled": 400,
        "usd": 1.0,
        "wall_s": 120.0,
        "gpu_s": 0.0,
    }
    assert (shown.tags, shown.parent_id, shown.hypothesis) == (["routing"], "older-1", "The change of rates helps.")
    assert (shown.algorithms, shown.models, shown.backends) == (["sft"], ["tiny"], ["mock"])
    assert shown.params == {"learning_rate": 0.1}
    assert shown.next == "Add seeds to rates."


def test_without_a_conclusion_the_best_run_is_the_one_with_the_best_mean_and_there_is_no_verdict(
    tmp_path: Path,
) -> None:
    shown = view_of(write_experiment(tmp_path, "plain", verdict=None))
    assert (shown.verdict, shown.best_run) == ("", "changed")
    assert shown.best_score == pytest.approx(0.605)


def test_less_is_better_if_the_config_declares_it(tmp_path: Path) -> None:
    shown = view_of(write_experiment(tmp_path, "low", verdict=None, mode="min"))
    assert (shown.best_run, shown.mode) == ("base", "min")


def test_a_run_with_a_failed_seed_is_not_best_without_a_conclusion(tmp_path: Path) -> None:
    shown = view_of(write_experiment(tmp_path, "half", verdict=None, failed={"changed__seed43": "OSError: disk"}))
    assert shown.best_run == "base"
    assert [(failure.arm, failure.reason) for failure in shown.failures] == [("changed__seed43", "OSError: disk")]
    assert shown.n_done == 3


def test_what_differs_between_runs_is_named(tmp_path: Path) -> None:
    path = write_experiment(tmp_path, "grid")
    config = json.loads((path / "config.json").read_text("utf-8"))
    config["runs"][1]["algorithm"]["params"]["learning_rate"] = 0.3
    (path / "config.json").write_text(json.dumps(config), "utf-8")
    assert view_of(path).varied == ["algorithm.params.learning_rate"]


def test_the_journal_of_a_resumed_experiment_counts_from_its_last_start(tmp_path: Path) -> None:
    resumed = {"id": "x", "time": BEGAN + 100, "kind": "experiment_resumed"}
    path = write_experiment(tmp_path, "again", status="interrupted", events=[resumed])
    assert view_of(path).status == "killed"
    assert view_of(path).ended is None


def test_notes_and_invalidations_come_from_the_journal_in_order(tmp_path: Path) -> None:
    events = [
        {"id": "1", "time": 1.0, "kind": "note", "text": "first", "author": "me"},
        {"id": "2", "time": 2.0, "kind": "invalidated", "reason": "wrong data"},
        {"id": "3", "time": 3.0, "kind": "reinstated", "reason": ""},
        {"id": "4", "time": 4.0, "kind": "invalidated", "reason": "leaked test set"},
    ]
    shown = view_of(write_experiment(tmp_path, "noted", events=events))
    assert [(note.text, note.author) for note in shown.notes] == [("first", "me")]
    assert shown.invalidated == "leaked test set"
    assert not shown.counts


def test_a_folder_of_a_version_without_journal_is_described_from_its_results(tmp_path: Path) -> None:
    path = write_experiment(tmp_path, "old", verdict=None)
    (path / "journal.jsonl").unlink()
    shown = view_of(path)
    assert (shown.id, shown.status, shown.n_arms, shown.n_done) == ("old", "completed", 4, 4)
    assert shown.best_run == "changed"
    assert shown.spend["usd"] == 1.0


def test_an_old_folder_with_an_arm_that_has_no_result_is_unfinished(tmp_path: Path) -> None:
    path = write_experiment(tmp_path, "old", verdict=None)
    (path / "journal.jsonl").unlink()
    (path / "changed__seed43" / "run_result.json").unlink()
    assert view_of(path).status == "killed"


def test_a_note_in_an_old_folder_does_not_hide_its_results(tmp_path: Path) -> None:
    path = write_experiment(tmp_path, "old", verdict=None)
    (path / "journal.jsonl").write_text('{"id": "1", "time": 1.0, "kind": "note", "text": "hm"}\n', "utf-8")
    shown = view_of(path)
    assert (shown.status, shown.n_done, shown.notes[0].text) == ("completed", 4, "hm")


@pytest.mark.parametrize("damage", [b"", b"{", b"[]", b"\x00\xff", b'{"name": '])
def test_a_damaged_config_leaves_the_experiment_in_the_list(tmp_path: Path, damage: bytes) -> None:
    path = write_experiment(tmp_path, "hurt")
    (path / "config.json").write_bytes(damage)
    shown = view_of(path)
    assert (shown.status, shown.id) == ("damaged", "hurt-0a1b2c3d")


@pytest.mark.parametrize("name", ["journal.jsonl", "conclusion.json"])
@pytest.mark.parametrize("damage", [b"", b"{", b"[1, 2]", b"\x00\xff\n", b'{"kind": 3, "arms": 7}\n', b"null\n" * 3])
def test_other_damaged_files_cost_only_what_was_in_them(tmp_path: Path, name: str, damage: bytes) -> None:
    path = write_experiment(tmp_path, "hurt")
    (path / name).write_bytes(damage)
    shown = view_of(path)
    assert (shown.name, shown.n_arms) == ("hurt", 4)
    assert shown.best_run == "changed"


def test_values_of_unexpected_types_are_taken_for_missing(tmp_path: Path) -> None:
    path = write_experiment(tmp_path, "odd")
    config = json.loads((path / "config.json").read_text("utf-8"))
    config |= {"description": 3, "n_repeats": "x", "metadata": [], "parent_experiment_id": {"a": 1}}
    config["runs"] = [{"name": "base", "algorithm": "sft"}, "changed", None]
    (path / "config.json").write_text(json.dumps(config), "utf-8")
    (path / "conclusion.json").write_text('{"verdict": 1, "runs": {"a": 2}, "best_score": "high", "next": 5}', "utf-8")
    shown = view_of(path)
    assert (shown.description, shown.hypothesis, shown.parent_id, shown.verdict) == ("", "", "", "")


def test_a_half_written_last_line_of_the_journal_is_passed_over(tmp_path: Path) -> None:
    path = write_experiment(tmp_path, "cut", status=None, verdict=None)
    with (path / "journal.jsonl").open("a", encoding="utf-8") as file:
        file.write('{"id": "9", "kind": "experiment_en')
    assert view_of(path).status == "killed"


def test_foreign_folders_and_folders_of_runs_are_no_experiments(tmp_path: Path) -> None:
    path = write_experiment(tmp_path, "real")
    (tmp_path / "pictures").mkdir()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "config.json").write_text('{"editor": "vim"}', "utf-8")
    for folder in (tmp_path / "pictures", tmp_path / "other", path / "base__seed42"):
        assert not ExperimentRecord(folder).is_experiment


def test_secrets_in_params_and_errors_do_not_reach_the_view(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_PASSWORD", "opensesame99")
    path = write_experiment(
        tmp_path, "secret", params={"api_key": "abc123"}, failed={"base__seed42": "refused opensesame99"}
    )
    line = view_of(path).to_json()
    assert "abc123" not in line
    assert "opensesame99" not in line


def test_a_view_survives_being_written_and_read(tmp_path: Path) -> None:
    note = {"id": "1", "time": 1.0, "kind": "note", "text": "ä \ud800"}
    shown = view_of(write_experiment(tmp_path, "same", failed={"base__seed42": "x"}, events=[note]))
    assert ExperimentView.from_json(shown.to_json()) == shown


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_an_unreadable_folder_is_no_reason_to_fail(tmp_path: Path) -> None:
    path = write_experiment(tmp_path, "closed")
    path.chmod(0)
    try:
        assert not ExperimentRecord(path).is_experiment
    finally:
        path.chmod(0o755)


def test_the_spend_of_a_killed_experiment_is_in_its_ledger(tmp_path: Path) -> None:
    path = write_experiment(tmp_path, "killed", status=None, verdict=None)
    first = {"arm": "base__seed42", "at": 10.0, "tokens_trained": 100, "usd": 0.5, "wall_s": 4.0}
    scored = {"arm": "x", "at": 12.0, "tokens_sampled": 20, "usd": 0.1, "wall_s": 4.0, "key": "x/val/0"}
    lines = [first, scored, scored]  # a killed scoring that was repeated was paid for once
    (path / "spend.jsonl").write_text("\n\n".join(json.dumps(line) for line in lines) + "\n{", "utf-8")
    amounts = {"tokens_trained": 100, "tokens_sampled": 20, "gpu_s": 0, "usd": 0.6, "wall_s": 6.0}
    assert view_of(path).spend == amounts


def test_a_resumed_and_killed_experiment_has_spent_what_its_ledger_says_and_not_what_its_first_end_said(
    tmp_path: Path,
) -> None:
    resumed = {"id": "x", "time": BEGAN + 100, "kind": "experiment_resumed"}
    path = write_experiment(tmp_path, "again", status="interrupted", verdict=None, events=[resumed])
    lines = [{"arm": "base__seed42", "at": 10.0 + at, "usd": 1.5} for at in range(3)]
    (path / "spend.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), "utf-8")
    assert view_of(path).spend["usd"] == 4.5


def test_numbers_that_json_does_not_know_are_taken_for_missing(tmp_path: Path) -> None:
    path = write_experiment(tmp_path, "nan", params={"rate": float("nan"), "large": float("inf")})
    content = (path / "conclusion.json").read_text("utf-8")
    (path / "conclusion.json").write_text(content.replace("0.6,", "1e999,"), "utf-8")
    assert "NaN" not in view_of(path).to_json()
    assert "Infinity" not in view_of(path).to_json()
    assert view_of(path).best_score is None


def test_a_run_of_the_parent_in_the_conclusion_is_neither_a_result_nor_the_best_of_its_child(tmp_path: Path) -> None:
    path = write_experiment(tmp_path, "child", verdict="refuted")
    conclusion = json.loads((path / "conclusion.json").read_text("utf-8"))
    parent = {"name": "best of parent-0a1b2c3d", "mean": 0.9, "n_seeds": 2, "is_baseline": True}
    conclusion |= {"best_arm": parent["name"], "best_score": 0.9, "runs": [*conclusion["runs"], parent]}
    (path / "conclusion.json").write_text(json.dumps(conclusion), "utf-8")
    shown = view_of(path)
    assert (shown.best_run, shown.best_score) == ("changed", 0.6)
    assert {run.run for run in shown.runs if run.n_arms} == {"base", "changed"}
