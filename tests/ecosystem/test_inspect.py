"""Tasks of the real inspect_ai as benchmarks, and our models in its own command."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("inspect_ai", reason="needs the extra inspect; run make test-ecosystem")

from evsys_sdk.cli.main import main
from evsys_sdk.data.task_source import build_task_source, locate_rows
from evsys_sdk.errors import DataError
from evsys_sdk.eval.benchmark import Benchmark, ScoreSettings
from evsys_sdk.eval.foreign_run import read_inspect_log
from evsys_sdk.history.foreign_runs import compare_foreign_runs
from evsys_sdk.testing.foreign_suite_conformance import ForeignSuiteConformance, ScriptedModel

pytestmark = pytest.mark.ecosystem
EXAMPLE = "examples/27_inspect"
ROOT = Path(__file__).parents[2]

TASKS = """
import os
from inspect_ai import Task, task
from inspect_ai.dataset import Sample
from inspect_ai.model import ChatMessageSystem, ChatMessageUser, ContentImage
from inspect_ai.scorer import Score, accuracy, match, scorer
from inspect_ai.solver import generate, solver, use_tools
from inspect_ai.tool import tool

@scorer(metrics={"*": [accuracy()]})
def two():
    async def score(state, target):
        text = state.output.completion
        return Score(value={"exact": "C" if text == target.text else "I", "length": len(text)}, answer=text)
    return score

@tool
def double():
    async def execute(number: int) -> str:
        '''Double a number.

        Args:
            number: The number.
        '''
        return str(2 * number)
    return execute

@solver
def fragile():
    async def solve(state, generate):
        if state.sample_id == 2:
            raise ValueError("a tool broke")
        return await generate(state)
    return solve

def sums(**given):
    samples = [Sample(input=f"{n}+{n}=", target=str(2 * n)) for n in range(1, 4)]
    samples[0].input = [ChatMessageSystem(content="Add."), ChatMessageUser(content="1+1=")]
    return Task(dataset=samples, **given)

@task
def several():
    return sums(solver=generate(), scorer=[match(), two()])

@task
def values():
    return sums(solver=generate(), scorer=two())

@task
def unscored():
    return sums(solver=generate())

@task
def leaving():
    raise SystemExit(3)

@task
def pictures():
    task = sums(solver=generate(), scorer=match())
    task.dataset[0].input = [ChatMessageUser(content=[ContentImage(image="data:image/png;base64,AAAA")])]
    return task

@task
def twice():
    task = sums(solver=generate(), scorer=match())
    task.dataset[0].id = "2"
    return task

@task
def breaking():
    return sums(solver=fragile(), scorer=match())

@task
def tools():
    return sums(solver=[use_tools(double()), generate()], scorer=match())
"""


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / ".evsys").mkdir()
    shutil.copytree(ROOT / EXAMPLE, tmp_path / EXAMPLE)
    (tmp_path / "evals.py").write_text(TASKS, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


class TestConformance(ForeignSuiteConformance):
    path = "inspect:evals.py@several?scorer=match"
    right = {"1": "2", "2": "4", "3": "6"}
    wrong = "7"


def load(path: str) -> Benchmark:
    return Benchmark.load(path=locate_rows(path))


def score(path: str, model: Any) -> dict[str, float | None]:
    result = load(path).score(model, ScoreSettings(metrics=("mean_reward",)))
    return {prediction.task_id: prediction.reward for prediction in result.predictions}


def test_samples_are_tasks_with_their_conversation_and_target() -> None:
    first, second, _ = build_task_source("inspect:evals.py@tools").make_rows()
    assert first["metadata"]["context_messages"] == [{"role": "system", "content": "Add."}]
    assert (second["task_id"], second["instruction"], second["verifier"]["expected"]) == ("2", "2+2=", "4")


def test_one_value_of_a_scorer_with_several_counts() -> None:
    model = ScriptedModel("m", {"1": "2", "2": "44", "3": "666"})
    assert score("inspect:evals.py@several?scorer=two/exact", model) == {"1": 1, "2": 0, "3": 0}
    assert score("inspect:evals.py@several?scorer=two/length", model) == {"1": 1, "2": 2, "3": 3}


def test_a_sample_that_breaks_in_inspect_is_reported_and_no_zero() -> None:
    result = load("inspect:evals.py@breaking").score(ScriptedModel("m", {"1": "2", "3": "5"}))
    by_task = {prediction.task_id: prediction for prediction in result.predictions}
    assert {name: one.reward for name, one in by_task.items()} == {"1": 1, "2": None, "3": 0}
    assert "a tool broke" in (by_task["2"].error or "")


def test_tools_of_a_task_are_offered_and_run() -> None:
    from evsys_sdk.rollouts.rollout import Turn

    requests: list[Any] = []

    class Caller:
        async def act(self, messages: Any, *, tools: Any = None) -> Turn:
            requests.append((messages, tools))
            if messages[-1]["role"] == "tool":
                return Turn({"role": "assistant", "content": messages[-1]["content"]})
            call = {"id": "c", "type": "function", "function": {"name": "double", "arguments": '{"number": 2}'}}
            return Turn({"role": "assistant", "content": "", "tool_calls": [call]})

    assert score("inspect:evals.py@tools", Caller()) == {"1": 0, "2": 1, "3": 0}
    assert requests[0][1][0]["function"]["name"] == "double"


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("inspect:evals.py@missing", "missing"),
        ("inspect:nowhere.py@sums", "nowhere"),
        ("inspect:evals.py@tools?size=3", "size"),
        ("inspect:evals.py@several", "scores of match, two. Name one of them as the scorer"),
        ("inspect:evals.py@several?scorer=f1", "scores of match, two. Name one of them as the scorer"),
        ("inspect:evals.py@values", "'two' gives several values"),
        ("inspect:evals.py@values?scorer=two", "'two' gives several values"),
        ("inspect:evals.py@unscored", "has no scorer"),
        ("inspect:evals.py@leaving", "SystemExit: 3"),
        ("inspect:evals.py@pictures", "images or other media"),
        ("inspect:evals.py@twice", "same id"),
    ],
)
def test_wrong_paths_are_errors_that_name_them(path: str, message: str) -> None:
    with pytest.raises(DataError) as caught:
        locate_rows(path)
    assert path in str(caught.value)
    assert message in str(caught.value)


def test_its_tasks_are_refused_as_training_data(capsys: pytest.CaptureFixture[str]) -> None:
    run = {"name": "x", "data": {"path": "inspect:evals.py@tools"}, "model": {"name": "m"}, "backend": {"kind": "mock"}}
    config = {"name": "x", "run": {**run, "algorithm": {"kind": "rl", "params": {"max_steps": 1}}}}
    Path("rl.yaml").write_text(json.dumps(config), encoding="utf-8")
    assert main(["validate", "rl.yaml", "--deep"]) == 1
    assert "benchmark only" in capsys.readouterr().err


def test_the_example_compares_two_runs_in_pairs_and_the_provider_agrees(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", f"{EXAMPLE}/sft.yaml", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    scores = {run["run"]: run["metrics"]["test/colors/mean_reward"] for run in shown["runs"]}
    assert scores["longer"] > scores["baseline"] + 0.1
    [comparison] = shown["conclusion"]["comparisons"]
    assert comparison["difference"] == pytest.approx(scores["longer"] - scores["baseline"])
    assert shown["conclusion"]["population"]["n_tasks"] == 100
    logs = {name: next(project.glob(f"outputs/inspect/{name}/benchmarks/**/*.eval")) for name in scores}
    pair = compare_foreign_runs(*(read_inspect_log(logs[name]) for name in ("baseline", "longer")))
    assert (pair.n_tasks, pair.difference) == (100, pytest.approx(comparison["difference"]))

    command = [sys.executable, "-c", "from inspect_ai._cli.main import main; main()", "eval"]
    command += [f"{EXAMPLE}/colors.py@colors", "--model", "evsys/inspect:longer", "--max-tokens", "12"]
    command += ["--display", "none", "--log-dir", "logs"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    [log] = project.glob("logs/*.eval")
    run = read_inspect_log(log)
    assert run.model == "evsys/inspect:longer"
    assert run.to_result().metrics["mean_reward"].value == pytest.approx(scores["longer"])
