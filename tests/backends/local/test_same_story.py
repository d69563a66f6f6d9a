"""One YAML, one seed, two backends: what is told on `mock` is told on `local`, with another model in the lead.

Nothing is changed but where a run trains and on which model. Both visit the same rows in the same order, for as many
steps, log the same metrics and leave the same files; the numbers differ, the curves go the same way.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="needs the extra local; run make test-local")
pytest.importorskip("transformers", reason="needs the extra local; run make test-local")
pytestmark = [pytest.mark.local, pytest.mark.usefixtures("examples")]

from evsys_sdk import ExperimentConfig, register_verifier_fn  # noqa: E402
from evsys_sdk.backends.local.client import LocalSamplingClient, LocalTrainingClient  # noqa: E402
from evsys_sdk.backends.mock.client import MockSamplingClient, MockTrainingClient  # noqa: E402
from evsys_sdk.config.yaml_text import read_yaml  # noqa: E402
from evsys_sdk.experiment import Experiment  # noqa: E402

LOCAL = {"kind": "local", "params": {"device": "cpu", "exact": True}}
VOWELS = """
name: vowels
run:
  name: rl
  seed: 3
  data: { source_kind: in_memory, rows: [] }
  model: { name: tiny }
  algorithm:
    kind: rl
    params:
      max_steps: 20
      batch_size: 4
      group_size: 16
      lora_rank: 8
      sampling: { max_tokens: 6 }
  backend: { kind: mock }
"""
"""Random weights never name a tool, so the reward is one that they can reach."""


@dataclass
class Told:
    """What became of one experiment."""

    files: set[str]
    lines: list[dict[str, Any]]
    """Of metrics.jsonl, run after run."""
    visits: list[list[str]] = field(default_factory=list[list[str]])
    """The rows of each training batch, known by what the user asks in them."""

    def curve(self, key: str) -> list[float]:
        return [line[key] for line in self.lines if key in line]


def story(path: str) -> dict[str, Any]:
    return read_yaml(Path(path).read_text("utf-8")).data


def told(
    config: dict[str, Any],
    model: str,
    backend: dict[str, Any],
    folder: Path,
    patch: pytest.MonkeyPatch,
    asked: list[str],
) -> Told:
    """Run the config on a model and a backend; `asked` are the questions by which rows are known."""
    config = copy.deepcopy(config)
    for run in config.get("runs") or [config["run"]]:
        run["model"]["name"], run["backend"] = model, backend
    # All arms in this process, where they can be watched.
    config |= {"output_dir": str(folder), "callbacks": [], "max_concurrent_arms": 1}
    visits: list[list[str]] = []
    with patch.context() as watched:
        for client in (MockTrainingClient, LocalTrainingClient):
            for call in ("forward_backward", "forward_backward_custom"):
                watch(watched, client, call, visits, asked)
        result = Experiment(ExperimentConfig.model_validate(config)).run()
    assert result.exit_code == 0, [run.error for run in result.runs]
    files = {str(path.relative_to(result.path)) for path in result.path.rglob("*") if is_record(path)}
    logs = [path.read_text("utf-8") for path in sorted(result.path.rglob("metrics.jsonl"))]
    lines = [json.loads(line) for log in logs for line in log.splitlines()]
    return Told(files, lines, visits)


def watch(patch: pytest.MonkeyPatch, client: Any, call: str, visits: list[list[str]], asked: Sequence[str]) -> None:
    real = getattr(client, call)

    def watched(self: Any, data: Any, *rest: Any) -> Any:
        visits.append([row_of(self.tokenizer.decode(datum.tokens.tolist()), asked) for datum in data])
        return real(self, data, *rest)

    patch.setattr(client, call, watched)


def row_of(text: str, asked: Sequence[str]) -> str:
    """The question in a text; templates differ, and one question may begin like another."""
    return max((question for question in asked if question in text), key=len)


def is_record(path: Path) -> bool:
    """Whether a file is the SDK's rather than a backend's own: what a checkpoint holds differs."""
    return path.is_file() and "checkpoints" not in path.parts[:-1]


def same_story(one: Told, other: Told) -> None:
    """As many steps, the same metrics at each, the same files."""
    assert [line["step"] for line in one.lines] == [line["step"] for line in other.lines]
    assert [sorted(line) for line in one.lines] == [sorted(line) for line in other.lines]
    assert one.files == other.files


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


@pytest.fixture
def both(llama: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[Told, Told]]:
    """The same config on both backends."""

    def run(config: dict[str, Any], asked: list[str], **needed: Any) -> tuple[Told, Told]:
        mock = told(config, "tiny-router", {"kind": "mock"}, tmp_path / "mock", monkeypatch, asked)
        if needed:  # by weights that are random
            config["run"]["algorithm"]["params"] |= needed
        return mock, told(config, llama, LOCAL, tmp_path / "local", monkeypatch, asked)

    return run


def queries() -> list[str]:
    rows = Path("examples/01_quickstart/data/train.jsonl").read_text("utf-8").splitlines()
    return [json.loads(row)["query"] for row in rows]


def test_sft_tells_the_same_story(both: Callable[..., tuple[Told, Told]]) -> None:
    mock, local = both(story("examples/01_quickstart/config.yaml"), queries())
    same_story(mock, local)
    assert mock.visits == local.visits
    assert len(mock.visits) == 80
    for one in (mock, local):
        assert mean(one.curve("loss")[-5:]) < 0.5 * one.curve("loss")[0]


def test_sdft_tells_the_same_story(both: Callable[..., tuple[Told, Told]]) -> None:
    config = story("examples/10_sdft/config.yaml")
    config["runs"] = [run for run in config["runs"] if run["name"] == "sdft"]
    mock, local = both(config, queries())
    same_story(mock, local)
    assert mock.visits == local.visits
    for one in (mock, local):
        first, second = one.curve("loss")[:40], one.curve("loss")[40:]
        assert mean(first[-5:]) < 0.5 * first[0]
        assert mean(second[-10:]) < 0.9 * mean(second[:10])


def test_rl_tells_the_same_story(both: Callable[..., tuple[Told, Told]], monkeypatch: pytest.MonkeyPatch) -> None:
    @register_verifier_fn("vowels")
    def vowels(model_output: str, expected: Any, params: Any) -> float:
        return float(sum(letter in "aeiou" for letter in model_output[:6]) / 6)

    prompts = [f"say {word}" for word in ("aeiou", "oui", "eau", "aqua", "idea", "audio", "iota", "ouija")]
    verifier = {"kind": "in_process", "fn_name": "vowels"}
    config = read_yaml(VOWELS).data
    config["run"]["data"]["rows"] = [{"task_id": q, "instruction": q, "verifier": verifier} for q in prompts]
    sampled: dict[Any, list[str]] = {MockSamplingClient: [], LocalSamplingClient: []}
    for client in sampled:
        watch_sampling(monkeypatch, client, sampled[client], prompts)
    mock, local = both(config, prompts, learning_rate=0.006)
    same_story(mock, local)
    attempts = [[sorted(rows[at : at + 64]) for at in range(0, len(rows), 64)] for rows in sampled.values()]
    assert len(attempts[0]) == 20
    assert attempts[0] == attempts[1]
    for one in (mock, local):
        rewards = one.curve("reward/mean")
        assert mean(rewards[-3:]) > rewards[0] + 0.2


def watch_sampling(patch: pytest.MonkeyPatch, client: Any, seen: list[str], asked: Sequence[str]) -> None:
    real = client.sample

    def sample(self: Any, prompt: Any, num_samples: int, params: Any) -> Any:
        seen.extend([row_of(self.tokenizer.decode(list(prompt)), asked)] * num_samples)
        return real(self, prompt, num_samples, params)

    patch.setattr(client, "sample", sample)
