"""When to learn: enough must have happened, and something must have changed; noise and poison are no reason."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest

from evsys_sdk import register_inference
from evsys_sdk.cli.main import main
from evsys_sdk.config.specs import InferenceSpec
from evsys_sdk.data.workspace.workspace import Workspace
from evsys_sdk.errors import ConfigError, EvsysError
from evsys_sdk.loop.decider import LearnDecision, decide
from evsys_sdk.loop.system import SystemConfig, load_system
from evsys_sdk.loop.traces.rounds import seal_round
from evsys_sdk.loop.traces.store import import_traces

from .scenario import SYSTEM as SYSTEM_TEXT
from .scenario import trace, write_system

SYSTEM = SystemConfig.model_validate(
    {"name": "support", "traces": {"store": "support"}, "experiment": "template.yaml", "gate": "gate.yaml"}
)


def add(traces: Iterable[dict[str, Any]]) -> None:
    Path("more.jsonl").write_text("".join(json.dumps(one) + "\n" for one in traces), "utf-8")
    import_traces("support", [Path("more.jsonl")])


def votes(decision: LearnDecision) -> set[str]:
    return {reason.rule for reason in decision.why if reason.votes is not None}


@pytest.fixture
def learned(project: Path) -> Path:
    """A system that has learned to answer about payments."""
    add(trace(n, f"does customer {n} pay the bill of may?", "sure") for n in range(100))
    assert decide(SYSTEM).learn
    seal_round("support")
    return project


def usual(n: int, answer: str = "sure", **fields: Any) -> dict[str, Any]:
    return trace(1000 + n, f"does customer {n + 500} pay the bill of may?", answer, **fields)


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
    add(usual(n, "hm", feedback="down") if n % 3 == 0 else usual(n) for n in range(60))
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


def test_a_fall_of_rewards_is_a_reason_before_answers_fail(project: Path) -> None:
    add(trace(n, f"does customer {n} pay the bill of may?", f"sure, bill {n} is paid") for n in range(100))
    seal_round("support")
    weaker = [{"name": "stars", "value": 0.7}]
    add(usual(n, f"well, {n}", feedback=weaker) if n % 2 else usual(n, f"sure, bill {n}") for n in range(80))
    decision = decide(SYSTEM)
    assert decision.learn
    assert votes(decision) == {"drift"}


def test_bad_feedback_for_what_others_find_good_is_noise(learned: Path) -> None:
    add(usual(n, feedback="down" if n % 3 == 0 else "up") for n in range(60))
    decision = decide(SYSTEM)
    assert not decision.learn
    assert votes(decision) == {"failures", "drift", "lessons"}


def test_failures_without_a_good_answer_teach_nothing(learned: Path) -> None:
    add(usual(n) for n in range(60))
    add(trace(2000 + n, f"which colour has flag number {n} today", "hm", feedback="down") for n in range(60))
    decision = decide(SYSTEM)
    assert not decision.learn
    assert "lessons" in votes(decision)


@pytest.mark.parametrize("still_liked", [30, 0])
def test_what_people_disagree_about_is_looked_at_first(learned: Path, still_liked: int) -> None:
    """Somebody likes another answer; the settled one is still liked, or no one says anything about it."""
    others = [usual(n, "never") for n in range(50)] + [usual(100 + n) for n in range(still_liked)]
    add([*others, *(usual(200 + n, "hm", feedback="down") for n in range(20))])
    decision = decide(SYSTEM)
    assert not decision.learn
    assert "1 of 1 kinds of questions have another good answer" in decision.why[-1].text
    add(trace(2000 + n, f"which colour has flag number {n} today", "red") for n in range(60))
    decision = decide(SYSTEM)
    assert decision.learn  # something else is to be learned, and what is disputed is left out
    sealed_round = seal_round("support", aside=decision.aside)
    assert sealed_round.left_out["people disagree about it"] == 70 + still_liked
    assert learned_answers(sealed_round.dataset) == {"sure", "red"}
    assert decide(SYSTEM).new == 0


def learned_answers(dataset: str) -> set[str]:
    return {row["messages"][-1]["content"] for row in Workspace().pull_dataset(id=dataset).rows()}


def test_a_settled_answer_that_fails_now_is_a_changed_world(learned: Path) -> None:
    add(usual(n, feedback="down") if n % 2 else usual(n, "never") for n in range(100))
    assert decide(SYSTEM).learn
    sealed_round = seal_round("support", min_reward=0.5)
    assert sealed_round.left_out["an answer that is no longer found good"] == 80
    assert learned_answers(sealed_round.dataset) == {"never"}
    add(usual(200 + n, "never") for n in range(50))
    assert learned_answers(seal_round("support", min_reward=0.5).dataset) == {"never"}


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


class Adviser:
    """Gives prepared answers, and records its requests."""

    asked: ClassVar[list[str]] = []
    closed: ClassVar[int] = 0

    def __init__(self, says: str) -> None:
        self._says = says

    def close(self) -> None:
        type(self).closed += 1

    def generate(self, *, prompt: str, max_tokens: int, temperature: float, stop: Any = None) -> str:
        self.asked.append(prompt)
        if self._says == "nothing":
            raise ConnectionError("no route")
        return self._says


def ask(says: str, why: Iterable[dict[str, Any]]) -> LearnDecision:
    Adviser.asked.clear()
    Adviser.closed = 0
    register_inference("adviser")(Adviser)
    add(why)
    settings = SYSTEM.decide.model_copy(update={"opinion": InferenceSpec(kind="adviser", params={"says": says})})
    return decide(SYSTEM.model_copy(update={"decide": settings}))


def strange() -> Iterator[dict[str, Any]]:
    return (trace(1000 + n, f"which colour has flag number {n} of bob@example.com", "red") for n in range(60))


def test_a_model_can_turn_a_yes_into_a_no_and_is_asked_once(learned: Path) -> None:
    answer = 'I think: {"learn": false, "why": "Red is not the\\n colour of any flag."}'
    for _ in range(2):
        decision = ask(answer, strange())
        assert not decision.learn
        assert decision.why[-1].text == "adviser objects: Red is not the colour of any flag."
    assert Adviser.asked == []  # the second time
    [stored] = (learned / ".evsys/loop/support/opinions.jsonl").read_text("utf-8").splitlines()
    assert json.loads(stored)["answer"] == answer
    assert "novelty" in json.loads(stored)["question"]
    assert "bob@example.com" not in stored


@pytest.mark.parametrize(
    ("says", "told"),
    [
        ('{"learn": true, "why": "It is asked a lot."}', "adviser agrees: It is asked a lot."),
        ("certainly!", "its answer cannot be read: 'certainly!'"),
        ('{"learn": "no"}', "cannot be read"),
        ("nothing", "could not be asked (ConnectionError: no route)"),
    ],
)
def test_a_model_that_agrees_or_fails_changes_nothing(learned: Path, says: str, told: str) -> None:
    decision = ask(says, strange())
    assert decision.learn
    assert told in decision.why[-1].text
    assert Adviser.closed == 1


def test_a_model_is_not_asked_when_the_rules_say_no(learned: Path) -> None:
    decision = ask('{"learn": true, "why": "do"}', (usual(n) for n in range(60)))
    assert not decision.learn
    assert Adviser.asked == []


def test_a_model_that_no_one_knows_is_reported_before_it_is_asked(project: Path) -> None:
    path = write_system(project)
    path.write_text(SYSTEM_TEXT.replace("max_contradiction: 1.0", "opinion: { kind: mokc }"), "utf-8")
    with pytest.raises(EvsysError, match="mokc"):
        load_system(path)
