"""Tasks of the real reasoning-gym: rows, splits, scores, and training on them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

pytest.importorskip("reasoning_gym", reason="needs the extra reasoning-gym; run make test-ecosystem")

from evsys_sdk.cli.main import main
from evsys_sdk.data.task_source import build_task_source, locate_rows
from evsys_sdk.errors import DataError
from evsys_sdk.testing.task_source_conformance import TaskSourceConformance

pytestmark = pytest.mark.ecosystem
EXAMPLE = "examples/24_reasoning_gym"
ROOT = Path(__file__).parents[2]
NO_DEMONSTRATIONS = ("graph_color", "rubiks_cube", "boxnet", "rush_hour", "propositional_logic")


def _splits(subject: str) -> dict[str, str]:
    return {split: f"reasoning_gym:{subject}&split={split}" for split in ("train", "val", "test")}


class TestSyllogisms(TaskSourceConformance):
    splits = _splits("syllogism?size=40&seed=3")


class TestLegCounting(TaskSourceConformance):
    splits = _splits("leg_counting?size=20&max_animals=3")


class TestGraphColoring(TaskSourceConformance):
    splits = _splits("graph_color?size=5")


class TestComposite(TaskSourceConformance):
    splits = _splits('composite?size=12&datasets=[{"name":"chain_sum"},{"name":"leg_counting","weight":2}]')


def test_levels_of_the_curriculum_change_the_difficulty_and_params_override_them() -> None:
    def terms(query: str) -> int:
        rows = build_task_source(f"reasoning_gym:chain_sum?size=40&{query}").make_rows()
        return max(row["instruction"].count(" + ") + row["instruction"].count(" - ") for row in rows)

    assert terms("level=0") < terms("level=3")
    assert terms("level=3&max_terms=2&min_terms=2") == 1


def test_knobs_change_the_difficulty() -> None:
    short, long = (
        list(build_task_source(f"reasoning_gym:chain_sum?size=20&min_terms={n}&max_terms={n}").make_rows())
        for n in (2, 6)
    )
    assert max(row["instruction"].count(" + ") + row["instruction"].count(" - ") for row in short) < min(
        row["instruction"].count(" + ") + row["instruction"].count(" - ") for row in long
    )


def test_splits_stay_apart_for_different_seeds() -> None:
    def questions(query: str) -> set[str]:
        return {row["instruction"] for row in build_task_source(f"reasoning_gym:basic_arithmetic?{query}").make_rows()}

    assert not questions("size=300&seed=1") & questions("size=300&seed=2&split=test")


def test_demonstrations_end_with_an_answer_that_the_scorer_accepts() -> None:
    rows = list(build_task_source("reasoning_gym:leg_counting?rows=demonstrations&size=5").make_rows())
    assert [[message["role"] for message in row["messages"]] for row in rows] == [["user", "assistant"]] * 5


@pytest.mark.parametrize("generator", NO_DEMONSTRATIONS)
def test_generators_whose_answers_are_no_demonstrations_are_refused_for_sft(generator: str) -> None:
    with pytest.raises(DataError, match="its own scorer rejects"):
        list(build_task_source(f"reasoning_gym:{generator}?rows=demonstrations&size=5").make_rows())


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("reasoning_gym:leg_countin", "no generator 'leg_countin'. Did you mean 'leg_counting'?"),
        ("reasoning_gym:leg_counting?min_animal=3", "refuses"),
        ("reasoning_gym:leg_counting?min_animals=9&max_animals=2", "refuses"),
        ("reasoning_gym:leg_counting?level=99", "its curriculum has the levels 0 to"),
        ("reasoning_gym:gsm_symbolic?level=1", "refuses"),
        ('reasoning_gym:composite?datasets=[{"name":"chain_sum","share":2}]', "share"),
        ('reasoning_gym:composite?datasets=[{"name":"chain_summ"}]', "chain_summ"),
        ("reasoning_gym:composite?datasets=chain_sum", "refuses"),
        ("reasoning_gym:leg_counting?split=dev", "split: Input should be"),
    ],
)
@pytest.mark.usefixtures("project")
def test_wrong_paths_are_errors_with_a_remedy(path: str, message: str) -> None:
    with pytest.raises(DataError) as caught:
        locate_rows(path)
    assert path in str(caught.value)
    assert message in str(caught.value)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / ".evsys").mkdir()
    shutil.copytree(ROOT / EXAMPLE, tmp_path / EXAMPLE)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.usefixtures("project")
def test_the_example_validates_and_its_reward_rises(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["validate", f"{EXAMPLE}/rl.yaml", "--deep"]) == 0
    capsys.readouterr()
    assert main(["run", f"{EXAMPLE}/rl.yaml", "--json"]) == 0
    [run] = json.loads(capsys.readouterr().out)["runs"]
    assert run["status"] == "completed"
    assert run["metrics"]["reward/mean"] > 0.3
    base = run["metrics"]["baseline/test/syllogisms/base/mean_reward"]
    assert run["metrics"]["test/syllogisms/mean_reward"] > base + 0.1
