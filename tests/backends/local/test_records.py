"""The records next to the SmolLM2 examples are of the configs next to them, and show what the examples claim.

Needs neither torch nor the model: a conclusion is drawn from files.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from evsys_sdk import ExperimentConfig, load_yaml
from evsys_sdk.experiment.conclusion import conclude
from evsys_sdk.experiment.conclusion.markdown import as_markdown

EXAMPLES = Path(__file__).parents[3] / "examples"
SCORES = {
    "17_local_sft": ("test/routing/pass@1", "baseline/test/routing/base/pass@1"),
    "18_local_rl": ("test/one_word/mean_reward", "baseline/test/one_word/base/mean_reward"),
}
FOLDER_THEN = {"18_local_rl": ("examples/local_rl_smollm2/", "examples/18_local_rl/")}
"""Where an example was when its record was made, and where it is now; a record is never edited."""
MACHINE = re.compile(r"(?<![\w.:])/(?:root|home|Users|work|tmp|var|mnt)/|\b\d{1,3}(?:\.\d{1,3}){3}\b|\"host\"")

pytestmark = pytest.mark.parametrize("example", sorted(SCORES))


def arms(example: str) -> list[Path]:
    return sorted(path.parent for path in (EXAMPLES / example / "record").glob("*/run_result.json"))


def read(path: Path) -> Any:
    return json.loads(path.read_text("utf-8"))


@pytest.mark.usefixtures("examples")
def test_the_record_is_of_the_config_next_to_it(example: str) -> None:
    config = load_yaml(f"examples/{example}/config.yaml")
    text = (EXAMPLES / example / "record" / "config.json").read_text("utf-8")
    recorded = ExperimentConfig.model_validate_json(text.replace(*FOLDER_THEN.get(example, ("", ""))))
    assert recorded.model_dump(mode="json") == config.model_dump(mode="json")  # fields that came since have defaults
    assert len(arms(example)) == config.n_repeats


def test_the_conclusion_follows_from_the_record(example: str) -> None:
    record = EXAMPLES / example / "record"
    conclusion = conclude(record)
    assert conclusion.to_json() == (record / "conclusion.json").read_text("utf-8")
    assert as_markdown(conclusion) == (record / "conclusion.md").read_text("utf-8")
    assert conclusion.verdict == "supported"


def test_every_seed_shows_what_the_example_claims(example: str) -> None:
    after, before = SCORES[example]
    for arm in arms(example):
        result = read(arm / "run_result.json")
        assert result["status"] == "completed"
        if example == "17_local_sft":
            assert result["metrics"][before] < 0.2
            assert result["metrics"][after] > 0.8
        else:
            assert result["metrics"][after] > result["metrics"][before] + 0.3


def test_the_curves_are_there_step_by_step(example: str) -> None:
    key = "loss" if example == "17_local_sft" else "reward/mean"
    for arm in arms(example):
        lines = [json.loads(line) for line in (arm / "logs" / "metrics.jsonl").read_text("utf-8").splitlines()]
        steps = [line["step"] for line in lines if key in line]
        assert steps == list(range(1, len(steps) + 1))
        assert len(steps) == read(arm / "run_result.json")["metrics"]["steps"]


def test_a_record_is_small_and_says_nothing_about_a_machine(example: str) -> None:
    files = [path for path in (EXAMPLES / example / "record").rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < 1_000_000
    paths = [str(path) for path in files if MACHINE.search(path.read_text("utf-8"))]
    assert not paths
