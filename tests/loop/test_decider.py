"""When to learn: enough must have happened, and something must have changed; noise and poison are no reason."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from evsys_sdk.cli.main import main
from evsys_sdk.errors import ConfigError
from evsys_sdk.loop.decider import LearnDecision, decide
from evsys_sdk.loop.system import SystemConfig, load_system
from evsys_sdk.loop.traces.rounds import seal_round
from evsys_sdk.loop.traces.store import import_traces

from .scenario import trace, write_system

SYSTEM = SystemConfig.model_validate(
    {"name": "support", "traces": {"store": "support"}, "experiment": "template.yaml", "gate": "gate.yaml"}
)


def add(traces: Iterable[dict[str, Any]]) -> None:
    Path("more.jsonl").write_text("".join(json.dumps(one) + "\n" for one in traces), "utf-8")
    import_traces("support", [Path("more.jsonl")])


def votes(decision: LearnDecision) -> set[str]:
    return {one.rule for one in decision.why if one.votes is not None}


@pytest.fixture
def learned(project: Path) -> Path:
    """A system that has learned to answer about payments."""
    add(trace(n, f"does customer {n} pay the bill of may?", "sure") for n in range(100))
    assert decide(SYSTEM).learn
    seal_round("support")
    return project


def usual(n: int, **fields: Any) -> dict[str, Any]:
    return trace(1000 + n, f"does customer {n + 500} pay the bill of may?", "sure", **fields)


def test_nothing_new_is_no_reason(learned: Path) -> None:
    decision = decide(SYSTEM)
    assert not decision.learn
    assert decision.why[0].text == "0 new traces, 40 are needed."


def test_more_of_the_same_is_no_reason(learned: Path) -> None:
    add(usual(n) for n in range(200))
    decision = decide(SYSTEM)
    assert not decision.learn
    assert votes(decision) == set()


def test_few_failures_are_noise(learned: Path) -> None:
    add(usual(n, feedback="down" if n % 20 == 0 else "up") for n in range(60))
    assert not decide(SYSTEM).learn


def test_a_tiny_volume_is_not_learned_from_however_bad(learned: Path) -> None:
    add(usual(n, feedback="down") for n in range(30))
    decision = decide(SYSTEM)
    assert not decision.learn
    assert votes(decision) == {"volume"}


def test_failures_are_a_reason(learned: Path) -> None:
    add(usual(n, feedback="down" if n % 3 == 0 else "up") for n in range(60))
    decision = decide(SYSTEM)
    assert decision.learn
    assert votes(decision) == {"failures", "drift"}
    assert decision.expected_effect == pytest.approx(1 / 3)
    assert "33% of 60 judged answers failed" in decision.hypothesis


def test_new_questions_are_a_reason(learned: Path) -> None:
    add(trace(1000 + n, f"which colour has flag number {n} today", "red") for n in range(60))
    decision = decide(SYSTEM)
    assert decision.learn
    assert votes(decision) == {"novelty"}


def test_other_numbers_are_not_new_questions(learned: Path) -> None:
    add(trace(1000 + n, f"does customer {n * 7919} pay the bill of may?", "sure") for n in range(60))
    assert not decide(SYSTEM).learn


def test_a_fall_of_rewards_is_a_reason_before_answers_fail(learned: Path) -> None:
    add(usual(n, feedback=[{"name": "stars", "value": 0.7}]) for n in range(60))
    decision = decide(SYSTEM)
    assert decision.learn
    assert votes(decision) == {"drift"}


def test_good_feedback_for_other_answers_is_looked_at_first(learned: Path) -> None:
    add(trace(1000 + n, f"does customer {n} pay the bill of may?", "never") for n in range(50))
    add(usual(n, feedback="down") for n in range(50))
    decision = decide(SYSTEM)
    assert not decision.learn
    assert "contradiction" in votes(decision)


def test_waiting_long_enough_is_a_reason(learned: Path) -> None:
    add(usual(n) for n in range(60))
    patient = SYSTEM.model_copy(update={"decide": SYSTEM.decide.model_copy(update={"max_wait_days": 7.0})})
    first = 1_790_000_000 + 60 * 1000
    assert not decide(patient, now=first + 6 * 86_400).learn
    assert decide(patient, now=first + 8 * 86_400).learn


def test_a_round_that_was_refused_taught_nothing(learned: Path) -> None:
    add(usual(n) for n in range(60))
    assert decide(SYSTEM, without=[1]).learn


def test_the_command_decides_and_writes_the_experiment(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_system(project)
    add(trace(n, f"does customer {n} pay the bill of may?", "sure") for n in range(100))
    assert main(["trigger", "run", "system.yaml"]) == 0
    assert capsys.readouterr().out.startswith("Learn.")
    assert main(["trigger", "run", "system.yaml", "--scaffold", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["learn"]
    assert main(["validate", answer["experiment"], "--deep"]) == 0
    capsys.readouterr()
    assert main(["trigger", "run", "system.yaml", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["learn"] is False


def test_a_system_is_checked_with_lines(project: Path) -> None:
    Path("s.yaml").write_text("name: x\ntraces: { stor: a }\nexperiment: e\ngate: g\n", "utf-8")
    with pytest.raises(ConfigError, match=r"s\.yaml:2.*traces\.stor"):
        load_system("s.yaml")
