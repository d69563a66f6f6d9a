"""Runs in a separate process, whose memory can be measured and limited: see test_memory.py.

Usage: memory_child.py estimate|limits JSON; prints one line of JSON.
"""

from __future__ import annotations

import json
import logging
import os
import resource
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

from evsys_sdk.backends.client import AdamParams, ModelSpec
from evsys_sdk.backends.datum import Datum
from evsys_sdk.backends.local import memory
from evsys_sdk.backends.local.backend import LocalBackend
from evsys_sdk.backends.local.memory_plan import Estimate, Needs, Sizes
from evsys_sdk.errors import BackendError


def data_of(lengths: Sequence[int]) -> list[Datum]:
    rng = np.random.default_rng(0)
    return [Datum.supervised(rng.integers(0, 256, length + 1).tolist(), [1.0] * (length + 1)) for length in lengths]


@contextmanager
def client_of(folder: str, rank: int, params: dict[str, Any]) -> Iterator[Any]:
    backend = LocalBackend(device="cpu", **params)
    with tempfile.TemporaryDirectory() as run_dir:
        handles = backend.prepare(model=ModelSpec(folder, lora_rank=rank), run_dir=Path(run_dir))
        try:
            yield handles["training_client"]
        finally:
            backend.teardown(handles)


def train(client: Any, lengths: Sequence[int], steps: int = 2) -> None:
    for _ in range(steps):
        client.forward_backward(data_of(lengths), "cross_entropy").result()
        client.optim_step(AdamParams(1e-3)).result()


def bytes_now(what: str) -> int:
    """`VmRSS` (resident) or `VmSize` (mapped)."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{what}:"))


def peak_and_estimate(folder: str, rank: int, lengths: list[int], params: dict[str, Any]) -> dict[str, float]:
    """What a run takes on top of what code and libraries take, which a small run has brought in before."""
    with client_of(folder, rank, params) as client:
        train(client, [5, 9, 20])
        del client
    memory.release_unused()
    before = bytes_now("VmRSS")
    with client_of(folder, rank, params) as client:
        train(client, lengths)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        base, state = client._base, client._state
        needs = Needs(
            base.device,
            base.key.dtype,
            rank,
            None,
            tokens_at_once=state.settings.tokens_at_once,
            cached_tokens=0,
            merge=False,
            recompute=params.get("recompute") == "always",
        )
        estimate = Estimate.of(Sizes.of(base.model.config), needs)
    return {"peak": peak - before, "estimate": estimate.total}


def in_a_fork(work: Callable[[], Any]) -> Any:
    """The result of a function that ran in a copy of this process, so that peaks of others do not count."""
    reading, writing = os.pipe()
    if (pid := os.fork()) == 0:
        try:
            os.write(writing, json.dumps(work()).encode())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as file:
        content = file.read()
    os.waitpid(pid, 0)
    return json.loads(content)


def estimates(cases: list[dict[str, Any]]) -> list[Any]:
    return [in_a_fork(lambda case=case: peak_and_estimate(**case)) for case in cases]


@contextmanager
def at_most(more: int) -> Iterator[None]:
    """Let the process map so many bytes more than it has."""
    memory.release_unused()
    resource.setrlimit(resource.RLIMIT_AS, (bytes_now("VmSize") + more, resource.RLIM_INFINITY))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))


def gradient(client: Any) -> list[Any]:
    tensors = [tensor.clone() for tensor in client._state.optimizer._gradient]
    client._state.optimizer.forget_gradient()
    return tensors


def gap(one: Sequence[Any], other: Sequence[Any]) -> float:
    """The largest difference, as a share of the largest value."""
    largest = max(float(tensor.abs().max()) for tensor in other)
    return max(float((a - b).abs().max()) for a, b in zip(one, other, strict=True)) / largest


def row_of(client: Any, tokens: int) -> int:
    """What a row takes, by the estimate."""
    base = client._base
    needs = Needs(base.device, base.key.dtype, 8, None, tokens, 0, merge=False, recompute=False)
    return Estimate.of(Sizes.of(base.model.config), needs).row


def limited_pass(folder: str, lengths: list[int]) -> dict[str, Any]:
    """A pass with half of the memory that it wants, compared with the same pass with all of it."""
    data = data_of(lengths)
    with client_of(folder, 8, {"exact": True, "tokens_at_once": 8192}) as client:
        fitting = client._state.fitting
        randomise(client)
        loss = client.forward_backward(data, "cross_entropy").result().loss
        plain = gradient(client)
        with at_most(row_of(client, sum(lengths)) // 2), warnings_of_log() as first:
            again = client.forward_backward(data, "cross_entropy").result().loss
            difference = gap(gradient(client), plain)
            with warnings_of_log() as second:
                client.forward_backward(data, "cross_entropy").result()
    return {
        "loss": again / loss,
        "gap": difference,
        "tokens_at_once": fitting.tokens_at_once,
        "recompute_from": fitting.recompute_from,
        "warnings": [len(first) - len(second), len(second)],
    }


def sequence_that_never_fits(folder: str) -> dict[str, Any]:
    outcome: dict[str, Any] = {}
    with client_of(folder, 8, {"exact": True}) as client:
        train(client, [20, 30])
        client.forward_backward(data_of([40]), "cross_entropy").result()
        before = [tensor.clone() for tensor in held(client)]
        with at_most(8 << 20):
            outcome["alone"] = failure(lambda: client.forward_backward(data_of([1024]), "cross_entropy").result())
            outcome["last"] = failure(lambda: client.forward_backward(data_of([64, 1024]), "cross_entropy").result())
            outcome["short"] = failure(lambda: client.forward(data_of([64])).result())
        outcome["unchanged"] = all(torch.equal(a, b) for a, b in zip(held(client), before, strict=True))
        client._state.optimizer.forget_gradient()
        client.forward_backward(data_of([1024]), "cross_entropy").result()
        outcome["usable"] = any(bool(tensor.any()) for tensor in gradient(client))
    return outcome


def limits(folder: str) -> dict[str, Any]:
    """A row that has to be split, one sequence whose layers have to be recomputed, and one that never fits."""
    memory.give_back_at_once(torch.device("cpu"))
    return {
        "rows": in_a_fork(lambda: limited_pass(folder, [256] * 4)),
        "sequence": in_a_fork(lambda: limited_pass(folder, [1024])),
        "never": in_a_fork(lambda: sequence_that_never_fits(folder)),
        "optimizer": in_a_fork(lambda: optimizer_and_checkpoint(folder)),
    }


def optimizer_and_checkpoint(folder: str) -> dict[str, Any]:
    """A large adapter: there is no memory for its moments, then just enough to store it, then too little to load it."""
    outcome: dict[str, Any] = {}
    with client_of(folder, 512, {"exact": True}) as client:
        client.forward_backward(data_of([40]), "cross_entropy").result()
        size = sum(tensor.numel() * 4 for tensor in client._state.optimizer.parameters)
        before = [tensor.clone() for tensor in held(client)]
        with at_most(4 << 20):
            outcome["step"] = failure(lambda: client.optim_step(AdamParams(1e-3)).result())
        outcome["unchanged"] = all(torch.equal(a, b) for a, b in zip(held(client), before, strict=True))
        outcome["steps"] = client._state.optimizer.steps
        del before
        with at_most(3 * size):
            client.optim_step(AdamParams(1e-3)).result()
        before = [tensor.clone() for tensor in held(client)]
        with at_most(4 << 20):  # a checkpoint is written piece by piece
            ref = client.save_state("small").result()
            outcome["load"] = failure(lambda: client.load_state(ref).result())
        outcome["kept"] = all(torch.equal(a, b) for a, b in zip(held(client), before, strict=True))
        client.load_state(ref).result()
        outcome["restored"] = all(torch.equal(a, b) for a, b in zip(held(client), before, strict=True))
    return outcome


@contextmanager
def warnings_of_log() -> Iterator[list[str]]:
    messages: list[str] = []

    class Noting(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            messages.append(record.getMessage())

    handler = Noting(logging.WARNING)
    logging.getLogger("evsys_sdk").addHandler(handler)
    try:
        yield messages
    finally:
        logging.getLogger("evsys_sdk").removeHandler(handler)


def failure(work: Callable[[], Any]) -> str:
    try:
        work()
    except BackendError as error:
        return str(error)
    return ""


def held(client: Any) -> list[Any]:
    """Weights, gradient and moments."""
    optimizer = client._state.optimizer
    return [*optimizer.parameters, *optimizer._gradient, *optimizer.moments().values()]


def randomise(client: Any) -> None:
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for _, b in client._state.adapter.weights.values():
            b.copy_(torch.randn(b.shape, generator=generator) * 0.05)


if __name__ == "__main__":
    torch.set_num_threads(1)
    work: dict[str, Callable[[Any], Any]] = {"estimate": estimates, "limits": limits}
    print(json.dumps(work[sys.argv[1]](json.loads(sys.argv[2]))))
