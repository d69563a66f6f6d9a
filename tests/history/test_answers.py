"""What was answered: wrong answers of one experiment, and tasks that two experiments answer differently."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from evsys_sdk.cli.main import evsys
from evsys_sdk.errors import DataError
from evsys_sdk.history.detail import read_detail
from evsys_sdk.history.views.export import export_weights

from .prepared import N_TASKS, PLAN, right_tasks, run_prepared

CHOSEN = ("rate", "epochs-again", "slow")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    project = tmp_path_factory.mktemp("project")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(project)
        run_prepared(project, [one for one in PLAN if one.name in CHOSEN])
    return project


@pytest.fixture
def project(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy, which a test may change."""
    shutil.copytree(made, tmp_path / "copy")
    monkeypatch.chdir(tmp_path / "copy")
    return tmp_path / "copy"


def call(*arguments: str) -> Result:
    return CliRunner().invoke(evsys, list(arguments))


def answer(*arguments: str) -> dict[str, Any]:
    result = call(*arguments, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def refusal(*arguments: str) -> str:
    error = call(*arguments).exception
    assert isinstance(error, DataError)
    return str(error)


def test_wrong_answers_are_those_of_the_best_arm_with_prompt_and_expected(project: Path) -> None:
    found = answer("errors", "rate")
    right = right_tasks(0.65, 1)  # the luckiest seed of the best run
    assert (found["arm"], found["step"], found["n_answers"]) == ("one__seed43", 8, N_TASKS)
    assert (found["n_wrong"], found["n_found"]) == (N_TASKS - right, N_TASKS - right)
    first = found["wrong"][0]
    tasks = [json.loads(line) for line in Path("data/routing.jsonl").read_text("utf-8").splitlines()]
    assert (first["task"], first["prompt"]) == (tasks[right]["task_id"], tasks[right]["instruction"])
    assert (first["expected"], first["got"], first["reward"]) == ("yes", "no", 0.0)
    assert found["confusions"] == [{"expected": "yes", "got": "no", "count": N_TASKS - right}]


def test_another_arm_a_run_and_a_search_can_be_asked_for(project: Path) -> None:
    assert answer("errors", "rate", "--arm", "two__seed44")["n_wrong"] == N_TASKS - right_tasks(0.2, 2)
    assert answer("errors", "rate", "--arm", "base")["arm"] == "base__seed42"
    found = answer("errors", "rate", "--search", "ROUTING 39:")
    assert [one["task"] for one in found["wrong"]] == ["routing-39"]
    assert len(answer("errors", "rate", "--limit", "2")["wrong"]) == 2


def test_an_arm_that_was_killed_shows_the_answers_it_has(project: Path) -> None:
    found = answer("errors", "slow")
    assert (found["arm"], found["step"], found["steps"]) == ("one__seed42", 4, [4])


def test_the_page_shows_the_same(project: Path) -> None:
    shown = call("errors", "rate", "--limit", "1").stdout
    assert "one__seed43 after step 8: 13 of 40 answers wrong" in shown
    assert "  prompt:   routing 27: " in shown
    assert "  expected: yes\n  got:      no" in shown
    assert "... 12 more: --limit, --search or --json" in shown


def test_a_task_that_has_changed_lends_no_prompt(project: Path) -> None:
    path = Path("data/routing.jsonl")
    path.write_text(path.read_text("utf-8").replace('"yes"', '"other"'), "utf-8")
    found = answer("errors", "rate")
    assert found["wrong"][0]["prompt"] is None
    assert found["remarks"] == ["40 tasks of val/routing have changed since: their prompts are not shown"]
    path.unlink()
    (remark,) = answer("errors", "rate")["remarks"]
    assert remark.startswith("the tasks of val/routing cannot be read")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--arm", "on"), "has no such run or arm. Did you mean 'one'?"),
        (("--step", "5"), "was not scored after this step. Scored steps: 8."),
        (("--benchmark", "math"), "has no answers on record for 'math'"),
    ],
)
def test_what_is_not_there_is_refused_with_what_is(project: Path, arguments: tuple[str, ...], said: str) -> None:
    assert said in refusal("errors", "rate", *arguments)


def test_compare_shows_the_tasks_that_changed_sides_with_both_answers(project: Path) -> None:
    (flips,) = answer("compare", "rate", "epochs-again")["flips"]
    assert flips["n_tasks"] == N_TASKS
    assert flips["gained"] == []
    assert [one["task"] for one in flips["lost"]] == [f"routing-{place}" for place in range(23, 27)]  # by some seeds
    lost = flips["lost"][1]
    assert (lost["first_answer"], lost["expected"]) == ("yes", "yes")
    assert lost["prompt"].startswith("routing 24: ")
    shown = call("compare", "rate", "epochs-again").stdout
    assert "of 40 tasks, B gains 0 and loses 4." in shown
    assert "- lost routing-24: 1 -> 0.3333" in shown


def test_export_copies_the_weights_and_says_where_they_come_from(project: Path) -> None:
    found = answer("export", "rate", "-o", "adapter")
    assert (found["arm"], found["step"], found["score"]) == ("one__seed43", 8, 27 / N_TASKS)
    assert (found["model"], found["algorithm"], found["data"]) == ("alpha", "sft", "data/train.jsonl")
    assert Path("adapter/adapter_config.json").read_text("utf-8") == '{"r": 8}'
    assert json.loads(Path("adapter/evsys_export.json").read_text("utf-8")) == found
    page = Path("adapter/README.md").read_text("utf-8")
    assert "- val/routing/pass@1: 0.675 (its run, over seeds: [" in page
    assert 'PeftModel.from_pretrained(base, "adapter")' in page


def test_export_overwrites_nothing(project: Path) -> None:
    Path("adapter").mkdir()
    Path("adapter/mine.txt").write_text("mine", "utf-8")
    assert "exists already" in refusal("export", "rate", "-o", "adapter")
    assert [path.name for path in Path("adapter").iterdir()] == ["mine.txt"]
    assert call("export", "rate", "-o", "other").exit_code == 0
    assert "exists already" in refusal("export", "rate", "-o", "other")


@pytest.mark.parametrize("name", ["last", "8", "step000008", "best"])
def test_checkpoints_are_named_by_words_steps_and_names(project: Path, name: str) -> None:
    assert answer("export", "rate", "-o", "out", "--checkpoint", name)["step"] == 8


def test_an_arm_without_a_result_exports_the_checkpoint_that_scored_best(project: Path) -> None:
    found = answer("export", "slow", "-o", "out")
    assert (found["arm"], found["step"], found["score"]) == ("one__seed42", 4, right_tasks(0.575, 0) / N_TASKS)
    assert found["warnings"] == ["Trained with one seed only: seed variance may explain its score."]


def test_weights_that_are_elsewhere_or_gone_are_refused_with_the_reason(project: Path) -> None:
    assert "It has best, last, and steps 8." in refusal("export", "rate", "-o", "out", "--checkpoint", "3")
    shutil.rmtree("outputs/rate/one__seed43/checkpoints")
    assert "this checkpoint does not exist any more" in refusal("export", "rate", "-o", "out")
    lines = Path("outputs/rate/one__seed43/checkpoints.jsonl")
    remote = lines.read_text("utf-8").replace("outputs/rate/one__seed43/checkpoints", "tinker://1234")
    lines.write_text(remote, "utf-8")
    assert "these weights are on a server" in refusal("export", "rate", "-o", "out")
    assert not Path("out").exists()


def test_a_record_that_was_moved_exports_its_own_weights(project: Path, tmp_path: Path) -> None:
    Path("outputs/rate").rename(tmp_path / "rate")
    trials = {"tested": 4, "supported": 3, "expected_false": 0.06}
    found = export_weights(read_detail(tmp_path / "rate"), tmp_path / "out", trials=trials)
    assert "expected false claims: at most 0.06 of the 3" in (tmp_path / "out" / "README.md").read_text("utf-8")
    assert (found.arm, Path(found.folder, "adapter_config.json").is_file()) == ("one__seed43", True)


def test_errors_of_continual_stages_show_their_prompts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    stages: list[dict[str, Any]] = []
    for stage in ("first", "second"):
        rows = [{"prompt": f"{stage} {n}", "completion": f"{stage} answer"} for n in range(4)]
        (tmp_path / f"{stage}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
        data = {"path": f"{stage}.jsonl", "transforms": [{"kind": "jsonl_to_chat"}]}
        stages.append({"name": stage, "data": data, "eval_data": data})
    run = {
        "name": "two_stages",
        "model": {"name": "tiny"},
        "algorithm": {"kind": "sft", "params": {"max_steps": 1, "batch_size": 2}},
        "backend": {"kind": "mock"},
        "eval": {"metrics": [{"kind": "exact_match"}]},
        "continual": {"stages": stages},
    }
    (tmp_path / "c.yaml").write_text(json.dumps({"name": "continual", "run": run}), "utf-8")
    assert call("run", "c.yaml", "--quiet").exit_code == 0
    page = call("errors", "continual", "--limit", "20").output
    assert "8 of 8 answers wrong" in page
    for stage in ("first", "second"):
        for n in range(4):
            assert f"prompt:   {stage} {n}\n  expected: {stage} answer\n" in page
