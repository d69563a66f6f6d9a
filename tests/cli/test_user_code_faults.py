"""Faults of user code of every kind under every verb: none hangs, none ends with exit code 0, none prints a result."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from itertools import cycle
from pathlib import Path

import pytest

from ..warm import run_evsys

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

OWN = """
import os, re, sys, time
from evsys_sdk import (
    Callback, RunResult, register_agent, register_algorithm, register_backend, register_callback, register_data_store,
    register_deployer, register_environment, register_inference, register_launcher, register_log_store, register_metric,
    register_transform, register_verifier,
)
from evsys_sdk.backends.mock.backend import MockBackend
from evsys_sdk.data.stores.local import LocalDataStore

def fault(place):
    if os.environ.get("FAULT_AT") == place:
        exec(os.environ["FAULT"])

fault("import")

@register_transform("mine")
class Mine:
    def __call__(self, rows):
        fault("transform")
        return list(rows)

@register_verifier("mine")
def verify(model_output, expected, params):
    fault("verifier")
    return 1.0

@register_metric("mine")
class Metric:
    def compute(self, task_rewards):
        fault("metric")
        return 0.5

@register_inference("mine")
class Client:
    def generate(self, *, prompt, max_tokens, temperature, stop=None):
        fault("client")
        return "1"

@register_agent("mine")
class Agent:
    async def run(self, task, policy, environment):
        fault("agent")
        await policy.act([{"role": "user", "content": task.instruction}])
        return 1.0

@register_environment("mine")
class Environment:
    async def start(self): fault("environment")
    async def exec(self, command, **options): raise NotImplementedError
    async def write_file(self, path, data): pass
    async def read_file(self, path): return b""
    async def stop(self): pass

@register_algorithm("mine")
class Algorithm:
    def train(self, ctx):
        fault("algorithm")
        return RunResult(ctx.run_id, "completed", {})

@register_backend("mine")
class Backend(MockBackend):
    def prepare(self, *, model, run_dir):
        fault("backend")
        return super().prepare(model=model, run_dir=run_dir)

@register_data_store("mine")
class Files(LocalDataStore):
    def __init__(self, **params):
        fault("data_store")
        super().__init__(**params)

@register_log_store("mine")
class Store:
    def __init__(self, **params): pass
    def log_scalar(self, key, value, step): pass
    def log_metrics(self, metrics, step): pass
    def log_hyperparams(self, params): fault("log_store")
    def log_artifact(self, name, path): pass
    def close(self): pass

@register_callback("mine")
class Mine2(Callback):
    def on_step(self, step, metrics): fault("callback")
    def on_experiment_end(self, folder): fault("experiment_end")

@register_launcher("mine")
class Launcher:
    def open(self, launch, n_arms):
        fault("launcher_open")
        return 1
    def start(self, job):
        fault("launcher_start")
        raise RuntimeError("no machine")
    def stop(self, arm, reason): pass
    def kill(self, arm): pass
    def close(self): fault("launcher_close")

@register_deployer("mine")
class Deployer:
    library = ""
    def build(self, source, folder):
        fault("deployer")
        raise RuntimeError("no place")
"""
CONFIG = """
name: faults
output_dir: outputs
arm_timeout_s: 60
metadata:
  benchmark:
    name: unseen
    path: test.jsonl
    transforms:
      - &chat {kind: jsonl_to_chat, params: {user_template: "{q}", assistant_template: "{a}"}}
      - {kind: chat_to_harbor_task, params: {fn_name: exact_match}}
    max_tokens: 4
runs:
  - name: a
    data: {path: train.jsonl, transforms: [*chat]}
    model: {name: tiny}
    algorithm: {kind: sft, params: {max_steps: 1}}
    backend: {kind: mock}
"""
USES = {
    "transform": ("[*chat]", "[{kind: mine}, *chat]"),
    "verifier": ("exact_match", "mine"),
    "metric": ("max_tokens: 4", "max_tokens: 4\n    metrics: [pass@1, mine]"),
    "algorithm": ("{kind: sft, params: {max_steps: 1}}", "{kind: mine}"),
    "backend": ("{kind: mock}", "{kind: mine}"),
    "data_store": ("runs:", "data_store: {kind: mine}\nruns:"),
    "log_store": ("runs:", "log_store: {kind: mine}\nruns:"),
    "callback": ("runs:", "callbacks: [{kind: mine}]\nruns:"),
    "experiment_end": ("runs:", "callbacks: [{kind: mine}]\nruns:"),
    "launcher_open": ("runs:", "launcher: {kind: mine}\nruns:"),
    "launcher_start": ("runs:", "launcher: {kind: mine}\nruns:"),
    "launcher_close": ("runs:", "launcher: {kind: mine}\nruns:"),
}
"""Place of the fault -> what makes the config use it."""
_SCORE = ("benchmark", "run", "tasks.jsonl", "--inference", "mine", "--metrics", "pass@1,mine")
_MODEL = ("--output-dir", "answers", "--inference-kind", "mine", "--model-name", "m")
VERBS = {
    "list": ("list", "transform"),
    "schema": ("schema", "transform", "mine"),
    "validate": ("validate", "c.yaml", "--deep"),
    "plan": ("plan", "c.yaml"),
    "contamination": ("contamination", "c.yaml"),
    "run": ("run", "c.yaml", "--quiet"),
    "benchmark": (*_SCORE, "--agent", "mine", "--environment", "mine"),
    "score": _SCORE,
    "eval": ("eval", "model", "--dataset", "eval.jsonl", "--aliases", "aliases.json", *_MODEL),
    "deploy": ("deploy", "trained", "--to", "mine"),
    "errors": ("errors", "trained"),
    "doctor": ("doctor",),
    "loop": ("loop", "system.yaml"),
    "campaign": ("campaign", "run", "night"),
    "audit": ("audit", "judged"),
    "gate": ("gate", "judged", "--against", "base", "--policy", "policy.yaml"),
}
PLACES = (
    *(("import", verb) for verb in ("list", "schema", "validate", "plan", "eval", "deploy", "run")),
    *(("import", verb) for verb in ("benchmark", "errors", "doctor", "loop", "campaign")),
    *(("data_store", verb) for verb in ("validate", "run")),
    *(("transform", verb) for verb in ("validate", "plan", "contamination", "run")),
    *((place, "benchmark") for place in ("agent", "environment", "client", "metric")),
    *(("verifier", verb) for verb in ("score", "run")),
    ("client", "eval"), ("metric", "run"), ("algorithm", "run"), ("backend", "run"), ("log_store", "run"),
    ("callback", "run"), ("experiment_end", "run"),
    *((place, "audit") for place in ("import", "verifier", "metric")), ("verifier", "gate"),
    ("launcher_open", "run"), ("launcher_start", "run"), ("launcher_close", "run"), ("deployer", "deploy"),
)  # fmt: skip
ENDS = {
    "ends the process": "os._exit(0)",
    "becomes another program": "os.execv('/bin/true', ['true'])",
    "crashes": "os.abort()",
}
"""The parent sees the same of all three: one of them at each place, in turn."""
FAULTS = {"exits": "sys.exit(0)", "hangs": "time.sleep(100)"}
"""Handled by the code around the call: each at every place."""
ODD_FAULTS = {
    "lets a child go on in its place": "os.fork() and os._exit(0)",
    "stops itself": "import signal; os.kill(os.getpid(), signal.SIGSTOP)",
    "waits uninterrupted": "import signal\nfor n in (2, 15): signal.signal(n, signal.SIG_IGN)\ntime.sleep(99)",
    "waits for itself": "import threading; lock = threading.Lock(); lock.acquire(); lock.acquire()",
    "ends its group": "import signal; os.killpg(0, signal.SIGKILL)",
    "ends in a thread": "import threading; one = threading.Thread(target=os._exit, args=(0,)); one.start(); one.join()",
    "ends when its error is printed": "raise type('E', (Exception,), {'__str__': lambda self: os._exit(0)})",
    "raises no exception": "raise BaseExceptionGroup('g', [SystemExit(0)])",
    "uses up its time": "import resource; resource.setrlimit(resource.RLIMIT_CPU, (1, 1))\nwhile True: pass",
    "exceeds the stack": "sys.setrecursionlimit(10**9); f = lambda g: g(g); f(f)",
    "closes all descriptors": "os.closerange(0, 200); os._exit(0)",
    "prints without end": "\nwhile True: os.write(1, b'x' * 65536)",
    "becomes another Python": "os.execv(sys.executable, [sys.executable, '-c', 'print({})'])",
}
"""Each at two of the stages of a command; those that wait end at a limit of three seconds."""
WAITING = {"hangs", "stops itself", "waits uninterrupted", "waits for itself", "prints without end"}
ODD_PLACES = (("import", "validate"), ("transform", "run"), ("callback", "run"), ("verifier", "score"))
CASES = [(*place, fault) for place in PLACES for fault in FAULTS]
CASES += [(*place, fault) for place, fault in zip(PLACES, cycle(ENDS))]
CASES += [(*ODD_PLACES[(i + j) % 4], fault) for i, fault in enumerate(ODD_FAULTS) for j in (0, 2)]


def write_rows(folder: Path) -> None:
    for name, word in (("train", "what"), ("test", "which")):
        rows = [json.dumps({"q": f"{word} {number}", "a": str(number % 3)}) for number in range(12)]
        (folder / f"{name}.jsonl").write_text("\n".join(rows), encoding="utf-8")


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project with one trained experiment."""
    folder = tmp_path_factory.mktemp("faults")
    (folder / "own.py").write_text(OWN, encoding="utf-8")
    (folder / "c.yaml").write_text(CONFIG.replace("name: faults", "name: trained"), encoding="utf-8")
    write_rows(folder)
    task = {"instruction": "q", "verifier": {"kind": "in_process", "fn_name": "mine", "expected": "1"}}
    tasks = [json.dumps({"task_id": f"t{number}", **task}) for number in range(2)]
    (folder / "tasks.jsonl").write_text("\n".join(tasks), encoding="utf-8")
    (folder / "eval.jsonl").write_text(json.dumps({"query": "q", "tool_slug": "1"}), encoding="utf-8")
    (folder / "aliases.json").write_text("{}", encoding="utf-8")
    done = evsys(folder, "run", "c.yaml", "--quiet")
    assert done.returncode == 0, done.stderr
    judged = CONFIG.replace("name: faults", "name: judged").replace("exact_match", "mine")
    judged = judged.replace("max_tokens: 4", "max_tokens: 4\n    models: [base]\n    metrics: [pass@1, mine]")
    (folder / "judged.yaml").write_text(judged, encoding="utf-8")
    (folder / "policy.yaml").write_text("target: {metric: test/unseen/pass@1}\n", encoding="utf-8")
    done = evsys(folder, "run", "judged.yaml", "--quiet")
    assert done.returncode == 0, done.stderr
    assert evsys(folder, *VERBS["audit"]).returncode == 0
    (folder / "system.yaml").write_text("name: live\n", encoding="utf-8")
    return folder


def evsys(folder: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    limit = {"EVSYS_USER_CODE_TIMEOUT_S": "60", **environment}
    return run_evsys(folder, *arguments, "--import", "own.py", environment=limit)


def test_the_table_is_long_enough() -> None:
    assert len(CASES) >= 120


@pytest.mark.parametrize(("place", "verb", "fault"), CASES)
def test_no_fault_of_user_code_hangs_or_succeeds(
    project: Path, tmp_path: Path, place: str, verb: str, fault: str
) -> None:
    folder = Path(shutil.copytree(project, tmp_path / "p", ignore=shutil.ignore_patterns("__pycache__")))
    config = CONFIG
    for old, new in [USES[place]] if place in USES else []:
        config = config.replace(old, new)
    if fault in WAITING:
        config = config.replace("arm_timeout_s: 60", "arm_timeout_s: 3")
    (folder / "c.yaml").write_text(config, encoding="utf-8")
    limit = {"EVSYS_USER_CODE_TIMEOUT_S": "3"} if fault in WAITING else {}
    done = evsys(folder, *VERBS[verb], FAULT_AT=place, FAULT=(ENDS | FAULTS | ODD_FAULTS)[fault], **limit)
    assert done.returncode in (1, 2), done.stderr
    told = done.stdout if verb in ("audit", "gate") else done.stderr
    assert told.strip()
    assert "Traceback" not in done.stderr
    if place == "import" and verb != "audit":
        assert "importing 'own.py'" in told or "its process was ended" in told, told
    if verb == "audit":
        assert "instead of judging" in told, told
    if verb == "gate":
        assert "could not be judged again" in told or "instead of judging" in told, told


@pytest.mark.parametrize(
    ("place", "fault"), [("import", "ends the process"), ("transform", "exits"), ("import", "hangs")]
)
def test_no_fault_ends_the_mcp_server_or_its_answers(project: Path, tmp_path: Path, place: str, fault: str) -> None:
    folder = Path(shutil.copytree(project, tmp_path / "p", ignore=shutil.ignore_patterns("__pycache__")))
    (folder / "pyproject.toml").write_text('[tool.evsys]\nimports = ["own"]\n', encoding="utf-8")
    (folder / "c.yaml").write_text(CONFIG.replace(*USES["transform"]), encoding="utf-8")
    limit = {"EVSYS_USER_CODE_TIMEOUT_S": "3"} if fault == "hangs" else {}
    told = {**os.environ, "FAULT_AT": place, "FAULT": (ENDS | FAULTS)[fault], **limit}
    command = [sys.executable, "-m", "evsys_sdk", "mcp"]
    with subprocess.Popen(
        command, cwd=folder, env=told, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        for number in (1, 2):
            params = {"name": "validate", "arguments": {"config": "c.yaml"}}
            request = {"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": params}
            server.stdin.write(json.dumps(request).encode() + b"\n")
            server.stdin.flush()
            answer = json.loads(server.stdout.readline())
            assert answer["id"] == number
            assert answer["result"]["isError"] is True, answer
        server.stdin.close()
        assert server.wait(60) == 0


def test_campaigns_import_no_user_code(project: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(project, tmp_path / "p"))
    (folder / "pyproject.toml").write_text('[tool.evsys]\nimports = ["own"]\n', encoding="utf-8")
    done = run_evsys(folder, "campaign", "list", environment={"FAULT_AT": "import", "FAULT": "os._exit(3)"})
    assert done.returncode == 0, done.stderr
