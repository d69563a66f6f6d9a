"""An agent that reads nothing but `evsys context --budget-tokens 1560` can answer what it has to know.

The project is that of `prepared.py`: its truth was decided before anything was written, and the questions below are
answered from the text alone, by a reader that knows no more than its form.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator
from dataclasses import dataclass

import pytest
from click.testing import CliRunner

from evsys_sdk.cli.main import evsys
from evsys_sdk.history.context.digest import count_tokens

from .prepared import PLAN, prepare

BUDGET = 1560
TRUTH = {one.name: one for one in PLAN}

pytestmark = pytest.mark.slow


@dataclass(frozen=True)
class Change:
    """One effect as it is written."""

    difference: float
    low: float
    high: float

    @property
    def is_clear(self) -> bool:
        return self.low > 0 or self.high < 0


class Reader:
    """Headings, and the statements below each."""

    def __init__(self, text: str) -> None:
        self.sections: dict[str, list[str]] = {}
        heading = ""
        for line in text.splitlines():
            if line.startswith("- "):
                self.sections[heading].append(line[2:])
            elif line:
                heading = line
                self.sections[heading] = []

    def below(self, *words: str) -> list[str]:
        """The statements of the one section whose heading has all these words."""
        (found,) = (lines for heading, lines in self.sections.items() if all(word in heading for word in words))
        return found

    def best(self, *question: str) -> list[tuple[float, str]]:
        """Scores and descriptions of what is said to be best."""
        lines = [re.fullmatch(r"best (\S+) (.*)", line) for line in self.below(*question)]
        return [(float(found[1]), found[2]) for found in lines if found]

    def effects(self, *question: str) -> dict[tuple[str, str, str], Change]:
        """(Axis, before, after) -> the change."""
        found: dict[tuple[str, str, str], Change] = {}
        for line in self.below(*question):
            if named := re.fullmatch(r"effect of (.+?): (.*)", line):
                for one in named[2].split("; "):
                    before, after, *numbers = re.findall(r"^(\S+) -> (\S+) (\S+) \[(\S+), (\S+)\]", one)[0]
                    found[named[1], before, after] = Change(*map(float, numbers))
        return found

    def claim(self, section: str, words: str) -> str:
        """What is said of a claim below a heading."""
        (found,) = (line for line in self.below(section) if line.startswith(words))
        return found.partition(": ")[2]


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Generator[str]:
    project = tmp_path_factory.mktemp("project")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(project)
        prepare(project)
        result = CliRunner().invoke(evsys, ["context", "--budget-tokens", str(BUDGET)], catch_exceptions=False)
        yield result.stdout


@pytest.fixture(scope="module")
def reader(text: str) -> Reader:
    return Reader(text)


def planned_change(name: str, before: str, after: str) -> float:
    """What was decided: how much more a run is going to get right than another of the same experiment."""
    runs = TRUTH[name].runs
    return runs[after].share - runs[before].share


ALPHA_ROUTING, BETA_ROUTING = ("alpha on mock, val/routing",), ("beta on mock, val/routing",)
ALPHA_MATH, BETA_MATH = ("alpha on mock, val/math",), ("beta on mock, val/math",)


def is_best(reader: Reader, question: tuple[str, ...], name: str, recipe: str, place: int = 0) -> bool:
    score, words = reader.best(*question)[place]
    share = max(run.share for run in TRUTH[name].runs.values())
    return score == pytest.approx(share) and recipe in words and f"of {name}" in words


def shows(
    reader: Reader, question: tuple[str, ...], change: tuple[str, str, str], truth: float, *, clear: bool
) -> bool:
    """Whether the text has the decided change, to its two digits, within an interval that is as clear as it must be."""
    found = reader.effects(*question)[change]
    near = found.difference == pytest.approx(truth, abs=0.0051)
    return near and found.low <= truth <= found.high and found.is_clear is clear


QUESTIONS: dict[str, Callable[[Reader], bool]] = {
    "best recipe for alpha on routing that has several seeds": lambda it: is_best(
        it, ALPHA_ROUTING, "batch", "sft batch_size=32", place=1
    ),
    "the higher score on that question is of one seed": lambda it: is_best(
        it, ALPHA_ROUTING, "lucky", "(1 seed, promising): sft lr_schedule=constant"
    ),
    "best recipe for beta on routing": lambda it: is_best(it, BETA_ROUTING, "beta-epochs", "sft num_epochs=2"),
    "best recipe for alpha on math": lambda it: is_best(it, ALPHA_MATH, "groups", "rl group_size=16"),
    "best recipe for beta on math": lambda it: is_best(it, BETA_MATH, "sharp", "dpo beta=0.5"),
    "best by the measure of RL itself, without a benchmark": lambda it: is_best(
        it, ("alpha on mock, reward/mean", "measured in training"), "reward", "rl max_steps=8"
    ),
    "which weights, data and command to start from for beta on routing": lambda it: (
        re.search(
            r"data data/train.jsonl; weights outputs/beta-epochs/one__seed\d+/checkpoints/step000008/state; "
            r"evsys run outputs/beta-epochs/config.json --fresh$",
            it.best(*BETA_ROUTING)[0][1],
        )
        is not None
    ),
    "effect of the rate on alpha, over both experiments": lambda it: shows(
        it,
        ALPHA_ROUTING,
        ("sft learning_rate", "0.001", "0.01"),
        (planned_change("rate", "base", "one") + planned_change("rate-again", "base", "one")) / 2,
        clear=True,
    ),
    "effect of a rate that is too high": lambda it: shows(
        it, ALPHA_ROUTING, ("sft learning_rate", "0.001", "0.1"), planned_change("rate", "base", "two"), clear=True
    ),
    "effect of the same rate on beta": lambda it: shows(
        it, BETA_ROUTING, ("sft learning_rate", "0.001", "0.01"), planned_change("beta-rate", "base", "one"), clear=True
    ),
    "effect of the batch on alpha": lambda it: shows(
        it, ALPHA_ROUTING, ("sft batch_size", "8", "32"), planned_change("batch", "base", "one"), clear=True
    ),
    "effect of the algorithm on math": lambda it: shows(
        it, ALPHA_MATH, ("algorithm", "rl", "sft"), -planned_change("algorithm", "base", "one"), clear=True
    ),
    "effect of the group size": lambda it: shows(
        it, ALPHA_MATH, ("rl group_size", "4", "16"), planned_change("groups", "base", "one"), clear=True
    ),
    "effect of DPO's beta": lambda it: shows(
        it, BETA_MATH, ("dpo beta", "0.1", "0.5"), planned_change("sharp", "base", "one"), clear=True
    ),
    "the contradicted claim, with both sides": lambda it: it.claim("Contradicted", "More epochs help").startswith(
        "supported by epochs, refuted by epochs-again on mock"
    ),
    "a claim that is settled as true": lambda it: it.claim("Settled", "RL beats SFT").startswith(
        "supported by algorithm on mock"
    ),
    "a claim that is settled as false": lambda it: it.claim("Settled", "RL wants a higher").startswith(
        "refuted by rl-rate on mock"
    ),
    "the most promising open claim, and what it needs": lambda it: it.below("Open")[0].startswith(
        "A constant rate helps: promising by lucky on mock. Next: Repeat all runs"
    ),
    "the cheapest thing untried": lambda it: (
        it.below("Untried")[0] == "about $0.05 an arm: Q1 sft batch_size=32 with learning_rate=0.01 (each helped alone)"
    ),
    "what was invalidated, and why": lambda it: "leak: The test set leaked." in it.below("Do not count"),
    "what was trained on its own benchmark": lambda it: (
        "dirty: flagged by its audit: contamination" in it.below("Do not count")
    ),
    "which results rest on one seed": lambda it: it.below("Do not count")[-1].endswith("may explain them: lucky"),
    "why arms failed, and how many": lambda it: (
        it.below("What failed")[0].startswith("6x OutOfMemoryError: tried to allocate")
        and it.below("What failed")[0].endswith("(last in larger)")
    ),
    "what was killed, and how far its best run had come": lambda it: (
        it.below("Unfinished")[0]
        == "slow: killed, best run one 0.575 at step 4 by val/routing/pass@1; outputs/slow/config.json"
    ),
    "what a model scores that nobody trained": lambda it: (
        re.fullmatch(r"openai:big, routing/pass@1, 40 tasks \w+: 0.75 \[0.6, 0.88\]", it.below("without training")[0])
        is not None
    ),
}


def test_there_are_forty_experiments_and_more_than_twenty_questions() -> None:
    assert len(PLAN) == 40
    assert len(QUESTIONS) > 20


@pytest.mark.parametrize("question", QUESTIONS)
def test_the_text_alone_answers(question: str, reader: Reader) -> None:
    assert QUESTIONS[question](reader)


def test_it_is_within_its_budget(text: str) -> None:
    assert count_tokens(text) <= BUDGET


def test_no_effect_is_told_from_what_must_not_be_believed_or_cannot_be_compared(reader: Reader) -> None:
    """Neither invalidated nor contaminated runs, and not one that was killed half-way against one that ended."""
    axes = {axis for axis, _, _ in reader.effects(*ALPHA_ROUTING)}
    assert not axes & {"sft warmup_steps", "data", "sft max_steps"}
