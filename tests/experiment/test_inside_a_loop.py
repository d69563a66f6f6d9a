"""A notebook has an event loop of its own: an experiment that is run there is concluded like any other."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

from evsys_sdk import Experiment, ExperimentConfig

ROWS = [{"messages": [{"role": "user", "content": w}, {"role": "assistant", "content": w.upper()}]} for w in "abcdefgh"]
TASKS = [
    {
        "task_id": w,
        "instruction": w,
        "verifier": {"kind": "in_process", "fn_name": "exact_match", "expected": w.upper()},
    }
    for w in "abcd"
]


def test_an_experiment_is_concluded_while_a_loop_is_running(tmp_path: Path) -> None:
    run: dict[str, Any] = {
        "name": "r",
        "data": {"source_kind": "in_memory", "rows": ROWS},
        "model": {"name": "tiny"},
        "algorithm": {"kind": "sft", "params": {"max_steps": 2, "batch_size": 4}},
        "backend": {"kind": "mock"},
    }
    (tmp_path / "tasks.jsonl").write_text("".join(json.dumps(task) + "\n" for task in TASKS), encoding="utf-8")
    benchmark = {"name": "letters", "path": str(tmp_path / "tasks.jsonl")}
    config = ExperimentConfig.model_validate(
        {
            "name": "in-a-loop",
            "output_dir": str(tmp_path / "outputs"),
            "run": run,
            "metadata": {"hypothesis": "It learns.", "benchmark": [benchmark]},
        }
    )

    async def cell() -> Any:
        return Experiment(config).run()

    result = asyncio.run(cell())
    assert result.conclusion is not None
