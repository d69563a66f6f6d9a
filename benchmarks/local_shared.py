"""Eight runs on one base in joint passes, next to one run and to the same eight without joining, on one GPU.

    python benchmarks/local_shared.py                                     # 0.6B and 4B: SFT of 1,024 tokens; GRPO steps
    python benchmarks/local_shared.py --sizes tiny --arms 4 --steps 3     # whether it works at all: seconds
    python benchmarks/local_shared.py --sizes 0.6B --only grpo

Models have the shapes of Qwen3 and random weights. LoRA of rank 32 on all linear layers, bfloat16. An arm is a client
on a thread of its own with its own adapter, optimizer and seed, and nothing makes the arms wait for each other but the
engine. "apart" are the same arms with `join_passes: never`, which share weights and take turns. First of all, gradients
and log-probabilities of joint passes are compared with those of each arm alone. Needs the extra `local` and a GPU.
"""

from __future__ import annotations

import argparse
import datetime
import os
import subprocess
import tempfile
import threading
import time
import traceback
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import local_gpu
from local_gpu import (
    RANK,
    device_and_versions,
    grpo_step,
    print_kernels,
    random_model,
    release,
    sft_step,
    some_prompts,
)  # fmt: skip

local_gpu.SHAPES["tiny"] = {
    "hidden_size": 512, "intermediate_size": 1024, "num_hidden_layers": 2, "num_attention_heads": 8
}  # fmt: skip
NEW = 128
AIMS = {("0.6B", "sft 1024"): 4.2, ("4B", "sft 1024"): 2.7, "grpo 2x4": 2.2, "grpo 4x4": 3.5, "grpo 8x8": 6.0}
type Step = Callable[[Any, int, int], None]
"""(client, number of the arm, number of the step)"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", nargs="+", default=["0.6B", "4B"], choices=list(local_gpu.SHAPES))
    parser.add_argument("--only", nargs="+", default=["check", "sft", "grpo"], choices=["check", "sft", "grpo"])
    parser.add_argument("--groups", nargs="+", default=["2x4", "4x4", "8x8"])
    parser.add_argument("--arms", type=int, default=8)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--warming", type=int, default=8, help="steps before, in which passes are captured")
    parser.add_argument("--tokens", type=int, default=1024, help="tokens of an arm's SFT batch")
    parser.add_argument("--without-apart", action="store_true", help="leave out the eight runs without joining")
    parser.add_argument("--profile", action="store_true", help="print the kernels of one more joint step")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    print(f"{datetime.date.today()}, commit {commit()}\n{device_and_versions()}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        for size in arguments.sizes:
            bench = Bench(size, random_model(size, Path(folder) / size), Path(folder), arguments)
            for what in arguments.only:
                try:
                    getattr(bench, what)()
                except Exception:
                    traceback.print_exc()
                release()


class Bench:
    """One model, and what is measured on it."""

    def __init__(self, size: str, model: str, folder: Path, arguments: argparse.Namespace) -> None:
        self.size, self.model, self.folder, self.arguments = size, model, folder, arguments

    def sft(self) -> None:
        """Each arm trains on batches of its own."""
        tokens = self.arguments.tokens

        def step(client: Any, arm: int, number: int) -> None:
            sft_step(client, some_prompts(4, tokens // 4, seed=1000 * arm + number))

        self.compare(f"sft {tokens}", step)

    def grpo(self) -> None:
        """A snapshot, groups of samples of its own for each arm, and a training step on them."""
        for shape in self.arguments.groups:
            groups, samples = map(int, shape.split("x"))

            def step(client: Any, arm: int, number: int, groups: int = groups, samples: int = samples) -> None:
                prompts = some_prompts(groups, 256, seed=1000 * arm + number)
                grpo_step(client, prompts, samples, NEW, number)

            self.compare(f"grpo {shape}", step)
            release()

    def compare(self, what: str, step: Step) -> None:
        """Print a row: one arm, all arms in joint passes, and all arms apart."""
        count = self.arguments.arms
        one, _ = self.measure(step, 1, "auto")
        joint, peak = self.measure(step, count, "auto")
        if self.arguments.without_apart:
            print(f"{self.size:5} {what:9} one {one * 1000:.1f} ms, {count} joint {joint * 1000:.1f} ms {peak:.1f} GiB "
                  f"x{joint / one:.2f}", flush=True)  # fmt: skip
            return
        apart, peak_apart = self.measure(step, count, "never")
        aim = AIMS.get((self.size, what)) or AIMS.get(what)
        print(
            f"{self.size:5} {what:9} one {one * 1000:8.1f} ms   {count} joint {joint * 1000:8.1f} ms {peak:6.1f} GiB "
            f"x{joint / one:.2f}   {count} apart {apart * 1000:8.1f} ms {peak_apart:6.1f} GiB x{apart / one:.2f}"
            + (f"   aim x{aim}" if aim and count == 8 else ""),
            flush=True,
        )

    def measure(self, step: Step, count: int, join: str) -> tuple[float, float]:
        """Seconds for a step of every arm, and the most memory in GiB."""
        import torch

        clients = self.clients(count, join)
        steps, warming = self.arguments.steps, self.arguments.warming
        meet = threading.Barrier(count + 1)

        def run(arm: int) -> None:
            for number in range(warming + steps):
                if number == warming:
                    meet.wait()
                    meet.wait()
                step(clients[arm], arm, number)

        with ThreadPoolExecutor(count) as pool:
            running = [pool.submit(run, arm) for arm in range(count)]
            for one in running:
                one.add_done_callback(lambda done: meet.abort() if done.exception() else None)
            try:
                meet.wait()
                torch.cuda.synchronize()
                torch.cuda.reset_peak_memory_stats()
                began = time.perf_counter()
                meet.wait()
            except threading.BrokenBarrierError:
                began = 0.0
            for one in running:
                one.result()
            torch.cuda.synchronize()
            seconds = (time.perf_counter() - began) / steps
        peak = torch.cuda.max_memory_allocated() / 1024**3
        if self.arguments.profile and join == "auto":
            print_kernels(lambda: self.together(clients, lambda client, arm: step(client, arm, 1000)), most=20)
        self.close(clients)
        return seconds, peak

    def check(self) -> None:
        """Gradients of joint passes against those of each arm alone; sampled against trained log-probabilities."""
        import torch

        found: dict[str, list[Any]] = {}
        for join in ("auto", "never"):
            clients = self.clients(4, join)
            for arm, client in enumerate(clients):  # apart, so that both kinds have the same weights
                self.together([client], lambda one, _, arm=arm: sft_step(one, some_prompts(2, 64, seed=arm)))
            self.together(clients, lambda client, arm: backward(client, arm), times=2)
            found[join] = [client._state.optimizer.accumulated.clone() for client in clients]
            joint = getattr(clients[0]._base.joiner, "joint_rows", 0)
            gaps = self.together(clients, sampled_gap)
            print(f"{self.size:5} check     {join}: {joint} rows joined, sampled against trained {gaps}", flush=True)
            self.close(clients)
        alike = [
            float(torch.nn.functional.cosine_similarity(one.double(), other.double(), dim=0))
            for one, other in zip(found["auto"], found["never"], strict=True)
        ]
        print(f"{self.size:5} check     gradients alike: {min(alike):.6f}", flush=True)

    def together(self, clients: list[Any], work: Callable[[Any, int], Any], times: int = 1) -> list[Any]:
        with ThreadPoolExecutor(len(clients)) as pool:
            for _ in range(times):
                results = list(pool.map(work, clients, range(len(clients))))
        return results

    def clients(self, count: int, join: str) -> list[Any]:
        from evsys_sdk.backends.client import ModelSpec
        from evsys_sdk.backends.local.backend import LocalBackend

        backend = LocalBackend(device="cuda", dtype="bfloat16", tokens_at_once=16384, join_passes=join)
        return [
            backend.prepare(
                model=ModelSpec(self.model, lora_rank=RANK, seed=arm), run_dir=Path(tempfile.mkdtemp(dir=self.folder))
            )["training_client"]
            for arm in range(count)
        ]

    def close(self, clients: list[Any]) -> None:
        for client in clients:
            client.close()
        clients.clear()
        release()


def backward(client: Any, arm: int) -> None:
    from evsys_sdk.backends.datum import Datum

    texts = some_prompts(3, 200 + 10 * arm, seed=50 + arm)
    client._state.optimizer.forget_gradient()
    client.forward_backward([Datum.supervised(text, [1.0] * len(text)) for text in texts], "cross_entropy").result()


def sampled_gap(client: Any, arm: int) -> str:
    """How far log-probabilities of samples are from those that training computes, on average."""
    from evsys_sdk.backends.client import SamplingParams

    sampler = client.sampler().result()
    prompt = some_prompts(1, 40, seed=arm)[0]
    samples = sampler.sample(prompt, 4, SamplingParams(32, stop=[], seed=arm)).result()
    gaps = [
        abs(float(a) - float(b))
        for sample in samples
        for a, b in zip(
            sample.logprobs, sampler.logprobs([*prompt, *sample.tokens]).result()[len(prompt) :], strict=True
        )
    ]
    return f"{sum(gaps) / len(gaps):.4f}"


def commit() -> str:
    """The commit that is measured, where there is a repository or `COMMIT` says."""
    if found := os.environ.get("COMMIT"):
        return found
    asked = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    return asked.stdout.strip() or "unknown"


if __name__ == "__main__":
    main()
