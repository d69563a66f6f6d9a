"""How fast the mock backend trains, samples, saves and answers: tokens per second on this machine.

    python benchmarks/mock_backend.py

One line per figure; the median of a few repetitions after one that warms up.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path

from evsys_sdk.backends.client import AdamParams, ModelSpec, SamplingParams
from evsys_sdk.backends.datum import Datum
from evsys_sdk.backends.mock.backend import MockBackend
from evsys_sdk.backends.mock.client import MockTrainingClient

SYSTEM = "You are a router. Reply with the one tool that serves the request."
QUESTION = "will it rain in city number {} tomorrow, and do I need an umbrella?"
ANSWER = "<answer>weather_lookup</answer><|im_end|>"
REPETITIONS = 7


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        handles = MockBackend().prepare(model=ModelSpec("Qwen/Qwen3-4B"), run_dir=Path(folder))
        client: MockTrainingClient = handles["training_client"]
        try:
            for size in (16, 64):
                report_training(client, size)
            for prompts, samples in ((1, 1), (8, 8), (128, 1)):
                report_sampling(client, prompts, samples)
            report_checkpoints(client)
        finally:
            MockBackend().teardown(handles)


def report_training(client: MockTrainingClient, size: int) -> None:
    data = [supervised(client, number) for number in range(size)]
    tokens = sum(len(datum) for datum in data)

    def step() -> None:
        backward, adam = client.forward_backward(data, "cross_entropy"), client.optim_step(AdamParams(1e-4))
        backward.result(), adam.result()

    seconds = median_seconds(step)
    print(f"training step, {size:3d} data       {tokens / seconds:10,.0f} tokens/s   {seconds * 1e3:7.1f} ms")


def report_sampling(client: MockTrainingClient, prompts: int, samples: int, *, length: int = 24) -> None:
    sampler = client.sampler().result()
    params = SamplingParams(max_tokens=length, stop=[], seed=1)

    def sample() -> None:
        pending = [sampler.sample(prompt(client, number), samples, params) for number in range(prompts)]
        for operation in pending:
            operation.result()

    seconds = median_seconds(sample)
    rate = prompts * samples * length / seconds
    print(f"sampling, {prompts:3d} prompts x {samples} x {length} {rate:10,.0f} tokens/s   {seconds * 1e3:7.1f} ms")


def report_checkpoints(client: MockTrainingClient) -> None:
    names = (f"step{number}" for number in count())
    refs: list[str] = []
    save = median_seconds(lambda: refs.append(client.save_state(next(names)).result()))
    load = median_seconds(lambda: client.load_state(refs[-1]).result())
    size = sum(file.stat().st_size for file in Path(refs[-1]).iterdir())
    print(f"save and load a state         {size / 1e6:10.1f} MB         {save * 1e3:7.1f} ms, {load * 1e3:.1f} ms")


def prompt(client: MockTrainingClient, number: int) -> list[int]:
    messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": QUESTION.format(number)}]
    text = client.tokenizer.apply_chat_template(messages, add_generation_prompt=True)
    return client.tokenizer.encode(str(text))


def supervised(client: MockTrainingClient, number: int) -> Datum:
    before, after = prompt(client, number), client.tokenizer.encode(ANSWER)
    return Datum.supervised(before + after, [0.0] * len(before) + [1.0] * len(after))


def median_seconds(work: Callable[[], object]) -> float:
    work()
    times: list[float] = []
    for _ in range(REPETITIONS):
        began = time.perf_counter()
        work()
        times.append(time.perf_counter() - began)
    return statistics.median(times)


if __name__ == "__main__":
    main()
