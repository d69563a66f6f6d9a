"""What a GPU runs, checked without one: Triton's interpreter, the shapes of captured passes, and which are kept."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="needs the extra local; run make test-local")
pytest.importorskip("transformers", reason="needs the extra local; run make test-local")
pytestmark = pytest.mark.local

from evsys_sdk.backends.local.base.packing import MicroBatch, pack  # noqa: E402
from evsys_sdk.backends.local.gpu import graph_decoding, stacked_cache, training_graphs  # noqa: E402
from evsys_sdk.backends.local.gpu.training_graphs import Shape, TrainingGraphs  # noqa: E402


def row_of(*lengths: int, shared: int = 0) -> MicroBatch:
    rng = np.random.default_rng(0)
    start = rng.integers(0, 99, shared)
    [row] = pack([np.concatenate([start, rng.integers(0, 99, length)]) for length in lengths], budget=1 << 20)
    return row


def test_kernels_equal_plain_torch_in_the_interpreter() -> None:
    pytest.importorskip("triton", reason="needs Triton")
    script = Path(__file__).with_name("kernels_child.py")
    run = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=300, check=False)
    assert run.returncode == 0, run.stderr[-3000:]
    assert "all equal" in run.stdout


def test_rows_of_about_the_same_size_have_the_same_shape() -> None:
    assert Shape.of(row_of(300, 100)) == Shape.of(row_of(200, 150, 100)) == Shape(512, 32, 1024, 0)
    assert Shape.of(row_of(300, 300)).tokens == 1024
    assert (
        Shape.of(row_of(80, 90, shared=100)) == Shape.of(row_of(70, 60, 50, shared=100)) == Shape(512, 32, 1024, 8192)
    )
    assert Shape.of(row_of(1500, 90, shared=100)).longest == 2048


def test_shapes_are_captured_when_they_come_again_and_the_oldest_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    captured: list[Shape] = []

    class Captured:
        def __init__(self, base: Any, parts: Any, parameters: Any, adapters: int, shape: Shape, *rest: Any) -> None:
            captured.append(shape)

    monkeypatch.setattr(training_graphs, "PassGraph", Captured)
    monkeypatch.setattr(training_graphs, "gpu_layers", lambda base: [object()])
    monkeypatch.setattr(training_graphs, "_MOST_PASSES", 2)
    monkeypatch.setattr(training_graphs.torch.cuda, "graph_pool_handle", lambda: (0, 0))
    base: Any = SimpleNamespace(switch=SimpleNamespace(layers={}))
    graphs = TrainingGraphs(base, {}, [])
    rows = [row_of(length) for length in (400, 1000, 1500)]
    for row in (rows[0], rows[1]):
        assert graphs.find(row) is None
        assert graphs.find(row) is not None
    assert graphs.find(rows[0]) is not None
    assert [shape.tokens for shape in captured] == [512, 1024]
    for _ in range(2):
        graphs.find(rows[2])
    assert [shape.tokens for shape in graphs._passes] == [512, 1536]
    assert graphs.find(rows[1]) is None, "it has to come up twice again"


def test_lanes_with_the_same_prompt_read_it_where_the_first_of_them_has_it() -> None:
    prompts = [(1, 2, 3), (4, 5), (1, 2, 3), (6,), (4, 5), (1, 2, 3)]
    lanes: list[Any] = [SimpleNamespace(request=SimpleNamespace(prompt=prompt, key=prompt)) for prompt in prompts]
    homes, lengths = graph_decoding._find_shared_prompts(lanes).tolist()
    assert homes == [0, 1, 0, 3, 1, 0]
    assert lengths == [3, 2, 3, 1, 2, 3]


def test_slots_are_copied_to_in_stretches() -> None:
    assert stacked_cache._stretches([]) == []
    assert stacked_cache._stretches([5, 3, 4, 9, 7, 8]) == [(3, 6), (7, 10)]
