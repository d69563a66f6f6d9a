"""Configs that run and do not mean what their author had in mind, and honest ones that look like them."""

# ruff: noqa: E501  # a table reads best with one line for each entry

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .project import Config, change, write

TEAMS = ("billing", "shipping", "login", "returns")
_WHAT = {
    "billing": ("invoice", "charge", "card", "receipt", "tax line", "payment"),
    "shipping": ("parcel", "courier", "delivery", "tracking page", "box", "address label"),
    "login": ("password", "account", "two-factor code", "session", "username", "sign-in page"),
    "returns": ("refund form", "return slip", "exchange", "broken lamp", "wrong size", "warranty"),
}
_HOW = (
    "is missing since {day}",
    "looks wrong to {who}",
    "did not reach {who}",
    "worries {who}",
    "must change by {day}",
)
_WHO = ("my mother", "our office", "Ann", "the new clerk", "a neighbour", "my team", "Joe", "the night shift")
_DAY = ("Monday", "Tuesday", "May", "noon", "the holidays", "last week", "tonight", "Friday")


def tickets(n: int, seed: int) -> list[Config]:
    """Support tickets with the team that answers them; other seeds give other sentences."""
    dice, found = random.Random(seed), dict[str, str]()
    while len(found) < n:
        team = TEAMS[len(found) % len(TEAMS)]
        how = dice.choice(_HOW).format(who=dice.choice(_WHO), day=dice.choice(_DAY))
        found[f"The {dice.choice(_WHAT[team])} number {seed}{dice.randrange(900)} {how}"] = team
    return [{"query": query, "team": team} for query, team in found.items()]


TRAIN, VAL, TEST = tickets(120, 1), tickets(40, 2), tickets(40, 3)
SUMS = [{"query": f"{a} plus {b}", "total": a + b} for a in range(11, 21) for b in range(31, 41)]
ASK = "Which team answers this ticket? {query}"
TO_CHAT: Config = {"kind": "jsonl_to_chat", "params": {"user_template": ASK, "assistant_template": "{team}"}}
TO_TASK: Config = {"kind": "chat_to_harbor_task", "params": {"fn_name": "exact_match"}}
SUM_CHAT: Config = {"kind": "jsonl_to_chat", "params": {"user_template": "{query} is", "assistant_template": "{total}"}}
SUM_TASK: Config = {"kind": "chat_to_harbor_task", "params": {"fn_name": "numeric_match"}}
SYSTEM: Config = {"kind": "add_system_prompt", "params": {"prompt": "You route tickets of a small shop."}}

RUN: Config = {
    "name": "low",
    "data": {"path": "data/train.jsonl", "transforms": [TO_CHAT]},
    "model": {"name": "tiny"},
    "algorithm": {"kind": "sft", "params": {"num_epochs": 2, "learning_rate": 0.0005}},
    "backend": {"kind": "mock"},
}
HIGH: Config = change(RUN, {"name": "high", "algorithm.params.learning_rate": 0.002})
VAL_SET: Config = {
    "name": "tickets",
    "path": "data/val.jsonl",
    "split": "val",
    "run_every": 5,
    "transforms": [TO_CHAT, TO_TASK],
    "max_tokens": 24,
}
TEST_SET: Config = change(VAL_SET, {"path": "data/test.jsonl", "split": "test", "run_every": None})
CLAIM: Config = {
    "name": "claim",
    "n_repeats": 3,
    "metadata": {
        "hypothesis": {
            "claim": "A higher learning rate routes more tickets right.",
            "metric": "pass@1",
            "direction": "increase",
            "min_effect": 0.05,
            "baseline": "low",
        },
        "success_metric": {"name": "pass@1", "mode": "max"},
        "benchmark": [VAL_SET, TEST_SET],
    },
    "runs": [RUN, HIGH],
}
ONE: Config = {"name": "one", "metadata": {"benchmark": [copy.deepcopy(TEST_SET)]}, "run": copy.deepcopy(RUN)}
EVAL: Config = {
    "name": "evaluated",
    "run": {
        **copy.deepcopy(RUN),
        "eval": {
            "metrics": [{"kind": "exact_match"}],
            "eval_data": {"path": "data/test.jsonl", "transforms": [TO_CHAT]},
            "inference": {"kind": "mock", "params": {"max_tokens": 24}},
        },
    },
}
RL: Config = {
    "name": "rewarded",
    "metadata": {"benchmark": [copy.deepcopy(TEST_SET)]},
    "run": {
        **copy.deepcopy(RUN),
        "data": {"path": "data/train.jsonl", "transforms": [TO_CHAT, TO_TASK]},
        "algorithm": {
            "kind": "rl",
            "params": {"max_steps": 20, "group_size": 8, "batch_size": 8, "sampling": {"max_tokens": 24}},
        },
    },
}
DPO: Config = {
    "name": "preferred",
    "metadata": {"benchmark": [copy.deepcopy(TEST_SET)]},
    "run": {
        **copy.deepcopy(RUN),
        "data": {"path": "data/pairs.jsonl"},
        "algorithm": {"kind": "dpo", "params": {"num_epochs": 2, "beta": 0.1}},
    },
}
MATH: Config = {
    "name": "sums",
    "metadata": {
        "benchmark": [
            {"name": "sums", "path": "data/sums_test.jsonl", "split": "test", "transforms": [SUM_CHAT, SUM_TASK]}
        ]
    },
    "run": {**copy.deepcopy(RUN), "data": {"path": "data/sums.jsonl", "transforms": [SUM_CHAT]}},
}
PROMPTED: Config = change(
    ONE,
    {
        "run.data.transforms": [TO_CHAT, SYSTEM],
        "metadata.benchmark.0.transforms": [TO_CHAT, SYSTEM, TO_TASK],
    },
)
MATRIX: Config = {
    "name": "swept",
    "n_repeats": 3,
    "metadata": {"benchmark": [copy.deepcopy(TEST_SET)], "success_metric": "pass@1"},
    "base_run": {**copy.deepcopy(RUN), "name": "sft"},
    "matrix": {"axes": {"algorithm.params.learning_rate": [0.0002, 0.001]}},
}

type Rows = list[Config]
type Files = Mapping[str, Callable[[Rows], Rows]]


def write_data(folder: Path, changed: Files) -> None:
    """The data of the project, some of it changed."""
    pairs = [
        {"prompt": ASK.format(query=row["query"]), "chosen": row["team"], "rejected": TEAMS[(at + 1 + at // 4 % 3) % 4]}
        for at, row in enumerate(TRAIN)
    ]
    files = {"train": TRAIN, "val": VAL, "test": TEST, "pairs": pairs, "sums": SUMS[::2], "sums_test": SUMS[1::2]}
    for name, rows in files.items():
        made = changed.get(name, lambda rows: rows)(copy.deepcopy(rows))
        write(folder, f"data/{name}.jsonl", "".join(json.dumps(row) + "\n" for row in made))


@dataclass(frozen=True)
class Meaning:
    """One mistake: what it changes in a config and in the data, and what must be said about it."""

    name: str
    base: Config
    edits: Mapping[str, Any]
    says: str
    files: Files = field(default_factory=dict[str, Any])
    before: bool = True
    """Whether it is known before anything is spent; else by the tenth step."""

    @property
    def config(self) -> Config:
        return change(self.base, self.edits)


def each(**change: Callable[[Config], Any]) -> Callable[[Rows], Rows]:
    return lambda rows: [{**row, **{key: made(row) for key, made in change.items()}} for row in rows]


def some(share: float, **values: Any) -> Callable[[Rows], Rows]:
    """Values in the first rows of every ten."""
    return lambda rows: [{**row, **values} if at % 10 < 10 * share else row for at, row in enumerate(rows)]


def by_class(team: str, share: float) -> Callable[[Rows], Rows]:
    return lambda rows: [row if at % 50 < 50 * (1 - share) else {**row, "team": team} for at, row in enumerate(rows)]


P = "run.algorithm.params."
C = "metadata.hypothesis."
B = "metadata.benchmark.0."
R = "runs.0.algorithm.params."
T = "run.data.transforms.0.params."


def asked(template: str, answer: str = "{team}") -> Config:
    return {"kind": "jsonl_to_chat", "params": {"user_template": template, "assistant_template": answer}}


MEANINGS: Sequence[Meaning] = [
    # what is claimed
    Meaning("direction against a score", CLAIM, {C + "direction": "decrease"}, "will decrease"),
    Meaning("direction against a loss", CLAIM, {C + "metric": "final_loss", C + "min_effect": 0.0}, "less of it is better"),
    Meaning("direction against tokens", CLAIM, {C + "metric": "tokens_per_task", "metadata.benchmark.1.metrics": ["pass@1", "tokens_per_task"]}, "less of it is better"),
    Meaning("success mode against a score", CLAIM, {"metadata.success_metric.mode": "min", C + "metric": None}, "minimised"),
    Meaning("success is the highest loss", ONE, {"metadata.success_metric": "final_loss"}, "mode: min"),
    Meaning("success is the most time", ONE, {"metadata.success_metric": "time_per_task", B + "metrics": ["time_per_task"]}, "mode: min"),
    Meaning("one seed with a claim", CLAIM, {"n_repeats": 1}, "one seed"),
    Meaning("two seeds with a claim", CLAIM, {"n_repeats": 2}, "needs 3 seeds"),
    Meaning("effect in percent", CLAIM, {C + "min_effect": 5.0}, "outside of the range"),
    Meaning("level in percent", CLAIM, {C + "kind": "at_least", C + "level": 80.0, C + "min_effect": None, C + "baseline": None}, "outside of the range"),
    Meaning("margin in percent", CLAIM, {C + "kind": "not_worse", C + "margin": 2.0, C + "min_effect": None}, "outside of the range"),
    Meaning("effect in percent of the default metric", CLAIM, {C + "min_effect": 5.0, C + "metric": None}, "outside of the range"),
    Meaning("effect in percent of a reward", CLAIM, {C + "min_effect": 5.0, C + "metric": "mean_reward", "metadata.success_metric": "mean_reward", "metadata.benchmark.0.metrics": ["mean_reward"], "metadata.benchmark.1.metrics": ["mean_reward"]}, "write 0.05 if 5 %"),
    Meaning("level that all reach", CLAIM, {C + "kind": "at_least", C + "level": 0.0, C + "min_effect": None, C + "baseline": None}, "every run reaches"),
    Meaning("margin of half", CLAIM, {C + "kind": "not_worse", C + "margin": 0.6, C + "min_effect": None}, "still count as not worse"),
    Meaning("baseline is the only run", CLAIM, {"runs": [RUN]}, "baseline is the only run"),
    Meaning("baseline is the only trained run", CLAIM, {"runs": [RUN], "metadata.benchmark.1.models": ["base"]}, "only run that is trained"),
    Meaning("unknown parent", ONE, {"parent_experiment_id": "claim-0a1b2c3d"}, "no experiment in this project"),
    Meaning("parent by a name that is not there", CLAIM, {"parent_experiment_id": "last_week"}, "no experiment in this project"),
    Meaning("losses of other rows", CLAIM, {C + "metric": "final_loss", C + "direction": "decrease", "runs.1.data.path": "data/val.jsonl"}, "cannot be compared"),
    Meaning("success on training rows", EVAL, {"run.eval.eval_data": None, "metadata.success_metric": "train_fit/exact_match"}, "measured on the training rows"),
    # which runs there are
    Meaning("seed as an axis", MATRIX, {"matrix.axes": {"seed": [1, 2, 3]}}, "differ in their seed alone"),
    Meaning("seed as a second axis", MATRIX, {"matrix.axes.seed": [1, 2]}, "set n_repeats: 2"),
    Meaning("seeds as runs", CLAIM, {"runs.1.algorithm.params.learning_rate": 0.0005, "runs.1.seed": 7}, "differ in their seed alone"),
    Meaning("axis without effect", MATRIX, {"matrix.axes": {"algorithm.params.num_epochs": [1, 2, 4]}, "base_run.algorithm.params.max_steps": 12}, "num_epochs is ignored"),
    Meaning("axis of saving", MATRIX, {"matrix.axes": {"algorithm.params.save_every": [5, 10]}}, "has no effect"),
    Meaning("axis of tags", MATRIX, {"matrix.axes": {"tags": [["a"], ["b"]]}}, "has no effect"),
    Meaning("two runs that are the same", CLAIM, {"runs.1.algorithm.params.learning_rate": 0.0005}, "train exactly the same"),
    # how it is learned
    Meaning("learning rate of nothing", ONE, {P + "learning_rate": 1e-9}, "hardly move"),
    Meaning("learning rate with a lost digit", ONE, {P + "learning_rate": 5e-8}, "hardly move"),
    Meaning("learning rate of everything", ONE, {P + "learning_rate": 0.5}, "diverge"),
    Meaning("learning rate in a matrix", MATRIX, {"matrix.axes": {"algorithm.params.learning_rate": [0.0005, 1.0]}}, "diverge"),
    Meaning("learning rate of rl", RL, {P + "learning_rate": 1e-10}, "hardly move"),
    Meaning("warm-up to the end", ONE, {P + "warmup_steps": 100}, "rises until the end"),
    Meaning("warm-up as long as the run", ONE, {P + "max_steps": 20, P + "warmup_steps": 20}, "rises until the end"),
    Meaning("penalty of fifty", RL, {P + "kl_coefficient": 50.0}, "outweighs any reward"),
    Meaning("penalty of five", RL, {P + "kl_coefficient": 5.0}, "outweighs any reward"),
    Meaning("beta of a hundred", DPO, {P + "beta": 100.0}, "dpo uses"),
    Meaning("beta of nothing", DPO, {P + "beta": 0.0001}, "dpo uses"),
    Meaning("no exploration", RL, {P + "sampling.temperature": 0.01}, "copies of each other"),
    Meaning("nothing but noise", RL, {P + "sampling.temperature": 5.0}, "noise"),
    Meaning("decay of ten", ONE, {P + "weight_decay": 10.0}, "vanish"),
    Meaning("gradients cut to nothing", ONE, {P + "grad_clip_norm": 1e-6}, "almost nothing"),
    Meaning("few rows many times", ONE, {"run.data.transforms": [{"kind": "sample", "params": {"n": 16}}, TO_CHAT], P + "num_epochs": 30, P + "batch_size": 8}, "learned by heart"),
    Meaning("few rows for many steps", ONE, {P + "num_epochs": None, P + "max_steps": 600}, "learned by heart"),
    Meaning("pairs for many epochs", DPO, {P + "num_epochs": 60}, "learned by heart"),
    Meaning("scored never", EVAL, {P + "eval_every": 500}, "nothing is scored on the way"),
    Meaning("early stopping of the wrong end", CLAIM, {"callbacks": [{"kind": "early_stopping", "params": {"metric": "val/tickets/pass@1"}}]}, "minimised"),
    Meaning("early stopping after the end", CLAIM, {"callbacks": [{"kind": "early_stopping", "params": {"metric": "val/tickets/pass@1", "mode": "max", "min_steps": 5000}}]}, "can never stop"),
    Meaning("worst checkpoint", CLAIM, {R + "selection_metric": "val/tickets/pass@1", R + "selection_mode": "min"}, "minimised"),
    Meaning("rows that do not fit", ONE, {P + "max_length": 100, P + "too_long": "skip"}, "left out"),
    Meaning("renderer of another model", ONE, {"run.model": {"name": "Qwen/Qwen3-4B", "renderer_name": "llama3"}}, "'llama' prompts"),
    # what is scored
    Meaning("val is test", CLAIM, {"metadata.benchmark.0.path": "data/test.jsonl"}, "are also in"),
    Meaning("val holds some of test", CLAIM, {}, "are also in", {"val": lambda rows: rows + TEST[:3]}),
    Meaning("val is test in other case", CLAIM, {}, "are also in", {"val": lambda _: [{**row, "query": row["query"].upper()} for row in TEST]}),
    Meaning("three tasks", ONE, {B + "n_tasks": 3}, "one answer moves the score by 0.33"),
    Meaning("three rows", EVAL, {"run.eval.n_samples": 3}, "one answer moves"),
    Meaning("a file of two tasks", ONE, {}, "2 tasks are scored", {"test": lambda rows: rows[:2]}),
    Meaning("run_every beyond the end", CLAIM, {"metadata.benchmark.0.run_every": 1000}, "never scored during training"),
    Meaning("answers cut off", ONE, {B + "max_tokens": 3}, "longer than this"),
    Meaning("answers of rl cut off", RL, {P + "sampling.max_tokens": 2}, "longer than this"),
    Meaning("learned answers cut off", ONE, {B + "max_tokens": 12, T + "assistant_template": "<think>it is about {query}</think><answer>{team}</answer>"}, "of the answers it learns"),
    Meaning("answers of run.eval cut off", EVAL, {"run.eval.inference.params.max_tokens": 4}, "longer than this"),
    Meaning("samples that are copies", ONE, {B + "samples": 8, B + "temperature": 0.0}, "copies of one"),
    Meaning("words for numbers", MATH, {}, "cannot be scored", {"sums_test": each(total=lambda row: "many")}),
    Meaning("same question, two answers", ONE, {}, "ask the same", {"test": lambda rows: [*rows, {**rows[0], "team": "login"}]}),
    Meaning("one answer wins the benchmark", ONE, {}, "alone scores", {"test": by_class("billing", 0.98)}),
    # what is learned from
    Meaning("a third of the answers empty", ONE, {}, "have no answer", {"train": some(0.3, team="")}),
    Meaning("some answers empty", ONE, {}, "have no answer", {"train": some(0.1, team="  ")}),
    Meaning("answers nan", ONE, {}, "the answer 'nan'", {"train": some(0.2, team="nan")}),
    Meaning("answers None", ONE, {}, "the answer 'None'", {"train": some(0.1, team="None")}),
    Meaning("tags without an answer", ONE, {T + "assistant_template": "<answer>{team}</answer>"}, "<answer></answer>", {"train": some(0.2, team="")}),
    Meaning("chosen answers empty", DPO, {}, "have no answer", {"pairs": some(0.2, chosen="")}),
    Meaning("end token in answers", ONE, {T + "assistant_template": "{team}<|im_end|>"}, "control tokens"),
    Meaning("other end token in answers", ONE, {T + "assistant_template": "{team}</s>"}, "control tokens"),
    Meaning("template in prompts", ONE, {T + "user_template": "[INST] " + ASK + " [/INST]"}, "control tokens"),
    Meaning("header tokens in pairs", DPO, {}, "control tokens", {"pairs": each(chosen=lambda row: f"{row['chosen']}<|eot_id|>")}),
    Meaning("broken characters", ONE, {}, "control tokens", {"train": some(0.2, team="bill\ufffdng")}),
    Meaning("placeholder not filled", ONE, {T + "user_template": "Which team? {{query}} {query}"}, "placeholder"),
    Meaning("placeholder in the rows", ONE, {}, "placeholder", {"train": each(query=lambda row: row["query"] + " ${customer}")}),
    Meaning("prompt without the query", ONE, {T + "user_template": "Which team answers this ticket?"}, "nearly every prompt"),
    Meaning("prompt of an empty column", ONE, {T + "user_template": "{subject}"}, "empty prompt", {"train": each(subject=lambda row: "" if "number" in row["query"] and row["team"] != "login" else row["query"])}),
    Meaning("answer repeats the prompt", ONE, {T + "assistant_template": ASK + " {team}"}, "begins with its prompt"),
    Meaning("prompt as answer", ONE, {T + "user_template": "{query}", T + "assistant_template": "{query}"}, "begins with its prompt"),
    Meaning("constant answer", ONE, {}, "is 'billing'", {"train": each(team=lambda _: "billing")}),
    Meaning("almost one class", ONE, {}, "of the answers are 'billing'", {"train": by_class("billing", 0.98)}),
    Meaning("almost one class of tasks", RL, {}, "of the answers are 'login'", {"train": by_class("login", 0.98)}),
    Meaning("same prompt, other answers", ONE, {}, "have different answers", {"train": lambda rows: [*rows, *({**row, "team": TEAMS[(TEAMS.index(row["team"]) + 1) % 4]} for row in rows[:12])]}),
    Meaning("same prompt in other spelling", ONE, {}, "have different answers", {"train": lambda rows: [*rows, *({"query": row["query"].upper() + "!", "team": TEAMS[(TEAMS.index(row["team"]) + 1) % 4]} for row in rows[:12])]}),
    Meaning("ten copies of each row", ONE, {}, "copies of others", {"train": lambda rows: rows[:20] * 10}),
    Meaning("label inside the prompt", ONE, {T + "user_template": ASK + " (team: {team})"}, "the answer stands in the prompt"),
    Meaning("label before the prompt", ONE, {T + "user_template": "[{team}] " + ASK}, "the answer stands in the prompt"),
    Meaning("label in the tasks of rl", RL, {T + "user_template": ASK + "\nLabel: {team}"}, "the answer stands in the prompt"),
    Meaning("label in the benchmark", ONE, {B + "transforms": [asked(ASK + " Correct answer: {team}"), TO_TASK]}, "the answer stands in the prompt"),
    Meaning("solution in the sums", MATH, {"run.data.transforms": [{"kind": "jsonl_to_chat", "params": {"user_template": "{query} is (answer: {total})", "assistant_template": "{total}"}}]}, "the answer stands in the prompt"),
    Meaning("labels in another case", ONE, {}, "differ in case or form only", {"train": each(team=lambda row: row["team"].title())}),
    Meaning("labels in capitals", EVAL, {}, "differ in case or form only", {"train": each(team=lambda row: row["team"].upper())}),
    Meaning("labels in a sentence", ONE, {T + "assistant_template": "The team is {team}."}, "never scores"),
    Meaning("labels in JSON", ONE, {T + "assistant_template": '[["{team}"]]'}, "never scores"),
    Meaning("answer of the wrong column", ONE, {T + "assistant_template": "{id}"}, "never scores", {"train": each(id=lambda row: f"T-{hash(row['query']) % 1000}")}),
    Meaning("roles swapped", ONE, {T + "user_template": "{team}", T + "assistant_template": "{query}"}, "look swapped"),
    Meaning("words instead of numbers", MATH, {"run.data.transforms": [{"kind": "jsonl_to_chat", "params": {"user_template": "{query} is", "assistant_template": "{word}"}}]}, "never scores", {"sums": each(word=lambda row: "seven of nine" if row["total"] % 2 else "a lot")}),
    Meaning("other words around the prompt", ONE, {B + "transforms": [asked("Ticket: {query}\nReply with the team."), TO_TASK]}, "same template"),
    Meaning("bare prompt in training", ONE, {T + "user_template": "{query}"}, "same template"),
    Meaning("bare prompt in the benchmark", ONE, {B + "transforms": [asked("{query}"), TO_TASK]}, "same template"),
    Meaning("instruction behind the prompt", EVAL, {"run.eval.eval_data.transforms": [asked(ASK + " Answer in one word.")]}, "same template"),
    Meaning("other prompt for rl", RL, {T + "user_template": "Tell me the right queue for: {query}"}, "same template"),
    Meaning("system prompt in training only", ONE, {"run.data.transforms": [TO_CHAT, SYSTEM]}, "system prompt"),
    Meaning("system prompt in the benchmark only", PROMPTED, {"run.data.transforms": [TO_CHAT]}, "no system prompt"),
    Meaning("another system prompt", PROMPTED, {"run.data.transforms": [TO_CHAT, {"kind": "add_system_prompt", "params": {"prompt": "You are a pirate."}}]}, "system prompt"),
    Meaning("parts of a split swapped", ONE, {"run.data.transforms": [{"kind": "split", "params": {"part": "test", "train": 0.4, "val": 0.2, "test": 0.4}}, TO_CHAT], B + "transforms": [{"kind": "split", "params": {"part": "train"}}, TO_CHAT, TO_TASK]}, "Swap `part`"),
    Meaning("a claim after one step", CLAIM, {"runs.0.algorithm.params.max_steps": 1}, "tested after one step"),
    Meaning("one task again and again", ONE, {}, "1 different tasks are scored", {"test": lambda rows: rows[:1] * 40}),
    Meaning("pairs without a difference", DPO, {}, "chosen and rejected are the same", {"pairs": each(rejected=lambda row: row["chosen"])}),
    Meaning("some pairs without a difference", DPO, {}, "chosen and rejected are the same", {"pairs": lambda rows: [{**row, "rejected": row["chosen"]} if at % 5 == 0 else row for at, row in enumerate(rows)]}),
    Meaning("pairs that contradict", DPO, {}, "another pair rejects", {"pairs": lambda rows: [*rows, *({**row, "chosen": row["rejected"], "rejected": row["chosen"]} for row in rows[:30])]}),
    Meaning("pairs swapped", DPO, {}, "Swap the two columns", {"pairs": each(chosen=lambda row: row["rejected"], rejected=lambda row: row["chosen"])}),
    Meaning("pairs against their scores", DPO, {"metadata": None}, "lower score", {"pairs": each(score_chosen=lambda _: 2, score_rejected=lambda _: 8)}),
    Meaning("filter of a misspelt value", ONE, {"run.data.transforms": [{"kind": "filter", "params": {"conditions": [{"field": "team", "operator": "eq", "value": "biling"}]}}, TO_CHAT]}, "rows of data/train.jsonl are left", {"train": lambda rows: [*rows, {**rows[0], "team": "biling"}]}),
    Meaning("a reward for listing every label", RL, {"run.data.transforms": [TO_CHAT, {"kind": "chat_to_harbor_task", "params": {"fn_name": "contains"}}]}, "an answer that lists 3 labels earns the reward of 'contains'"),
    Meaning("a reward for listing every label in a tag", RL, {"run.data.transforms": [TO_CHAT, {"kind": "chat_to_harbor_task", "params": {"fn_name": "contains", "params": {"answer_tag": "answer"}}}], "run.algorithm.params.sampling.max_tokens": 64}, "an answer that lists 4 labels"),
    Meaning("a reward for a line with the label", RL, {"run.data.transforms": [TO_CHAT, {"kind": "chat_to_harbor_task", "params": {"fn_name": "regex_match"}}]}, "an answer that lists 3 labels"),
]  # fmt: skip


# Honest configs: unusual, and meant as they are.

CHOICE = "Ticket: {query}\nTeams:\n- billing\n- shipping\n- login\n- returns\nAnswer with one of them."
WORDED = "<think>This is about {query}.</think><answer>{team}</answer>"


def rows_of(make: Callable[[int], Config], n: int = 40) -> Config:
    return {"source_kind": "in_memory", "rows": [make(at) for at in range(n)]}


def chat(question: str, answer: str, **more: Any) -> Config:
    messages = [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
    return {"messages": messages, **more}


def wish(at: int) -> str:
    return TRAIN[at]["query"]


def learned(data: Config, **params: Any) -> Config:
    """A run without scores."""
    return {
        "name": "learned",
        "run": change(RUN, {"data": data, **{f"algorithm.params.{k}": v for k, v in params.items()}}),
    }


def both(template: str, answer: str = "{team}", verifier: Config = TO_TASK, **entry: Any) -> Config:
    """The same template in training and in the benchmark."""
    to = asked(template, answer)
    made = change(ONE, {"run.data.transforms": [to], B + "transforms": [to, verifier]})
    return change(made, {B + key: value for key, value in entry.items()})


CITIES = ("Oslo", "Rome", "Lima", "Cairo", "Quito")
_HONEST: dict[str, Config | tuple[Config, Files]] = {
    "claim": CLAIM, "one": ONE, "eval": EVAL, "rl": RL, "dpo": DPO, "math": MATH, "system": PROMPTED, "matrix": MATRIX,
    "low rates": change(MATRIX, {"matrix.axes": {"algorithm.params.learning_rate": [1e-5, 1e-4, 1e-3, 1e-2]}}),
    "epochs": change(MATRIX, {"matrix.axes": {"algorithm.params.num_epochs": [1, 2, 4, 8]}}),
    "steps": change(MATRIX, {"matrix.axes": {"algorithm.params.max_steps": [5, 20, 80]}}),
    "batches": change(MATRIX, {"matrix.axes": {"algorithm.params.batch_size": [4, 8, 16]}}),
    "schedules": change(MATRIX, {"matrix.axes": {"algorithm.params.lr_schedule": ["constant", "cosine"]}}),
    "ranks": change(MATRIX, {"matrix.axes": {"algorithm.params.lora_rank": [1, 8, 64]}}),
    "two axes": change(MATRIX, {"matrix.axes": {"algorithm.params.batch_size": [4, 8], "algorithm.params.learning_rate": [0.001, 0.002]}}),
    "sentence": change(CLAIM, {"metadata.hypothesis": "A higher rate routes more tickets right.", "n_repeats": 1}),
    "more seeds": change(CLAIM, {"n_repeats": 8}),
    "decided": change(CLAIM, {"n_repeats": 6, "until": "decided"}),
    "not worse": change(CLAIM, {C + "kind": "not_worse", C + "margin": 0.02, C + "min_effect": None}),
    "at least": change(CLAIM, {C + "kind": "at_least", C + "level": 0.8, C + "min_effect": None, C + "baseline": None}),
    "perfect": change(CLAIM, {C + "kind": "at_least", C + "level": 1.0, C + "min_effect": None, C + "baseline": None}),
    "worse on purpose": change(CLAIM, {C + "claim": "Noise in the labels lowers the score.", C + "direction": "decrease"}),
    "forgets": change(CLAIM, {C + "claim": "A higher rate forgets what was learned.", C + "direction": "decrease", C + "metric": "val/tickets/pass@1"}),
    "fewer tokens": change(CLAIM, {C + "metric": "tokens_per_task", C + "direction": "decrease", C + "min_effect": 2.0, "metadata.benchmark.1.metrics": ["pass@1", "tokens_per_task"]}),
    "lower loss": change(CLAIM, {C + "metric": "final_loss", C + "direction": "decrease", C + "min_effect": 0.5}),
    "smallest loss": change(MATRIX, {"metadata.success_metric": {"name": "final_loss", "mode": "min"}}),
    "trend": change(MATRIX, {"metadata.hypothesis": {"claim": "More rate, more right.", "kind": "trend", "metric": "pass@1", "axis": "algorithm.params.learning_rate"}}),
    "base as baseline": change(CLAIM, {C + "baseline": "base", "metadata.benchmark.1.models": ["base"], "runs": [RUN]}),
    "early stopping": change(CLAIM, {"callbacks": [{"kind": "early_stopping", "params": {"metric": "val/tickets/pass@1", "mode": "max"}}]}),
    "early stopping by loss": change(ONE, {"callbacks": [{"kind": "early_stopping", "params": {"metric": "loss"}}]}),
    "warm-up": change(ONE, {P + "warmup_steps": 5}),
    "one step": change(ONE, {P + "max_steps": 1}),
    "dry": change(ONE, {P + "max_steps": 3, B + "n_tasks": 10}),
    "hot rl": change(RL, {P + "sampling.temperature": 1.2, P + "kl_coefficient": 0.1, P + "group_size": 16}),
    "ppo": change(RL, {P + "loss_fn": "ppo", P + "updates_per_batch": 4, P + "advantage": "std"}),
    "rl by a list": change(RL, {T + "user_template": CHOICE, B + "transforms": [asked(CHOICE), TO_TASK]}),
    "rl with many visits": change(RL, {P + "max_steps": 400}),
    "sharp dpo": change(DPO, {P + "beta": 0.5}),
    "long dpo": change(DPO, {"metadata": None, "run.data": rows_of(lambda at: {"prompt": f"Write a note about {wish(at)}", "chosen": f"Dear all, {wish(at)}. Please help soon.", "rejected": f"{wish(at)}!!"})}),
    "several samples": change(ONE, {B + "samples": 4, B + "metrics": ["pass@1", "pass@4"]}),
    "sampled coldly": change(ONE, {B + "samples": 4, B + "temperature": 0.7}),
    "eight tasks": (ONE, {"test": lambda rows: rows[:8]}),
    "twelve of forty": change(ONE, {B + "n_tasks": 12}),
    "choices": both(CHOICE),
    "reasons": both(ASK, WORDED, max_tokens=400),
    "tags": both(ASK, "<answer>{team}</answer>", max_tokens=64),
    "tags in training only": change(ONE, {T + "assistant_template": "<answer>{team}</answer>", B + "max_tokens": 64}),
    "case is ignored": change(ONE, {T + "assistant_template": "{team}", B + "transforms": [TO_CHAT, {"kind": "chat_to_harbor_task", "params": {"fn_name": "exact_match", "params": {"ignore_case": True}}}]}),
    "contains": both(ASK, "It is {team}.", {"kind": "chat_to_harbor_task", "params": {"fn_name": "contains"}}, max_tokens=64),
    "imbalanced": (ONE, {"train": by_class("billing", 0.6)}),
    "two classes": (ONE, {name: each(team=lambda row: "urgent" if row["team"] in ("login", "billing") else "later") for name in ("train", "test")}),
    "few duplicates": (ONE, {"train": lambda rows: [*rows, *rows[:10]]}),
    "one odd label": (ONE, {"train": lambda rows: [*rows, {**rows[0], "team": "login"}]}),
    "one empty answer": (ONE, {"train": lambda rows: [*rows, {"query": "hello", "team": ""}]}),
    "an example of a thousand": (ONE, {"train": lambda _: tickets(1000, 9)}),
    "city in the text": learned(rows_of(lambda at: chat(f"Which city? I {('flew', 'drove', 'came')[at % 3]} to {CITIES[at % 5]} {wish(at)}", CITIES[at % 5]))),
    "copying": learned(rows_of(lambda at: chat(f"Say: {wish(at)}", wish(at).upper()))),
    "echo of names": learned(rows_of(lambda at: chat(f"My name is N{at}. What is it?", f"N{at}"))),
    "long answers": learned(rows_of(lambda at: chat(wish(at), f"We are sorry that {wish(at)}. " * 4))),
    "several answers to a prompt": learned(rows_of(lambda at: chat(wish(at // 4), f"Answer {at}: we look into it, number {at * 7}."))),
    "code": learned(rows_of(lambda at: chat(f"Write f{at}({{x}}) in Python.", f"def f{at}(x):\n    return {{x: {at}}}"))),
    "json": learned(rows_of(lambda at: chat(f"As JSON: {wish(at)}", json.dumps({"id": at, "text": wish(at)})))),
    "html": learned(rows_of(lambda at: chat(f"Mark up {wish(at)}", f"<p>{wish(at)}</p>"))),
    "turns": learned(rows_of(lambda at: {"messages": [*chat(wish(at), "Which order?")["messages"], *chat(f"Order {at}", TEAMS[at % 4])["messages"]]})),
    "few rows": learned(rows_of(lambda at: chat(wish(at), TEAMS[at % 4]), 6)),
    "four passes of few": learned(rows_of(lambda at: chat(wish(at), TEAMS[at % 4]), 24), num_epochs=8),
    "other benchmark": change(ONE, {"metadata.benchmark": [TEST_SET, MATH["metadata"]["benchmark"][0]]}),
    "sdft": change(EVAL, {"run.algorithm": {"kind": "sdft", "params": {"num_epochs": 1, "sampling": {"max_tokens": 24}}}}),
    "combo": change(ONE, {"run.data.transforms": [TO_CHAT, TO_TASK], "run.algorithm": {"kind": "combo", "params": {"phases": [{"kind": "sft", "params": {"max_steps": 10}, "data": {"path": "data/train.jsonl", "transforms": [TO_CHAT]}}, {"kind": "rl", "params": {"max_steps": 10, "sampling": {"max_tokens": 24}}}]}}}),
    "split of one file": change(CLAIM, {"metadata.benchmark": [change(VAL_SET, {"path": "data/test.jsonl", "transforms": [{"kind": "split", "params": {"part": "val", "train": 0.0, "val": 0.5, "test": 0.5}}, TO_CHAT, TO_TASK]}), change(TEST_SET, {"transforms": [{"kind": "split", "params": {"part": "test", "train": 0.0, "val": 0.5, "test": 0.5}}, TO_CHAT, TO_TASK]})]}),
}  # fmt: skip
HONEST: dict[str, tuple[Config, Files]] = {
    name: found if isinstance(found, tuple) else (found, {}) for name, found in _HONEST.items()
}
