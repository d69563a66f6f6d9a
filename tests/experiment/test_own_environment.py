"""From an empty folder to a trained policy in an own multi-turn environment with a custom reward, in five commands."""

import json
from pathlib import Path

import pytest

from evsys_sdk.cli.main import main

AGENT = '''from evsys_sdk import AgentResult, opening


class DoorAgent:
    """Two doors: the second one opens only after the first, and each right choice is a part of the reward."""

    name = "doors"

    async def run(self, task, policy, environment):
        messages, right = opening(task), 0
        for wanted in task.metadata["doors"]:
            turn = await policy.act(messages)
            messages.append(turn.message)
            if turn.message["content"].strip() == wanted:
                right += 1
            messages.append({"role": "user", "content": "Next door:\\n- red\\n- blue\\nAnswer with one of them."})
        parts = {"doors": right / 2, "brief": float(len(messages) == 5)}
        return AgentResult(messages[:-1], reward=right / 2, info={"components": parts, "opened": right})
'''
CONFIG = """name: doors
output_dir: outputs
metadata:
  hypothesis: A reward for each door teaches both.
run:
  name: rl
  data: { path: tasks.jsonl }
  model: { name: tiny }
  algorithm:
    kind: rl
    params:
      agent_import_path: doors:DoorAgent
      max_steps: 4
      batch_size: 4
      group_size: 8
      sampling: { max_tokens: 6 }
  backend: { kind: mock }
"""


def test_an_own_environment_trains_and_its_parts_are_on_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "pyproject.toml").write_text("[tool.evsys]\n", "utf-8")
    (tmp_path / "doors.py").write_text(AGENT, "utf-8")
    (tmp_path / "doors.yaml").write_text(CONFIG, "utf-8")
    tasks = [
        {
            "task_id": f"t{at}",
            "instruction": f"House {at}. First door:\n- red\n- blue\nAnswer with one of them.",
            "verifier": {"kind": "in_process", "fn_name": "exact_match", "expected": ("red", "blue")[at % 2]},
            "metadata": {"doors": [("red", "blue")[at % 2], "blue"]},
        }
        for at in range(8)
    ]
    (tmp_path / "tasks.jsonl").write_text("".join(json.dumps(one) + "\n" for one in tasks), "utf-8")

    def said(*command: str) -> str:
        assert main([*command]) == 0, capsys.readouterr()
        found = capsys.readouterr()
        assert "Traceback" not in found.err
        return found.out

    assert "OK. Experiment 'doors' has 1 run" in said("validate", "doors.yaml", "--deep")
    assert "doors: 1 arm, tiny on mock" in said("plan", "doors.yaml")
    said("run", "doors.yaml", "--quiet")
    listed = said("rollouts", "doors")
    assert "4/t" in listed, "the latest step comes first"
    shown = said("show", "doors")
    assert "mock" in shown
    metrics = (tmp_path / "outputs/doors/rl/logs/metrics.jsonl").read_text("utf-8")
    steps = [json.loads(line) for line in metrics.splitlines()]
    logged = [one for one in steps if "reward/mean" in one]
    assert logged
    for one in logged:
        assert one["reward/components/doors"] == pytest.approx(one["reward/mean"])
        assert one["info/opened"] == pytest.approx(2 * one["reward/mean"])
        assert one["reward/components/brief"] == 1.0
