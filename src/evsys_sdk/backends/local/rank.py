"""A rank of a run on several devices: a process with the same base and adapter that serves calls over a socket.

    python -m evsys_sdk.backends.local.rank DESCRIPTOR

A call is (number, name, arguments), an answer (number, result, error or None). Training calls run in order, sampling
runs concurrently. The process ends when the connection closes.
"""

# pyright: basic, reportMissingImports=false

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import Tensor

from ..client import ModelSpec
from ..future import Operation
from .backend import LocalBackend
from .client import LocalTrainingClient

_PATIENCE: Final = timedelta(minutes=30)
"""How long a rank waits for the slowest rank; rank 0 notices the end of a rank at once."""


def join_group(folder: str, rank: int, ranks: int, device: torch.device) -> Callable[[Tensor], None]:
    """Connect to the other ranks; return a function that sums a tensor over all ranks in place."""
    store = dist.FileStore(f"{folder}/store", ranks)
    if device.type == "cuda":
        nccl: Any = dist.ProcessGroupNCCL
        group = nccl(store, rank, ranks, _with_timeout(nccl.Options()))
    else:
        gloo: Any = dist.ProcessGroupGloo
        options = _with_timeout(gloo._Options())
        options._devices = [gloo.create_device(hostname="127.0.0.1")]
        group = gloo(store, rank, ranks, options)

    def add_up(tensor: Tensor) -> None:
        group.allreduce([tensor]).wait()

    return add_up


def _with_timeout(options: Any) -> Any:
    options._timeout = _PATIENCE
    return options


class _Rank:
    """The methods that rank 0 can call."""

    _client: LocalTrainingClient

    def __init__(self) -> None:
        self._samplers: dict[int, Any] = {}

    def prepare(self, params: dict[str, Any], model: ModelSpec, run_dir: Path) -> None:
        self._client = LocalBackend(**params).prepare(model=model, run_dir=run_dir)["training_client"]

    def join(self, folder: str, rank: int, ranks: int) -> None:
        self._client._state.reduce = join_group(folder, rank, ranks, self._client._state.base.device)

    def train(self, method: str, *args: Any) -> Operation[Any]:
        return self._client._worker.submit(method, lambda: getattr(self._client._state, method)(*args))

    def load(self, ref: str, with_optimizer: bool) -> Operation[None]:
        return self._client.load_state(ref, with_optimizer=with_optimizer)

    def open(self, number: int, ref: str) -> Operation[None]:
        opened: Operation[Any] = self._client.open_sampler(ref) if ref else self._client.sampler()
        return opened.then(lambda sampler: self._samplers.update({number: sampler}))

    def ask(self, number: int, method: str, *args: Any) -> Operation[Any]:
        return getattr(self._samplers[number], method)(*args)

    def forget(self, number: int) -> None:
        self._samplers.pop(number, None)


def _serve(connection: Connection) -> None:
    rank, sending = _Rank(), threading.Lock()

    def answer(number: int, operation: Operation[Any]) -> None:
        try:
            reply = (number, operation.result(), None)
        except BaseException as error:
            reply = (number, None, f"{type(error).__name__}: {error}")
        with sending:
            connection.send(reply)

    while True:
        number, name, args = connection.recv()
        try:
            result = getattr(rank, name)(*args)
            operation = result if isinstance(result, Operation) else Operation.done(result)
        except BaseException as error:
            operation = Operation[Any].failed(error)
        operation.on_end(lambda ended, number=number: answer(number, ended))


if __name__ == "__main__":
    # Rank 0 handles interruptions; this process ends with the connection.
    for interruption in (signal.SIGINT, signal.SIGTERM):
        signal.signal(interruption, signal.SIG_IGN)
    try:
        _serve(Connection(int(sys.argv[1])))
    except (EOFError, OSError):
        os._exit(0)  # the run has ended
