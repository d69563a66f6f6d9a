"""A second set of mistakes of meaning and of honest configs, written without a look at the checks."""

# ruff: noqa: E501  # a table reads best with one line for each entry

from __future__ import annotations

import csv
import io
import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .project import Config, assistant, change, user, write

MOODS = ("good", "bad", "mixed")
_THING = ("soup", "hotel", "film", "lamp", "ferry", "novel", "phone", "bakery", "museum", "jacket", "concert", "bike")
_SAID = {
    "good": ("delighted {who} in {place}", "was worth every cent to {who} near {place}", "made {who} smile in {place}"),
    "bad": ("bored {who} in {place}", "broke on {who} near {place}", "was a waste of time for {who} in {place}"),
    "mixed": ("had ups and downs for {who} in {place}", "pleased {who} near {place} at first, then less"),
}
_WHO = ("Ida", "my aunt", "two guests", "the whole class", "Omar", "our guide", "a friend", "the twins")
_PLACE = ("Bergen", "Turin", "Galway", "Porto", "Split", "Ghent", "Malmo", "Lviv", "Graz", "Bilbao")


def reviews(n: int, seed: int) -> list[Config]:
    """Reviews with their mood; other seeds give other sentences."""
    dice, found = random.Random(seed), dict[str, str]()
    while len(found) < n:
        mood = MOODS[len(found) % 3]
        said = dice.choice(_SAID[mood]).format(who=dice.choice(_WHO), place=dice.choice(_PLACE))
        found[f"The {dice.choice(_THING)} {said}, visit {seed}{dice.randrange(900)}"] = mood
    stars = {"good": 5, "bad": 1, "mixed": 3}
    return [
        {"id": f"r{seed}-{at}", "review": text, "mood": mood, "stars": stars[mood]}
        for at, (text, mood) in enumerate(found.items())
    ]


def legs(n: int, seed: int) -> list[Config]:
    """Counting questions with a number as answer."""
    dice, found = random.Random(seed), dict[str, int]()
    while len(found) < n:
        a, b = dice.randrange(2, 60), dice.randrange(2, 60)
        found[f"A barn holds {a} cats and {b} hens, day {seed}. How many legs?"] = 4 * a + 2 * b
    return [{"question": question, "answer": str(answer)} for question, answer in found.items()]


def _tool(name: str, *names: str) -> Config:
    properties = {one: {"type": "string"} for one in names}
    schema = {"type": "object", "properties": properties, "required": list(names)}
    return {"type": "function", "function": {"name": name, "description": f"{name} something", "parameters": schema}}


TOOLS = [_tool("book_table", "place", "time"), _tool("call_taxi", "place")]


def calls(at: int, name: str = "call_taxi", arguments: Config | None = None, tools: Any = TOOLS) -> Config:
    said = {"place": _PLACE[at % 10]} if arguments is None else arguments
    call = {"id": f"c{at}", "type": "function", "function": {"name": name, "arguments": json.dumps(said)}}
    messages = [
        user(f"I need a taxi to {_PLACE[at % 10]} at {at % 12 + 1}, order {at}"),
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": f"c{at}", "content": "done"},
        assistant(f"Your taxi to {_PLACE[at % 10]} is on its way."),
    ]
    return {"messages": messages, **({"tools": tools} if tools else {})}


def turns(at: int) -> Config:
    place, mood = _PLACE[at % 10], MOODS[at % 3]
    return {
        "messages": [
            user(f"I was in {place} for {at} days."),
            assistant("How was it?"),
            user(f"It was {mood} on the whole, trip {at}."),
            assistant(f"Noted: {place} was {mood}."),
        ]
    }


def letter(at: int) -> Config:
    row = reviews(60, 8)[at]
    body = f"Dear guest, thank you for telling us about it. You wrote: {row['review']}. We will look into it. " * 2
    return {"messages": [user(f"Write a reply to this review: {row['review']}"), assistant(body + f"Yours, desk {at}")]}


def pair(at: int) -> Config:
    row = TRAIN[at]
    return {
        "prompt": f"Reply to: {row['review']}",
        "chosen": f"Thank you for writing about visit {row['id']}. We take it to heart.",
        "rejected": f"Whatever, {row['id']}. Not our problem at all, go away please.",
    }


TRAIN, VAL, TEST = reviews(150, 1), reviews(45, 2), reviews(45, 3)
ASK = "What is the mood of this review? {review}"


def chat(template: str = ASK, answer: str = "{mood}", **more: Any) -> Config:
    return {"kind": "jsonl_to_chat", "params": {"user_template": template, "assistant_template": answer, **more}}


def tasks(fn_name: str = "exact_match", **more: Any) -> Config:
    return {"kind": "chat_to_harbor_task", "params": {"fn_name": fn_name, **more}}


def part(name: str, **more: Any) -> Config:
    return {"kind": "split", "params": {"part": name, **more}}


def rows_of(rows: Sequence[Config], **more: Any) -> Config:
    return {"source_kind": "in_memory", "rows": list(rows), **more}


COUNT = chat("{question}", "{answer}")
RUN: Config = {
    "name": "short",
    "data": {"path": "data/reviews.csv", "transforms": [chat()]},
    "model": {"name": "tiny"},
    "algorithm": {"kind": "sft", "params": {"num_epochs": 2}},
    "backend": {"kind": "mock"},
}
TEST_SET: Config = {
    "name": "unseen",
    "path": "data/test.jsonl",
    "split": "test",
    "transforms": [chat(), tasks()],
    "max_tokens": 32,
}
VAL_SET: Config = {**TEST_SET, "name": "dev", "path": "data/val.jsonl", "split": "val", "run_every": 6}
SFT: Config = {"name": "moods", "metadata": {"benchmark": [TEST_SET]}, "run": RUN}
CLAIM: Config = {
    "name": "longer",
    "n_repeats": 3,
    "metadata": {
        "hypothesis": {
            "claim": "Four epochs find more moods.",
            "metric": "pass@1",
            "min_effect": 0.05,
            "baseline": "short",
        },
        "success_metric": "pass@1",
        "benchmark": [VAL_SET, TEST_SET],
    },
    "runs": [RUN, change(RUN, {"name": "long", "algorithm.params.num_epochs": 4})],
}
SWEEP: Config = {
    "name": "rates",
    "n_repeats": 3,
    "metadata": {"success_metric": "pass@1", "benchmark": [VAL_SET, TEST_SET]},
    "base_run": change(RUN, {"name": "sft"}),
    "matrix": {"axes": {"algorithm.params.learning_rate": [0.0005, 0.002]}},
}
EVAL: Config = {
    "name": "scored",
    "run": {
        **RUN,
        "eval": {
            "metrics": [{"kind": "exact_match"}],
            "eval_data": {"path": "data/test.jsonl", "transforms": [chat()]},
        },
    },
}
RL: Config = {
    "name": "counting",
    "metadata": {
        "benchmark": [
            {
                "name": "legs",
                "path": "data/legs_test.jsonl",
                "split": "test",
                "transforms": [COUNT, tasks("numeric_match")],
                "max_tokens": 32,
            }
        ]
    },
    "run": {
        **RUN,
        "data": {"path": "data/legs.jsonl", "transforms": [COUNT, tasks("numeric_match")]},
        "algorithm": {
            "kind": "rl",
            "params": {"max_steps": 24, "batch_size": 8, "group_size": 8, "sampling": {"max_tokens": 32}},
        },
    },
}
DPO: Config = {
    "name": "polite",
    "run": {**RUN, "data": {"path": "data/pairs.jsonl"}, "algorithm": {"kind": "dpo", "params": {"num_epochs": 2}}},
}
COMBO: Config = {
    "name": "both",
    "metadata": {"benchmark": [TEST_SET]},
    "run": {
        **RUN,
        "data": {"path": "data/reviews.csv", "transforms": [chat(), tasks()]},
        "algorithm": {
            "kind": "combo",
            "params": {
                "phases": [
                    {
                        "kind": "sft",
                        "params": {"num_epochs": 1},
                        "data": {"path": "data/reviews.csv", "transforms": [chat()]},
                    },
                    {"kind": "rl", "params": {"max_steps": 12, "sampling": {"max_tokens": 32}}},
                ]
            },
        },
    },
}
CONTINUAL: Config = {
    "name": "stages",
    "run": {
        **{key: value for key, value in RUN.items() if key != "data"},
        "eval": {"metrics": [{"kind": "exact_match"}]},
        "continual": {
            "stages": [
                {
                    "name": "moods",
                    "data": {"path": "data/reviews.csv", "transforms": [chat()]},
                    "eval_data": {"path": "data/test.jsonl", "transforms": [chat()]},
                },
                {
                    "name": "legs",
                    "data": {"path": "data/legs.jsonl", "transforms": [COUNT]},
                    "eval_data": {"path": "data/legs_test.jsonl", "transforms": [COUNT]},
                },
            ]
        },
    },
}
TOOLED: Config = {
    "name": "taxis",
    "run": {**RUN, "data": {"path": "data/calls.jsonl", "transforms": [{"kind": "openai_chat"}]}},
}

FILES: dict[str, list[Config]] = {
    "val": VAL,
    "test": TEST,
    "legs": legs(96, 4),
    "legs_test": legs(40, 5),
    "calls": [calls(at) for at in range(60)],
    "turns": [turns(at) for at in range(60)],
    "letters": [letter(at) for at in range(60)],
    "pairs": [pair(at) for at in range(90)],
}


def as_csv(rows: Sequence[Config]) -> str:
    out = io.StringIO()
    writer = csv.DictWriter(out, list(rows[0]))
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()


def write_data(folder: Path, changed: Mapping[str, Sequence[Config]]) -> None:
    """The data of the project, some of it replaced; `reviews` is a CSV file."""
    write(folder, "data/reviews.csv", as_csv(changed.get("reviews", TRAIN)))
    write(folder, "data/list.json", json.dumps(TRAIN))
    for name, rows in {**FILES, **changed}.items():
        write(folder, f"data/{name}.jsonl", "".join(json.dumps(row) + "\n" for row in rows))


@dataclass(frozen=True)
class Mistake:
    """What is changed in a config and its data, and a word of the cause, which the message must have."""

    name: str
    base: Config
    edits: Mapping[str, Any]
    cause: str
    files: Mapping[str, Sequence[Config]] = field(default_factory=dict[str, Any])

    @property
    def config(self) -> Config:
        return change(self.base, self.edits)


def each(
    rows: Sequence[Config], share: float = 1.0, **made: Callable[[Config], Any] | str | int | None
) -> list[Config]:
    """Values, or functions of a row, in this share of the rows."""
    return [
        {**row, **{key: value(row) if callable(value) else value for key, value in made.items()}}
        if at % 20 < 20 * share
        else row
        for at, row in enumerate(rows)
    ]


P = "run.algorithm.params."
B = "metadata.benchmark.0."
C = "metadata.hypothesis."
D = "run.data."
LEGS = FILES["legs"]
PAIRS = FILES["pairs"]

MISTAKES: Sequence[Mistake] = [
    # rows
    Mistake("three spellings of a label", SFT, {}, "spell|case|form", {"reviews": each(each(TRAIN, 0.2, mood=lambda row: row["mood"].title()), 0.1, mood=lambda row: row["mood"].upper() + "!")}),
    Mistake("columns swapped", SFT, {D + "columns": {"review": "completion", "mood": "prompt"}, D + "transforms": [{"kind": "jsonl_to_chat"}]}, "swapped|template|never"),
    Mistake("answer without braces", SFT, {D + "transforms": [chat(answer="mood")]}, "'mood'"),
    Mistake("test rows in the training file", SFT, {}, "also", {"reviews": [*TRAIN, *TEST]}),
    Mistake("a quarter of the test rows in the training file", SFT, {}, "also", {"reviews": [*TRAIN, *TEST[:11]]}),
    Mistake("splits with other salts", SFT, {D + "path": "data/all.jsonl", D + "transforms": [part("train", salt="a"), chat()], B + "path": "data/all.jsonl", B + "transforms": [part("test", salt="b", train=0.6, val=0.1, test=0.3), chat(), tasks()]}, "also", {"all": reviews(300, 6)}),
    Mistake("a class that is never trained", SFT, {D + "transforms": [{"kind": "filter", "params": {"conditions": [{"field": "mood", "operator": "ne", "value": "mixed"}]}}, chat()]}, "'mixed'"),
    Mistake("one row left of a sample", SFT, {D + "transforms": [{"kind": "sample", "params": {"n": 2}}, chat()]}, "2 .*rows|rows"),
    Mistake("mojibake", SFT, {}, "encod|broken|UTF|character", {"reviews": each(TRAIN, 0.6, review=lambda row: row["review"].replace("Bergen", "M\u00c3\u00bcnchen").replace("the", "th\u00c3\u00a9"))}),
    Mistake("refusals among the answers", SFT, {"metadata": None, D + "path": "data/letters.jsonl", D + "transforms": None}, "refusals of a chat model", {"letters": [{"messages": [row["messages"][0], assistant("I am sorry, but as an AI language model I cannot do that.") if at % 5 == 0 else row["messages"][1]]} for at, row in enumerate(FILES["letters"])]}),
    Mistake("a field in training prompts only", SFT, {D + "transforms": [chat("Source: web\nReview: {review}\nMood:")], B + "transforms": [chat("Review: {review}\nMood:"), tasks()]}, "'Source:'"),
    Mistake("answers not yet written", SFT, {}, "TODO", {"reviews": each(TRAIN, 0.2, mood="TODO")}),
    Mistake("numbers of classes", SFT, {D + "transforms": [chat(answer="{label}")]}, "never|form", {"reviews": each(TRAIN, label=lambda row: MOODS.index(row["mood"]))}),
    Mistake("stars as floats", SFT, {D + "transforms": [chat(answer="{stars}.0")], B + "transforms": [chat(answer="{stars}"), tasks()]}, "never|form"),
    Mistake("label in the id in the prompt", SFT, {D + "transforms": [chat("[{key}] " + ASK)], B + "transforms": [chat("[{key}] " + ASK), tasks()]}, "answer stands in the prompt", {"reviews": each(TRAIN, key=lambda row: f"{row['mood']}-{row['id']}"), "test": each(TEST, key=lambda row: f"{row['mood']}-{row['id']}")}),
    Mistake("conversations that end with the user", SFT, {"metadata": None, D + "path": "data/turns.jsonl", D + "transforms": None}, "user|assistant", {"turns": [{"messages": row["messages"][: 3 if at % 3 else 4]} for at, row in enumerate(FILES["turns"])]}),
    Mistake("no turn carries weight", SFT, {"metadata": None, D + "path": "data/turns.jsonl", D + "transforms": [{"kind": "openai_chat"}]}, "weight|nothing|learn", {"turns": [{"messages": [{**one, "weight": 0} if one["role"] == "assistant" else one for one in row["messages"]]} for row in FILES["turns"]]}),
    Mistake("thinking that never closes", SFT, {D + "transforms": [chat(answer="<think>The words tell it. {mood}")]}, "think|never"),
    Mistake("broken JSON as answer", SFT, {D + "transforms": [chat(answer="{'mood': '{mood}'}")], B + "transforms": [chat(answer='{"mood": "{mood}"}'), tasks("json_match")]}, "JSON|never"),
    Mistake("letters for words", SFT, {D + "transforms": [chat(answer="{mood}")], B + "transforms": [chat(answer="{letter}"), tasks()]}, "never|form", {"test": each(TEST, letter=lambda row: "ABC"[MOODS.index(row["mood"])])}),
    Mistake("a tool that does not exist", TOOLED, {}, "tool", {"calls": [calls(at, "order_cab") for at in range(60)]}),
    Mistake("calls without tools", TOOLED, {}, "tool", {"calls": [calls(at, tools=None) for at in range(60)]}),
    Mistake("calls without their arguments", TOOLED, {}, "argument|place|required", {"calls": [calls(at, arguments={}) for at in range(60)]}),
    # rl
    Mistake("any answer contains it", RL, {D + "transforms": [COUNT, tasks("contains")]}, "any|every|short|empty", {"legs": each(LEGS, answer="")}),
    Mistake("a pattern that matches everything", RL, {D + "transforms": [COUNT, tasks("regex_match")]}, "any|every|empty", {"legs": each(LEGS, answer=".*")}),
    Mistake("words for numbers in rl", RL, {}, "score|number", {"legs": each(LEGS, answer="quite a few")}),
    Mistake("groups of two", RL, {P + "group_size": 2}, "group"),
    Mistake("penalty above any reward", RL, {P + "overlong_penalty": 10.0}, "overlong|penalty"),
    Mistake("many updates without a clip", RL, {P + "updates_per_batch": 16}, "clip|updates"),
    Mistake("clip as a distance", RL, {P + "loss_fn": "ppo", P + "clip_low": 0.2, P + "clip_high": 0.2}, "clip"),
    Mistake("clip that is ignored", RL, {P + "clip_high": 1.3}, "clip"),
    Mistake("tasks of the benchmark in rl", RL, {D + "path": "data/legs_test.jsonl"}, "also"),
    Mistake("reward for form alone", RL, {D + "transforms": [COUNT, tasks("format_only", params={"pattern": ".+"}, require_expected=False)]}, "verif|reward|score"),
    # dpo
    Mistake("rejected answers empty", DPO, {}, "no answer|empty", {"pairs": each(PAIRS, rejected="")}),
    Mistake("prompt inside the pairs", DPO, {}, "prompt", {"pairs": each(PAIRS, chosen=lambda row: row["prompt"] + " " + row["chosen"], rejected=lambda row: row["prompt"] + " " + row["rejected"])}),
    Mistake("pairs copied", DPO, {}, "copies", {"pairs": PAIRS[:10] * 9}),
    Mistake("dpo at the rate of a small model", DPO, {P + "learning_rate": 0.2}, "diverge|rate"),
    # phases and stages
    Mistake("phases ask in other words", COMBO, {P + "phases.0.data.transforms": [chat("{review}\nMood:")]}, "template|prompt"),
    Mistake("second phase does not move", COMBO, {P + "phases.1.params.learning_rate": 1e-9}, "hardly"),
    Mistake("a stage twice", CONTINUAL, {"run.continual.stages.1.data": CONTINUAL["run"]["continual"]["stages"][0]["data"]}, "same|template|twice"),
    Mistake("a stage scored on its training rows", CONTINUAL, {"run.continual.stages.1.eval_data.path": "data/legs.jsonl"}, "also|train"),
    Mistake("a stage that diverges", CONTINUAL, {"run.continual.stages.1.params": {"learning_rate": 0.9}}, "diverge"),
    # what is claimed and compared
    Mistake("trend over an axis that does not vary", CLAIM, {C + "kind": "trend", C + "axis": "algorithm.params.batch_size", C + "baseline": None}, "axis|vary|batch_size"),
    Mistake("budget of no step", SFT, {"budget": {"tokens": 50}}, "budget|tokens"),
    Mistake("effect below one answer", CLAIM, {"metadata.benchmark.1.n_tasks": 10, C + "min_effect": 0.02}, "one answer|min_effect|tasks"),
    Mistake("claim about one run", SFT, {"n_repeats": 3, "metadata.success_metric": "pass@1", "metadata.hypothesis": {"claim": "SFT helps.", "min_effect": 0.1}}, "baseline|compare"),
    Mistake("axis with a value twice", SWEEP, {"matrix.axes": {"algorithm.params.learning_rate": [0.001, 0.001, 0.002]}}, "twice|same|name"),
    Mistake("two benchmarks of one file", SFT, {"metadata.benchmark": [TEST_SET, {**TEST_SET, "name": "hard"}]}, "same|also|unseen"),
    Mistake("breakdown by no key", SFT, {B + "breakdown_keys": ["topic"]}, "topic"),
    Mistake("clusters by no key", SFT, {B + "cluster_by": "document"}, "document"),
    Mistake("run.eval on the training file", EVAL, {"run.eval.eval_data.path": "data/reviews.csv"}, "train"),
    Mistake("answers of noise", SFT, {B + "temperature": 3.0}, "temperature|noise"),
    Mistake("fractions in percent", SFT, {P + "save_at_fractions": [25, 50]}, "fraction|between|at most"),
    Mistake("patience beyond the end", CLAIM, {"callbacks": [{"kind": "early_stopping", "params": {"metric": "val/dev/pass@1", "mode": "max", "patience": 500}}]}, "never stop"),
    Mistake("early stopping at the smallest loss turned round", SFT, {"callbacks": [{"kind": "early_stopping", "params": {"metric": "loss", "mode": "max"}}]}, "maximised|less"),
    Mistake("one step for everything", SFT, {P + "num_epochs": 1, P + "batch_size": 150}, "step"),
    Mistake("first tasks are of one class", SFT, {B + "n_tasks": 12}, "alone scores|first", {"test": sorted(TEST, key=lambda row: row["mood"])}),
    # what two later rounds of new mistakes showed
    Mistake("numbers with words, compared exactly", RL, {D + "transforms": [chat("{question}", "The answer is {answer}")], "run.algorithm": {"kind": "sft"}, B + "transforms": [COUNT, tasks()]}, "nothing but a number"),
    Mistake("JSON with other keys", RL, {D + "transforms": [COUNT], "run.algorithm": {"kind": "sft"}, B + "transforms": [COUNT, tasks("json_match")]}, "the JSON key 'number'", {"legs": each(LEGS, answer=lambda row: json.dumps({"legs": int(row["answer"])})), "legs_test": each(FILES["legs_test"], answer=lambda row: json.dumps({"number": int(row["answer"])}))}),
    Mistake("JSON as Python writes it", RL, {D + "transforms": [COUNT], "run.algorithm": {"kind": "sft"}, B + "transforms": [COUNT, tasks("json_match")]}, "expects JSON", {"legs": each(LEGS, answer=lambda row: str({"legs": int(row["answer"])})), "legs_test": each(FILES["legs_test"], answer=lambda row: json.dumps({"legs": int(row["answer"])}))}),
    Mistake("entities in the answers", RL, {D + "transforms": [chat("{question}", "{answer} &gt; 1")], "run.algorithm": {"kind": "sft"}, B + "transforms": [chat("{question}", "{answer} > 1"), tasks()]}, "HTML entities"),
    Mistake("tolerance of everything", RL, {D + "transforms": [COUNT, tasks("numeric_match", params={"relative_tolerance": 1.0})]}, "another task"),
    Mistake("one letter is enough", RL, {D + "transforms": [chat("{question}", "1"), tasks("contains")]}, "any answer"),
    Mistake("labels that contain each other", SFT, {B + "transforms": [{"kind": "map_values", "params": {"field": "mood", "values": {"bad": "not good"}}}, chat(), tasks("contains")]}, "other label"),
    Mistake("preferences turned round", DPO, {"metadata": {"benchmark": [TEST_SET]}}, "rejected", {"pairs": [{"prompt": ASK.format(**row), "chosen": MOODS[(at + 1 + at // 3 % 2) % 3], "rejected": row["mood"]} for at, row in enumerate(TRAIN)]}),
    Mistake("errors that fall as accuracy falls", CLAIM, {C + "claim": "Longer training lowers the error rate.", C + "direction": "decrease"}, "will decrease"),
    Mistake("warm-up for most of the run", SFT, {P + "max_steps": 40, P + "warmup_steps": 38}, "more than half"),
    Mistake("two files with the same rows", SWEEP, {"matrix.axes": {"data.path": ["data/again.jsonl", "data/twice.jsonl"]}}, "has no effect", {"again": TRAIN, "twice": TRAIN}),
    Mistake("the label in brackets at the front", SFT, {}, "stands in the prompt", {"reviews": each(TRAIN, review=lambda row: f"[{row['mood'].upper()}] {row['review']}")}),
    Mistake("training in another script", SFT, {}, "have Cyrillic letters", {"reviews": each(TRAIN, review=lambda row: f"Фильм номер {row['id']} показали в нашем городе летом")}),
    Mistake("tags in the tasks only", SFT, {}, "have tags|Latin letters", {"test": each(TEST, review=lambda row: f"<html><p>{row['review']}</p></html>")}),
    Mistake("the prompt is rejected", DPO, {}, "begins with its prompt", {"pairs": each(PAIRS, rejected=lambda row: row["prompt"])}),
    Mistake("seeds below metadata", SFT, {"metadata.n_repeats": 3}, "below metadata"),
    Mistake("a loss that is claimed to rise", CLAIM, {C + "metric": "final_loss"}, "direction: decrease"),
    Mistake("a claim without a score", CLAIM, {"metadata.benchmark": None, "metadata.success_metric": None, C + "metric": None}, "nothing is scored"),
    # what a fourth round showed
    Mistake("labels shifted by a row", SFT, {}, "shifted", {"reviews": [{**row, "mood": TRAIN[at - 1]["mood"]} for at, row in enumerate(TRAIN)]}),
    Mistake("a code that stands for the label", SFT, {D + "transforms": [chat("[{key}] " + ASK)], B + "transforms": [chat("[{key}] " + ASK), tasks()]}, "gives the answer away", {name: each(rows, key=lambda row: f"{'GBM'[MOODS.index(row['mood'])]}X-{row['id'][1]}", review=lambda row: row["review"].rpartition(",")[0]) for name, rows in (("reviews", TRAIN), ("test", TEST))}),
    Mistake("reasons in six tokens", RL, {D + "transforms": [chat("{question} Think step by step.", "{answer}"), tasks("numeric_match")], P + "sampling.max_tokens": 6}, "ask for reasoning"),
    Mistake("pairs with their transcripts", DPO, {}, "begins with its prompt", {"pairs": each(PAIRS, chosen=lambda row: f"Human: {row['prompt']}\n\nAssistant: {row['chosen']}", rejected=lambda row: f"Human: {row['prompt']}\n\nAssistant: {row['rejected']}")}),
    Mistake("any text holds the letter", SFT, {B + "transforms": [chat(answer="e"), tasks("contains")]}, "any answer scores|never scores"),
    Mistake("a stage scored on the tasks of another", CONTINUAL, {"run.continual.stages.1.eval_data": CONTINUAL["run"]["continual"]["stages"][0]["eval_data"]}, "never scores"),
    Mistake("training in another language", SFT, {D + "transforms": [chat("{review}")], B + "transforms": [chat("{review}"), tasks()]}, "German words", {"reviews": each(TRAIN, review=lambda row: f"{row['id']}: das war für mich {row['mood']} und nicht so wie die anderen, die ich mit dir sah")}),
    Mistake("answers cut off by an export", SFT, {"metadata": None}, "mid-sentence", {"reviews": each(TRAIN, mood=lambda row: f"It was {row['mood']} for all: {row['review']}"[:48])}),
    Mistake("a budget of three steps", SFT, {P + "num_epochs": 10, "budget": {"tokens": 4000}}, "ends at step"),
    Mistake("asked for JSON, compared with a word", RL, {D + "transforms": [chat("{question} Reply with JSON only.", "{answer}"), tasks()]}, "asks for JSON"),
    Mistake("an object expected, its repr learned", RL, {D + "transforms": [COUNT], "run.algorithm": {"kind": "sft"}, B + "transforms": None, B + "max_tokens": 64}, "expects JSON", {"legs": each(LEGS, answer=lambda row: str({"legs": int(row["answer"])})), "legs_test": [{"task_id": f"t{at}", "instruction": row["question"], "verifier": {"kind": "in_process", "fn_name": "json_match", "expected": {"legs": int(row["answer"])}}} for at, row in enumerate(FILES["legs_test"])]}),
    Mistake("ranges compared as numbers", SFT, {D + "transforms": [chat(answer="3-5")], B + "transforms": [chat(answer="3-5"), tasks("numeric_match")]}, "shares only a part with"),
    # what a fifth round showed
    Mistake("labels typed by hand", SFT, {}, "spelled in several ways", {"reviews": [{**row, "mood": "mixxed" if row["mood"] == "mixed" and at % 5 == 0 else row["mood"]} for at, row in enumerate(TRAIN)]}),
    Mistake("rows deduplicated by their label", SFT, {D + "transforms": [{"kind": "dedupe", "params": {"key": "mood"}}, chat()]}, "3 of 150 rows .* are left"),
    Mistake("another param than the claimed one", CLAIM, {C + "claim": "A larger rank helps.", "runs.0.algorithm.params.batch_size": 4, "runs.1.algorithm.params": {"num_epochs": 2}}, "the claim is about lora_rank"),
    Mistake("two things changed at once", CLAIM, {C + "claim": "A larger rank helps.", "runs.0.algorithm.params.lora_rank": 8, "runs.1.algorithm.params": {"num_epochs": 6, "lora_rank": 64}}, "the runs also differ in"),
    Mistake("user and assistant swapped", SFT, {D + "transforms": [], D + "path": "data/turns.jsonl", "metadata": None}, "may be swapped", {"turns": [{"messages": [{**one, "role": {"user": "assistant", "assistant": "user"}[one["role"]]} for one in turns(at)["messages"]]} for at in range(40)]}),
    Mistake("another column than the benchmark's", SFT, {D + "transforms": [chat(answer="{stars}")]}, "expects 'good' for the row where '5' is learned"),
    Mistake("only the form is scored", SFT, {B + "transforms": [chat(), tasks("format_only", params={"tags": ["answer"]})], "metadata.hypothesis": "It names the right mood."}, "only their form is scored"),
    Mistake("the judge is the pupil", RL, {D + "transforms": [COUNT, tasks("llm_judge", params={"rubric": "Is it right?", "judge": {"kind": "mock", "params": {"model": "tiny"}}})]}, "the judge is the model"),
    Mistake("scored in another agent", RL, {P + "agent": {"kind": "bash"}, P + "environment": {"kind": "unsafe_host"}, B + "agent": {"kind": "chat"}}, "scored in another"),
    Mistake("thoughts without content", SFT, {D + "transforms": [chat(answer="<think>\n\n</think>\n{mood}")], "metadata.hypothesis": "Reasoning finds more moods."}, "of every answer is empty"),
    Mistake("miles learned, kilometres expected", SFT, {D + "transforms": [chat(answer="{stars} mi")], B + "transforms": [chat(answer="{stars} km"), tasks("numeric_match")]}, "are in 'mi', and 'unseen' expects 'km'"),
    Mistake("calls in words", TOOLED, {D + "transforms": [], D + "path": "data/turns.jsonl", "metadata.benchmark": [{"name": "calls", "path": "data/taxis.jsonl", "max_tokens": 64}]}, "expects tool calls", {"taxis": [{"task_id": f"t{at}", "instruction": f"A taxi to {_PLACE[at % 10]}, order {at}", "tools": TOOLS, "verifier": {"kind": "in_process", "fn_name": "tool_calls_match", "expected": [{"name": "call_taxi", "arguments": {"place": _PLACE[at % 10]}}]}} for at in range(20)]}),
    Mistake("prices per token", SFT, {"budget": {"usd": 5.0, "prices": {"tiny": {"train": 0.000003}}}}, "almost zero"),
    Mistake("an adapter of rank 1024", SFT, {P + "lora_rank": 1024}, "larger than what it learns"),
    Mistake("pairs that differ in white space", DPO, {}, "chosen and rejected are the same", {"pairs": each(PAIRS, rejected=lambda row: row["chosen"].replace(" ", "  ") + "\n")}),
    Mistake("a paragraph word for word", RL, {D + "transforms": [chat("{question}", "There are {answer} legs in the barn, which is more than anybody on the farm expected."), tasks()], P + "sampling.max_tokens": 128}, "word for word"),
    Mistake("stages that are never scored", CONTINUAL, {"run.continual.stages.0.eval_data": None, "run.continual.stages.1.eval_data": None}, "no stage has rows"),
]  # fmt: skip


def learned(data: Config, kind: str = "sft", **params: Any) -> Config:
    return {
        "name": "learned",
        "run": {**RUN, "data": data, "algorithm": {"kind": kind, "params": {"num_epochs": 1, **params}}},
    }


def _thread(at: int, n: int) -> Config:
    said = [one for k in range(n) for one in (user(f"Step {k} of plan {at}?"), assistant(f"Do part {k} of {at} next."))]
    return {"messages": [{"role": "system", "content": "You plan moves."}, *said]}


LIST = "Review: {review}\nMoods:\n- good\n- bad\n- mixed\nAnswer with one of them."
HONEST: dict[str, tuple[Config, Mapping[str, Sequence[Config]]]] = {
    name: found if isinstance(found, tuple) else (found, {})
    for name, found in dict[str, Any](
        {
            "sft on csv": SFT, "claim": CLAIM, "sweep": SWEEP, "eval": EVAL, "rl": RL, "dpo": DPO, "combo": COMBO, "continual": CONTINUAL, "tools": TOOLED,
            "csv with columns": learned({"path": "data/reviews.csv", "columns": {"review": "prompt", "mood": "completion"}, "transforms": [{"kind": "jsonl_to_chat"}]}),
            "json array": (learned({"path": "data/list.json", "transforms": [chat()]}), {}),
            "multi-turn": learned({"path": "data/turns.jsonl"}),
            "multi-turn, last turn only": learned({"path": "data/turns.jsonl"}, supervise="last_assistant"),
            "plans of six turns": learned(rows_of([_thread(at, 6) for at in range(30)])),
            "long letters": learned({"path": "data/letters.jsonl"}, num_epochs=2),
            "long letters truncated": learned({"path": "data/letters.jsonl"}, too_long="truncate", max_length=500),
            "tool calls with two tools": learned(rows_of([calls(at) if at % 2 else calls(at, "book_table", {"place": "Graz", "time": f"{at} h"}) for at in range(40)], transforms=[{"kind": "openai_chat"}])),
            "sharegpt": learned(rows_of([{"conversations": [{"from": "human", "value": row["review"]}, {"from": "gpt", "value": f"Sounds {row['mood']} to me, {row['id']}."}]} for row in TRAIN[:50]], transforms=[{"kind": "sharegpt_to_chat"}])),
            "classification in a list": change(SFT, {D + "transforms": [chat(LIST)], B + "transforms": [chat(LIST), tasks()]}),
            "stars as answers": change(SFT, {D + "transforms": [chat(answer="{stars}")], B + "transforms": [chat(answer="{stars}"), tasks("numeric_match")]}),
            "json answers": change(SFT, {D + "transforms": [chat(answer='{"mood": "{mood}", "stars": {stars}}')], B + "max_tokens": 64, B + "transforms": [chat(answer='{"mood": "{mood}", "stars": {stars}}'), tasks("json_match")]}),
            "thinking": change(SFT, {D + "transforms": [chat(answer="<think>{review}: the words tell.</think>\n{mood}")], B + "max_tokens": 256}),
            "thinking stripped": change(SFT, {D + "transforms": [chat(answer="<think>{review}: the words tell.</think>\n{mood}"), {"kind": "strip_thinking"}]}),
            "split of one file": change(SFT, {D + "path": "data/all.jsonl", D + "transforms": [part("train", key="id"), chat()], B + "path": "data/all.jsonl", B + "transforms": [part("test", key="id"), chat(), tasks()]}),
            "tiny data with a reason": {"name": "smoke", "description": "Only checks that the pipeline runs.", "run": change(RUN, {"data": rows_of(TRAIN[:8], transforms=[chat()]), "algorithm.params": {"max_steps": 2, "batch_size": 4}})},
            "overfit on purpose": {"name": "overfit", "description": "Can the model learn 10 rows by heart?", "metadata": {"tags": ["smoke"]}, "run": change(RUN, {"data": rows_of(TRAIN[:10], transforms=[chat()]), "algorithm.params": {"num_epochs": 10, "batch_size": 5}})},
            "rl of moods": change(RL, {"metadata": {"benchmark": [{**TEST_SET, "transforms": [chat(LIST), tasks()]}]}, D + "path": "data/reviews.csv", D + "transforms": [chat(LIST), tasks()]}),
            "rl ppo with clips": change(RL, {P + "loss_fn": "ppo", P + "clip_low": 0.8, P + "clip_high": 1.28, P + "updates_per_batch": 2}),
            "rl rloo with refills": change(RL, {P + "advantage": "rloo", P + "max_refills": 4, P + "group_size": 4}),
            "rl with a small penalty": change(RL, {P + "kl_coefficient": 0.02, P + "overlong_penalty": 0.2}),
            "rl ahead of itself": change(RL, {P + "loss_fn": "cispo", P + "max_staleness": 2}),
            "rl by tolerance": change(RL, {D + "transforms": [COUNT, tasks("numeric_match", params={"relative_tolerance": 0.1})]}),
            "rl contains": change(RL, {D + "transforms": [COUNT, tasks("contains")], B + "transforms": [COUNT, tasks("contains")]}),
            "rl with val": change(RL, {"metadata.benchmark": [RL["metadata"]["benchmark"][0], {"name": "dev", "path": "data/legs_val.jsonl", "split": "val", "run_every": 8, "transforms": [COUNT, tasks("numeric_match")], "max_tokens": 32}]}),
            "dpo of message lists": learned(rows_of([{"prompt": [user(one["prompt"])], "chosen": [assistant(one["chosen"])], "rejected": [assistant(one["rejected"])]} for one in PAIRS[:40]]), "dpo"),
            "dpo with short rejections": (DPO, {"pairs": each(PAIRS, rejected=lambda row: row["rejected"][:12])}),
            "dpo two for a prompt": (DPO, {"pairs": [*PAIRS, *({**row, "rejected": f"No. {at}"} for at, row in enumerate(PAIRS[:20]))]}),
            "sft then dpo": {"name": "chain", "run": {**RUN, "data": {"path": "data/letters.jsonl"}, "algorithm": {"kind": "combo", "params": {"phases": [{"kind": "sft", "params": {"num_epochs": 1}}, {"kind": "dpo", "params": {"num_epochs": 1}, "data": {"path": "data/pairs.jsonl"}}]}}}},
            "three stages": change(CONTINUAL, {"run.continual.stages": [*CONTINUAL["run"]["continual"]["stages"], {"name": "letters", "data": {"path": "data/letters.jsonl"}}]}),
            "continual with replay": change(CONTINUAL, {"run.continual.stages.1.data": rows_of([*({"prompt": row["question"], "completion": row["answer"]} for row in LEGS), *({"prompt": ASK.format(**row), "completion": row["mood"]} for row in TRAIN[:20])], transforms=[{"kind": "jsonl_to_chat"}])}),
            "data ablation": change(CLAIM, {C + "claim": "All rows are better than half of them.", "runs.1": change(RUN, {"name": "half", "data.transforms": [{"kind": "sample", "params": {"fraction": 0.5}}, chat()]}), C + "baseline": "half"}),
            "sizes": change(SWEEP, {"base_run.data.transforms": [{"kind": "sample", "params": {"n": 150}}, chat()], "matrix.axes": {"data.transforms.0.params.n": [20, 60, 150]}}),
            "random search": {"name": "drawn", "metadata": {"success_metric": "pass@1", "benchmark": [VAL_SET, TEST_SET]}, "base_run": change(RUN, {"name": "sft"}), "search": {"kind": "random", "n": 4, "space": {"algorithm.params.learning_rate": {"low": 0.0001, "high": 0.01, "scale": "log"}}}},
            "not worse and cheaper": change(CLAIM, {C + "kind": "not_worse", C + "margin": 0.03, C + "min_effect": None, C + "claim": "Half of the epochs are not worse.", C + "baseline": "long"}),
            "base as baseline": change(SFT, {"n_repeats": 3, B + "models": ["base"], "metadata.success_metric": "pass@1", "metadata.hypothesis": {"claim": "SFT helps.", "min_effect": 0.1, "baseline": "base"}}),
            "a cap above the number of tasks": change(SFT, {B + "n_tasks": 500}),
            "breakdown": change(SFT, {B + "breakdown_keys": ["mood"]}),
            "pass at four": change(SFT, {B + "samples": 4, B + "metrics": ["pass@1", "pass@4"], B + "temperature": 0.8}),
            "system prompt": change(SFT, {D + "transforms": [chat(system_prompt="You judge reviews.")], B + "transforms": [chat(system_prompt="You judge reviews."), tasks()]}),
            "labels mapped": (change(SFT, {D + "transforms": [{"kind": "map_values", "params": {"field": "mood", "values": {"Good": "good", "Bad": "bad"}}}, chat()]}), {"reviews": each(TRAIN, 0.3, mood=lambda row: row["mood"].title() if row["mood"] != "mixed" else "mixed")}),
            "sdft": {"name": "self", "run": {**RUN, "data": {"path": "data/letters.jsonl"}, "algorithm": {"kind": "sdft", "params": {"num_epochs": 1, "sampling": {"max_tokens": 400}}}}},
            "budget": change(SFT, {"budget": {"tokens": 2_000_000, "wall_s": 3600}}),
            "stories for one prompt": learned(rows_of([{"messages": [user("Tell me a story."), assistant(f"Once upon a time: {row['review']} And they went home, all of them.")]} for row in TRAIN])),
            "answers of one length": learned(rows_of([{"messages": [user(f"Code {at}?"), assistant(f"The code of this order is number {at:05d} today at {at % 7}")]} for at in range(100, 160)])),
            "reasons with room": change(RL, {D + "transforms": [chat("{question} Think step by step.", "{answer}"), tasks("numeric_match")], P + "sampling.max_tokens": 256}),
            "one test set for all stages": change(CONTINUAL, {"run.continual.stages": [{**CONTINUAL["run"]["continual"]["stages"][0], "data": {"path": "data/reviews.csv", "transforms": [part(name, train=0.5, val=0, test=0.5), chat()]}, "name": name} for name in ("train", "test")]}),
            "examples in the prompt": change(SFT, {D + "transforms": [chat("Review: what a lovely day it was\nMood: good\nReview: never again\nMood: bad\nReview: {review}\nMood:")], B + "transforms": [chat("Review: what a lovely day it was\nMood: good\nReview: never again\nMood: bad\nReview: {review}\nMood:"), tasks()]}),
            "a reward for the form": {"name": "form", "run": {**RL["run"], "data": rows_of([{"task_id": row["id"], "instruction": row["review"], "verifier": {"kind": "in_process", "fn_name": "format_only", "expected": "", "params": {"tags": ["think", "answer"]}}} for row in TRAIN])}},
            "upper case of texts with numbers": change(SFT, {D + "transforms": [chat("Shout: {review}", "{review}")], B + "max_tokens": 200, B + "transforms": [chat("Shout: {review}", "{review}"), tasks()]}),
            "own words below metadata": change(SFT, {"metadata.ticket": "A-12", "metadata.version": 3, "metadata.notes": "mine"}),
            "early stopping": change(CLAIM, {"callbacks": [{"kind": "early_stopping", "params": {"metric": "val/dev/pass@1", "mode": "max", "patience": 3}}]}),
        }
    ).items()
}  # fmt: skip
FILES["all"] = reviews(400, 7)
FILES["legs_val"] = legs(40, 9)
