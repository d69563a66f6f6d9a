"""Small runs of several recipes, as the part of a YAML that does not name a backend."""

from __future__ import annotations

from typing import Any

TOOLS = ["play_music", "send_email", "set_alarm", "weather"]
CHATS = [
    {
        "messages": [
            {"role": "user", "content": f"route {n}: {tool.replace('_', ' ')}"},
            {"role": "assistant", "content": tool},
        ]
    }
    for n in range(3)
    for tool in TOOLS
]
PAIRS = [
    {"prompt": f"route: {tool.replace('_', ' ')}", "chosen": tool, "rejected": f"I think {tool}"} for tool in TOOLS * 2
]
TASKS = [
    {
        "task_id": f"t{n}",
        "instruction": f"answer with the letter {letter}",
        "verifier": {"kind": "in_process", "fn_name": "contains", "expected": letter},
    }
    for n, letter in enumerate("abcd")
]


def rows(found: list[dict[str, Any]]) -> dict[str, Any]:
    return {"source_kind": "in_memory", "rows": found}


RECIPES: dict[str, dict[str, Any]] = {
    "sft": {
        "data": rows(CHATS),
        "algorithm": {"kind": "sft", "params": {"max_steps": 8, "batch_size": 4, "save_every": 3}},
    },
    "dpo": {
        "data": rows(PAIRS),
        "algorithm": {"kind": "dpo", "params": {"max_steps": 5, "batch_size": 4, "save_every": 3}},
    },
    "rl": {
        "data": rows(TASKS),
        "algorithm": {
            "kind": "rl",
            "params": {
                "max_steps": 4,
                "batch_size": 4,
                "group_size": 6,
                "sampling": {"max_tokens": 6},
                "kl_coefficient": 0.05,
                "learning_rate": 0.002,
            },
        },
    },
    "rl_gspo": {
        "data": rows(TASKS),
        "algorithm": {
            "kind": "rl",
            "params": {
                "max_steps": 4,
                "batch_size": 4,
                "group_size": 6,
                "loss_fn": "gspo",
                "updates_per_batch": 2,
                "sampling": {"max_tokens": 6},
            },
        },
    },
    "sdft": {
        "data": rows(CHATS),
        "algorithm": {
            "kind": "sdft",
            "params": {"max_steps": 3, "batch_size": 4, "top_k": 8, "sampling": {"max_tokens": 10}},
        },
    },
    "sdft_reverse": {
        "data": rows(CHATS),
        "algorithm": {
            "kind": "sdft",
            "params": {
                "max_steps": 3,
                "batch_size": 4,
                "top_k": 8,
                "divergence": "reverse",
                "sampling": {"max_tokens": 10},
            },
        },
    },
}
