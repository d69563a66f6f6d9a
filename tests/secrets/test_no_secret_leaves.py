"""Three hundred secrets are planted in an experiment; none reaches a file of the record or the terminal."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any

import pytest

from evsys_sdk.config.yaml_write import write_yaml

from ..inference import stand_in
from . import planted

pytestmark = pytest.mark.slow

EXTENSION = '''
import json, logging, os, sys, traceback, warnings
from pathlib import Path
from pydantic import BaseModel, ConfigDict
from evsys_sdk import register_transform, register_verifier
from evsys_sdk.registry import register_callback
from evsys_sdk.log import get_logger
from evsys_sdk.training.callback import Callback

QUOTED = json.loads(Path(__file__).with_name("quoted.json").read_text("utf-8"))


class Anything(BaseModel):
    model_config = ConfigDict(extra="allow")


def look_up(params):
    """Values that a config refers to by name, because it must not contain credentials."""
    return QUOTED["accounts"][params["account"]] if "account" in params else params


@register_transform("breaks")
class Breaks:
    """Fails, and quotes everything; in the check before the run only where that is asked for."""
    Config = Anything
    def __init__(self, **params):
        self.params = look_up(params)
    def __call__(self, rows):
        if "BREAKS_EARLY" not in os.environ and any("preflight" in one.filename for one in traceback.extract_stack()):
            yield from rows
            return
        if "SAYS_NOTHING" not in os.environ:
            get_logger("project").warning("about to fail with %s", QUOTED["logged"])
            print("printed", QUOTED["logged"], file=sys.stderr)
        try:
            raise KeyError(str(self.params))
        except KeyError as error:
            raise RuntimeError("cannot go on: " + " | ".join(QUOTED["raised"])) from error


@register_transform("passes")
class Passes:
    """Leaves the rows as they are."""
    Config = Anything
    def __init__(self, **params):
        self.params = look_up(params)
    def __call__(self, rows):
        return rows


@register_verifier("quotes")
def quotes(completion, expected):
    raise ValueError(QUOTED["raised"][hash(expected) % len(QUOTED["raised"])] + " " + expected)


@register_verifier("tells")
def tells(completion, expected):
    from evsys_sdk.protocols import VerificationResult
    return VerificationResult(0.5, {"why": expected, "env": dict(os.environ)})


@register_callback("talks")
class Talks(Callback):
    """Logs what it was given."""
    Config = Anything
    name = "talks"
    def __init__(self, **params):
        self.params = look_up(params)
    def on_run_start(self, info, control):
        get_logger("project").warning("params %s", self.params)
    def on_step(self, step, metrics):
        raise RuntimeError(f"no tracker at {self.params}")
'''

PROGRAM = """
import json, sys
from pathlib import Path
import ext
from evsys_sdk import ExperimentConfig
from evsys_sdk.experiment import Experiment

if __name__ == "__main__":
    config = ExperimentConfig.model_validate(json.loads(Path("program.json").read_text("utf-8")))
    sys.exit(Experiment(config).run().exit_code)
"""
"""Runs an experiment whose config is no YAML file."""


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Generator[stand_in.StandIn]:
    """A provider that refuses, and quotes in its refusal what it likes."""
    server = stand_in.StandIn(lambda seen: stand_in.Reply(401, {"error": {"message": " ".join(REFUSED)}}))
    yield server
    server.close()


REFUSED = planted.by_shape()
ROWS = [secret for _ in range(2) for secret in planted.by_shape()]
HYPOTHESES, DESCRIPTIONS, TASKS, NOTES = (planted.by_shape() for _ in range(4))
LOGGED, RAISED = planted.by_shape(), planted.by_shape()
PARAMS = [planted.named() for _ in range(3)]
NESTED = {"tracker": {"credentials": {"user": PARAMS[2]["api_key"], "list": list(PARAMS[2].values())}}}
ACCOUNTS: dict[str, dict[str, Any]] = {
    "plain": PARAMS[0],
    "broken": PARAMS[1],
    "asked": PARAMS[2],
    "tracker": {**PARAMS[1], **NESTED},
}


def quoted() -> dict[str, Any]:
    forms = [form for value in planted.ENVIRONMENT.values() for form in planted.encoded(value)]
    return {
        "logged": [*LOGGED, *forms[::2], *planted.ADDRESSES],
        "raised": [*RAISED, *forms, *planted.ADDRESSES, *planted.HEADERS],
        "accounts": ACCOUNTS,
    }


def secrets() -> set[str]:
    """Everything that must not be found; of a private key, each of its lines."""
    shaped = [*REFUSED, *ROWS, *HYPOTHESES, *DESCRIPTIONS, *TASKS, *NOTES, *LOGGED, *RAISED]
    lines = {line for secret in shaped for line in secret.split("\n") if "-----" not in line}
    forms = {left for value in planted.ENVIRONMENT.values() for left in planted.encoded(value).values()}
    named = {value for params in PARAMS for value in params.values()}
    return lines | forms | named | set(planted.ADDRESSES.values()) | set(planted.HEADERS.values())


def project(folder: Path, url: str) -> None:
    (folder / "ext.py").write_text(EXTENSION, "utf-8")
    (folder / "quoted.json").write_text(json.dumps(quoted()), "utf-8")
    chats = [
        {"messages": [{"role": "user", "content": f"what is {row}?"}, {"role": "assistant", "content": "a word"}]}
        for row in ROWS
    ]
    _write_lines(folder / "rows.jsonl", chats)
    for verifier in ("quotes", "tells"):
        spec = {"kind": "in_process", "fn_name": verifier}
        _write_lines(
            folder / f"{verifier}.jsonl",
            [
                {"task_id": f"t{n}", "instruction": f"{verifier} {text}", "verifier": {**spec, "expected": text}}
                for n, text in enumerate(TASKS)
            ],
        )
    named = {account: {"account": account} for account in ACCOUNTS}
    (folder / "config.yaml").write_text(write_yaml(experiment("leaky", named, url)), "utf-8")
    (folder / "literal.yaml").write_text(write_yaml(experiment("literal", ACCOUNTS, url)), "utf-8")
    (folder / "program.json").write_text(json.dumps(experiment("program", named, url)), "utf-8")
    (folder / "program.py").write_text(PROGRAM, "utf-8")


def experiment(name: str, params: dict[str, dict[str, Any]], url: str) -> dict[str, Any]:
    """A config whose classes get these params."""

    def run(name: str, transform: str, **more: Any) -> dict[str, Any]:
        data = {"path": "rows.jsonl", "transforms": [{"kind": transform, "params": params[name]}]}
        algorithm = {"kind": "sft", "params": {"max_steps": 2, "batch_size": 2}}
        model, backend = {"name": "tiny"}, {"kind": "mock"}
        return {"name": name, "data": data, "model": model, "algorithm": algorithm, "backend": backend, **more}

    inference = {
        "kind": "openai",
        "params": {"model": "m", "base_url": url, "api_key_env": "SIGNING_KEY", "attempts": 1},
    }
    scored = {
        "metrics": [{"kind": "exact_match"}],
        "inference": inference,
        "n_samples": 2,
        "eval_data": {"path": "rows.jsonl"},
    }
    return {
        "name": name,
        "description": " ".join(DESCRIPTIONS),
        "output_dir": "outputs",
        "max_concurrent_arms": 2,
        "callbacks": [{"kind": "local_logger"}, {"kind": "talks", "params": params["tracker"]}],
        "metadata": {
            "hypothesis": {"claim": " ".join(HYPOTHESES), "metric": "pass@1", "min_effect": 0.1, "baseline": "plain"},
            "benchmark": [
                {"path": "quotes.jsonl", "split": "test", "name": "quotes", "max_tokens": 3},
                {"path": "tells.jsonl", "split": "val", "name": "tells", "max_tokens": 3},
            ],
        },
        "runs": [
            run("plain", "passes"),
            run("broken", "breaks"),
            run("asked", "passes", eval=scored),
        ],
    }


def _write_lines(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")


def test_none_of_three_hundred_secrets_leaves(tmp_path: Path, server: stand_in.StandIn) -> None:
    project(tmp_path, server.url)
    planted_ones = secrets()
    assert len(planted_ones) >= 300
    mine = {path.name for path in tmp_path.iterdir()}
    environment = {**os.environ, **planted.ENVIRONMENT, "NO_PROXY": "127.0.0.1", "PYTHONPATH": str(tmp_path)}

    def python(*arguments: str) -> subprocess.CompletedProcess[bytes]:
        command = [sys.executable, *arguments]
        return subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, timeout=300, check=False)

    def evsys(*arguments: str) -> subprocess.CompletedProcess[bytes]:
        return python("-m", "evsys_sdk", "--log-level", "debug", *arguments)

    commands = (
        ("validate", "config.yaml", "--deep", "--import", "ext"),
        ("run", "config.yaml", "--import", "ext"),
        ("show", "leaky"),
        ("show", "leaky", "--json"),
        ("note", "leaky", f"tried with {' '.join(NOTES)}"),
        ("conclude", "leaky"),
        ("history", "--json"),
        ("context",),
        ("compare", "leaky/plain", "leaky/asked", "--json"),
        ("run", "config.yaml", "--import", "ext", "--resume", "--json"),
        ("run", "config.yaml", "--import", "ext", "--fresh", "--detach"),
        ("attach", "outputs/leaky.2"),
    )
    environment["BREAKS_EARLY"] = "yes"
    refused = {f"refused {as_json}": evsys(*commands[0], *as_json) for as_json in ((), ("--json",))}
    assert {done.returncode for done in refused.values()} == {1}
    del environment["BREAKS_EARLY"]
    literal = {
        f"literal {verb} {as_json}": evsys(verb, "literal.yaml", "--import", "ext", *as_json)
        for verb in ("validate", "run")
        for as_json in ((), ("--json",))
    }
    for done in literal.values():
        assert done.returncode == 1, done.stderr.decode()
        assert b"callbacks[1].params.api_key" in done.stdout + done.stderr
        assert b"a config must not contain credentials" in done.stdout + done.stderr
    assert not (tmp_path / "outputs").exists()
    outputs = {f"{number} {command[0]}": evsys(*command) for number, command in enumerate(commands)}
    environment["SAYS_NOTHING"] = "yes"  # what a program prints to its own terminal is its own
    outputs |= refused | literal | {"program": python("program.py"), "show program": evsys("show", "program", "--json")}
    for name in ("1 run", "program"):
        assert outputs[name].returncode == 2, outputs[name].stderr.decode()
    assert server.seen
    files = [path for path in tmp_path.rglob("*") if path.is_file() and path.name not in mine]
    # Data is data: what the workspace keeps of it is what will be trained on and scored.
    stored_rows = ("benchmarks/*.jsonl", "datasets/*.jsonl", "sealed/*")
    copies = [path for pattern in stored_rows for path in tmp_path.glob(f".evsys/{pattern}")]
    files = [path for path in files if "__pycache__" not in path.parts and path not in copies]
    assert len(files) > 20
    texts = {str(path.relative_to(tmp_path)): path.read_bytes() for path in files}
    texts |= {f"stdout of {name}": done.stdout for name, done in outputs.items()}
    texts |= {f"stderr of {name}": done.stderr for name, done in outputs.items()}
    for name in ("leaky", "program"):
        assert b"[redacted]" in texts[f"outputs/{name}/broken/run_result.json"]
    assert b"[redacted]" in texts["outputs/program/config.json"]
    leaks = [(place, one) for place, text in texts.items() for one in planted_ones if one.encode() in text]
    assert not leaks, leaks[:20]
