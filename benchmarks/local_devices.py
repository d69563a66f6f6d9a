"""One run on one and on two devices of a CPU (`devices: 2`), a thread each: seconds of an SFT and of a GRPO step.

    python benchmarks/local_devices.py                        # SmolLM2-135M-Instruct; needs two free cores
    python benchmarks/local_devices.py --model ./model --steps 2

Also one process with two threads, which is what two devices have to be compared with on a CPU. Prints the ratio to one
device with one thread; the aim is 1.6 for two devices. Needs the extra `local`, and SmolLM2 in the cache
(examples/17_local_sft/prepare.py --cached).
"""

from __future__ import annotations

import argparse
import datetime
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from evsys_sdk.backends.client import AdamParams, ModelSpec, SamplingParams
from evsys_sdk.backends.datum import Datum
from evsys_sdk.backends.local.backend import LocalBackend

ADAM = AdamParams(learning_rate=1e-4)
SETTINGS = {"1 device": {"threads": 1}, "2 threads": {"threads": 2}, "2 devices": {"threads": 1, "devices": 2}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="SmolLM2-135M-Instruct")
    parser.add_argument("--steps", type=int, default=5)
    arguments = parser.parse_args()
    print(f"{datetime.date.today()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
    found: dict[str, dict[str, float]] = {}
    for name, params in SETTINGS.items():
        with tempfile.TemporaryDirectory() as folder:
            backend = LocalBackend(device="cpu", **params)
            handles = backend.prepare(model=ModelSpec(arguments.model, lora_rank=16), run_dir=Path(folder))
            try:
                client = handles["training_client"]
                found[name] = {kind: measure(client, step, arguments.steps) for kind, step in STEPS.items()}
            finally:
                backend.teardown(handles)
        for kind, seconds in found[name].items():
            print(f"{kind:5} {name:10} {seconds:7.2f} s a step   x{found['1 device'][kind] / seconds:.2f}", flush=True)


def measure(client: Any, step: Callable[[Any, int], None], steps: int) -> float:
    """Seconds of a step; the median, after one that is not counted."""
    seconds: list[float] = []
    for number in range(steps + 1):
        began = time.perf_counter()
        step(client, number)
        seconds.append(time.perf_counter() - began)
    return float(np.median(seconds[1:]))


def sft_step(client: Any, number: int) -> None:
    """Sixteen sequences of different lengths, a third of whose tokens count."""
    rng = np.random.default_rng(number)
    data: list[Datum] = []
    for length in rng.integers(64, 256, 16):
        weights = [float(place > 2 * length // 3) for place in range(length)]
        data.append(Datum.supervised(rng.integers(100, 40_000, length).tolist(), weights))
    passed, stepped = client.forward_backward(data, "cross_entropy"), client.optim_step(ADAM)
    passed.result()
    stepped.result()


def grpo_step(client: Any, number: int) -> None:
    """Four prompts with eight samples of 32 tokens each, and a step on them."""
    rng = np.random.default_rng(number)
    prompts = [rng.integers(100, 40_000, 64).tolist() for _ in range(4)]
    sampler = client.sampler().result()
    asked = [sampler.sample(prompt, 8, SamplingParams(32, stop=[])) for prompt in prompts]
    data = [
        Datum.policy(prompt, sample.tokens, sample.logprobs, float(rng.normal()))
        for prompt, samples in zip(prompts, asked, strict=True)
        for sample in samples.result()
    ]
    passed, stepped = client.forward_backward(data, "importance_sampling"), client.optim_step(ADAM)
    passed.result()
    stepped.result()


STEPS = {"sft": sft_step, "grpo": grpo_step}

if __name__ == "__main__":
    main()
