"""A small project with one finished experiment, made once and copied for whoever wants to spoil it."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import random
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

from evsys_sdk.cli.main import main

from ..warm import run_evsys

TOOLS = ["MAIL", "CALENDAR", "MUSIC", "WEATHER", "TAXI", "NEWS"]
VERBS = ["start", "open", "show", "find", "please get"]
CONFIG = """
name: study
output_dir: outputs
n_repeats: 3
metadata:
  hypothesis: {{ claim: "more steps help", metric: test/tools/pass@1, baseline: short{about} }}
  benchmark: {{ name: tools, path: data/test.jsonl }}
runs:
  - name: short
    data: {data}
    model: {{ name: tiny }}
    algorithm: {{ kind: sft, params: {{ max_steps: 2, batch_size: 8, learning_rate: 0.02 }} }}
    backend: {{ kind: mock }}
  - name: long
    data: {data}
    model: {{ name: tiny{model} }}
    algorithm: {{ kind: sft, params: {{ max_steps: 40, batch_size: 8, learning_rate: 0.02 }} }}
    backend: {{ kind: mock }}
{more}
"""


def rows(rng: random.Random, count: int) -> list[tuple[str, str]]:
    """Questions and the tool that answers them."""
    found: dict[str, str] = {}
    while len(found) < count:
        tool = rng.choice(TOOLS)
        found[f"{rng.choice(VERBS)} {tool.lower()} {rng.randrange(1000)}"] = tool
    return list(found.items())


def write_lines(path: Path, lines: list[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")


def read_lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def chat(question: str, answer: str) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]}


def task(question: str, answer: str, *, verifier: str = "contains") -> dict[str, Any]:
    spec = {"kind": "in_process", "fn_name": verifier, "expected": answer}
    return {"task_id": f"t-{question.replace(' ', '-')}", "instruction": question, "verifier": spec}


def make_project(folder: Path, *, verifier: str = "contains", tasks: int = 24) -> None:
    """Data and benchmark, apart from each other."""
    rng = random.Random(7)
    found = rows(rng, 120 + tasks)
    write_lines(folder / "data/train.jsonl", [chat(*row) for row in found[tasks:]])
    write_lines(folder / "data/test.jsonl", [task(*row, verifier=verifier) for row in found[:tasks]])


def write_config(
    folder: Path, *, data: str = "{ path: data/train.jsonl }", model: str = "", about: str = "", more: str = ""
) -> None:
    text = CONFIG.format(data=data, model=model, about=about, more=more)
    (folder / "config.yaml").write_text(text, encoding="utf-8")


def evsys(folder: Path, *arguments: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """The command line in a process of its own, as an agent uses it."""
    return run_evsys(folder, *arguments, environment={"PYTHONPATH": str(folder), "NO_COLOR": "1", **(env or {})})


def main_in(folder: Path, *arguments: str) -> tuple[int, str]:
    """Exit code and standard output of a command that runs here: a process would only take its time."""
    with contextlib.chdir(folder), contextlib.redirect_stdout(io.StringIO()) as printed:
        return main([*arguments]), printed.getvalue()


def flags(folder: Path, *arguments: str) -> set[str]:
    """The names of what an audit flags, by the experiment's folder `study`."""
    code, printed = main_in(folder, "audit", "outputs/study", "--json", *arguments)
    assert code in (0, 2), printed
    [report] = json.loads(printed)
    return {check["name"] for check in report["checks"] if check["state"] == "flagged"}


def edit_json(path: Path, change: Callable[[Any], Any]) -> None:
    value = json.loads(path.read_text(encoding="utf-8"))
    changed = change(value)
    path.write_text(json.dumps(value if changed is None else changed), encoding="utf-8")


def edit_lines(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    lines = read_lines(path)
    for line in lines:
        change(line)
    write_lines(path, lines)


def rehash(journal: Path, change: Callable[[dict[str, Any]], dict[str, Any] | None] = dict) -> None:
    """Write a journal anew with a chain that holds, as somebody would who has read the source."""
    before = b""
    written: list[bytes] = []
    for event in read_lines(journal):
        changed = change(event)
        if changed is None:
            continue
        changed["prev"] = hashlib.sha256(before).hexdigest()[:32] if before else ""
        before = json.dumps(changed, ensure_ascii=False).encode()
        written.append(before + b"\n")
    journal.write_bytes(b"".join(written))
