"""Evolve a recipe: mutate, train, keep what scores best, and stop when the budget is used up.

python examples/14_evolve/evolve.py
python examples/14_evolve/evolve.py --population 6 --experiments 40 --tokens 2000000

Each individual is a config file and an ordinary experiment with its parent noted in it, so `evsys history` shows the
line it comes from. A child differs in one number of the recipe, which the JSON schema of the recipe marks as worth
searching. Parents are chosen by tournament on the val score; the best ones survive as they are. Names are made
of what a child is, and the same seed makes the same children: the same command again goes on where it was stopped, and
trains nothing twice. Where the arms run is the business of the config (`launcher`), not of this loop.
"""

import argparse
import hashlib
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from evsys_sdk import ExperimentConfig, dump_yaml, load_yaml, schema_for, validate_yaml
from evsys_sdk.experiment import Experiment
from evsys_sdk.experiment.parents import latest_attempt
from evsys_sdk.experiment.record_dir import read_result
from evsys_sdk.spend.ledger import open_ledger

FROZEN = ("max_steps", "num_epochs", "lora_rank", "grad_clip_norm")
"""All train for as long, or the longest would win; the others change nothing on the mock backend."""


@dataclass(frozen=True)
class Individual:
    """One config and how well it did."""

    name: str
    config: ExperimentConfig
    score: float
    tokens: int
    parent: str | None = None
    changes: str = ""


def evaluate(path: Path) -> tuple[float, int]:
    """The val score of a config and the tokens it took: from the record where it has run, else by running it."""
    config = validate_yaml(path, deep=True)
    folder = latest_attempt(config)
    results = [read_result(folder / run.name) for run in config.all_runs()] if folder else []
    if folder is None or not results or any(result is None for result in results):
        done = Experiment(config).run()
        folder, results = done.path, done.runs
    scores = [val_score(result.metrics) for result in results if result is not None and result.status == "completed"]
    return max(scores, default=float("-inf")), open_ledger(folder).total().tokens


def val_score(metrics: dict[str, float]) -> float:
    """What selection may look at: never the test split."""
    found = [value for name, value in metrics.items() if name.startswith("val/") and name.endswith("pass@1")]
    return sum(found) / len(found) if found else float("-inf")


def mutate(parent: ExperimentConfig, rng: Random) -> tuple[ExperimentConfig, str]:
    """A neighbour of a config: one number of its recipe, multiplied or divided by up to 3; and what has changed."""
    [run] = parent.all_runs()
    fields: dict[str, dict[str, Any]] = schema_for("algorithm", run.algorithm.kind)["properties"]
    values: dict[str, Any] = {name: field.get("default") for name, field in fields.items()} | run.algorithm.params
    field = rng.choice(sorted(name for name in fields if is_open(name, fields[name]) and values[name]))
    value, factor = values[field], rng.uniform(1.25, 3) ** rng.choice((-1, 1))
    moved = max(1, round(value * factor)) if isinstance(value, int) else float(f"{value * factor:.2g}")
    if field == "learning_rate":
        moved = min(moved, 1.0)  # the maximum in the schema
    change = f"{field} {value} -> {moved}"
    data = parent.model_dump(mode="json", exclude_defaults=True)
    data["run"]["algorithm"].setdefault("params", {})[field] = moved
    data["parent_experiment_id"], data["metadata"]["changes"] = parent.name, change
    digest = hashlib.sha256(f"{parent.name} {change}".encode()).hexdigest()[:8]
    data["name"] = f"{parent.name.partition('-')[0]}-{digest}"
    return ExperimentConfig.model_validate(data), change


def is_open(name: str, field: dict[str, Any]) -> bool:
    """Whether a field may change: a number for which twice as much is as far as half as much."""
    return field.get("scale") == "log" and name not in FROZEN


def tournament(population: list[Individual], rng: Random, size: int = 2) -> Individual:
    """The best of a few that are drawn."""
    return max(rng.sample(population, min(size, len(population))), key=lambda one: one.score)


def evolve(first: Path, folder: Path, *, population: int, elite: int, experiments: int, tokens: int, seed: int) -> None:
    rng = Random(seed)
    score, used = evaluate(first)
    if score == float("-inf"):
        raise SystemExit(
            f"{first} gets no val score, so there is nothing to improve on. See why with: evsys run {first}"
        )
    config = load_yaml(first)
    everyone = [Individual(config.name, config, score, used)]
    print(f"{config.name}: {score:.3f} to begin with")
    alive = list(everyone)
    for _ in range(20 * experiments):
        spent = sum(one.tokens for one in everyone)
        if len(everyone) >= experiments or spent >= tokens:
            break
        parent = tournament(alive, rng)
        child, changed = mutate(parent.config, rng)
        if any(one.name == child.name for one in everyone):
            continue  # this neighbour has been there before
        path = folder / f"{child.name}.yaml"
        dump_yaml(child, path)
        score, used = evaluate(path)
        everyone.append(Individual(child.name, child, score, used, parent.name, changed))
        print(f"{child.name}: {score:.3f} from {parent.name} ({parent.score:.3f}) by {changed}")
        # The best of all always stay; of the others, the younger ones.
        best = sorted(everyone, key=lambda one: -one.score)[:elite]
        alive = best + [one for one in everyone[::-1] if one not in best][: population - len(best)]
    report(everyone)


def report(everyone: list[Individual]) -> None:
    """The line from the first config to the best one."""
    by_name = {one.name: one for one in everyone}
    best = max(everyone, key=lambda one: one.score)
    line = [best]
    while line[-1].parent is not None:
        line.append(by_name[line[-1].parent])
    print(f"\n{len(everyone)} experiments, {sum(one.tokens for one in everyone):,} tokens. The best one's line:")
    for depth, one in enumerate(reversed(line)):
        print(f"{'  ' * depth}{one.score:.3f}  {one.name}  {one.changes}".rstrip())


def main() -> None:
    parser = argparse.ArgumentParser(description="Evolve a recipe by mutation and selection.")
    parser.add_argument("config", nargs="?", type=Path, default=Path(__file__).with_name("config.yaml"))
    parser.add_argument("-o", "--folder", type=Path, default=Path("outputs/evolve/configs"), help="where children go")
    parser.add_argument("--population", type=int, default=4)
    parser.add_argument("--elite", type=int, default=2, help="how many of the best always stay")
    parser.add_argument("--experiments", type=int, default=24, help="how many to run in all")
    parser.add_argument("--tokens", type=int, default=10_000_000, help="stop when this many have been used")
    parser.add_argument("--seed", type=int, default=0)
    chosen = vars(parser.parse_args())
    evolve(chosen.pop("config"), chosen.pop("folder"), **chosen)


if __name__ == "__main__":
    main()
