"""RL on tasks of the real reasoning-gym with a real model: the reward rises."""

from __future__ import annotations

import json
import runpy
from pathlib import Path

import pytest

pytest.importorskip("reasoning_gym", reason="needs the extra reasoning-gym; run make test-lm-eval")
pytest.importorskip("torch", reason="needs the extra local; run make test-lm-eval")

from evsys_sdk.cli.main import main

pytestmark = [pytest.mark.ecosystem, pytest.mark.slow]
ROOT = Path(__file__).parents[2]


def test_the_reward_of_smollm2_rises(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    model = Path(str(runpy.run_path(str(ROOT / "examples" / "17_local_sft" / "prepare.py"))["cached_model"]()))
    if not model.exists():
        pytest.skip("SmolLM2 is not here; run examples/17_local_sft/prepare.py --cached")
    (tmp_path / ".evsys").mkdir()
    (tmp_path / "outputs" / "models").mkdir(parents=True)
    (tmp_path / "outputs" / "models" / model.name).symlink_to(model)
    example = ROOT / "examples" / "24_reasoning_gym" / "local.yaml"
    (tmp_path / "local.yaml").write_text(example.read_text("utf-8"), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    assert main(["run", "local.yaml", "--json", "--quiet"]) == 0
    [run] = json.loads(capsys.readouterr().out)["runs"]
    assert run["metrics"]["test/letters/mean_reward"] > run["metrics"]["baseline/test/letters/base/mean_reward"] + 0.15
