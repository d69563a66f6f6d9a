"""What the training loop costs on top of the backend: tokens/s of a whole experiment, and time per step.

Each step of the second part takes the backend about 20 ms (10 ms for the backward pass, 10 ms for the optimiser step).
The same batches go through `Experiment`, with its checks, record and observers, and through a bare loop that submits
both operations and awaits them; the two take turns. Aim: the loop takes at most 5 % longer. Processor time is printed
too, because it says the same on a busy machine.

    python benchmarks/loop_overhead.py --steps 100 --repeats 3
"""

import argparse
import asyncio
import statistics
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from measure import machine

from evsys_sdk import ExperimentConfig
from evsys_sdk.algorithms.sft import SFT
from evsys_sdk.backends.client import AdamParams, ModelSpec
from evsys_sdk.backends.mock.backend import MockBackend
from evsys_sdk.experiment import Experiment
from evsys_sdk.inference.renderer import get_renderer
from evsys_sdk.training.callback import Callback

AIM = 0.05
ROWS = [
    {"messages": [{"role": "user", "content": f"say {n} twice"}, {"role": "assistant", "content": f"{n} {n}"}]}
    for n in range(256)
]


@dataclass(slots=True)
class Clock:
    """Wall and processor seconds between the end of the first and of the last step."""

    wall: float = 0.0
    cpu: float = 0.0

    def start(self) -> None:
        self.wall, self.cpu = -time.perf_counter(), -time.process_time()

    def stop(self) -> None:
        self.wall, self.cpu = self.wall + time.perf_counter(), self.cpu + time.process_time()


class Stopwatch(Callback):
    """Times the steps of a run after the first one and counts their tokens."""

    name = "stopwatch"

    def __init__(self, last_step: int) -> None:
        self.clock, self.tokens, self._last_step = Clock(), 0, last_step

    def on_step(self, step: int, metrics: Mapping[str, float]) -> None:
        if step == 1:
            self.clock.start()
            return
        self.tokens += int(metrics["tokens"])
        if step == self._last_step:
            self.clock.stop()


def through_experiment(folder: Path, steps: int, latency_ms: float) -> Stopwatch:
    """A whole run with its record and observers."""
    config = {
        "name": f"run{len(list(folder.iterdir()))}",
        "output_dir": str(folder),
        "callbacks": [{"kind": "local_logger"}],
        "run": {
            "name": "r",
            "data": {"source_kind": "in_memory", "rows": ROWS},
            "model": {"name": "tiny"},
            "algorithm": {"kind": "sft", "params": {"max_steps": steps, "save_every": None}},
            "backend": {"kind": "mock", "params": {"latency_ms": latency_ms}},
        },
    }
    watch = Stopwatch(steps)
    [result] = Experiment(ExperimentConfig.model_validate(config), callbacks=[lambda: watch]).run().runs
    assert result.status == "completed", result.error
    return watch


def through_bare_loop(folder: Path, steps: int, latency_ms: float) -> Clock:
    """The same batches, with nothing around them."""

    async def train() -> Clock:
        backend = MockBackend(latency_ms=latency_ms)
        handles = backend.prepare(model=ModelSpec("tiny", seed=42), run_dir=folder / "bare")
        client = handles["training_client"]
        recipe = SFT()
        renderer = get_renderer(client.tokenizer)
        recipe.bind(client=client, renderer=renderer, rows=ROWS, seed=42, run_dir=folder / "bare", services={})
        await recipe.setup()
        batches = [await recipe.build_batch(step) for step in range(steps)]
        clock = Clock()
        for step, batch in enumerate(batches):
            backward = client.forward_backward(batch.data, "cross_entropy")
            optim = client.optim_step(AdamParams(learning_rate=5e-4, grad_clip_norm=1.0))
            await backward
            await optim
            if step == 0:
                clock.start()
        clock.stop()
        backend.teardown(handles)
        return clock

    return asyncio.run(train())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--latency-ms", type=float, default=10.0, help="of each of the two operations of a step")
    options = parser.parse_args()
    steps = options.steps

    def per_step(seconds: float) -> float:
        return seconds * 1000 / (steps - 1)

    print(machine())
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        unlimited = [through_experiment(folder, steps, 0.0) for _ in range(options.repeats)]
        pairs = [
            (
                through_bare_loop(folder, steps, options.latency_ms),
                through_experiment(folder, steps, options.latency_ms),
            )
            for _ in range(options.repeats)
        ]
    speed = statistics.median(run.tokens / run.clock.wall for run in unlimited)
    print(f"mock SFT through Experiment: {speed:,.0f} tokens/s")
    for name, clocks in (("bare loop", [bare for bare, _ in pairs]), ("Experiment", [run.clock for _, run in pairs])):
        wall, cpu = (statistics.median(getattr(clock, kind) for clock in clocks) for kind in ("wall", "cpu"))
        print(f"{name:<10} {per_step(wall):6.2f} ms/step, of which processor {per_step(cpu):5.2f} ms")
    ratios = [run.clock.wall / bare.wall - 1 for bare, run in pairs]
    added = statistics.median((run.clock.cpu - bare.cpu) / bare.wall for bare, run in pairs)
    print(f"overhead of the loop: {statistics.median(ratios):+.1%} of wall time, {added:+.1%} as processor time")
    print(f"aim: at most {AIM:+.0%}; each repeat: {', '.join(f'{ratio:+.1%}' for ratio in ratios)}")


if __name__ == "__main__":
    main()
