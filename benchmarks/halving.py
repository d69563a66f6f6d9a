"""Whether halving finds the winner of a grid, and for how much of its work: 20 problems on the mock backend.

    python benchmarks/halving.py
    python benchmarks/halving.py --problems 5 --jobs 2

Each problem is a vocabulary of its own, with frequent and rare words and some wrong answers among its rows, and a grid
of nine runs: three learning rates, a factor of ten apart and drawn anew for each problem, times three batch sizes. Val
is scored nine times in a run. The grid trains all runs in full; halving is given the same config with
`search: {kind: halving}`. The winner is the run with the best val score at its end; a halving whose winner has the very
same score has found a tie. Pausing changes no curve, so what halving finds follows from the curves of the grid through
its own code; some problems are halved for real as well, and must agree.

How halving compares runs was chosen on problems 0 to 39. Earlier choices had found 17 of problems 100 to 119 (12
within the limit) and 17 of problems 200 to 219. What is reported and tested are problems 300 to 319, which were not
looked at before.
"""

from __future__ import annotations

import argparse
import json
import random
import string
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from measure import machine

from evsys_sdk import Experiment, ExperimentConfig, ExperimentResult, RunResult, register_verifier_fn
from evsys_sdk.config import SearchSpec
from evsys_sdk.experiment.arms.results import ArmResult
from evsys_sdk.experiment.search.allocation import Allocation, ArmOutcome
from evsys_sdk.experiment.search.halving import Halving, rungs_of
from evsys_sdk.experiment.search.objective import Objective, read_curve

FIRST, PROBLEMS, STEPS, EVERY, TRAIN, VAL = 300, 20, 36, 4, 1200, 24
WRONG = 0.1
MOST_WORK, LEAST_FOUND = 0.40, 0.90
SEARCH = SearchSpec(kind="halving")
LOWEST_RATES = [1e-4, 3e-4, 1e-3, 3e-3]
BATCH_SIZES = [6, 16, 40]
OBJECTIVE = Objective("mean_reward", "labels", "max", EVERY)


@register_verifier_fn("matching_letters")
def matching_letters(model_output: str, expected: str, params: Mapping[str, Any]) -> float:
    """The share of letters that are right, which tells more about a half-trained model than right or wrong."""
    return sum(said == meant for said, meant in zip(model_output.strip(), expected, strict=False)) / len(expected)


def write_problem(number: int, folder: Path) -> None:
    """The rows and tasks of a problem: a word and its answer, sometimes with a word beside it that means nothing."""
    rng = random.Random(number)
    words, filler = rng.choice([80, 120, 160]), rng.choice([0, 1])
    meaning: dict[str, str] = {}
    while len(meaning) < words:
        meaning[_word(rng, 3)] = _word(rng, 3).upper()
    others = [_word(rng, 3) for _ in range(8)]
    rows: list[tuple[str, str]] = []
    for _ in range(TRAIN + VAL):
        [word] = rng.choices(list(meaning), weights=[1 / rank for rank in range(1, words + 1)])
        said = [rng.choice(others) for _ in range(filler)]
        said.insert(rng.randrange(filler + 1), word)
        rows.append((" ".join(said), meaning[word]))
    train = [
        {"prompt": question, "completion": _word(rng, 3).upper() if rng.random() < WRONG else answer}
        for question, answer in rows[:TRAIN]
    ]
    val = [
        {
            "task_id": f"t{index}",
            "instruction": question,
            "verifier": {"kind": "in_process", "fn_name": "matching_letters", "expected": answer},
        }
        for index, (question, answer) in enumerate(rows[TRAIN:])
    ]
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in (("train", train), ("val", val)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in content), encoding="utf-8")


def _word(rng: random.Random, length: int) -> str:
    return "".join(rng.choice(string.ascii_lowercase) for _ in range(length))


def axes(number: int) -> dict[str, list[Any]]:
    """The grid of a problem; which of its rates is the right one differs from problem to problem."""
    lowest = random.Random(f"rates {number}").choice(LOWEST_RATES)
    rates = [float(f"{lowest * factor:.6g}") for factor in (1, 10, 100)]
    return {"algorithm.params.learning_rate": rates, "algorithm.params.batch_size": BATCH_SIZES}


def config(number: int, folder: Path, name: str, search: Mapping[str, Any] | None = None) -> ExperimentConfig:
    """A problem as an experiment, with or without a search."""
    entry = {"name": "labels", "path": str(folder / "val.jsonl"), "split": "val", "run_every": EVERY, "max_tokens": 6}
    return ExperimentConfig.model_validate(
        {
            "name": name,
            "output_dir": str(folder / "outputs"),
            "metadata": {"success_metric": "mean_reward", "benchmark": [{**entry, "metrics": ["mean_reward"]}]},
            "matrix": {"axes": axes(number)},
            "base_run": {
                "name": "r",
                "data": {"path": str(folder / "train.jsonl"), "transforms": [{"kind": "jsonl_to_chat"}]},
                "model": {"name": "tiny"},
                "algorithm": {"kind": "sft", "params": {"max_steps": STEPS, "save_every": None}},
                "backend": {"kind": "mock", "params": {"hidden": 32}},
            },
            "search": search,
        }
    )


@dataclass(frozen=True, slots=True)
class Trained:
    """One run of a grid: what it scored on its way, and how far it came."""

    curve: Mapping[int, float]
    steps: int
    losses: Mapping[int, float]
    failed: bool = False


@dataclass(frozen=True, slots=True)
class Found:
    """What a search found, and for how many steps."""

    winner: str
    score: float
    steps: int


def trained_by(result: ExperimentResult) -> dict[str, Trained]:
    """From the record of an experiment that was really run; a run whose loss explodes stops itself, and has failed."""
    found: dict[str, Trained] = {}
    for arm in result.arms:
        logged = (result.path / arm.name / "logs" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
        losses = {line["step"]: line["loss"] for line in map(json.loads, logged) if "loss" in line}
        curve = read_curve(result.path / arm.name, OBJECTIVE)
        found[arm.name] = Trained(curve, max(losses), losses, failed=arm.status == "failed")
    return found


def best_of(trained: Mapping[str, Trained]) -> Found:
    """The best of those that came to their end."""
    ended = {name: one.curve[STEPS] for name, one in trained.items() if one.steps == STEPS and not one.failed}
    winner = max(ended, key=lambda name: ended[name])
    return Found(winner, ended[winner], sum(one.steps for one in trained.values()))


def halved(
    experiment: Experiment, grid: Mapping[str, Trained], spec: SearchSpec = SEARCH
) -> tuple[Found, list[dict[str, Any]]]:
    """What halving finds where these are the curves: its own code decides, and pausing changes no curve."""
    arms = experiment.arms
    names = [arm.name for arm in arms]
    rungs = rungs_of(dict.fromkeys(names, STEPS), every=dict.fromkeys(names, EVERY), eta=spec.eta, keep=spec.finalists)
    halving = Halving(
        arms,
        rungs,
        OBJECTIVE,
        lambda arm: grid[arm.name].curve,
        spec.eta,
        spec.finalists,
        lambda arm, step: grid[arm.name].losses[step],
    )
    outcomes, notes = played(halving, grid)
    reached: dict[str, Trained] = {}
    for outcome in outcomes:
        whole = grid[outcome.request.arm.name]
        steps = min(outcome.request.until_step or STEPS, whole.steps)
        reached[outcome.request.arm.name] = replace(whole, steps=steps, failed=outcome.result.status == "failed")
    return best_of(reached), list(notes)


def played(allocation: Allocation, grid: Mapping[str, Trained]) -> tuple[list[ArmOutcome], Sequence[dict[str, Any]]]:
    """Give an allocation everything it asks for, with arms that pause, end and fail where those of the grid did."""
    outcomes: list[ArmOutcome] = []
    while True:
        decision = allocation.decide(outcomes)
        done = {outcome.request.key for outcome in outcomes}
        new = [request for request in decision.requests if request.key not in done]
        if not new:
            return outcomes, decision.notes
        for request in new:
            until, whole = request.until_step, grid[request.arm.name]
            result = RunResult(request.arm.name, "completed" if until is None else "cancelled")
            if until is not None:
                result.notes.stop_reason = f"paused after step {until}"
            if whole.failed and (until is None or until >= whole.steps):
                result = RunResult(request.arm.name, "failed")
            outcomes.append(ArmOutcome(request, ArmResult(request.arm, result)))


@dataclass(frozen=True, slots=True)
class Measured:
    """One problem: what the grid found, what halving found, and what it would have found with other settings."""

    grid: Found
    halving: Found
    others: Sequence[Found]
    trained: bool
    """Whether it was halved for real, too."""


OTHERS = (SearchSpec(kind="halving", eta=2.0), SearchSpec(kind="halving", eta=3.0))


def measured(number: int, trained: bool) -> Measured:
    """Train the grid of a problem, and see what halving makes of it."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        write_problem(number, folder)
        experiment = Experiment(config(number, folder, "grid"))
        grid = trained_by(experiment.run())
        found, _ = halved(experiment, grid)
        if trained:
            real = Experiment(config(number, folder, "halving", SEARCH.model_dump())).run()
            assert best_of(trained_by(real)) == found
    return Measured(best_of(grid), found, [halved(experiment, grid, spec)[0] for spec in OTHERS], trained)


def verdict(grid: Found, found: Found) -> str:
    return "winner" if found.winner == grid.winner else "tie" if found.score == grid.score else "missed"


def summary(spec: SearchSpec, pairs: Sequence[tuple[Found, Found]]) -> str:
    """How often a search found the winner, and for how much."""
    said = [verdict(grid, found) for grid, found in pairs]
    shares = [found.steps / grid.steps for grid, found in pairs]
    good = sum(word != "missed" and share <= MOST_WORK for word, share in zip(said, shares, strict=True))
    return (
        f"eta {spec.eta}, finalists {spec.finalists}: winner {said.count('winner')}, tie {said.count('tie')}, "
        f"missed {said.count('missed')}; {min(shares):.0%} to {max(shares):.0%} of the grid's steps; "
        f"found for at most {MOST_WORK:.0%} of them in {good} of {len(said)}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--first", type=int, default=FIRST, help="number of the first problem")
    parser.add_argument("--problems", type=int, default=PROBLEMS)
    parser.add_argument("--jobs", type=int, default=1, help="problems at a time")
    parser.add_argument("--trained", type=int, default=4, help="how many problems are also halved for real")
    arguments = parser.parse_args()
    print(machine())
    print("problem  winner of the grid                     score  halving's    steps   of the grid's")
    found: list[Measured] = []
    with ProcessPoolExecutor(arguments.jobs) as pool:
        numbers = range(arguments.first, arguments.first + arguments.problems)
        trained = [at < arguments.trained for at in range(arguments.problems)]
        for number, one in zip(numbers, pool.map(measured, numbers, trained), strict=True):
            found.append(one)
            print(
                f"{number:7}  {one.grid.winner:36}  {one.grid.score:6.3f}     {one.halving.score:6.3f}  "
                f"{one.halving.steps:3} of {one.grid.steps}  {one.halving.steps / one.grid.steps:.0%}  "
                f"{verdict(one.grid, one.halving)}{', trained' if one.trained else ''}",
                flush=True,
            )
    print(summary(SEARCH, [(one.grid, one.halving) for one in found]))
    for index, spec in enumerate(OTHERS):
        print(summary(spec, [(one.grid, one.others[index]) for one in found]))


if __name__ == "__main__":
    main()
