"""Conclusions from a folder: what is read, what is written, and that both are the same every time."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from evsys_sdk.errors import DataError
from evsys_sdk.experiment.conclusion import conclude, read_stored_conclusion, write_conclusion
from evsys_sdk.experiment.conclusion.evidence import Looks
from evsys_sdk.experiment.conclusion.reading import read_evidence
from evsys_sdk.experiment.conclusion.write import find_standing_conclusion
from evsys_sdk.experiment.experiment import journal_conclusion
from evsys_sdk.record.events import Journal, Kind
from evsys_sdk.record.reader import ExperimentRecord

from .conclusion_records import line, metadata, write_experiment


def rows(gain: float, seed: int, tasks: int = 30) -> list[float]:
    draw = np.random.default_rng([seed, round(100 + 100 * gain)])
    ease = np.random.default_rng(0).uniform(0.2, 0.6, tasks)
    return [float(value) for value in np.clip(ease + gain + draw.normal(0, 0.05, tasks), 0, 1)]


def arms(gain: float = 0.2, splits: tuple[str, ...] = ("val",)) -> dict[str, list[dict[str, Any]]]:
    return {
        f"{run}__seed{seed}": [line(split, rows(own, seed)) for split in splits]
        for run, own in (("baseline", 0.0), ("a", gain))
        for seed in range(3)
    }


@pytest.fixture
def experiment(tmp_path: Path) -> Path:
    return write_experiment(tmp_path / "outputs" / "e", arms())


def change_json(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text("utf-8")) | changes), encoding="utf-8")


def test_a_record_gives_a_conclusion(experiment: Path) -> None:
    found = conclude(experiment)
    assert (found.verdict, found.best_arm, found.experiment) == ("supported", "a", "e-00000000")
    assert (found.run("a").n_seeds, found.run("a").n_tasks) == (3, 30)
    assert not (experiment / "conclusion.json").exists()


def test_the_same_record_gives_the_same_bytes(experiment: Path) -> None:
    first = write_conclusion(experiment)
    written = (experiment / "conclusion.json").read_bytes(), (experiment / "conclusion.md").read_bytes()
    write_conclusion(experiment)
    assert written == ((experiment / "conclusion.json").read_bytes(), (experiment / "conclusion.md").read_bytes())
    stored = read_stored_conclusion(experiment)
    assert stored is not None
    assert stored.sha256 == first.sha256


def test_nothing_else_in_the_folder_is_touched(experiment: Path) -> None:
    def content() -> dict[Path, bytes]:
        return {path: path.read_bytes() for path in experiment.rglob("*") if path.is_file()}

    before = content()
    write_conclusion(experiment)
    after = content()
    assert {path.name for path in after.keys() - before.keys()} == {"conclusion.json", "conclusion.md"}
    assert all(after[path] == data for path, data in before.items())


def test_a_record_without_a_journal_is_invalid_and_still_read(experiment: Path) -> None:
    (experiment / "journal.jsonl").unlink()
    found = conclude(experiment)
    assert (found.verdict, found.registered) == ("invalid", False)
    assert "the journal is missing or empty" in found.summary
    assert (found.run("a").n_seeds, found.experiment) == (3, "e")


def test_a_changed_hypothesis_is_invalid(experiment: Path) -> None:
    change_json(experiment / "config.json", metadata=metadata("b beats them all").model_dump(mode="json"))
    assert conclude(experiment).verdict == "invalid"


def test_an_arm_that_never_started_is_named(experiment: Path) -> None:
    for file in (experiment / "a__seed2").iterdir():
        file.unlink()
    (experiment / "a__seed2").rmdir()
    found = conclude(experiment)
    assert found.not_scored == {"a__seed2": "it has no result"}
    assert found.run("a").n_seeds == 2


def test_an_invalidated_experiment_is_invalid_until_it_is_reinstated(tmp_path: Path) -> None:
    invalidated = {"kind": "invalidated", "reason": "leak"}
    path = write_experiment(tmp_path / "one", arms(), events=[invalidated])
    assert conclude(path).verdict == "invalid"
    path = write_experiment(tmp_path / "two", arms(), events=[invalidated, {"kind": "reinstated", "reason": "no leak"}])
    assert conclude(path).verdict == "supported"


def test_what_is_written_after_the_conclusion_does_not_change_it(tmp_path: Path) -> None:
    path = write_experiment(tmp_path / "e", arms(), events=[{"kind": "budget_stop", "reason": "usd"}])
    found = write_conclusion(path)
    assert "The experiment was stopped before its end: usd." in found.threats
    with (path / "journal.jsonl").open("a", encoding="utf-8") as file:
        for kind in ("concluded", "experiment_ended", "note"):
            file.write(json.dumps({"kind": kind, "status": "budget"}) + "\n")
    assert conclude(path).sha256 == found.sha256


class TestStandingConclusion:
    """Taking up what is finished draws no conclusion again; whatever could change it does."""

    @pytest.fixture
    def concluded(self, experiment: Path) -> Path:
        with Journal.of(experiment) as journal:
            journal_conclusion(journal, experiment, write_conclusion(experiment))
            journal.append(Kind.ENDED, status="completed")
            journal.append(Kind.RESUMED, changed={})
            journal.append(Kind.ARM_RECALLED, arm="a__seed0", status="completed")
        return experiment

    def stands(self, path: Path) -> bool:
        return find_standing_conclusion(ExperimentRecord(path)) is not None

    def test_it_stands_while_nothing_happens(self, concluded: Path) -> None:
        assert self.stands(concluded)

    @pytest.mark.parametrize(
        "kind", [Kind.ARM_STARTED, Kind.SCORED, Kind.BUDGET_STOP, Kind.INVALIDATED, Kind.REINSTATED, Kind.AUDITED]
    )
    def test_it_falls_with_what_happens(self, concluded: Path, kind: Kind) -> None:
        with Journal.of(concluded) as journal:
            journal.append(kind)
        assert not self.stands(concluded)

    def test_it_falls_with_a_changed_config(self, concluded: Path) -> None:
        with Journal.of(concluded) as journal:
            journal.append(Kind.RESUMED, changed={"budget.usd": [1.0, 2.0]})
        assert not self.stands(concluded)

    @pytest.mark.parametrize("file", ["conclusion.json", "conclusion.md"])
    def test_it_falls_with_its_files(self, concluded: Path, file: str) -> None:
        (concluded / file).write_text("something else", encoding="utf-8")
        assert not self.stands(concluded)

    def test_it_falls_with_its_rules(self, concluded: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("evsys_sdk.experiment.conclusion.write.RULES", 1000)
        assert not self.stands(concluded)

    def test_what_was_never_concluded_has_none(self, experiment: Path) -> None:
        assert not self.stands(experiment)


def test_the_last_scoring_of_the_last_step_counts(tmp_path: Path) -> None:
    lines = arms()
    for run in lines:
        early = [line("val", [0.9] * 30, step=5), line("val", [0.1] * 30, step=10)]
        lines[run] = [*early, *lines[run], line("val", [0.9] * 30, step=7)]
    found = conclude(write_experiment(tmp_path / "e", lines))
    plain = conclude(write_experiment(tmp_path / "f", arms()))
    assert found.best_score == plain.best_score


def test_what_it_cost_is_counted(tmp_path: Path) -> None:
    spend = {"tokens_trained": 999, "tokens_sampled": 999, "usd": 0.5, "wall_s": 3.0, "gpu_s": 0.0}
    extras = {"spend": spend, "tokens": {"trained": 100, "sampled": 20}}
    results = {arm: {"extras": extras} for arm in arms()}
    found = conclude(write_experiment(tmp_path / "e", arms(), results=results))
    assert (found.run("a").tokens, found.run("a").usd) == (360, 1.5)


def test_failed_samples_and_unscored_tasks_are_counted(tmp_path: Path) -> None:
    lines = arms()
    lines["a__seed0"] = [line("val", rows(0.2, 0), failed_samples=7, unscored={"t99": "the sandbox died"})]
    found = conclude(write_experiment(tmp_path / "e", lines))
    assert (found.run("a").failed_samples, found.run("a").failures) == (7, 1)
    assert found.verdict == "promising_unconfirmed"
    assert any("in no score: 7 samples" in threat for threat in found.threats)


def test_a_score_that_is_no_number_is_no_score(tmp_path: Path) -> None:
    lines = arms()
    broken = line("val", rows(0.2, 1))
    broken["metrics"]["pass@1"]["value"] = None
    lines["a__seed1"] = [broken]
    found = conclude(write_experiment(tmp_path / "e", lines))
    assert found.not_scored == {"a__seed1": "pass@1 has no finite value on val/suite"}


def test_a_half_written_last_line_is_passed_over(experiment: Path) -> None:
    with (experiment / "a__seed0" / "scores.jsonl").open("a", encoding="utf-8") as file:
        file.write('{"split": "val", "na')
    assert conclude(experiment).verdict == "supported"


class TestLooks:
    def test_earlier_experiments_that_scored_the_same_test_set_count(self, tmp_path: Path) -> None:
        about = metadata(splits=("val", "test"))
        both = arms(splits=("val", "test"))
        write_experiment(tmp_path / "first", both, about=about, started=1.0)
        write_experiment(tmp_path / "second", arms(), started=2.0)
        third = write_experiment(tmp_path / "third", both, about=about, started=3.0)
        before = conclude(third)
        assert before.looks == Looks(before=6, experiments=1, here=6)
        write_experiment(tmp_path / "fourth", both, about=about, started=4.0)
        assert conclude(third).to_json() == before.to_json()

    def test_a_look_during_training_is_a_look(self, tmp_path: Path) -> None:
        both = arms(splits=("val", "test"))
        both["a__seed0"].insert(0, line("test", rows(0.1, 0), step=5))
        path = write_experiment(tmp_path / "e", both, about=metadata(splits=("val", "test")))
        assert conclude(path).looks == Looks(before=0, experiments=0, here=7)


class TestDamage:
    def test_a_folder_that_is_no_experiment(self, tmp_path: Path) -> None:
        with pytest.raises(DataError, match=r"not the folder of an experiment.*Name another"):
            conclude(tmp_path)

    @pytest.mark.parametrize("file", ["config.json", "a__seed1/run_result.json"])
    def test_a_damaged_file_is_named(self, experiment: Path, file: str) -> None:
        (experiment / file).write_text("{", encoding="utf-8")
        with pytest.raises(DataError, match=rf"{Path(file).name}: this file is damaged"):
            conclude(experiment)

    def test_a_file_of_something_else_is_named(self, experiment: Path) -> None:
        (experiment / "config.json").write_text("[]", encoding="utf-8")
        with pytest.raises(DataError, match="should hold one JSON object"):
            conclude(experiment)

    def test_metadata_that_no_config_allows_is_named(self, experiment: Path) -> None:
        change_json(experiment / "config.json", metadata={"benchmark": [{"samples": 0, "name": "x"}]})
        with pytest.raises(DataError, match=r"metadata\.benchmark\.0\.samples"):
            conclude(experiment)

    def test_a_line_that_is_no_scoring_is_named(self, experiment: Path) -> None:
        (experiment / "a__seed1" / "scores.jsonl").write_text('{"split": "val"}\n', encoding="utf-8")
        with pytest.raises(DataError, match=r"a__seed1/scores\.jsonl: this line is not a scoring"):
            conclude(experiment)

    def test_a_stored_file_of_something_else_is_named(self, experiment: Path) -> None:
        assert read_stored_conclusion(experiment) is None
        (experiment / "conclusion.json").write_text('{"verdict": "supported"}', encoding="utf-8")
        with pytest.raises(DataError, match="this is not a conclusion"):
            read_stored_conclusion(experiment)


def test_a_seed_that_is_there_twice_is_one_seed(experiment: Path) -> None:
    twin = experiment / "a__again"
    twin.mkdir()
    for file in (experiment / "a__seed0").iterdir():
        (twin / file.name).write_bytes(file.read_bytes())
    events = [{"kind": "arm_started", "arms": [{"arm": "a__again", "run": "a", "seed": 0}]}]
    with (experiment / "journal.jsonl").open("a", encoding="utf-8") as file:
        file.writelines(json.dumps(event) + "\n" for event in events)
    assert [arm.seed for arm in read_evidence(experiment).run("a").arms] == [0, 1, 2]
