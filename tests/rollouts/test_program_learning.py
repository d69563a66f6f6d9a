"""A policy learns inside a program that it does not know, thirty-two at a time, also when the run is killed."""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from ..warm import run_evsys, start_evsys

pytestmark = [pytest.mark.slow, pytest.mark.e2e]

PROGRAM = """\
import json, os, socket, sys  # a client of the standard library would take longer to import than the program runs

def ask(messages):
    host, _, path = os.environ["OPENAI_BASE_URL"].removeprefix("http://").partition("/")
    body = json.dumps({"model": "m", "messages": messages}).encode()
    head = f"POST /{path}/chat/completions HTTP/1.1\\r\\nHost: {host}\\r\\nConnection: close\\r\\n"
    head += f"Authorization: Bearer {os.environ['OPENAI_API_KEY']}\\r\\nContent-Length: {len(body)}\\r\\n\\r\\n"
    name, _, port = host.partition(":")
    with socket.create_connection((name, int(port))) as connection:
        connection.sendall(head.encode() + body)
        status, _, answer = connection.makefile("rb").read().partition(b"\\r\\n")
    assert b" 200 " in status, answer
    return json.loads(answer.partition(b"\\r\\n\\r\\n")[2])["choices"][0]["message"]

messages = [{"role": "user", "content": sys.argv[1]}]
messages.append(ask(messages))
messages.append({"role": "user", "content": "Once more.\\n- red\\n- green\\n- blue\\nAnswer with one of them."})
ask(messages)
"""
ARGUMENTS = ("run", "config.yaml", "--quiet", "--resume")


def make_project(folder: Path, *, steps: int, batch: int, group: int, environment: str) -> None:
    folder.mkdir()
    tasks = [
        {
            "task_id": f"t{number}",
            "instruction": f"Number {number}, colours:\n- red\n- green\n- blue\nAnswer with one of them.",
            "verifier": {"kind": "in_process", "fn_name": "contains", "expected": "green"},
        }
        for number in range(batch)
    ]
    (folder / "tasks.jsonl").write_text("".join(json.dumps(task) + "\n" for task in tasks), encoding="utf-8")
    (folder / "agent.py").write_text(PROGRAM, encoding="utf-8")
    python = "python3" if environment == "bwrap" else sys.executable
    agent = {
        "kind": "program",
        "params": {"command": f"{python} agent.py {{instruction}}", "files": {"agent.py": PROGRAM}, "api": "chat"},
    }
    params = {
        "max_steps": steps,
        "batch_size": batch,
        "group_size": group,
        "concurrency": batch * group,
        "save_every": 2,
        "sampling": {"max_tokens": 8},
        "agent": agent,
        "environment": {"kind": environment},
    }
    config = {
        "name": "e",
        "output_dir": "outputs",
        "run": {
            "name": "r",
            "data": {"path": "tasks.jsonl"},
            "model": {"name": "tiny"},
            "algorithm": {"kind": "rl", "params": params},
            "backend": {"kind": "mock"},
        },
    }
    (folder / "config.yaml").write_text(json.dumps(config), encoding="utf-8")


def run(folder: Path) -> None:
    done = run_evsys(folder, *ARGUMENTS)
    assert done.returncode == 0, done.stderr


def steps_of(folder: Path) -> list[dict[str, Any]]:
    """The metrics of each step without those that are times."""
    lines = (folder / "outputs" / "e" / "r" / "logs" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    metrics = [json.loads(line) for line in lines]
    return [{key: value for key, value in line.items() if "time" not in key} for line in metrics]


@pytest.mark.skipif(shutil.which("bwrap") is None, reason="needs bubblewrap")
def test_reward_rises_over_twenty_steps_of_thirty_two_programs(tmp_path: Path) -> None:
    folder = tmp_path / "project"
    make_project(folder, steps=20, batch=4, group=8, environment="bwrap")
    run(folder)
    rewards = [line["reward/mean"] for line in steps_of(folder) if "reward/mean" in line]
    assert sum(rewards[-3:]) / 3 > sum(rewards[:3]) / 3 + 0.3, rewards


def test_a_run_with_programs_that_is_killed_ends_like_one_that_was_not(tmp_path: Path) -> None:
    quiet, killed = tmp_path / "quiet", tmp_path / "killed"
    for folder in (quiet, killed):
        make_project(folder, steps=8, batch=2, group=4, environment="unsafe_host")
    run(quiet)
    for after in (3, 6):
        with open(os.devnull, "wb") as null:
            command = start_evsys(killed, *ARGUMENTS, out=null.fileno(), err=null.fileno())
        reached = time.monotonic() + 120
        while time.monotonic() < reached and not command.ended and _lines(killed) < after:
            time.sleep(0.02)
        command.kill()
        command.wait()
    run(killed)
    assert steps_of(killed) == steps_of(quiet)


def _lines(folder: Path) -> int:
    path = folder / "outputs" / "e" / "r" / "logs" / "metrics.jsonl"
    return len(path.read_text(encoding="utf-8").splitlines()) if path.exists() else 0
