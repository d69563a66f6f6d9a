"""Half an hour of work on one thread with a real model: how much of it goes into training steps, and into scoring.

    python benchmarks/campaign.py --model outputs/models/SmolLM2-135M-Instruct              # half an hour
    python benchmarks/campaign.py --model outputs/models/SmolLM2-135M-Instruct --minutes 4  # to try it out

Does what an agent with a time limit would do, by the command line alone: size a search of learning rates to five sixths
of the time by what `plan` says, run it, look at the wrong answers with `errors`, go on from the best checkpoint
with more rows of the kinds that went wrong for as long as the rest allows, and `export` the result. The task is to turn
a request into a call with its arguments; validation and test ask in phrasings that training never shows.

The figures come from the record. Training steps are the seconds in which the engine computed them (`time/compute_s`);
what is left of the arms' time without their start is scoring, with checkpoints and bookkeeping; the rest of the clock
are processes that start, plan, conclude and export. Aims: at least 85 % in training steps, scoring below 15 %. Needs
the extra `local`; examples/17_local_sft/prepare.py makes the folder of the model.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from measure import machine

from evsys_sdk.record.jsonl_file import read_records
from evsys_sdk.record.layout import ExperimentFiles, RunFiles


def split_words(text: str) -> list[str]:
    return text.split()


SEARCH, RESERVE_S = 25 / 30, 20.0
"""Share of the time for the search; and seconds kept back for export."""
RATES = [0.0003, 0.001, 0.003]
CITIES = [
    "Osaka",
    "Lima",
    "Oslo",
    "Quito",
    "Turin",
    "Perth",
    "Accra",
    "Dakar",
    "Hanoi",
    "Malmo",
    "Bergen",
    "Tampa",
    "Cusco",
    "Varna",
    "Leeds",
    "Izmir",
]
NAMES = [
    "Ada",
    "Noor",
    "Luca",
    "Mei",
    "Tomas",
    "Ines",
    "Omar",
    "Freya",
    "Kofi",
    "Zoe",
    "Ravi",
    "Lena",
    "Hugo",
    "Aiko",
    "Sami",
    "Vera",
]
DAYS = split_words("Monday Tuesday Wednesday Thursday Friday Saturday Sunday")
FOODS = split_words("ramen tacos pizza curry salad pho burgers falafel dumplings paella")
ROOMS = split_words("kitchen bedroom office garage hallway attic cellar porch")
CALLS: dict[str, list[str]] = {
    'fly(to="{city}", day="{day}", seats={few})': [
        "Book {few} seats to {city} for {day}.",
        "I need to fly to {city} on {day}, {few} people.",
        "{day} we go to {city}: get {few} tickets.",
        "Can you find {few} places on a plane to {city}, leaving {day}?",
        "There are {few} of us and on {day} we must be in {city} by air.",
    ],
    'pay(to="{name}", amount={many}, from="{other}")': [
        "Send {many} to {name} from the account of {other}.",
        "{other} owes {name} {many}, settle it.",
        "Transfer {many} out of the purse of {other} to {name}.",
        "Move {many} to {name}; it comes from {other}.",
        "{name} should get {many}, and {other} is the one who pays.",
    ],
    'order(food="{food}", count={few}, for="{name}", to="{city}")': [
        "Order {few} portions of {food} for {name} in {city}.",
        "{name} in {city} wants {food}, {few} of them.",
        "Get {few} times {food} to {city}, the name is {name}.",
        "For {name}: {food}, {few} servings, deliver to {city}.",
        "In {city} {name} is hungry, so {few} {food} it is.",
    ],
    'light(room="{room}", level={many}, at={hour})': [
        "Set the light in the {room} to {many} at {hour}.",
        "At {hour} I want {many} percent of light in the {room}.",
        "Dim the {room} to {many} when it is {hour}.",
        "The lamp of the {room} goes to {many} at {hour} sharp.",
        "When it strikes {hour}, {many} percent will do for the {room}.",
    ],
    'meet(who=["{name}", "{other}"], day="{day}", hour={hour}, place="{city}")': [
        "Put {name} and {other} into a meeting on {day} at {hour} in {city}.",
        "Schedule {city} for {name} and {other}: {day}, {hour}.",
        "{name} meets {other} in {city}, {day} at {hour}.",
        "A meeting of {name} with {other} please, {hour} on {day}, place is {city}.",
        "On {day} at {hour} {name} and {other} sit down together in {city}.",
    ],
}
TRANSFORMS: list[dict[str, Any]] = [
    {"kind": "jsonl_to_chat", "params": {"user_template": "Write the call. {request}", "assistant_template": "{call}"}}
]


@dataclass
class Campaign:
    """A project in a folder, and the commands that were given in it."""

    folder: Path
    began: float = field(default_factory=time.time)
    spent: dict[str, float] = field(default_factory=dict[str, float])

    def evsys(self, *arguments: str) -> Any:
        """What a command answers as JSON; its time is noted under its name."""
        began = time.time()
        command = [sys.executable, "-m", "evsys_sdk", *arguments, "--json"]
        done = subprocess.run(command, cwd=self.folder, stdout=subprocess.PIPE, text=True, check=False)
        if done.returncode not in (0, 3):  # 3: the budget has ended it, with what it has
            sys.exit(f"evsys {' '.join(arguments)} ended with {done.returncode}: {done.stdout[-2000:]}")
        self.spent[f"{len(self.spent) + 1} evsys {arguments[0]}"] = time.time() - began
        return json.loads(done.stdout)

    def left_s(self, minutes: float) -> float:
        return self.began + minutes * 60 - time.time()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, help="folder of the model")
    parser.add_argument("--minutes", type=float, default=30.0, help="for everything")
    parser.add_argument("--folder", type=Path, help="where to work; by default a temporary folder")
    parser.add_argument("--core", type=int, help="the processor core to stay on")
    arguments = parser.parse_args()
    if arguments.core is not None:
        os.sched_setaffinity(0, {arguments.core})
    os.environ |= {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"}
    with tempfile.TemporaryDirectory() as temporary:
        folder = (arguments.folder or Path(temporary)).resolve()
        (folder / ".evsys").mkdir(parents=True, exist_ok=True)
        write_data(folder)
        campaign = Campaign(folder)
        run_campaign(campaign, str(arguments.model.resolve()), arguments.minutes)
        report(campaign, arguments.minutes)


def run_campaign(campaign: Campaign, model: str, minutes: float) -> None:
    """The campaign: search, errors, next stage, export."""
    search = size_to_time(campaign, make_search(model), minutes * SEARCH)
    campaign.evsys("run", search, "--quiet")
    wrong = campaign.evsys("errors", "search")
    best = wrong["arm"]
    write_rows(campaign.folder / "data" / "more.jsonl", draw_more(wrong, 600))
    left = (campaign.left_s(minutes) - RESERVE_S) / 60
    rate = read_rate(campaign.folder / "outputs" / "search" / best)
    stage = size_to_time(campaign, make_stage(model, f"outputs/search/{best}/best", rate), left)
    campaign.evsys("run", stage, "--quiet")
    campaign.evsys("export", "stage", "--output", "exported")


def size_to_time(campaign: Campaign, config: dict[str, Any], minutes: float) -> str:
    """The config with as many steps as fit by what `plan` says; returns its file."""
    config["budget"] = {"wall_s": minutes * 60}  # should the machine be slower than it was when it was planned
    file = campaign.folder / f"{config['name']}.yaml"
    file.write_text(yaml.safe_dump(config, sort_keys=False), encoding="utf-8")
    total = campaign.evsys("plan", file.name)["total"]
    run: dict[str, Any] = config.get("base_run") or config["run"]
    params = run["algorithm"]["params"]
    share = min(1.0, minutes * 60 / total["wall_s"]) if total["wall_s"] else 1.0
    params["max_steps"] = int(params["max_steps"] * share)
    print(f"plan for {minutes:.1f} min: {params['max_steps']} steps", flush=True)
    if not params["max_steps"]:
        sys.exit(f"not one step fits into {minutes:.1f} min")
    file.write_text(yaml.safe_dump(config, sort_keys=False), encoding="utf-8")
    return file.name


def make_search(model: str) -> dict[str, Any]:
    config = make_stage(model, None, RATES[0])
    run = config.pop("run")
    matrix = {"axes": {"algorithm.params.learning_rate": RATES}}
    return {
        **config,
        "name": "search",
        "base_run": run,
        "matrix": matrix,
    }


def make_stage(model: str, start: str | None, rate: float) -> dict[str, Any]:
    """One run of as many steps as anybody could want; `plan` says how many there is time for."""
    tasks = [*TRANSFORMS, {"kind": "chat_to_harbor_task", "params": {"fn_name": "exact_match"}}]
    scored = {"max_tokens": 48, "transforms": tasks}
    benchmarks = [
        {"name": "calls", "path": "data/val.jsonl", "split": "val", "run_every": 10, **scored},
        {"name": "calls", "path": "data/test.jsonl", "split": "test", **scored},
    ]
    params = {"max_steps": 2000, "batch_size": 16, "lora_rank": 16, "learning_rate": rate}
    return {
        "name": "stage",
        "output_dir": "outputs",
        "metadata": {
            "hypothesis": "More rows of what went wrong help." if start else "One rate is best.",
            "benchmark": benchmarks if start else benchmarks[:1],
        }
        | ({"parent_experiment_id": "search"} if start else {}),
        "run": {
            "name": "sft",
            "data": {"path": "data/more.jsonl" if start else "data/train.jsonl", "transforms": TRANSFORMS},
            "model": {"name": model} | ({"init_from_checkpoint": start} if start else {}),
            "algorithm": {"kind": "sft", "params": params | {"keep_checkpoints": {"last": 1, "best": 1}}},
            "backend": {"kind": "local", "params": {"threads": 1}},
        },
    }


def read_rate(run_dir: Path) -> float:
    return json.loads((run_dir / "config.json").read_text(encoding="utf-8"))["algorithm"]["params"]["learning_rate"]


def write_data(folder: Path) -> None:
    draw = random.Random(7)
    (folder / "data").mkdir(exist_ok=True)
    for name, count, phrasings in (("train", 1200, slice(0, 3)), ("val", 32, slice(3, 4)), ("test", 64, slice(4, 5))):
        write_rows(folder / "data" / f"{name}.jsonl", draw_rows(draw, list(CALLS), count, phrasings))


def draw_more(wrong: Any, count: int) -> Iterator[dict[str, str]]:
    """Fresh rows; the calls that went wrong come twice as often."""
    text = json.dumps(wrong)
    kinds = [call for call in CALLS for _ in range(2 if call.split("(")[0] + "(" in text else 1)]
    return draw_rows(random.Random(8), kinds, count, slice(0, 3))


def draw_rows(draw: random.Random, calls: list[str], count: int, phrasings: slice) -> Iterator[dict[str, str]]:
    for _ in range(count):
        call = draw.choice(calls)
        name, other = draw.sample(NAMES, 2)
        values = {"city": draw.choice(CITIES), "day": draw.choice(DAYS), "food": draw.choice(FOODS)}
        values |= {"few": draw.randint(2, 9), "many": draw.randint(11, 99), "hour": draw.randint(5, 23)}
        values |= {"name": name, "other": other, "room": draw.choice(ROOMS)}
        yield {"request": draw.choice(CALLS[call][phrasings]).format(**values), "call": call.format(**values)}


def write_rows(file: Path, found: Iterator[dict[str, str]]) -> None:
    file.write_text("".join(f"{json.dumps(row)}\n" for row in found), encoding="utf-8")


@dataclass
class Used:
    """Where the seconds of an experiment went, from its record."""

    steps: int = 0
    trained: float = 0.0
    """In steps, while the engine computed."""
    started: float = 0.0
    """Before the first step of each start of an arm."""
    arms: float = 0.0
    """All of the arms' time."""
    scorings: int = 0
    best: float = 0.0
    """The highest share of validation tasks that was right."""

    @property
    def scored(self) -> float:
        return self.arms - self.trained - self.started


def read_used(experiment: Path) -> Used:
    used, first = Used(), dict[str, float]()
    for file in sorted(experiment.glob(f"*/{RunFiles.starts.name}")):
        run = RunFiles(file.parent)
        timing = {line["step"]: line for line in read_records(run.logs.timing)}
        used.steps += len(timing)
        used.trained += sum(line["time/compute_s"] for line in timing.values())
        scores = list(read_records(run.scores))
        used.scorings += len(scores)
        used.best = max([used.best, *(one["metrics"]["pass@1"]["value"] for one in scores if one["split"] == "val")])
        if timing:
            first[run.folder.name] = timing[min(timing)]["time/step_s"]
    for line in read_records(ExperimentFiles(experiment).spend):
        used.arms += line["wall_s"] if line["arm"] in first else 0.0
        if line.get("step") == 1 and line["arm"] in first:
            used.started += line["wall_s"] - first[line["arm"]]
    return used


def report(campaign: Campaign, minutes: float) -> None:
    total = time.time() - campaign.began
    found = {name: read_used(campaign.folder / "outputs" / name) for name in ("search", "stage")}
    trained = sum(used.trained for used in found.values())
    scored = sum(used.scored for used in found.values())
    print(machine())
    print(
        f"{minutes:g} minutes, of which {total / 60:.1f} were used; one thread, load average {os.getloadavg()[1]:.1f}"
    )
    for command, seconds in campaign.spent.items():
        print(f"  {command:16} {seconds:7.1f} s")
    for name, used in found.items():
        print(f"  {name}: {used.steps} steps, {used.scorings} scorings, at best {used.best:.0%} of val right")
    print(f"training steps: {trained / total:.1%} of the time (aim: 85 %)")
    print(f"scoring in the loop, with checkpoints: {scored / total:.1%} (aim: below 15 %)")
    print(f"starting, planning, concluding, exporting: {1 - (trained + scored) / total:.1%}")


if __name__ == "__main__":
    main()
