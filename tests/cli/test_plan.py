"""`evsys plan` on the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from evsys_sdk.cli.main import main

CONFIG = """
name: planned
output_dir: {out}
n_repeats: 2
budget: {budget}
run:
  name: r
  data:
    source_kind: in_memory
    rows:
      - {{ messages: [{{ role: user, content: a }}, {{ role: assistant, content: b }}] }}
  model: {{ name: tiny }}
  algorithm: {{ kind: sft, params: {{ max_steps: 3 }} }}
  backend: {{ kind: mock }}
"""


def write(tmp_path: Path, budget: str) -> str:
    path = tmp_path / "config.yaml"
    path.write_text(CONFIG.format(out=tmp_path / "out", budget=budget), encoding="utf-8")
    return str(path)


def test_it_prints_a_table_and_whether_the_budget_lasts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", write(tmp_path, "{ tokens: 1000000, wall_s: 0.000001 }")]) == 0
    out = capsys.readouterr().out
    assert "planned: 2 arms, tiny on mock" in out
    assert "budget of 1,000,000 tokens: lasts" in out
    assert "may not last" in out
    assert "would then end in arm 'r__seed42'" in out
    assert not (tmp_path / "out").exists()


def test_json_has_the_same_and_more(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", write(tmp_path, "{ tokens: 10 }"), "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["n_arms"] == 2
    assert answer["total"]["steps"] == 6
    assert answer["runs"][0]["each"]["steps"] == 3
    assert answer["budget"]["tokens"]["lasts"] is False
    assert answer["budget"]["tokens"]["ends_at"] == "r__seed42"


def test_a_config_that_would_not_run_cannot_be_planned(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = Path(write(tmp_path, "{ tokens: 10 }"))
    path.write_text(path.read_text(encoding="utf-8").replace("kind: sft", "kind: sfft"), encoding="utf-8")
    assert main(["plan", str(path)]) == 1
    assert "did you mean 'sft'" in capsys.readouterr().err.lower()
