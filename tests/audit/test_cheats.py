"""Whoever changes what an experiment rests on is contradicted by its record, whatever they change."""

from __future__ import annotations

import json
import math
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from .project import (
    chat,
    edit_json,
    edit_lines,
    evsys,
    flags,
    main_in,
    make_project,
    read_lines,
    rehash,
    task,
    write_config,
    write_lines,
)

pytestmark = pytest.mark.slow

ARMS = [f"{run}__seed{seed}" for run in ("short", "long") for seed in (42, 43, 44)]


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project whose experiment supports its claim honestly."""
    folder = tmp_path_factory.mktemp("honest")
    make_project(folder)
    write_config(folder)
    done = evsys(folder, "run", "config.yaml", "--quiet")
    assert done.returncode == 0, done.stderr
    assert "Supported" in done.stdout
    assert flags(folder) == set()
    return folder


@pytest.fixture
def project(finished: Path, tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    shutil.copytree(finished, folder)
    return folder


def study(project: Path) -> Path:
    return project / "outputs/study"


def predictions(project: Path, arm: str) -> Path:
    [path] = (study(project) / arm / "benchmarks").glob("*/step*.jsonl")
    return path


def pass_all(line: dict[str, Any]) -> None:
    """A scoring in which every answer was right."""
    line["samples"] = [[1.0] * len(one) for one in line["samples"]]
    for metric in line["metrics"].values():
        metric["value"] = 1.0
        metric["per_task"] = [1.0] * len(line["tasks"])


def fail_all(line: dict[str, Any]) -> None:
    line["samples"] = [[0.0] * len(one) for one in line["samples"]]
    for metric in line["metrics"].values():
        metric["value"] = 0.0
        metric["per_task"] = [0.0] * len(line["tasks"])


# Each act, and the checks of which at least one must flag it.


def edit_scores(project: Path) -> None:
    edit_lines(study(project) / "long__seed42/scores.jsonl", pass_all)
    edit_lines(study(project) / "short__seed42/scores.jsonl", fail_all)


def edit_value_only(project: Path) -> None:
    def raise_value(line: dict[str, Any]) -> None:
        line["metrics"]["pass@1"]["value"] = 0.999

    edit_lines(study(project) / "long__seed42/scores.jsonl", raise_value)


def edit_answers(project: Path) -> None:
    def right(line: dict[str, Any]) -> None:
        if "reward" in line:
            line["reward"] = 1.0

    edit_lines(predictions(project, "short__seed42"), right)


def edit_answers_and_scores(project: Path) -> None:
    edit_answers(project)
    edit_lines(study(project) / "short__seed42/scores.jsonl", pass_all)


def edit_result(project: Path) -> None:
    def raise_score(result: dict[str, Any]) -> None:
        result["metrics"]["test/tools/pass@1"] = 1.5

    edit_json(study(project) / "long__seed42/run_result.json", raise_score)


def edit_conclusion(project: Path) -> None:
    edit_json(study(project) / "conclusion.json", lambda found: {**found, "verdict": "supported", "best_score": 0.99})


def edit_conclusion_and_rehash(project: Path) -> None:
    """The journal names the forged conclusion, and its chain holds; the scores still tell."""
    from evsys_sdk.experiment.conclusion.write import read_stored_conclusion

    def refute(conclusion: dict[str, Any]) -> None:
        conclusion |= {"verdict": "refuted", "best_arm": "short", "summary": "Refuted."}

    edit_json(study(project) / "conclusion.json", refute)
    forged = read_stored_conclusion(study(project))
    assert forged is not None
    told = {"sha256": forged.sha256, "verdict": "refuted", "best_arm": "short"}
    rehash(study(project) / "journal.jsonl", lambda event: event | told if event["kind"] == "concluded" else event)


def widen_an_effect_and_rehash(project: Path) -> None:
    """The verdict stays; only how much better it was grows."""
    from evsys_sdk.experiment.conclusion.write import read_stored_conclusion

    def widen(conclusion: dict[str, Any]) -> None:
        conclusion["comparisons"][0]["low"] = 0.9

    edit_json(study(project) / "conclusion.json", widen)
    forged = read_stored_conclusion(study(project))
    assert forged is not None
    rehash(
        study(project) / "journal.jsonl",
        lambda event: event | {"sha256": forged.sha256} if event["kind"] == "concluded" else event,
    )


def remove_conclusion(project: Path) -> None:
    (study(project) / "conclusion.json").unlink()


def delete_seed(project: Path) -> None:
    shutil.rmtree(study(project) / "short__seed43")


def delete_seed_and_strike_it(project: Path) -> None:
    delete_seed(project)
    journal = study(project) / "journal.jsonl"
    write_lines(journal, [event for event in read_lines(journal) if event.get("arm") != "short__seed43"])


def delete_seed_and_rehash(project: Path) -> None:
    """The chain holds again; the arms that were announced before the first step are still known."""
    delete_seed(project)
    rehash(study(project) / "journal.jsonl", lambda event: None if event.get("arm") == "short__seed43" else event)


def copy_arm(project: Path) -> None:
    shutil.copytree(study(project) / "long__seed42", study(project) / "long__seed99")


def copy_arm_with_events(project: Path) -> None:
    """Two more seeds, also in the journal, with a chain that holds."""
    copy_arm(project)
    journal = study(project) / "journal.jsonl"
    events = read_lines(journal)
    more = [{**one, "arm": "long__seed99"} for one in events if one.get("arm") == "long__seed42"]
    write_lines(journal, [*events[:-2], *more, *events[-2:]])
    rehash(journal, lambda event: event)


def swap_arms(project: Path) -> None:
    folder = study(project)
    (folder / "short__seed42").rename(folder / "aside")
    (folder / "long__seed42").rename(folder / "short__seed42")
    (folder / "aside").rename(folder / "long__seed42")


def edit_claim(project: Path) -> None:
    def weaken(config: dict[str, Any]) -> None:
        config["metadata"]["hypothesis"]["claim"] = "anything at all helps"

    edit_json(study(project) / "config.json", weaken)


def edit_claim_and_its_hash(project: Path) -> None:
    """The registered hash is changed as well, without mending the chain."""
    edit_claim(project)
    journal = study(project) / "journal.jsonl"

    def forge(event: dict[str, Any]) -> None:
        if event["kind"] == "experiment_started":
            event["hypothesis_sha256"] = "0" * 64

    edit_lines(journal, forge)


def strike_event(project: Path) -> None:
    journal = study(project) / "journal.jsonl"
    write_lines(journal, [event for at, event in enumerate(read_lines(journal)) if at != 3])


def insert_event(project: Path) -> None:
    journal = study(project) / "journal.jsonl"
    events = read_lines(journal)
    write_lines(journal, [*events[:3], {**events[2], "id": "f" * 12}, *events[3:]])


def reorder_events(project: Path) -> None:
    journal = study(project) / "journal.jsonl"
    events = read_lines(journal)
    events[2], events[3] = events[3], events[2]
    write_lines(journal, events)


def edit_event(project: Path) -> None:
    def later(event: dict[str, Any]) -> None:
        if event["kind"] == "arm_ended":
            event["metrics"]["test/tools/pass@1"] = 1.0

    edit_lines(study(project) / "journal.jsonl", later)


def empty_spend(project: Path) -> None:
    (study(project) / "spend.jsonl").write_text("", encoding="utf-8")


def shorten_spend(project: Path) -> None:
    path = study(project) / "spend.jsonl"
    lines = [line for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    path.write_text("\n".join(lines[: len(lines) // 2]) + "\n", encoding="utf-8")


def edit_identity(project: Path) -> None:
    edit_json(study(project) / "long__seed42/identity.json", lambda one: {**one, "weights": {"model": "another"}})


def edit_arm_config(project: Path) -> None:
    edit_json(study(project) / "long__seed42/config.json", lambda one: {**one, "seed": 99})


def edit_curve(project: Path) -> None:
    def lower(line: dict[str, Any]) -> None:
        if "loss" in line:
            line["loss"] = 0.001

    path = next(iter((study(project) / "long__seed42/logs").rglob("metrics.jsonl")))
    edit_lines(path, lower)


def edit_benchmark_note(project: Path) -> None:
    """Which tasks it was scored on, as the run noted it."""
    edit_json(study(project) / "long__seed42/benchmarks.json", lambda found: [{**found[0], "sha256": "0" * 64}])


def edit_rows_note(project: Path) -> None:
    edit_json(study(project) / "long__seed42/datasets.json", lambda found: [{**found[0], "sha256": "0" * 64}])


def drop_failed_tasks(project: Path) -> None:
    """Only the tasks that were solved stay in the score."""

    def drop(line: dict[str, Any]) -> None:
        kept = [at for at, one in enumerate(line["samples"]) if all(one)]
        for key in ("tasks", "samples", "clusters", "samples_obtained"):
            line[key] = [line[key][at] for at in kept]
        for metric in line["metrics"].values():
            metric["per_task"] = [metric["per_task"][at] for at in kept]
            metric["value"] = 1.0

    edit_lines(study(project) / "short__seed42/scores.jsonl", drop)


def copy_experiment_with_better_scores(project: Path) -> None:
    """The honest one is put aside, and a forged copy takes its name."""
    shutil.copytree(study(project), project / "outputs/original")
    edit_scores(project)


def forge_everything(project: Path) -> None:
    """Answers, scores, hashes and chain agree with each other; only the verifier still disagrees."""
    edit_answers_and_scores(project)
    from evsys_sdk.record.evidence import seal_run
    from evsys_sdk.record.run_files.scores import hash_line

    [line] = read_lines(study(project) / "short__seed42/scores.jsonl")
    sealed = seal_run(study(project) / "short__seed42")

    def forge(event: dict[str, Any]) -> dict[str, Any]:
        if event.get("arm") == "short__seed42":
            if event["kind"] == "scored":
                event["line"] = hash_line(line)
            if event["kind"] == "arm_ended":
                event["sealed"] = sealed
                event["metrics"]["test/tools/pass@1"] = 1.0
        return event

    rehash(study(project) / "journal.jsonl", forge)

    def raise_score(result: dict[str, Any]) -> None:
        result["metrics"]["test/tools/pass@1"] = 1.0

    edit_json(study(project) / "short__seed42/run_result.json", raise_score)


def fail_a_baseline_seed(project: Path) -> None:
    """The better of the two had an accident, it says."""
    change = {"status": "failed", "error": "a cable was pulled"}
    edit_json(study(project) / "short__seed42/run_result.json", lambda result: result | change)


def unscore_a_baseline_seed(project: Path) -> None:
    def forget(result: dict[str, Any]) -> None:
        result["extras"]["unscored"] = "the judge was ill"

    edit_json(study(project) / "short__seed42/run_result.json", forget)


def edit_page(project: Path) -> None:
    page = study(project) / "conclusion.md"
    page.write_text(page.read_text(encoding="utf-8").replace("supported", "refuted"), encoding="utf-8")


def repeat_a_key_of_the_conclusion(project: Path) -> None:
    """Which of the two verdicts is read depends on who reads."""
    path = study(project) / "conclusion.json"
    path.write_text(path.read_text(encoding="utf-8").replace("{", '{"verdict": "refuted", ', 1), encoding="utf-8")


def hide_a_handicap(project: Path) -> None:
    """The page then no longer says that the baseline was trained for fewer steps."""

    def lengthen(config: dict[str, Any]) -> None:
        for run in config["runs"]:
            run["algorithm"]["params"]["max_steps"] = 40

    edit_json(study(project) / "config.json", lengthen)


def hide_a_handicap_and_resume(project: Path) -> None:
    """Both configs say so now, so that the experiment may be taken up again."""
    hide_a_handicap(project)
    config = project / "config.yaml"
    text = config.read_text(encoding="utf-8")
    config.write_text(text.replace("max_steps: 2,", "max_steps: 40,"), encoding="utf-8")
    done = evsys(project, "run", "config.yaml", "--quiet", "--resume")
    assert done.returncode == 0, done.stderr


def relabel_the_benchmark(project: Path) -> None:
    def relabel(config: dict[str, Any]) -> None:
        config["metadata"]["benchmark"][0] |= {"split": "val", "samples": 4}

    edit_json(study(project) / "config.json", relabel)


def forge_right_answers(project: Path) -> None:
    """Answers that a model never gave, and that are right; scores, hashes, chain and conclusion agree with them."""
    from evsys_sdk.record.evidence import seal_run
    from evsys_sdk.record.run_files.scores import hash_line

    arm = study(project) / "short__seed42"
    expected = {one["task_id"]: one["verifier"]["expected"] for one in read_lines(project / "data/test.jsonl")}

    def answer(line: dict[str, Any]) -> None:
        if "task_id" in line:
            line |= {"reward": 1.0, "text": expected[line["task_id"]]}

    edit_lines(predictions(project, arm.name), answer)
    edit_lines(arm / "scores.jsonl", pass_all)
    edit_json(arm / "run_result.json", lambda result: result["metrics"].update({"test/tools/pass@1": 1.0}))
    [line] = read_lines(arm / "scores.jsonl")

    def forge(event: dict[str, Any]) -> dict[str, Any]:
        if event.get("arm") == arm.name and event["kind"] == "scored":
            event["line"] = hash_line(line)
        if event.get("arm") == arm.name and event["kind"] == "arm_ended":
            event["sealed"] = seal_run(arm)
            event["metrics"]["test/tools/pass@1"] = 1.0
        return event

    rehash(study(project) / "journal.jsonl", forge)
    forge_conclusion(project)


def forge_conclusion(project: Path) -> None:
    """Have the journal name the conclusion that follows from the forged record."""
    from evsys_sdk.experiment.conclusion.write import write_conclusion
    from evsys_sdk.record.evidence import hash_conclusion_page

    found = write_conclusion(study(project))
    told = {"sha256": found.sha256, "verdict": found.verdict, "best_arm": found.best_arm}
    told["page"] = hash_conclusion_page(study(project))
    rehash(study(project) / "journal.jsonl", lambda event: event | told if event["kind"] == "concluded" else event)


def delete_seed_and_what_announced_it(project: Path) -> None:
    delete_seed(project)

    def forget(event: dict[str, Any]) -> dict[str, Any] | None:
        if event["kind"] == "experiment_started":
            event["arms"] = [one for one in event["arms"] if one["arm"] != "short__seed43"]
        return None if event.get("arm") == "short__seed43" else event

    rehash(study(project) / "journal.jsonl", forget)
    forge_conclusion(project)


def set_the_clock_back(project: Path) -> None:
    """So that it seems to have come before the experiments that speak against it."""
    rehash(study(project) / "journal.jsonl", lambda event: event | {"time": event["time"] - 30 * 86400})


def cut_off_a_mark(project: Path) -> None:
    assert main_in(project, "invalidate", "study", "--reason", "the tasks are odd")[0] == 0
    journal = study(project) / "journal.jsonl"
    write_lines(journal, read_lines(journal)[:-1])


def restore_an_older_record(project: Path) -> None:
    """Of before somebody wrote down what is wrong with it."""
    shutil.copytree(study(project), project / "older")
    assert main_in(project, "note", "study", "two of the tasks are odd")[0] == 0
    shutil.rmtree(study(project))
    (project / "older").rename(study(project))


def edit_checkpoints(project: Path) -> None:
    """Another step than the one that was scored is to be shipped."""
    edit_lines(study(project) / "long__seed42/checkpoints.jsonl", lambda line: line.update(next_step=20))


def link_an_arm(project: Path) -> None:
    shutil.rmtree(study(project) / "long__seed43")
    (study(project) / "long__seed43").symlink_to("long__seed42")


def copy_an_arm_to_a_name_that_looks_the_same(project: Path) -> None:
    shutil.copytree(study(project) / "long__seed42", study(project) / "l\u043eng__seed42")


def add_a_scoring(project: Path) -> None:
    path = study(project) / "long__seed42/scores.jsonl"
    [line] = read_lines(path)
    write_lines(path, [line, line | {"name": "harder"}])


def score_below_nothing(project: Path) -> None:
    def lower(line: dict[str, Any]) -> None:
        line["samples"] = [[-5.0] for _ in line["samples"]]
        line["metrics"]["pass@1"] |= {"value": -5.0, "per_task": [-5.0] * len(line["tasks"])}

    edit_lines(study(project) / "short__seed42/scores.jsonl", lower)


def score_no_number(project: Path) -> None:
    edit_lines(study(project) / "short__seed42/scores.jsonl", lambda line: line.update(samples=[[math.nan]]))


def remove_answers(project: Path) -> None:
    predictions(project, "short__seed42").unlink()


def delete_the_journal(project: Path) -> None:
    (study(project) / "journal.jsonl").unlink()


def empty_the_journal(project: Path) -> None:
    (study(project) / "journal.jsonl").write_bytes(b"")


def cut_off_the_start_of_the_journal(project: Path) -> None:
    journal = study(project) / "journal.jsonl"
    write_lines(journal, read_lines(journal)[1:])
    rehash(journal)


def remove_every_hash_of_the_journal(project: Path) -> None:
    """As a record of version 1 looks, which had none."""
    journal = study(project) / "journal.jsonl"
    lines = [{key: event[key] for key in event if key not in ("format", "prev")} for event in read_lines(journal)]
    write_lines(journal, lines)


def replace_the_scored_weights(project: Path) -> None:
    """With those of another arm, which was never scored as this one."""
    for part in ("state", "sampler"):
        [there] = (study(project) / "short__seed42/checkpoints").glob(f"*-final*/{part}")
        [good] = (study(project) / "long__seed42/checkpoints").glob(f"*-final*/{part}")
        shutil.rmtree(there)
        shutil.copytree(good, there)


def swap_answers_of_two_tasks(project: Path) -> None:
    path = predictions(project, "short__seed42")
    lines = read_lines(path)
    one, *others = [line for line in lines if "text" in line]
    other = next(line for line in others if line["text"] != one["text"])
    one["text"], other["text"] = other["text"], one["text"]
    write_lines(path, lines)


def cut_off_the_last_answer(project: Path) -> None:
    path = predictions(project, "long__seed43")
    write_lines(path, read_lines(path)[:-1])


def turn_success_round(project: Path) -> None:
    edit_json(study(project) / "config.json", lambda config: config["metadata"].update(success_metric="final_loss"))


def claim_more_seeds(project: Path) -> None:
    edit_json(study(project) / "config.json", lambda config: config.update(n_repeats=9))


def strike_contamination_and_rehash(project: Path) -> None:
    """The first event says that nothing was found; the head of the journal was noted elsewhere."""
    rehash(
        study(project) / "journal.jsonl", lambda event: event | ({"contamination": ["x"]} if "family" in event else {})
    )


def count_fewer_trials_and_rehash(project: Path) -> None:
    rehash(study(project) / "journal.jsonl", lambda event: event | ({"attempt": 7} if "family" in event else {}))


def change_the_family_and_rehash(project: Path) -> None:
    rehash(study(project) / "journal.jsonl", lambda event: event | ({"family": "00"} if "family" in event else {}))


def raise_a_metric_in_result_and_journal(project: Path) -> None:
    """The result and the event of its end agree, and no scoring gives that value."""
    metric = "test/tools/pass@1"
    edit_json(study(project) / "long__seed42/run_result.json", lambda found: found["metrics"].update({metric: 0.987}))

    def change(event: dict[str, Any]) -> dict[str, Any]:
        if event["kind"] == "arm_ended" and event["arm"] == "long__seed42":
            event["metrics"][metric] = 0.987
        return event

    rehash(study(project) / "journal.jsonl", change)


def replace_weights_of_an_earlier_step(project: Path) -> None:
    [there] = (study(project) / "long__seed42/checkpoints").glob("*-final*/sampler")
    file = next(path for path in there.rglob("*") if path.is_file())
    file.write_bytes(file.read_bytes()[:-1] + b"x")


def repeat_the_best_scoring_at_a_later_step(project: Path) -> None:
    path = study(project) / "long__seed42/scores.jsonl"
    lines = read_lines(path)
    write_lines(path, [*lines, lines[-1] | {"step": 99}])


def make_an_arm_cheaper(project: Path) -> None:
    def cheapen(result: dict[str, Any]) -> None:
        result["extras"]["tokens"] = {"trained": 1, "sampled": 0}

    edit_json(study(project) / "long__seed42/run_result.json", cheapen)


def empty_the_scores(project: Path) -> None:
    (study(project) / "short__seed42/scores.jsonl").write_text("", encoding="utf-8")


def write_another_verdict_on_the_page(project: Path) -> None:
    page = study(project) / "conclusion.md"
    page.write_text(page.read_text(encoding="utf-8").replace("long", "short"), encoding="utf-8")


def delete_the_list_of_claims(project: Path) -> None:
    """So that the next trial of the claim counts as the first."""
    (project / ".evsys/claims.jsonl").unlink()


def strike_a_claim_from_the_list(project: Path) -> None:
    (project / ".evsys/claims.jsonl").write_text("", encoding="utf-8")


def point_to_other_weights(project: Path) -> None:
    def point(result: dict[str, Any]) -> None:
        result["artifacts"]["best_checkpoint"] = result["artifacts"]["best_checkpoint"].replace("long", "short")

    edit_json(study(project) / "long__seed42/run_result.json", point)


def edit_seconds_of_the_ledger(project: Path) -> None:
    ledger = study(project) / "spend.jsonl"
    ledger.write_text(ledger.read_text(encoding="utf-8").replace('"wall_s": ', '"wall_s": 1'), encoding="utf-8")


def edit_start_times(project: Path) -> None:
    edit_lines(study(project) / "long__seed42/starts.jsonl", lambda line: line.update(time=line["time"] - 86400))


def edit_step_times(project: Path) -> None:
    edit_lines(study(project) / "long__seed42/logs/timing.jsonl", lambda line: line.update({"time/step_s": 0.001}))


def edit_rendered_examples(project: Path) -> None:
    (study(project) / "long__seed42/rendered_examples.md").write_text("nothing of the test set", encoding="utf-8")


def edit_tasks_of_the_list_of_claims(project: Path) -> None:
    """So that the next trial on these tasks counts as one on others."""
    edit_lines(project / ".evsys/claims.jsonl", lambda line: line.update(tasks=["0" * 12]))


def turn_a_sign_on_the_page(project: Path) -> None:
    page = study(project) / "conclusion.md"
    page.write_text(page.read_text(encoding="utf-8").replace("+0.", "-0."), encoding="utf-8")


ACTS: dict[Callable[[Path], None], set[str]] = {
    point_to_other_weights: {"arms"},
    edit_seconds_of_the_ledger: {"spend"},
    edit_start_times: {"files"},
    edit_step_times: {"files"},
    edit_rendered_examples: {"files"},
    edit_tasks_of_the_list_of_claims: {"claim"},
    turn_a_sign_on_the_page: {"conclusion"},
    delete_the_list_of_claims: {"claim"},
    strike_a_claim_from_the_list: {"claim"},
    swap_answers_of_two_tasks: {"files", "answers"},
    cut_off_the_last_answer: {"files", "scores"},
    turn_success_round: {"config"},
    claim_more_seeds: {"config"},
    strike_contamination_and_rehash: {"anchor"},
    count_fewer_trials_and_rehash: {"claim"},
    change_the_family_and_rehash: {"claim"},
    raise_a_metric_in_result_and_journal: {"scores"},
    replace_weights_of_an_earlier_step: {"weights"},
    repeat_the_best_scoring_at_a_later_step: {"scores"},
    make_an_arm_cheaper: {"arms"},
    empty_the_scores: {"files"},
    write_another_verdict_on_the_page: {"conclusion"},
    delete_the_journal: {"chain"},
    empty_the_journal: {"chain"},
    cut_off_the_start_of_the_journal: {"chain"},
    remove_every_hash_of_the_journal: {"chain"},
    replace_the_scored_weights: {"weights"},
    fail_a_baseline_seed: {"arms"},
    unscore_a_baseline_seed: {"arms"},
    edit_page: {"conclusion"},
    repeat_a_key_of_the_conclusion: {"conclusion"},
    hide_a_handicap: {"config"},
    hide_a_handicap_and_resume: {"config"},
    relabel_the_benchmark: {"config"},
    forge_right_answers: {"anchor"},
    delete_seed_and_what_announced_it: {"anchor"},
    set_the_clock_back: {"anchor"},
    cut_off_a_mark: {"anchor"},
    restore_an_older_record: {"anchor"},
    edit_checkpoints: {"files"},
    link_an_arm: {"files"},
    copy_an_arm_to_a_name_that_looks_the_same: {"arms"},
    add_a_scoring: {"scores"},
    score_below_nothing: {"scores"},
    score_no_number: {"scores"},
    remove_answers: {"files"},
    edit_scores: {"scores", "files"},
    edit_value_only: {"scores"},
    edit_answers: {"scores", "files"},
    edit_answers_and_scores: {"scores", "files"},
    edit_result: {"arms"},
    edit_conclusion: {"conclusion"},
    edit_conclusion_and_rehash: {"conclusion"},
    widen_an_effect_and_rehash: {"conclusion"},
    remove_conclusion: {"conclusion"},
    delete_seed: {"arms"},
    delete_seed_and_strike_it: {"chain"},
    delete_seed_and_rehash: {"arms"},
    copy_arm: {"arms"},
    copy_arm_with_events: {"anchor"},
    swap_arms: {"files", "arms"},
    edit_claim: {"claim"},
    edit_claim_and_its_hash: {"chain", "claim"},
    strike_event: {"chain"},
    insert_event: {"chain"},
    reorder_events: {"chain"},
    edit_event: {"chain"},
    empty_spend: {"spend"},
    shorten_spend: {"spend"},
    edit_identity: {"files", "identity"},
    edit_arm_config: {"files"},
    edit_curve: {"files"},
    edit_benchmark_note: {"files"},
    edit_rows_note: {"files"},
    drop_failed_tasks: {"scores", "files"},
    copy_experiment_with_better_scores: {"scores"},
    forge_everything: {"answers"},
}


def test_there_are_enough_dishonest_acts() -> None:
    assert len(ACTS) >= 75


@pytest.mark.parametrize("act", ACTS, ids=lambda act: act.__name__)
def test_an_edit_afterwards_is_flagged(act: Callable[[Path], None], project: Path) -> None:
    act(project)
    found = flags(project)
    assert found & ACTS[act], found


def test_a_formatter_of_the_page_is_no_contradiction(project: Path) -> None:
    page = study(project) / "conclusion.md"
    page.write_text(page.read_text(encoding="utf-8").replace("| --- |", "|:-----|").replace("- ", "*   "), "utf-8")
    assert flags(project) == set()


@pytest.mark.parametrize("act", [edit_scores, delete_seed, copy_arm, edit_event], ids=lambda act: act.__name__)
def test_a_conclusion_drawn_after_an_edit_is_invalid(act: Callable[[Path], None], project: Path) -> None:
    act(project)
    main_in(project, "conclude", "outputs/study")
    conclusion = json.loads((study(project) / "conclusion.json").read_text(encoding="utf-8"))
    assert conclusion["verdict"] == "invalid", conclusion["summary"]


def test_replaced_weights_are_neither_shipped_exported_nor_trained_from(project: Path) -> None:
    replace_the_scored_weights(project)
    (project / "gate.yaml").write_text("target: { metric: test/tools/pass@1 }", encoding="utf-8")
    arm = "outputs/study/short__seed42"
    write_config(project, model=f", init_from_checkpoint: {arm}", about=", about: [weights]")
    for command in (
        ["gate", arm, "--against", "outputs/study/long__seed42", "--policy", "gate.yaml"],
        ["deploy", arm, "--to", "openai_server", "--name", "production"],
        ["export", "outputs/study", "--output", "copy", "--arm", "short__seed42"],
        ["validate", "config.yaml", "--deep"],
        ["run", "config.yaml"],
    ):
        done = evsys(project, *command)
        assert done.returncode == 1, (command, done.stdout, done.stderr)
        assert "the stored weights have" in done.stdout + done.stderr, (command, done.stdout, done.stderr)


def test_history_and_context_carry_the_mark(project: Path) -> None:
    edit_scores(project)
    flags(project)
    [listed] = json.loads(main_in(project, "history", "--json")[1])["experiments"]
    assert "scores" in listed["flags"]
    assert "scores" in main_in(project, "context")[1]


def test_an_audit_makes_history_forget_what_was_written_into_its_memory(project: Path) -> None:
    main_in(project, "history")
    with closing(sqlite3.connect(project / "outputs/.history.sqlite3")) as memory, memory:
        memory.execute("UPDATE experiments SET verdict = 'refuted'")
        memory.execute("UPDATE details SET view = replace(view, 'supported', 'refuted')")
    assert flags(project) == set()
    [experiment] = json.loads(main_in(project, "history", "--json")[1])["experiments"]
    assert experiment["verdict"] == "supported"


def test_a_lost_tail_is_noticed_by_its_anchor(project: Path, tmp_path: Path) -> None:
    anchors = tmp_path / "elsewhere.jsonl"
    assert flags(project, "--anchor", str(anchors)) == set()
    journal = study(project) / "journal.jsonl"
    write_lines(journal, read_lines(journal)[:-1])
    assert "anchor" in flags(project, "--anchor", str(anchors))


# What is done while the experiment runs.


def test_training_on_the_test_file_is_flagged(tmp_path: Path) -> None:
    make_project(tmp_path)
    tests = read_lines(tmp_path / "data/test.jsonl")
    rows = [chat(one["instruction"].upper() + "!", one["verifier"]["expected"]) for one in tests]
    write_lines(tmp_path / "data/train.jsonl", [*read_lines(tmp_path / "data/train.jsonl"), *rows])
    write_config(tmp_path)
    evsys(tmp_path, "run", "config.yaml", "--quiet")
    assert "contamination" in flags(tmp_path)


VERIFIER = """
from evsys_sdk import register_verifier_fn

@register_verifier_fn("mine")
def mine(output, expected, params):
    return float(expected in output)
"""


def test_a_verifier_that_changes_between_arms_makes_it_invalid(tmp_path: Path) -> None:
    make_project(tmp_path, verifier="mine")
    (tmp_path / "mine.py").write_text(VERIFIER, encoding="utf-8")
    edit = '''
from evsys_sdk import Callback, register_callback
from pathlib import Path

@register_callback("easier")
class Easier(Callback):
    """Make the verifier kinder once the baseline has been scored."""

    def on_run_end(self, result):
        if result.run_id == "short__seed43":
            text = Path("mine.py").read_text()
            Path("mine.py").write_text(text.replace("float(expected in output)", "1.0"))
'''
    (tmp_path / "easier.py").write_text(edit, encoding="utf-8")
    write_config(tmp_path, more="callbacks: [ { kind: easier } ]")
    done = evsys(tmp_path, "run", "config.yaml", "--quiet", "--import", "mine.py", "--import", "easier.py")
    assert "Supported" not in done.stdout, done.stdout
    assert flags(tmp_path, "--import", "mine.py") & {"identity", "answers"}


def test_a_verifier_that_grows_kinder_is_flagged(tmp_path: Path) -> None:
    """After half the tasks of one arm, so that it happens also where each arm has a process of its own."""
    make_project(tmp_path, verifier="mine")
    kinder = VERIFIER.replace(
        "    return float(expected in output)",
        "    mine.calls = getattr(mine, 'calls', 0) + 1\n"
        "    return 1.0 if mine.calls > 12 else float(expected in output)",
    )
    (tmp_path / "mine.py").write_text(kinder, encoding="utf-8")
    write_config(tmp_path)
    evsys(tmp_path, "run", "config.yaml", "--quiet", "--import", "mine.py")
    assert "answers" in flags(tmp_path, "--import", "mine.py")


def test_code_of_the_project_has_no_say_in_the_audit_but_as_a_verifier(tmp_path: Path) -> None:
    """Its module is imported by every command that needs it, and would replace the checks if the audit did so too."""
    make_project(tmp_path, verifier="mine")
    silence = """
from evsys_sdk.experiment.audit import case, report
case.Fact.check = lambda self, *_, **__: report.AuditCheck(self.name, "ok")
report.AuditReport.flags = property(lambda self: [])
"""
    (tmp_path / "mine.py").write_text(silence + VERIFIER, encoding="utf-8")
    (tmp_path / "pyproject.toml").write_text('[tool.evsys]\nimports = ["mine"]\n', encoding="utf-8")
    write_config(tmp_path)
    evsys(tmp_path, "run", "config.yaml", "--quiet")
    assert flags(tmp_path) == set()
    assert _state_of(tmp_path, "answers") == "ok"  # judged again by that very module, elsewhere
    edit_lines(tmp_path / "outputs/study/long__seed42/scores.jsonl", fail_all)
    assert flags(tmp_path, "--import", "mine.py") >= {"scores", "files"}


def _state_of(folder: Path, check: str) -> str:
    [report] = json.loads(main_in(folder, "audit", "outputs/study", "--json")[1])
    return next(one["state"] for one in report["checks"] if one["name"] == check)


def test_the_verifier_that_a_run_was_told_to_import_judges_again_without_being_named(tmp_path: Path) -> None:
    make_project(tmp_path, verifier="mine")
    (tmp_path / "mine.py").write_text(VERIFIER, encoding="utf-8")
    write_config(tmp_path)
    evsys(tmp_path, "run", "config.yaml", "--quiet", "--import", "mine.py")
    assert _state_of(tmp_path, "answers") == "ok"
    (tmp_path / "mine.py").write_text(VERIFIER.replace("float(expected in output)", "0.5"), encoding="utf-8")
    assert "answers" in flags(tmp_path)


def test_a_verifier_that_dies_leaves_the_rest_of_the_audit(tmp_path: Path) -> None:
    make_project(tmp_path, verifier="mine")
    (tmp_path / "mine.py").write_text(VERIFIER, encoding="utf-8")
    write_config(tmp_path)
    evsys(tmp_path, "run", "config.yaml", "--quiet", "--import", "mine.py")
    (tmp_path / "mine.py").write_text(VERIFIER.replace("return float", "import os; os._exit(3); return float"), "utf-8")
    assert flags(tmp_path) == {"answers"}, "nobody can say what the answers earn now"


def test_a_recipe_that_learns_from_the_test_file_behind_the_config_is_flagged(tmp_path: Path) -> None:
    make_project(tmp_path)
    better = """
import json
from evsys_sdk import register_algorithm
from evsys_sdk.algorithms.sft import SFT

@register_algorithm("better_sft")
class BetterSFT(SFT):
    name = "better_sft"

    async def setup(self):
        tasks = [json.loads(line) for line in open("data/test.jsonl")]
        self.rows = [
            {"messages": [
                {"role": "user", "content": task["instruction"]},
                {"role": "assistant", "content": task["verifier"]["expected"]},
            ]}
            for task in tasks[:20]
        ]
        await super().setup()
"""
    (tmp_path / "better.py").write_text(better, encoding="utf-8")
    write_config(tmp_path)
    config = (tmp_path / "config.yaml").read_text(encoding="utf-8")
    baseline, candidate = config.split("- name: long")
    changed = candidate.replace("kind: sft", "kind: better_sft")
    (tmp_path / "config.yaml").write_text(f"{baseline}- name: long{changed}", encoding="utf-8")
    evsys(tmp_path, "run", "config.yaml", "--quiet", "--import", "better.py")
    assert flags(tmp_path) == {"contamination"}
    [report] = json.loads(main_in(tmp_path, "audit", "outputs/study", "--json")[1])
    [check] = [one for one in report["checks"] if one["name"] == "contamination"]
    assert [line.split(" was trained on ")[0] for line in check["evidence"]] == [
        f"long__seed{seed}" for seed in (42, 43, 44)
    ]
    assert all("20 tasks of 'test/tools'" in line for line in check["evidence"])


def test_what_was_learned_before_a_kill_is_still_known_after_the_resume(tmp_path: Path) -> None:
    """The test file goes through the client, the process dies, and the recipe is honest from then on."""
    make_project(tmp_path)
    hasty = """
import json, os, signal
from pathlib import Path
from evsys_sdk import register_algorithm
from evsys_sdk.algorithms.sft import SFT

@register_algorithm("hasty_sft")
class HastySFT(SFT):
    name = "hasty_sft"

    async def setup(self):
        if not Path("killed").exists():
            tasks = [json.loads(line) for line in open("data/test.jsonl")]
            self.rows = [
                {"messages": [
                    {"role": "user", "content": task["instruction"]},
                    {"role": "assistant", "content": task["verifier"]["expected"]},
                ]}
                for task in tasks[:20]
            ]
        await super().setup()

    async def build_batch(self, step_idx):
        if step_idx == 10 and not Path("killed").exists():
            Path("killed").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return await super().build_batch(step_idx)
"""
    (tmp_path / "hasty.py").write_text(hasty, encoding="utf-8")
    write_config(tmp_path, more="launcher: { kind: local, params: { arms_in: threads } }")
    config = (tmp_path / "config.yaml").read_text(encoding="utf-8")
    baseline, candidate = config.split("- name: long")
    changed = candidate.replace("kind: sft, params: {", "kind: hasty_sft, params: { save_every: 5,")
    (tmp_path / "config.yaml").write_text(f"{baseline}- name: long{changed}", encoding="utf-8")
    assert evsys(tmp_path, "run", "config.yaml", "--quiet", "--import", "hasty.py").returncode == 2  # its supervisor
    assert "contamination" in flags(tmp_path)  # of what has not ended, too
    done = evsys(tmp_path, "run", "config.yaml", "--quiet", "--resume", "--import", "hasty.py")
    assert done.returncode == 0, done.stderr
    events = read_lines(study(tmp_path) / "journal.jsonl")
    trained_on = {one["arm"]: one["trained_on"] for one in events if one["kind"] == "arm_ended" and "trained_on" in one}
    assert trained_on["long__seed42"]["test/tools"]["n"] == 20
    assert flags(tmp_path) == {"contamination"}


def test_a_callback_that_rewrites_scores_is_flagged(tmp_path: Path) -> None:
    make_project(tmp_path)
    rewrite = '''
import json
from pathlib import Path
from evsys_sdk import Callback, register_callback

@register_callback("rewrite")
class Rewrite(Callback):
    """Take from the baseline what it has earned."""

    def on_run_end(self, result):
        path = Path("outputs/study") / result.run_id / "scores.jsonl"
        if path.exists() and result.run_id == "short__seed42":
            lines = [json.loads(line) for line in path.read_text().splitlines()]
            for line in lines:
                line["samples"] = [[0.0] for _ in line["samples"]]
                line["metrics"]["pass@1"] |= {"value": 0.0, "per_task": [0.0] * len(line["tasks"])}
            path.write_text("".join(json.dumps(line) + "\\n" for line in lines))
'''
    (tmp_path / "rewrite.py").write_text(rewrite, encoding="utf-8")
    write_config(tmp_path, more="callbacks: [ { kind: rewrite } ]")
    done = evsys(tmp_path, "run", "config.yaml", "--quiet", "--import", "rewrite.py")
    assert "Supported" not in done.stdout, done.stdout
    assert "scores" in flags(tmp_path)


def test_a_candidate_that_starts_from_trained_weights_is_invalid_unless_the_claim_says_so(
    finished: Path, tmp_path: Path
) -> None:
    make_project(tmp_path)
    shutil.copytree(finished / "outputs/study/long__seed42", tmp_path / "before")
    write_config(tmp_path, model=", init_from_checkpoint: before/checkpoints/step000040-final/state")
    done = evsys(tmp_path, "run", "config.yaml", "--quiet")
    assert "identity" in flags(tmp_path), done.stdout + done.stderr
    assert "Supported" not in done.stdout
    shutil.rmtree(tmp_path / "outputs")
    write_config(
        tmp_path, model=", init_from_checkpoint: before/checkpoints/step000040-final/state", about=", about: [weights]"
    )
    evsys(tmp_path, "run", "config.yaml", "--quiet")
    assert flags(tmp_path) == set()


def test_easier_tasks_for_the_candidate_are_flagged(project: Path) -> None:
    """The benchmark is edited and the candidate scored again."""
    tests = read_lines(project / "data/test.jsonl")
    easy = [task(one["instruction"], "", verifier="contains") | {"task_id": one["task_id"]} for one in tests]
    write_lines(project / "data/test.jsonl", easy)
    shutil.rmtree(study(project) / "long__seed42")
    evsys(project, "run", "config.yaml", "--quiet", "--resume")
    assert flags(project) & {"identity", "arms", "answers"}
