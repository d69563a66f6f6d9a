"""Logs that the real inspect_ai writes."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from evsys_sdk.eval.foreign_run import read_inspect_log
from evsys_sdk.history.foreign_runs import compare_foreign_runs

pytestmark = [
    pytest.mark.ecosystem,
    pytest.mark.skipif(find_spec("inspect_ai") is None, reason="needs inspect_ai; run make test-ecosystem"),
]

# Inspect's own `mockllm` downloads a tokenizer. A separate process, because Inspect leaves streams open.
EVALUATE = """
import json, sys
from inspect_ai import Task, eval
from inspect_ai.dataset import MemoryDataset, Sample
from inspect_ai.model import ModelAPI, ModelOutput, modelapi
from inspect_ai.scorer import match

@modelapi(name="adder")
class Adder(ModelAPI):
    async def generate(self, input, tools, tool_choice, config):
        number = int(input[-1].text.partition("+")[0])
        return ModelOutput.from_content(self.model_name, str(2 * number if number < int(self.model_name) else -1))

samples = MemoryDataset([Sample(id=f"s{n}", input=f"{n}+{n}=", target=str(2 * n)) for n in range(100)])
for right in ("40", "70"):
    task = Task(name="sums", dataset=samples, scorer=match())
    [log] = eval(task, model=f"adder/{right}", display="none", log_dir=sys.argv[1], log_format="eval")
    metrics = log.results.scores[0].metrics
    print(json.dumps([log.location, metrics["accuracy"].value, metrics["stderr"].value]))
"""


def test_a_hundred_samples_are_imported_and_compared_in_pairs(tmp_path: Path) -> None:
    command = [sys.executable, "-c", EVALUATE, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    runs: list[Any] = []
    for location, accuracy, stderr in map(json.loads, done.stdout.splitlines()):
        run = read_inspect_log(Path(location.removeprefix("file://")))
        score = run.to_result().metrics["mean_reward"]
        assert (len(run.predictions), run.status) == (100, "success")
        assert (score.value, score.stderr) == (pytest.approx(accuracy), pytest.approx(stderr))
        runs.append(run)
    pair = compare_foreign_runs(*runs)
    assert pair.n_tasks == 100
    assert pair.difference == pytest.approx(0.3)
