"""A small project to make mistakes in: its files, and the configs that the mistakes are made in."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

type Config = dict[str, Any]

TO_CHAT: Config = {
    "kind": "jsonl_to_chat",
    "params": {"user_template": "Which tool? {query}", "assistant_template": "{tool}"},
}
TO_TASK: Config = {"kind": "chat_to_harbor_task", "params": {"fn_name": "exact_match"}}

SFT: Config = {
    "name": "sft",
    "run": {
        "name": "r",
        "data": {"path": "data/train.jsonl", "transforms": [TO_CHAT]},
        "model": {"name": "tiny"},
        "algorithm": {"kind": "sft", "params": {"max_steps": 2}},
        "backend": {"kind": "mock"},
    },
}
EVAL: Config = copy.deepcopy(SFT)
EVAL["run"]["eval"] = {
    "metrics": [{"kind": "exact_match"}],
    "eval_data": {"path": "data/test.jsonl", "transforms": [TO_CHAT]},
}
BENCH: Config = copy.deepcopy(SFT)
BENCH["metadata"] = {"benchmark": [{"name": "tools", "path": "data/tasks.jsonl", "split": "val"}]}
RL: Config = copy.deepcopy(SFT)
RL["run"]["data"]["transforms"] = [TO_CHAT, TO_TASK]
RL["run"]["algorithm"] = {"kind": "rl", "params": {"max_steps": 2, "group_size": 2}}
DPO: Config = copy.deepcopy(SFT)
DPO["run"]["data"] = {"path": "data/pairs.jsonl"}
DPO["run"]["algorithm"]["kind"] = "dpo"
SDFT: Config = copy.deepcopy(SFT)
SDFT["run"]["algorithm"]["kind"] = "sdft"
COMBO: Config = copy.deepcopy(SFT)
COMBO["run"]["algorithm"] = {
    "kind": "combo",
    "params": {
        "phases": [
            {"kind": "sft", "params": {"max_steps": 1}},
            {"kind": "dpo", "params": {"max_steps": 1}, "data": {"path": "data/pairs.jsonl"}},
        ]
    },
}
CONTINUAL: Config = copy.deepcopy(SFT)
del CONTINUAL["run"]["data"]
CONTINUAL["run"]["continual"] = {
    "stages": [
        {"name": "one", "data": {"path": "data/train.jsonl", "transforms": [TO_CHAT]}},
        {"name": "two", "data": {"path": "data/test.jsonl", "transforms": [TO_CHAT]}},
    ]
}
MATRIX: Config = {
    "name": "many",
    "base_run": copy.deepcopy(SFT["run"]),
    "matrix": {"axes": {"algorithm.params.learning_rate": [0.1, 0.01, 0.001], "seed": [1, 2]}},
}
RUNS: Config = {
    "name": "two",
    "runs": [{**copy.deepcopy(SFT["run"]), "name": "small"}, {**copy.deepcopy(SFT["run"]), "name": "large"}],
}
LOCAL: Config = copy.deepcopy(SFT)
LOCAL["run"]["backend"] = {"kind": "own_local"}
CLAIM: Config = copy.deepcopy(BENCH)
CLAIM["runs"] = copy.deepcopy(RUNS["runs"])
del CLAIM["run"]
CLAIM["metadata"]["hypothesis"] = {"claim": "large is better", "baseline": "small", "metric": "pass@1"}


def change(config: Config, edits: Mapping[str, Any]) -> Config:
    """A copy with values set at dotted paths; a None removes the key."""
    changed = copy.deepcopy(config)
    for path, value in edits.items():
        *parents, last = path.split(".")
        node: Any = changed
        for part in parents:
            node = node[int(part)] if part.isdecimal() else node.setdefault(part, {})
        key: Any = int(last) if last.isdecimal() else last
        if value is None:
            del node[key]
        else:
            node[key] = value
    return changed


def write_project(folder: Path) -> None:
    """Everything that the configs name, and some files that are wrong."""
    tools = ("weather", "music", "email", "alarm")
    rows = [{"query": f"do thing {at} of {tools[at % 4]}", "tool": tools[at % 4]} for at in range(40)]
    tasks = [task(f"t{at}", row["query"], row["tool"], kind=row["tool"]) for at, row in enumerate(rows[:8])]
    chats = [{"messages": [user(row["query"]), assistant(row["tool"])]} for row in rows]
    pairs = [{"prompt": row["query"], "chosen": row["tool"], "rejected": "no idea"} for row in rows[:20]]
    files: dict[str, Sequence[Any]] = {
        "train": rows,
        "test": rows[:10],
        "tasks": tasks,
        "chats": chats,
        "pairs": pairs,
        "few": rows[:3],
        "no_tool": [*rows[:6], {"query": "no tool here"}, *rows[6:]],
        "misspelt": [{"query": row["query"], "tol": row["tool"]} for row in rows],
        "null_tool": [*rows[:4], {"query": "null", "tool": None}],
        "no_answer": [*chats[:5], {"messages": [user("nobody answers")]}],
        "only_questions": [{"messages": [user("nobody answers")]}] * 4,
        "bad_role": [*chats[:2], {"messages": [{"role": "robot", "content": "x"}]}],
        "empty_messages": [*chats[:2], {"messages": []}],
        "content_number": [*chats[:2], {"messages": [user("x"), {"role": "assistant", "content": 7}]}],
        "long": [*chats[:3], {"messages": [user("word " * 3000), assistant("x")]}],
        "image": [
            {
                "messages": [
                    {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "https://x.test/a.png"}}]},
                    assistant("x"),
                ]
            }
        ],
        "no_chosen": [*pairs[:3], {"prompt": "x", "rejected": "y"}],
        "chosen_ends_with_user": [*pairs[:3], {"prompt": "x", "chosen": [user("y")], "rejected": "z"}],
        "bad_verifier": [*tasks[:3], task("bad", "q", "a", fn_name="exact_macht")],
        "bad_verifier_params": [*tasks[:3], {**task("p", "q", "a"), "verifier": verifier("a", params={"strict": 1})}],
        "no_verifier": [*tasks[:3], {"task_id": "x", "instruction": "y"}],
        "no_instruction": [{"task_id": "x", "verifier": verifier("a")}],
        "verifier_kind": [*tasks[:3], {**task("k", "q", "a"), "verifier": {"kind": "in_proces", "fn_name": "x"}}],
        "untestable": [task("t", "write f", "assert f(", fn_name="python_tests")],
        "no_expected": [{**task("t", "q", "a"), "verifier": {"kind": "in_process", "fn_name": "format_only"}}],
        "same_ids": [tasks[0], tasks[0]],
        "empty": [],
    }
    for name, content in files.items():
        write(folder, f"data/{name}.jsonl", "".join(json.dumps(row) + "\n" for row in content))
    good = json.dumps(rows[0])
    write(folder, "data/broken.jsonl", f'{good}\n{good}\n{{"query": "cut off\n{good}\n')
    write(folder, "data/nan.jsonl", f'{good}\n{{"query": "x", "tool": NaN}}\n')
    write(folder, "data/blank.jsonl", "\n\n\n")
    write(folder, "data/list.jsonl", "[1, 2]\n")
    write(folder, "data/rows.json", json.dumps(rows))
    write(folder, "data/object.json", json.dumps({"items": rows}))
    (folder / "data/latin.jsonl").write_bytes('{"query": "caf\u00e9", "tool": "x"}\n'.encode("latin-1"))
    (folder / "data/folder").mkdir()
    (folder / "models/good").mkdir(parents=True)
    write(folder, "models/good/config.json", "{}")
    write(folder, "models/no_config/readme.txt", "no model here")
    write(folder, "checkpoints/mock/state/manifest.json", json.dumps({"format": 1}))
    write(folder, "checkpoints/peft/state/manifest.json", json.dumps({"format": 1, "backend": "local"}))
    write(folder, "checkpoints/damaged/state/manifest.json", "{")
    (folder / "checkpoints/unfinished/state").mkdir(parents=True)
    agent = "class Agent:\n    async def run(self, task, policy, environment): ...\n"
    write(folder, "agents.py", f"class NoRun: ...\n\n\n{agent}")


def user(text: str) -> Config:
    return {"role": "user", "content": text}


def assistant(text: str) -> Config:
    return {"role": "assistant", "content": text}


def verifier(expected: Any, fn_name: str = "exact_match", params: Config | None = None) -> Config:
    found: Config = {"kind": "in_process", "fn_name": fn_name, "expected": expected}
    return found if params is None else {**found, "params": params}


def task(task_id: str, instruction: str, expected: Any, fn_name: str = "exact_match", **metadata: Any) -> Config:
    found: Config = {"task_id": task_id, "instruction": instruction, "verifier": verifier(expected, fn_name)}
    return {**found, "metadata": metadata} if metadata else found


def write(folder: Path, name: str, text: str) -> None:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
