"""From an empty folder to a trained policy in an own multi-turn environment with a custom reward, in eight commands."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from evsys_sdk.cli.main import main

AGENT = '''from evsys_sdk import AgentResult, opening, register_verifier, text_of

CHOICES = "\\n- red\\n- blue\\nAnswer with one of them."


class DoorAgent:
    """Two doors: the second one opens only after the first, and each right choice is a part of the reward."""

    name = "doors"

    async def run(self, task, policy, environment):
        messages, right = opening(task), 0
        for wanted in task.metadata["doors"]:
            turn = await policy.act(messages)
            messages.append(turn.message)
            if text_of(turn.message).strip() != wanted:
                break
            right += 1
            messages.append({"role": "user", "content": f"Next door:{CHOICES}"})
        parts = {"doors": right / 2, "tried": 0.1}
        return AgentResult(messages, reward=sum(parts.values()), info={"components": parts, "opened": right})


class HintAgent:
    """Answers a wrong choice with a hint; the verifier counts the choices."""

    async def run(self, task, policy, environment):
        messages = opening(task)
        for _ in range(2):
            turn = await policy.act(messages)
            messages.append(turn.message)
            if text_of(turn.message).strip() == task.metadata["doors"][0]:
                break
            messages.append({"role": "user", "content": f"Not this one.{CHOICES}"})
        return messages


@register_verifier("few_choices")
def few_choices(completion, expected, messages):
    choices = [text_of(message).strip() for message in messages if message["role"] == "assistant"]
    return 1 / len(choices) if expected in choices else 0.0
'''
CONFIG = """name: doors
output_dir: outputs
metadata:
  hypothesis: A reward for each door teaches both.
  benchmark: { name: houses, path: houses.jsonl, split: val, run_every: 2 }
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


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The files that a newcomer writes."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "pyproject.toml").write_text("[tool.evsys]\n", "utf-8")
    (tmp_path / "doors.py").write_text(AGENT, "utf-8")
    write_project(tmp_path, CONFIG, "exact_match")
    return tmp_path


def write_project(folder: Path, config: str, verifier: str) -> None:
    (folder / "doors.yaml").write_text(config, "utf-8")
    for file, numbers in {"tasks.jsonl": range(8), "houses.jsonl": range(8, 16)}.items():
        tasks = [
            {
                "task_id": f"t{at}",
                "instruction": f"House {at}. First door:\n- red\n- blue\nAnswer with one of them.",
                "verifier": {"kind": "in_process", "fn_name": verifier, "expected": ("red", "blue")[at % 2]},
                "metadata": {"doors": [("red", "blue")[at % 2], "blue"]},
            }
            for at in numbers
        ]
        (folder / file).write_text("".join(json.dumps(task) + "\n" for task in tasks), "utf-8")


@pytest.fixture
def evsys(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    def run(*command: str) -> str:
        assert main([*command]) == 0, capsys.readouterr()
        output = capsys.readouterr()
        assert "Traceback" not in output.err
        return output.out

    return run


def test_an_own_environment_trains_and_its_parts_are_on_record(project: Path, evsys: Callable[..., str]) -> None:
    commands = [
        ("validate", "doors.yaml", "--deep"),
        ("plan", "doors.yaml"),
        ("run", "doors.yaml", "--quiet"),
        ("rollouts", "doors"),
        ("rollouts", "doors", "--show", "4/t5/0"),
        ("errors", "doors"),
        ("audit", "doors"),
        ("context",),
    ]
    assert len(commands) <= 8
    validated, planned, trained, listed, shown, wrong, audited, context = [evsys(*command) for command in commands]
    assert "OK. Experiment 'doors' has 1 run: rl" in validated
    assert "doors: 1 arm, tiny on mock" in planned
    final = re.search(r"^rl +completed +4 +(\S+) +(\S+)$", trained, re.MULTILINE)
    assert final
    assert "128 rollouts of steps 1 to 4" in listed
    assert re.search(r"^4/t\d/\d +(0\.1|0\.6|1\.1) ", listed, re.MULTILINE), "the latest step comes first"
    assert "House 5. First door:" in shown
    rollout = re.search(r"reward ([\d.]+), ok.*^opened: (\d)", shown, re.MULTILINE | re.DOTALL)
    assert rollout
    assert float(rollout[1]) == pytest.approx(0.1 + int(rollout[2]) / 2)
    assert re.search(r"doors-\w+, rl after step 4: \d of 8 answers wrong", wrong)
    assert "/doors: no issues found" in audited
    assert "none of its rewards can be recomputed here" in audited, "the agent gave them"
    assert "A reward for each door teaches both." in context

    metrics = (project / "outputs/doors/rl/logs/metrics.jsonl").read_text("utf-8")
    steps = [step for line in metrics.splitlines() if "reward/mean" in (step := json.loads(line))]
    assert len(steps) == 4
    assert float(final[1]) == pytest.approx(steps[-1]["reward/mean"], rel=1e-3)
    for step in steps:
        assert step["reward/components/doors"] + 0.1 == pytest.approx(step["reward/mean"])
        assert step["info/opened"] == pytest.approx(2 * step["reward/components/doors"])
        assert step["reward/components/tried"] == pytest.approx(0.1)


def test_the_audit_judges_conversations_of_one_turn_with_their_messages(
    project: Path, evsys: Callable[..., str]
) -> None:
    write_project(project, CONFIG.replace("DoorAgent", "HintAgent"), "few_choices")
    evsys("run", "doors.yaml", "--quiet")
    answers = next(line for line in evsys("audit", "doors").splitlines() if " answers" in line)
    assert answers.split() == ["✓", "answers"]
