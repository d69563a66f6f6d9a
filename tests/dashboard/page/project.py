"""A project with one real experiment of each kind, small enough to be made for every session of tests."""

from __future__ import annotations

import base64
import json
import shutil
import struct
import zlib
from contextlib import chdir
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any

from evsys_sdk import Experiment
from evsys_sdk.config import ExperimentConfig
from evsys_sdk.data.workspace.workspace import Workspace
from evsys_sdk.experiment.conclusion.write import conclude
from evsys_sdk.history.notes import invalidate
from evsys_sdk.loop.loop import Loop
from evsys_sdk.loop.system import load_system

from ...loop.scenario import add_chapter, write_system

EXAMPLES = Path(__file__).parents[3] / "examples"
ROWS, TASKS = EXAMPLES / "01_quickstart/data/train.jsonl", EXAMPLES / "03_benchmark/data/test.jsonl"
TRAIN, TEST = "data/train.jsonl", "data/test.jsonl"
HOSTILE = "<img src=x onerror=\"document.title='hacked'\"><script>document.title='hacked'</script>"


def make_project(root: Path) -> dict[str, str]:
    """Run every experiment; returns name -> id."""
    (root / ".evsys").mkdir()
    _write_rows(root / TRAIN)
    runs = [_sweep, _too_hot, _rl, _continual, _search, _invalid]
    ids: dict[str, str] = {}
    for make in runs:
        config = ExperimentConfig.model_validate({"output_dir": "outputs"} | make())
        with chdir(root):
            Experiment(config).run()
        ids[config.name] = experiment_id(root / "outputs" / config.name)
    with chdir(root):  # what reads the history keeps its index in the project
        _add_training_rollouts(root / "outputs" / "rl" / "rl")
        invalidate(root / "outputs" / "invalid", "the verifier accepted everything")
        conclude(root / "outputs" / "invalid")
        _add_pictures(root)
    return ids


def make_looped(root: Path) -> None:
    """A closed loop: one round shipped, one refused, and one that waits for a person."""
    with chdir(root):
        write_system(root)
        for chapter in ("1-good", "2-poisoned"):
            add_chapter(root, chapter)
            list(Loop(load_system("system.yaml")).steps())
        system = Path("system.yaml")
        system.write_text(system.read_text("utf-8") + "approve: [experiment]\n", "utf-8")
        add_chapter(root, "3-novel")
        list(Loop(load_system("system.yaml")).steps())


def make_decided(root: Path) -> str:
    """An experiment that ends as soon as its claim is decided, which takes it more than one look; returns its id."""
    _write_rows(root / TRAIN)
    claim = {"claim": "Eleven steps route better than nine.", "metric": "pass@1", "baseline": "short"}
    config = {
        "name": "decided",
        "output_dir": "outputs",
        "metadata": {"hypothesis": claim, "success_metric": "pass@1", "benchmark": [_benchmark(30)]},
        "n_repeats": 10,
        "until": "decided",
        "runs": [
            _run(name, {"max_steps": steps, "batch_size": 16, "learning_rate": 3e-3})
            for name, steps in (("short", 9), ("long", 11))
        ],
    }
    with chdir(root):
        Experiment(ExperimentConfig.model_validate(config)).run()
    return experiment_id(root / "outputs" / "decided")


def _write_rows(target: Path) -> None:
    """Rows to train on and tasks; no row holds a task, so that no experiment is flagged unless it means to be."""
    tasks = [json.loads(line)["query"].casefold() for line in TASKS.read_text("utf-8").splitlines()]
    target.parent.mkdir(parents=True)
    shutil.copy(TASKS, target.with_name(Path(TEST).name))
    with target.open("w", encoding="utf-8") as file:
        for line in ROWS.read_text("utf-8").splitlines():
            query = json.loads(line)["query"].casefold()
            if all(SequenceMatcher(None, query, task).ratio() < 0.75 for task in tasks):
                file.write(line + "\n")


def experiment_id(folder: Path) -> str:
    with (folder / "journal.jsonl").open(encoding="utf-8") as lines:
        return json.loads(next(lines))["experiment_id"]


def write_live_config(root: Path, steps: int) -> Path:
    """An experiment that takes a while: something to watch."""
    config = {"name": "live", "output_dir": str(root / "outputs"), "metadata": {"hypothesis": "It can be watched."}}
    path = root / "live.yaml"
    _write_rows(root / TRAIN)
    path.write_text(json.dumps(config | {"run": _run("slow", {"max_steps": steps})}), "utf-8")
    return path


def _run(name: str, params: dict[str, Any], **changes: Any) -> dict[str, Any]:
    to_chat = {
        "kind": "jsonl_to_chat",
        "params": {
            "user_template": "Which tool answers this? {query}",
            "assistant_template": "<answer>{tool_slug}</answer>",
        },
    }
    return {
        "name": name,
        "data": {"path": TRAIN, "transforms": [to_chat]},
        "model": {"name": "tiny-router"},
        "algorithm": {"kind": "sft", "params": params},
        "backend": {"kind": "mock"},
    } | changes


def _benchmark(n_tasks: int = 16, **changes: Any) -> dict[str, Any]:
    entry = {"name": "routing", "path": TEST, "split": "test", "metrics": ["pass@1"], "max_tokens": 32}
    return entry | {"n_tasks": n_tasks} | changes


def _sweep() -> dict[str, Any]:
    claim = {
        "claim": "Longer training routes better.",
        "metric": "pass@1",
        "min_effect": 0.05,
        "baseline": "s__max_steps4",
    }
    return {
        "name": "sweep",
        "description": "How long to train.",
        "metadata": {
            "hypothesis": claim | {"baseline": "s__max_steps4"},
            "success_metric": "pass@1",
            "tags": ["routing", "sweep"],
            "benchmark": [_benchmark(48)],
        },
        "n_repeats": 3,
        "base_run": _run("s", {"max_steps": 4}),
        "matrix": {"axes": {"algorithm.params.max_steps": [4, 20, 36]}},
        "callbacks": [{"kind": "local_logger"}],
    }


def _too_hot() -> dict[str, Any]:
    return {
        "name": "too-hot",
        "metadata": {
            "hypothesis": "A learning rate of one trains faster.",
            "success_metric": "pass@1",
            "benchmark": [_benchmark()],
        },
        "base_run": _run("lr", {"max_steps": 10}),
        "matrix": {"axes": {"algorithm.params.learning_rate": [0.003, 1.0]}},
    }


def _rl() -> dict[str, Any]:
    tools = "Answer with one of: play_music, send_email."
    rows = [
        {"messages": [{"role": "user", "content": f"{wish} {tools}"}, {"role": "assistant", "content": tool}]}
        for wish, tool in [("a song", "play_music"), ("write to Ada", "send_email")] * 4
    ]
    to_task = {"kind": "chat_to_harbor_task", "params": {"fn_name": "exact_match"}}
    params = {"max_steps": 5, "batch_size": 4, "group_size": 4, "sampling": {"max_tokens": 12}}
    return {
        "name": "rl",
        "metadata": {"hypothesis": "A reward is enough to learn routing."},
        "run": _run(
            "rl",
            {},
            data={"source_kind": "in_memory", "rows": rows, "transforms": [to_task]},
            algorithm={"kind": "rl", "params": params},
        ),
    }


def _continual() -> dict[str, Any]:
    def stage(name: str, tools: list[str]) -> dict[str, Any]:
        chosen = {
            "kind": "filter",
            "params": {"conditions": [{"field": "tool_slug", "operator": "in", "value": tools}]},
        }
        transforms = [chosen, *_run("", {})["data"]["transforms"]]
        held_out = EXAMPLES / "01_quickstart/data/test.jsonl"
        data = {"path": TRAIN, "transforms": transforms}
        return {"name": name, "data": data, "eval_data": {"path": str(held_out), "transforms": transforms}}

    run = _run("stages", {"max_steps": 12}, eval={"metrics": [{"kind": "exact_match"}]})
    del run["data"]
    run["continual"] = {"stages": [stage("first", ["book_flight"]), stage("second", ["play_music"])]}
    return {"name": "continual", "metadata": {"hypothesis": "A second tool costs the first."}, "run": run}


def _search() -> dict[str, Any]:
    return {
        "name": "search",
        "search": {"kind": "random", "n": 4},
        "metadata": {
            "hypothesis": "The learning rate matters most.",
            "success_metric": "pass@1",
            "benchmark": [_benchmark(8, split="val", run_every=5)],
        },
        "base_run": _run("sft", {"max_steps": 15}),
        "matrix": {
            "axes": {"algorithm.params.learning_rate": [1e-4, 3e-3, 1e-2], "algorithm.params.batch_size": [4, 8]}
        },
    }


def _invalid() -> dict[str, Any]:
    return {
        "name": "invalid",
        "metadata": {
            "hypothesis": "This was measured wrongly.",
            "success_metric": "pass@1",
            "benchmark": [_benchmark(8)],
        },
        "base_run": _run("x", {"max_steps": 3}),
        "matrix": {"axes": {"algorithm.params.batch_size": [4, 8]}},
    }


def _add_training_rollouts(arm: Path) -> None:
    """Rollouts of training as a recorder writes them: groups, several turns, a tool, tokens, and one hostile text."""
    lines: list[dict[str, Any]] = []
    for step in (1, 2):
        for task in range(3):
            for sample in range(4):
                completion = HOSTILE if (step, task, sample) == (2, 0, 0) else f"answer {sample} to task {task}"
                called = {"function": {"name": "search", "arguments": json.dumps({"q": f"task {task}"})}}
                lines.append(
                    {
                        "step": step,
                        "task_id": f"wish-{task}",
                        "sample": sample,
                        "status": "ok",
                        "reward": sample / 3,
                        "turns": 2,
                        "messages": [
                            {"role": "user", "content": f"wish {task}"},
                            {"role": "assistant", "content": "I look it up.", "tool_calls": [called]},
                            {"role": "tool", "content": "three hits"},
                            {"role": "assistant", "content": completion},
                        ],
                        "token_texts": ["ans", "wer", " ", str(sample)],
                        "logprobs": [-0.1, -2.5, -0.01, -1.2],
                        "mask": [1, 1, 0, 1],
                        "info": {"contains": sample == 3},
                    }
                )
    folder = arm / "logs" / "training"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "rollouts.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), "utf-8")


def _add_pictures(root: Path) -> None:
    """A dataset with a picture in it."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", 8, 8, 8, 2, 0, 0, 0)
    pixels = zlib.compress((b"\0" + b"\x20\x60\xc0" * 8) * 8)
    png = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")
    source = {"type": "base64", "media_type": "image/png", "data": base64.b64encode(png).decode()}
    content = [{"type": "text", "text": "Which colour is this?"}, {"type": "image", "source": source}]
    rows = [{"messages": [{"role": "user", "content": content}, {"role": "assistant", "content": "blue"}]}] * 3
    path = root / "colours.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    Workspace(root).add("dataset", str(path), "colours")
