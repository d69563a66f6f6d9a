"""Training over the wire: steps/s of our loop and of tinker-cookbook's on one server, against the ideal pipeline.

The mock backend of `evsys serve` takes 100 ms for every operation beside what its model computes, one after another, so
a step (a backward pass and an optimiser step) takes 200 ms and more. The ideal is a client that submits everything
at the start, so that the server never waits. Both loops train on the same data, 8 sequences of 17 tokens a step, with
no checkpoints in between, one step ahead of the one that is awaited; the time of a step once the pipeline is full is
taken. They take turns.
Aim: at least as fast as the cookbook, and within 3 % of the ideal.

    python benchmarks/tinker_loop.py --python PATH --peer-python PATH

needs an environment with the extras `tinker` and `server`, and for the peer one with tinker-cookbook 0.5.
"""

import argparse
import asyncio
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

AIM = 0.03
BATCH, LENGTH = 8, 16


def sequences(steps: int) -> list[list[list[int]]]:
    """The tokens of every batch."""
    draw = random.Random(0)
    return [[[draw.randrange(256) for _ in range(LENGTH + 1)] for _ in range(BATCH)] for _ in range(steps)]


def ours(url: str, steps: int, folder: str) -> list[float]:
    """When each step of our loop ended."""
    from evsys_sdk.algorithms.base import BaseAlgorithm, TrainingConfig
    from evsys_sdk.backends.client import ModelSpec
    from evsys_sdk.backends.datum import Datum
    from evsys_sdk.backends.tinker.backend import TinkerBackend
    from evsys_sdk.record.run_files.checkpoints import CheckpointLog
    from evsys_sdk.training.batch import TrainingBatch
    from evsys_sdk.training.callback import Callback, Observers
    from evsys_sdk.training.loop import TrainingLoop

    batches, ends = sequences(steps), list[float]()

    class Given(BaseAlgorithm):
        async def build_batch(self, step_idx: int) -> TrainingBatch:
            return TrainingBatch([Datum.supervised(tokens, [1.0] * len(tokens)) for tokens in batches[step_idx]])

    class Clock(Callback):
        name = "clock"

        def on_step(self, step: int, metrics: Any) -> None:
            ends.append(time.perf_counter())

    backend = TinkerBackend(base_url=url)
    handles = backend.prepare(model=ModelSpec("tiny"), run_dir=Path(folder))
    recipe = Given()
    recipe.cfg = TrainingConfig(max_steps=steps, save_every=None)
    recipe.client = handles["training_client"]
    loop = TrainingLoop(
        handles["training_client"], recipe, recipe.settings(), CheckpointLog.in_dir(Path(folder)), Observers([Clock()])
    )
    asyncio.run(loop.run())
    backend.teardown(handles)
    return ends


def cookbook(url: str, steps: int, folder: str) -> list[float]:
    """When the cookbook's supervised loop asked for each batch: it does so when the step before the last has ended."""
    import chz
    import tinker
    from tinker_cookbook.supervised import train
    from tinker_cookbook.supervised.types import SupervisedDataset, SupervisedDatasetBuilder
    from tinker_cookbook.tokenizer_utils import register_tokenizer

    batches, asked = sequences(steps), list[float]()

    class Given(SupervisedDataset):
        def __len__(self) -> int:
            return steps

        def set_epoch(self, seed: int = 0) -> None:
            return

        def get_batch(self, index: int) -> list[tinker.Datum]:
            asked.append(time.perf_counter())
            return [
                tinker.Datum(
                    model_input=tinker.ModelInput.from_ints(tokens[:-1]),
                    loss_fn_inputs={"target_tokens": tokens[1:], "weights": [1.0] * LENGTH},
                )
                for tokens in batches[index]
            ]

    @chz.chz
    class Builder(SupervisedDatasetBuilder):
        def __call__(self) -> tuple[SupervisedDataset, None]:
            return Given(), None

    class Bytes:
        def encode(self, text: str, **options: Any) -> list[int]:
            return list(text.encode())

        def decode(self, ids: list[int], **options: Any) -> str:
            return bytes(ids).decode(errors="replace")

    register_tokenizer("tiny", Bytes)
    os.environ.update(TINKER_API_KEY="tml-benchmark", TINKER_TELEMETRY="0")
    config = train.Config(
        log_path=folder,
        model_name="tiny",
        recipe_name="benchmark",
        dataset_builder=Builder(),
        base_url=url,
        save_every=0,
        eval_every=0,
        infrequent_eval_every=0,
    )
    asyncio.run(train.main(config))
    return asked[2:]  # the first two are asked for before anything has ended


def ideal(url: str, steps: int, folder: str) -> list[float]:
    """When each step ended, with all of them submitted at the start: the server never waits."""
    import tinker

    os.environ["TINKER_TELEMETRY"] = "0"
    service = tinker.ServiceClient(base_url=url, api_key="tml-benchmark")
    client = service.create_lora_training_client(base_model="tiny")
    pending: list[Any] = []
    for batch in sequences(steps):
        data = [
            tinker.Datum(
                model_input=tinker.ModelInput.from_ints(tokens[:-1]),
                loss_fn_inputs={"target_tokens": tokens[1:], "weights": [1.0] * LENGTH},
            )
            for tokens in batch
        ]
        client.forward_backward(data, "cross_entropy")
        pending.append(client.optim_step(tinker.AdamParams(learning_rate=1e-4)))
    ends: list[float] = []
    for step in pending:
        step.result()
        ends.append(time.perf_counter())
    return ends


LOOPS = {"ideal": ideal, "ours": ours, "cookbook": cookbook}


def measured(python: str, loop: str, url: str, steps: int) -> float:
    """Seconds per step of one loop, in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        command = [python, __file__, "--run", loop, "--url", url, "--steps", str(steps), "--folder", folder]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{loop} failed:\n{done.stderr[-3000:]}")
    ends: list[float] = json.loads(done.stdout.splitlines()[-1])
    return (ends[-1] - ends[0]) / (len(ends) - 1)


def serving(python: str, latency_ms: float, folder: str) -> tuple[subprocess.Popen[str], str]:
    command = [python, "-m", "evsys_sdk", "serve", "--model", "tiny", "--port", "0", "--json", "--state-dir", folder]
    # a small model, so that the latency is most of what a step takes
    params = ["--backend-param", "hidden=8", "--backend-param", f"latency_ms={latency_ms:g}"]
    server = subprocess.Popen([*command, *params], stdout=subprocess.PIPE, text=True)
    assert server.stdout
    line = server.stdout.readline()
    if not line:
        raise SystemExit("the server did not start")
    return server, json.loads(line)["url"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--latency-ms", type=float, default=100.0, help="that the server takes for each operation")
    parser.add_argument("--python", default=sys.executable, help="interpreter with the extras tinker and server")
    parser.add_argument("--peer-python", default=sys.executable, help="interpreter with tinker-cookbook")
    parser.add_argument("--run", choices=list(LOOPS), help=argparse.SUPPRESS)
    parser.add_argument("--url", help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.run:
        ends = LOOPS[options.run](options.url, options.steps, options.folder)
        print(json.dumps(ends))
        return
    compare(options)


def has(python: str, module: str) -> bool:
    if python == sys.executable:
        return find_spec(module) is not None
    return subprocess.run([python, "-c", f"import {module}"], capture_output=True, check=False).returncode == 0


def compare(options: argparse.Namespace) -> None:
    """Let the loops take turns on one server and print what came of it."""
    from measure import machine

    print(machine())
    if not has(options.python, "tinker") or not has(options.python, "uvicorn"):
        print("skipped: needs an environment with the extras tinker and server, see --python")
        return
    loops = {"ideal": options.python, "ours": options.python}
    if has(options.peer_python, "tinker_cookbook"):
        loops["cookbook"] = options.peer_python
    else:
        print("tinker-cookbook is not installed, so there is no peer; see --peer-python")
    with tempfile.TemporaryDirectory() as folder:
        server, url = serving(options.python, options.latency_ms, folder)
        try:
            rounds = [
                {loop: measured(python, loop, url, options.steps) for loop, python in loops.items()}
                for _ in range(options.repeats)
            ]
        finally:
            server.terminate()
            server.wait(60)
    print(f"without any computation a step takes {2 * options.latency_ms:g} ms")
    for loop in loops:
        found = statistics.median(one[loop] for one in rounds)
        each = ", ".join(f"{one[loop] * 1000:.1f}" for one in rounds)
        speed = f"{found * 1000:7.1f} ms/step  {1 / found:5.2f} steps/s"
        above = statistics.median(one[loop] / one["ideal"] - 1 for one in rounds)
        print(f"{loop:<10} {speed}  {above:+.1%} of ideal (each: {each})")
    if "cookbook" in loops:
        ratio = statistics.median(one["cookbook"] / one["ours"] for one in rounds)
        print(f"cookbook / ours: {ratio:.3f}")
    print(f"aim: at least as fast as the cookbook, at most {AIM:+.0%} of ideal")


if __name__ == "__main__":
    main()
