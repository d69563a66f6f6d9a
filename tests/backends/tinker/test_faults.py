"""A network and a server that fail: a run ends or continues as documented, and no step is applied twice."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from evsys_sdk import ExperimentConfig
from evsys_sdk.backends.client import AdamParams, SamplingParams, TrainingClient
from evsys_sdk.backends.datum import Datum
from evsys_sdk.errors import BackendError
from evsys_sdk.experiment import Experiment
from evsys_sdk.protocols import RunResult
from evsys_sdk.training.callback import Callback

from ...server.faulty_proxy import FaultyProxy
from ...server.serving import ServerProcess
from .conftest import Connect
from .recipes import RECIPES

pytestmark = pytest.mark.tinker

V1 = "/api/v1"


@pytest.fixture
def proxy(server: ServerProcess) -> Iterator[FaultyProxy]:
    with FaultyProxy(server.url) as running:
        yield running


def data(client: TrainingClient) -> list[Datum]:
    tokens = client.tokenizer.encode("the cat sat on the mat")
    return [Datum.supervised(tokens, [1.0] * len(tokens))]


def learned(client: TrainingClient, steps: int = 3) -> np.ndarray:
    """Log-probabilities after some steps, submitted as the loop does."""
    pending: list[Any] = []
    for _ in range(steps):
        pending += [client.forward_backward(data(client), "cross_entropy"), client.optim_step(AdamParams(1e-3))]
    for operation in pending:
        operation.result()
    return client.forward(data(client)).result().logprobs[0]


@pytest.mark.parametrize("path", ["forward_backward", "optim_step", "retrieve_future"])
@pytest.mark.parametrize("fault", ["reset", "reset_after", 409, 429, 500, 503])
def test_a_fault_on_the_way_changes_nothing(
    connect: Connect, server: ServerProcess, proxy: FaultyProxy, path: str, fault: Any
) -> None:
    if (path, fault) == ("retrieve_future", 409):
        pytest.skip("the SDK takes a conflict on a result as final, and no server sends it")
    undisturbed = learned(connect(server.url))
    client = connect(proxy.url)
    proxy.fail_next(f"{V1}/{path}", fault)
    assert np.array_equal(learned(client), undisturbed)
    assert proxy.faults(f"{V1}/{path}") == 1


def test_a_slow_answer_within_the_deadline_is_waited_for(
    connect: Connect, server: ServerProcess, proxy: FaultyProxy
) -> None:
    undisturbed = learned(connect(server.url))
    client = connect(proxy.url, deadlines={"operation_s": 20.0})
    proxy.fail_next(f"{V1}/optim_step", "delay", delay_s=1.0)
    assert np.array_equal(learned(client), undisturbed)


def test_a_step_that_takes_too_long_is_given_up_and_never_sent_again(connect: Connect, proxy: FaultyProxy) -> None:
    client = connect(proxy.url, deadlines={"operation_s": 0.5})
    learned(client, steps=1)
    sent = proxy.seen(f"{V1}/optim_step")
    proxy.fail_next(f"{V1}/optim_step", "delay", delay_s=2.0)
    backward = client.forward_backward(data(client), "cross_entropy")
    step = client.optim_step(AdamParams(1e-3))
    behind = client.save_state("after")
    backward.result(timeout=60)
    with pytest.raises(BackendError, match=r"optim_step made no progress for 0.5 s.*--resume"):
        step.result(timeout=60)
    with pytest.raises(BackendError, match="--resume"):
        behind.result(timeout=60)
    with pytest.raises(BackendError, match=r"forward was not sent.*optim_step made no progress"):
        client.forward(data(client))
    assert proxy.seen(f"{V1}/optim_step") <= sent + 1


def test_an_endless_error_ends_at_the_deadline(connect: Connect, proxy: FaultyProxy) -> None:
    client = connect(proxy.url, deadlines={"operation_s": 1.0})
    proxy.fail_next(f"{V1}/retrieve_future", 500, times=10**6)
    with pytest.raises(BackendError, match=r"made no progress for 1 s"):
        client.forward(data(client)).result(timeout=60)


def test_samples_that_take_too_long_fail_alone(connect: Connect, proxy: FaultyProxy) -> None:
    client = connect(proxy.url, deadlines={"sample_s": 0.5})
    sampler = client.sampler().result()
    proxy.fail_next(f"{V1}/asample", "delay", delay_s=1.5)
    with pytest.raises(BackendError, match=r"sample made no progress for 0.5 s"):
        sampler.sample([1, 2], 1, SamplingParams(4, seed=1)).result(timeout=60)
    assert np.isfinite(learned(client)).all()


def test_a_refusal_by_the_server_leaves_the_client_usable(
    connect: Connect, server: ServerProcess, proxy: FaultyProxy
) -> None:
    undisturbed = learned(connect(server.url))
    client = connect(proxy.url)
    with pytest.raises(BackendError, match=r"load_state found nothing: .*nope"):
        client.load_state("tinker://nope:train:0/weights/nothing").result(timeout=60)
    assert np.array_equal(learned(client), undisturbed)


class KillsServer(Callback):
    """Ends a server after a step, as a power cut would."""

    name = "kills_server"

    def __init__(self, server: ServerProcess, after: int) -> None:
        self._server, self._after = server, after

    def on_step(self, step: int, metrics: Mapping[str, float]) -> None:
        if step == self._after:
            self._server.stop(signal.SIGKILL)


def config(url: str, folder: Path) -> ExperimentConfig:
    deadlines = {"operation_s": 3.0, "connect_s": 20.0}
    backend = {"kind": "tinker", "params": {"base_url": url, "deadlines": deadlines}}
    run = {"name": "r", "seed": 5, "model": {"name": "tiny"}, **RECIPES["sft"], "backend": backend}
    return ExperimentConfig.model_validate({"name": "killed", "output_dir": str(folder), "run": run})


def only_run(experiment: Experiment, **options: Any) -> RunResult:
    [run] = experiment.run(**options).runs
    return run


def final_loss_and_steps(folder: Path) -> dict[int, float]:
    [path] = folder.glob("**/metrics.jsonl")
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return {row["step"]: row["loss"] for row in rows}


def test_a_server_that_was_killed_and_started_again_loses_nothing_that_was_saved(tmp_path: Path) -> None:
    state = tmp_path / "state"
    with ServerProcess(tmp_path / "calm") as calm:
        undisturbed = only_run(Experiment(config(calm.url, tmp_path / "undisturbed")))
        expected = final_loss_and_steps(tmp_path / "undisturbed")
    first = ServerProcess(state)
    with FaultyProxy(first.url) as proxy:
        experiment = Experiment(config(proxy.url, tmp_path / "out"), callbacks=[lambda: KillsServer(first, 5)])
        broken = only_run(experiment)
        assert broken.status == "failed"
        assert "--resume" in (broken.error or "")
        with ServerProcess(state) as second:
            proxy.retarget(second.url)
            resumed = only_run(Experiment(config(proxy.url, tmp_path / "out")), resume=True)
    assert resumed.status == "completed", resumed.error
    assert resumed.metrics["final_loss"] == undisturbed.metrics["final_loss"]
    assert final_loss_and_steps(tmp_path / "out") == expected


def test_a_server_that_is_not_there_is_reported_at_once(connect: Connect) -> None:
    with pytest.raises(BackendError, match=r"nothing answers at http://127.0.0.1:9 .*base_url"):
        connect("http://127.0.0.1:9")
