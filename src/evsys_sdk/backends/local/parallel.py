"""One run on several devices (`devices: N`): data parallel through torch.distributed.

The client of the run is rank 0; each other rank is a separate process (`rank`) with the same base and adapter. The data
of a call is split over the ranks by tokens. Gradients are summed over all ranks before an optimizer step, which every
rank computes itself, so that the adapters stay bitwise equal. Samples are split over the ranks too; each sample has its
own random stream, so the number of ranks changes samples only by rounding.
"""

# pyright: basic, reportMissingImports=false

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import threading
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import fields, replace
from itertools import count
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ...errors import BackendError
from .. import checks
from ..client import AdamParams, ForwardBackwardOutput, ModelSpec, Sample, SamplingParams
from ..datum import Datum, Floats
from ..future import Operation, gather
from ..losses import Loss, LossResult
from ..seeds import seed_of_later
from ..worker import start_thread
from .base.lora import LoRAAdapter
from .client import LocalSamplingClient, LocalTrainingClient
from .rank import join_group
from .training.passes import LocalTrainingState

if TYPE_CHECKING:
    from .backend import LocalBackend

_FEWEST_SAMPLES = 4
"""Minimum samples per rank when a request is split, because each rank has to prefill the prompt."""


class RankProcess:
    """Rank 0's handle of another rank."""

    def __init__(self, number: int, ranks: int) -> None:
        self.name, self._numbers = f"rank {number} of {ranks}", count()
        self._waiting: dict[int, tuple[Future[Any], bool]] = {}
        self._lock = threading.Lock()
        # Not on the receiving thread: callbacks of a sample may wait for other answers of the rank.
        self._samples = ThreadPoolExecutor(1, thread_name_prefix=f"{self.name}, samples")
        ours, theirs = socket.socketpair()
        # -P and PYTHONPATH, so that modules are imported from the same paths as here.
        path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", f"{__package__}.rank", str(theirs.fileno())],
            env={**os.environ, "PYTHONPATH": path},
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
        )
        theirs.close()
        self._connection = Connection(ours.detach())
        self._thread = start_thread(self._receive, name=self.name, give_up=self.process.kill)

    def call(self, name: str, *args: Any) -> Operation[Any]:
        """Call a method of the rank; the operation fails if the process ends."""
        future: Future[Any] = Future()
        future.set_running_or_notify_cancel()
        with self._lock:
            number = next(self._numbers)
            self._waiting[number] = future, name == "ask"
            try:
                self._connection.send((number, name, args))
            except OSError:
                self._waiting.pop(number, None)
                future.set_exception(self.lost())
        return Operation(future, f"{name} of {self.name}")

    def lost(self) -> BackendError:
        """Return the error for an ended process."""
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(5)
        code = self.process.returncode
        how = f"was ended by signal {-code}" if code and code < 0 else f"has ended (exit code {code})"
        return BackendError(
            f"backend.params.devices: {self.name} (process {self.process.pid}) {how}, and the run cannot continue "
            "without it. Run it again: it resumes from its last checkpoint."
        )

    def close(self) -> None:
        """Kill the process; it holds nothing to save."""
        self.process.kill()
        self.process.wait()
        if self._thread is not threading.current_thread():
            self._thread.join()
        self._samples.shutdown(wait=False)

    def _receive(self) -> None:
        with suppress(EOFError, OSError):
            while True:
                number, result, error = self._connection.recv()
                future, is_sample = self._waiting.pop(number)
                give = self._samples.submit if is_sample else _call
                if error is None:
                    give(future.set_result, result)
                else:
                    give(future.set_exception, BackendError(f"{self.name}: {error}"))
        with self._lock:
            unanswered, self._waiting = self._waiting, {}
            self._connection.close()
        for future, _ in unanswered.values():
            future.set_exception(self.lost())


class Ranks:
    """All other ranks of a run, and the sampling load of each rank including rank 0."""

    def __init__(self, devices: int) -> None:
        self.processes = [RankProcess(number, devices) for number in range(1, devices)]
        self._load, self._lock = [0] * devices, threading.Lock()
        self.unused: deque[int] = deque()
        """Numbers of unreferenced samplers; the ranks release them when the next sampler is opened."""

    def __len__(self) -> int:
        return len(self._load)

    def call(self, name: str, *args: Any) -> None:
        """Call a method of all ranks and wait for the results."""
        gather([process.call(name, *args) for process in self.processes]).result()

    def choose(self, weight: int) -> tuple[int, Callable[[object], None]]:
        """Add load to the rank with the least; return the rank and a callback for the end of the work."""
        with self._lock:
            rank = self._load.index(min(self._load))
            self._load[rank] += weight

        def end(_: object) -> None:
            with self._lock:
                self._load[rank] -= weight

        return rank, end

    def close(self) -> None:
        for process in self.processes:
            process.close()


class ParallelState(LocalTrainingState):
    """The state of rank 0; its passes and steps run on all ranks."""

    ranks: Ranks
    _failure: BaseException | None = None

    def forward(self, data: Sequence[Datum], loss: Loss) -> ForwardBackwardOutput:
        """Compute the loss and the log-probabilities of all targets, without a gradient."""
        return _output(data, loss, self._read("forward", super().forward, data, no_loss))

    def forward_backward(self, data: Sequence[Datum], loss: Loss) -> ForwardBackwardOutput:
        """Add the gradient of a loss that is a sum over data."""
        return _output(data, loss, self._read("forward_backward", super().forward_backward, data, loss))

    def forward_backward_whole(self, data: Sequence[Datum], loss: Loss) -> ForwardBackwardOutput:
        """Add the gradient of a loss that may depend on all data at once; rank 0 computes the loss."""
        logprobs = self._read("forward", super().forward, data, no_loss)
        value, metrics, slopes = loss(data, logprobs)
        self._read("backward", super().backward, data, slopes)
        return ForwardBackwardOutput(value, logprobs, metrics)

    def step(self, adam: AdamParams) -> dict[str, float]:
        """Apply the summed gradient on every rank."""
        step = super().step
        return self._on_all("step", lambda: step(adam), [(adam,)] * len(self.ranks.processes))[0]

    def _read(self, method: str, here: Callable[..., Any], data: Sequence[Datum], rule: Any) -> list[Floats]:
        """Compute log-probabilities of all data on all ranks; a list of slopes is split like the data."""
        parts = split_evenly([len(datum) for datum in data], len(self.ranks))
        own, *others = [(data[part], rule[part] if isinstance(rule, list) else rule) for part in parts]
        outputs = self._on_all(method, lambda: here(*own) if own[0] else None, others)
        return [logprobs for output in outputs if output is not None for logprobs in output.logprobs]

    def _on_all(self, method: str, here: Callable[[], Any], others: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Return the results of all ranks; after a failure every later call fails, because the adapters may differ."""
        if self._failure is not None:
            raise BackendError(f"an earlier call has failed on one of the devices of this run: {self._failure}")
        try:
            operations = [
                process.call("train", method, *args) if args[0] else Operation[Any].done(None)
                for process, args in zip(self.ranks.processes, others, strict=True)
            ]
            return [here(), *(operation.result() for operation in operations)]
        except BaseException as error:
            ended = next((process for process in self.ranks.processes if process.process.poll() is not None), None)
            self._failure = error if ended is None else ended.lost()
            raise self._failure from error


class ParallelTrainingClient(LocalTrainingClient):
    """An adapter in training on several devices."""

    state_type = ParallelState
    _state: ParallelState
    _ranks: Ranks | None = None

    def join(self, ranks: Ranks) -> None:
        """Connect to the ranks, to sum gradients and split the work."""
        with tempfile.TemporaryDirectory(prefix="evsys-ranks-") as folder:
            joining = [
                process.call("join", folder, number, len(ranks))
                for number, process in enumerate(ranks.processes, start=1)
            ]
            self._state.reduce = join_group(folder, 0, len(ranks), self._base.device)
            gather(joining).result()
        self._ranks = self._state.ranks = ranks
        self._numbers = count()

    def load_state(self, ref: str, *, with_optimizer: bool = True) -> Operation[None]:
        """Restore a stored state on every rank."""
        here = super().load_state(ref, with_optimizer=with_optimizer)
        if (ranks := self._ranks) is None:
            return here
        there = self._worker.submit("load_state", lambda: ranks.call("load", ref, with_optimizer))
        return gather([here, there]).then(lambda _: None)

    def close(self) -> None:
        """Finish submitted calls and end the processes; closing twice does nothing."""
        super().close()
        if self._ranks is not None:
            self._ranks.close()

    def _sampler_of(self, adapter: LoRAAdapter, *, ref: str) -> LocalSamplingClient:
        assert self._ranks is not None
        number = next(self._numbers)
        while self._ranks.unused:
            self._ranks.call("forget", self._ranks.unused.popleft())
        self._ranks.call("open", number, ref)
        return ParallelSamplingClient(super()._sampler_of(adapter, ref=ref), self._ranks, number)


class ParallelSamplingClient(LocalSamplingClient):
    """A frozen copy of the adapter on every rank; each request goes to the ranks with the least to do."""

    def __init__(self, here: LocalSamplingClient, ranks: Ranks, number: int) -> None:
        super().__init__(here._snapshot, here.ref, here._loop, here._seeds, here._capabilities, here.tokenizer)
        self._ranks, self._number = ranks, number
        weakref.finalize(self, ranks.unused.append, number)

    def sample(self, prompt: Sequence[int], num_samples: int, params: SamplingParams) -> Operation[list[Sample]]:
        """Continue a prompt several times; requests with callbacks run in this process only."""
        checks.check_sampling(prompt, num_samples, params, self._capabilities)
        if params.make_filter or params.processors or params.on_token:
            return super().sample(prompt, num_samples, params)
        seed = self._seeds.next() if params.seed is None else int(params.seed)
        tokens, pieces = [int(token) for token in prompt], max(1, min(len(self._ranks), num_samples // _FEWEST_SAMPLES))
        operations: list[Operation[list[Sample]]] = []
        for part in split_evenly([1] * num_samples, pieces):
            own = replace(params, seed=seed_of_later(seed, part.start))
            samples = part.stop - part.start
            operations.append(self._submit("sample", super().sample, samples * params.max_tokens, tokens, samples, own))
        return gather(operations).then(lambda parts: [sample for samples in parts for sample in samples])

    def logprobs(self, tokens: Sequence[int]) -> Operation[Floats]:
        """Return the log-probability of each token given the earlier ones, (N,); nan for the first."""
        checks.check_tokens(tokens, self._capabilities, where="tokens")
        return self._submit("logprobs", super().logprobs, len(tokens), tokens)

    def _submit(self, method: str, here: Callable[..., Operation[Any]], weight: int, *args: Any) -> Operation[Any]:
        rank, end = self._ranks.choose(weight)
        others = self._ranks.processes
        operation = here(*args) if rank == 0 else others[rank - 1].call("ask", self._number, method, *args)
        operation.on_end(end)
        return operation


def prepare_parallel(backend: LocalBackend, model: Any, run_dir: Path) -> dict[str, Any]:
    """Return the handles of a run on several devices; the other ranks load the base after rank 0."""
    config = backend.config
    on_gpu = config.device != "cpu" and torch.cuda.is_available()
    if on_gpu and torch.cuda.device_count() < config.devices:
        raise BackendError(
            f"backend.params.devices is {config.devices}, and this run sees {torch.cuda.device_count()} GPUs. Set "
            f"launcher.params.gpus_per_arm to {config.devices}, or lower devices."
        )
    params = config.model_dump(exclude_unset=True) | {"devices": 1, "join_passes": "never"}
    if not on_gpu:
        params["threads"] = config.threads or max(1, torch.get_num_threads() // config.devices)
    ranks = Ranks(config.devices)
    try:
        handles = type(backend)(**params).start(ParallelTrainingClient, model, run_dir)
        places = [f"cuda:{number}" if on_gpu else "cpu" for number in range(1, config.devices)]
        names = {field.name for field in fields(ModelSpec)}
        spec = ModelSpec(**{name: getattr(model, name) for name in names if hasattr(model, name)})
        gather(
            [
                process.call("prepare", params | {"device": place}, spec, run_dir)
                for process, place in zip(ranks.processes, places, strict=True)
            ]
        ).result()
        handles["training_client"].join(ranks)
    except BaseException:
        ranks.close()
        raise
    return handles


def split_evenly(weights: Sequence[int], parts: int) -> list[slice]:
    """Split items into contiguous parts of similar weight, possibly empty; neighbours often share a prompt."""
    ends = np.cumsum(weights)
    middles = ends - np.asarray(weights) / 2
    cuts = [int(np.searchsorted(middles, ends[-1] * part / parts)) for part in range(1, parts)]
    return [slice(start, end) for start, end in zip([0, *cuts], [*cuts, len(weights)], strict=True)]


def no_loss(data: Sequence[Datum], logprobs: Sequence[Floats]) -> LossResult:
    """Placeholder for a loss that is computed later from the log-probabilities of all ranks."""
    return 0.0, {}, []


def _output(data: Sequence[Datum], loss: Loss, logprobs: list[Floats]) -> ForwardBackwardOutput:
    value, metrics, _ = loss(data, logprobs)
    return ForwardBackwardOutput(value, logprobs, metrics)


def _call(function: Callable[[Any], None], value: Any) -> None:
    function(value)
