"""Every example in the repository validates, runs as its comment says, and shows what it claims to show."""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from evsys_sdk import ExperimentConfig, load_yaml, register_algorithm, validate_yaml
from evsys_sdk.backends.datum import Datum
from evsys_sdk.cli.main import main
from evsys_sdk.data.types import HarborTask, InProcessVerifier
from evsys_sdk.eval.verifier import verify_rollout
from evsys_sdk.experiment import Experiment
from evsys_sdk.rollouts.engine import EngineLimits, InlineEngine, RolloutRequest
from evsys_sdk.rollouts.harness import build_harness
from evsys_sdk.rollouts.rollout import Turn

from .secrets.planted import ORDINARY
from .warm import run_evsys

ROOT = Path(__file__).parent.parent
CONFIGS = sorted(path.relative_to(ROOT) for path in (ROOT / "examples").glob("*/config.yaml"))
CODE = {"02_own_code": "own_code.py", "12_own_algorithm": "focal_sft.py", "20_gepa_prompt": "mentor.py"}
"""What `--import` names in the command of an example."""
NEEDS_MORE = {"16_ray_sweep", "17_local_sft", "18_local_rl", "19_tinker"}
"""Examples with a real model, cluster or server: they are checked in the tier that has it, and rehearsed here."""


@pytest.fixture
def load_code(examples: Path) -> Callable[[str, str], ModuleType]:
    def load(example: str, file: str) -> ModuleType:
        spec = importlib.util.spec_from_file_location(file.removesuffix(".py"), examples / example / file)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    return load


def run_example(config: ExperimentConfig, tmp_path: Path) -> Any:
    return Experiment(config.model_copy(update={"output_dir": str(tmp_path)})).run()


@pytest.mark.usefixtures("examples")
@pytest.mark.parametrize("config", CONFIGS, ids=[path.parent.name for path in CONFIGS])
def test_every_example_validates_deeply(config: Path, load_code: Callable[[str, str], ModuleType]) -> None:
    if config.parent.name in NEEDS_MORE:
        pytest.skip("checked with what it needs, see its README")
    if config.parent.name in CODE:
        load_code(config.parent.name, CODE[config.parent.name])
    assert validate_yaml(config, deep=True).all_runs()


@pytest.mark.e2e
@pytest.mark.parametrize("config", CONFIGS, ids=[path.parent.name for path in CONFIGS])
@pytest.mark.usefixtures("examples")
def test_every_example_can_be_rehearsed_from_the_command_line(config: Path, tmp_path: Path) -> None:
    if config.parent.name == "16_ray_sweep":
        pytest.importorskip("ray", reason="needs the extra ray: pip install 'evsys-sdk[ray]'")
    text = config.read_text(encoding="utf-8")
    if "kind: ray" in text:
        pytest.importorskip("ray")  # a rehearsal takes another backend, but the launcher that is asked for
    (tmp_path / "config.yaml").write_text(
        re.sub(r"^output_dir:.*$", f"output_dir: {tmp_path / 'out'}", text, flags=re.MULTILINE), encoding="utf-8"
    )
    code = CODE.get(config.parent.name)
    imports = ["--import", str(config.parent / code)] if code else []
    # Redaction writes a mark and nothing else: without one, these variables have changed no byte of the record.
    ordinary = {f"ORDINARY_{number}": value for number, value in enumerate(ORDINARY)}
    done = run_evsys(tmp_path, "run", "config.yaml", "--dry", "--json", *imports, environment=ordinary)
    assert done.returncode == 0, done.stderr
    assert not [one for one in (tmp_path / "out").rglob("*") if one.is_file() and b"[redacted]" in one.read_bytes()]
    answer = json.loads(done.stdout)
    assert {run["status"] for run in answer["runs"]} == {"completed"}
    assert Path(answer["path"]).is_relative_to(tmp_path / "out" / "dry")


@pytest.mark.usefixtures("examples")
def test_the_quickstart_routes_requests_in_phrasings_it_has_not_seen(tmp_path: Path) -> None:
    result = run_example(load_yaml("examples/01_quickstart/config.yaml"), tmp_path)
    [run] = result.runs
    assert (run.status, result.exit_code) == ("completed", 0)
    assert run.metrics["eval/exact_match"] >= 0.9


def test_the_comparison_of_the_quickstart_ends_in_a_conclusion_a_plot_and_what_to_type_next(
    examples: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", "examples/01_quickstart/compare.yaml"]) == 0
    out, err = capsys.readouterr()
    assert "Supported: `three_passes` scores +0.3" in out
    plot = [line for line in out.splitlines() if re.search("[●o]", line) and "passes  " in line and "__" not in line]
    assert [line.split()[0] for line in plot] == ["three_passes", "two_passes"]
    assert "contamination" not in err
    assert "next: evsys show passes" in err


@pytest.mark.usefixtures("examples")
def test_the_continual_example_measures_what_is_forgotten(tmp_path: Path) -> None:
    [run] = run_example(load_yaml("examples/11_continual/config.yaml"), tmp_path).runs
    matrix = run.notes.retention
    assert matrix["first"]["first"]["exact_match"] >= 0.9
    assert matrix["second"]["second"]["exact_match"] >= 0.9
    assert matrix["second"]["first"]["exact_match"] < matrix["first"]["first"]["exact_match"]


@pytest.mark.usefixtures("examples")
def test_the_preference_example_prefers_in_its_second_phase(tmp_path: Path) -> None:
    result = run_example(load_yaml("examples/09_preference/config.yaml"), tmp_path)
    [run] = result.runs
    assert run.metrics["dpo/accuracy"] == 1.0
    assert run.metrics["dpo/margin"] > 1.0


@pytest.mark.usefixtures("examples")
@pytest.mark.parametrize(
    ("answers", "turns", "reward"),
    [
        (["open_upper", "BOX", "spoon"], 3, 1.0),
        (["spoon"], 1, 0.0),  # the right thing, before anything was opened
        (["open_upper", "spoon"], 2, 0.0),  # the right thing, before the box was unlocked
        (["open_upper", "tete", "spoon"], 2, 0.0),  # no such box: there is no third turn
        (["open_lower", "BOX", "spoon"], 3, 0.0),  # the right thing, but it is not in that box
        (["open_upper", "BOX", "dust"], 3, 0.0),
    ],
)
async def test_in_the_tool_use_example_only_all_three_turns_are_rewarded(
    answers: list[str], turns: int, reward: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(os.getcwd())
    agent = importlib.import_module("examples.07_tool_use.agent")
    verifier = InProcessVerifier("taken_out", expected=agent.DRAWERS["open_upper"])
    task = HarborTask("t", "Think of this. soup", verifier)
    calls: list[Any] = []

    class Scripted:
        async def act(self, messages: Any, *, tools: Any = None) -> Turn:
            calls.append(list(messages))
            answer = answers[len(calls) - 1].replace("BOX", agent.box_in(answers[0], task))
            return Turn({"role": "assistant", "content": answer})

    engine = InlineEngine(EngineLimits())
    harness = build_harness(agent_import_path="examples.07_tool_use.agent:DrawerAgent")
    [rollout] = await engine.submit([RolloutRequest(task, 0, Scripted(), harness, verify_rollout)])
    engine.close()
    assert (len(rollout.turns), rollout.reward) == (turns, reward)
    assert [len(messages) for messages in calls] == [1, 3, 5][:turns], "the whole conversation is shown every time"


@pytest.mark.usefixtures("examples")
def test_focal_sft_trains_on_the_mock_backend(load_code: Callable[[str, str], ModuleType], tmp_path: Path) -> None:
    load_code("12_own_algorithm", "focal_sft.py")
    config = load_yaml("examples/12_own_algorithm/config.yaml")
    [focal] = [run for run in config.all_runs() if run.algorithm.kind == "focal_sft"]
    [run] = run_example(config.model_copy(update={"run": focal, "runs": None}), tmp_path).runs
    assert run.status == "completed", run.error
    assert run.metrics["eval/exact_match"] >= 0.8
    assert run.metrics["focal/loss"] == run.metrics["final_loss"]


@pytest.mark.usefixtures("examples")
def test_cosine_toy_logs_its_curve_with_nothing_of_the_loop(
    load_code: Callable[[str, str], ModuleType], tmp_path: Path
) -> None:
    load_code("12_own_algorithm", "cosine_toy.py")
    result = run_example(load_yaml("examples/12_own_algorithm/cosine_toy.yaml"), tmp_path)
    [run] = result.runs
    assert run.metrics == {"final_loss": pytest.approx(np.cos(4.0))}
    lines = (result.path / "toy" / "logs" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line)["loss"] for line in lines] == pytest.approx([np.cos(step / 10) for step in range(1, 41)])


def test_the_focal_gradient_is_that_of_its_loss(load_code: Callable[[str, str], ModuleType]) -> None:
    loss = load_code("12_own_algorithm", "focal_sft.py").focal_loss
    rng = np.random.default_rng(0)
    data = [Datum.supervised([1, 2, 3, 4], [0.0, 1.0, 0.25, 0.0]), Datum.supervised([5, 6, 7], [0.0, 0.5, 1.0])]
    logprobs = [-rng.exponential(1.0, len(datum)) for datum in data]
    _, _, gradients = loss(data, logprobs)
    for index, datum in enumerate(data):
        for position in range(len(datum)):
            values: list[float] = []
            for sign in (1, -1):
                moved = [lp.copy() for lp in logprobs]
                moved[index][position] += sign * 1e-6
                values.append(loss(data, moved)[0])
            assert gradients[index][position] == pytest.approx((values[0] - values[1]) / 2e-6, abs=1e-5)


TOY_ROWS = [
    {"messages": [{"role": "user", "content": word}, {"role": "assistant", "content": word.upper()}]}
    for word in ("ash", "bay", "elm", "fir")
]


def train_with_loss(loss: Callable[[Any, Any], Any], tmp_path: Path) -> Any:
    """The run of a recipe with a loss as one writes it with torch: it leaves the gradient to autograd."""
    from evsys_sdk.algorithms.sft import SFT

    @register_algorithm("torch_style")
    class TorchStyle(SFT):
        async def build_batch(self, step_idx: int) -> Any:
            batch = await super().build_batch(step_idx)
            batch.loss_fn = loss
            return batch

    config = {
        "name": "e",
        "run": {
            "name": "r",
            "data": {"source_kind": "in_memory", "rows": TOY_ROWS},
            "model": {"name": "tiny"},
            "algorithm": {"kind": "torch_style", "params": {"max_steps": 5}},
            "backend": {"kind": "mock"},
        },
    }
    [run] = run_example(ExperimentConfig.model_validate(config), tmp_path).runs
    return run


def test_a_loss_written_for_torch_trains_where_torch_is_installed(tmp_path: Path) -> None:
    pytest.importorskip("torch")

    def mean_loss(data: Any, logprobs: Any) -> Any:
        total = -sum((lp * lp.new_tensor(datum.weights)).sum() for datum, lp in zip(data, logprobs, strict=True))
        return total, {"own/loss": float(total.detach())}

    run = train_with_loss(mean_loss, tmp_path)
    assert run.status == "completed", run.error
    assert run.metrics["own/loss"] == pytest.approx(run.metrics["final_loss"])
    assert run.metrics["final_grad_norm"] > 0


def test_a_loss_written_for_torch_says_what_it_needs_where_there_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from evsys_sdk.backends import losses

    monkeypatch.setattr(losses, "_has_torch", lambda: False)

    def two_values(data: Any, logprobs: Any) -> Any:
        return -sum(float(lp.sum()) for lp in logprobs), {}

    run = train_with_loss(two_values, tmp_path)
    assert run.status == "failed"
    assert "two_values returned no gradients" in run.error
    assert "@numpy_loss, or install torch" in run.error
    assert run.notes.traceback is None
