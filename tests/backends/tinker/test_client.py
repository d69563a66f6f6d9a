"""What the adapter adds to the protocol: keys, addresses, several servers, corrections, references, cost."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from evsys_sdk.backends.client import AdamParams, ModelSpec, SamplingParams, TrainingClient
from evsys_sdk.backends.datum import Datum
from evsys_sdk.backends.losses import numpy_loss
from evsys_sdk.backends.probes.facts import Facts, ProbedServer, write_answer
from evsys_sdk.config.prices import Price, Tariff, TokenUsage
from evsys_sdk.errors import BackendError, ConfigError, EvsysAuthError
from evsys_sdk.spend.metered_client import MeteredClient

from ...server.serving import ServerProcess
from .conftest import Connect

pytestmark = pytest.mark.tinker


def data(client: TrainingClient, text: str = "the cat sat on the mat") -> list[Datum]:
    tokens = client.tokenizer.encode(text)
    return [
        Datum.supervised(tokens, [1.0] * len(tokens)),
        Datum.supervised(tokens[:9], [0.5] * 9),
    ]


@numpy_loss
def no_loss(data: Sequence[Datum], logprobs: Sequence[Any]) -> Any:
    return 0.0, {}, [np.zeros(len(row), np.float32) for row in logprobs]


def soft(client: TrainingClient) -> list[Datum]:
    """The same with two targets per position."""
    return [
        Datum(
            datum.tokens,
            np.stack((datum.target_tokens, np.roll(datum.target_tokens, 1)), axis=1),
            datum.weights[:, None] * np.array([0.7, 0.3], np.float32),
        )
        for datum in data(client)
    ]


def learned(client: TrainingClient, batch: list[Datum], steps: int = 3) -> np.ndarray:
    for _ in range(steps):
        client.forward_backward(batch, "cross_entropy")
        client.optim_step(AdamParams(1e-3)).result()
    return np.concatenate([lp.ravel() for lp in client.forward(data(client)).result().logprobs])


def test_two_servers_serve_two_clients_at_once(connect: Connect, server: ServerProcess, tmp_path: Path) -> None:
    expected = learned(connect(server.url), data(connect(server.url)))
    logprobs: dict[int, np.ndarray] = {}
    with ServerProcess(tmp_path / "other") as other:
        clients = [connect(url, run_dir=tmp_path / f"run{n}") for n, url in enumerate((server.url, other.url))]

        def train(number: int) -> None:
            logprobs[number] = learned(clients[number], data(clients[number]))

        threads = [threading.Thread(target=train, args=(number,)) for number in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        for client in clients:
            client.close()
    assert np.array_equal(logprobs[0], expected)
    assert np.array_equal(logprobs[1], expected)


@pytest.mark.parametrize("key", ["tml-secret", "sk-of-another-kind"])
def test_a_key_comes_from_the_environment_and_is_written_nowhere(
    connect: Connect, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, key: str
) -> None:
    monkeypatch.setenv("MY_SERVER_KEY", key)
    with ServerProcess(tmp_path / "state", env={"EVSYS_SERVE_API_KEY": "tml-secret"}) as guarded:
        if not key.startswith("tml-"):
            with pytest.raises(EvsysAuthError, match="api_key_env"):
                connect(guarded.url, api_key_env="MY_SERVER_KEY")
            return
        with pytest.raises(EvsysAuthError, match=r"refused the key \(401"):
            connect(guarded.url, api_key_env="UNSET_KEY")
        client = connect(guarded.url, api_key_env="MY_SERVER_KEY")
        client.save_state("a").result()
        client.close()
    written = [path.read_text(encoding="utf-8") for path in (tmp_path / "run").rglob("*.json")]
    assert written
    assert not [text for text in [*written, caplog.text] if "secret" in text]


def test_the_hosted_service_without_a_key_is_refused_before_anything_is_sent() -> None:
    from evsys_sdk.backends.tinker.backend import TinkerBackend

    with pytest.raises(EvsysAuthError, match="TINKER_API_KEY is not set"):
        TinkerBackend().prepare(model=ModelSpec("any"), run_dir=Path("run"))


def test_a_header_can_be_taken_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    from evsys_sdk.backends.tinker.config import TinkerConfig
    from evsys_sdk.backends.tinker.session import NO_KEY, credentials

    config = TinkerConfig(api_key_env="NOWHERE", header_env={"X-Org": "MY_ORG"})
    with pytest.raises(EvsysAuthError, match="MY_ORG for the header X-Org is not set"):
        credentials(config, "http://127.0.0.1:1")
    monkeypatch.setenv("MY_ORG", "us")
    assert credentials(config, "http://127.0.0.1:1") == (NO_KEY, {"X-Org": "us"})
    monkeypatch.setenv("NOWHERE", "sk-1")
    assert credentials(config, "http://127.0.0.1:1") == (NO_KEY, {"Authorization": "Bearer sk-1", "X-Org": "us"})


def test_the_sdk_reports_nothing_unless_allowed(connect: Connect, server: ServerProcess) -> None:
    client: Any = connect(server.url)
    assert client._session.service.get_telemetry() is None
    assert "TINKER_TELEMETRY" not in os.environ
    talkative: Any = connect(server.url, telemetry=True)
    assert talkative._session.service.get_telemetry() is not None


def test_a_model_that_the_server_does_not_have_is_refused(server: ServerProcess, tmp_path: Path) -> None:
    from evsys_sdk.backends.tinker.backend import TinkerBackend

    with pytest.raises(BackendError, match=r"no model 'tini'. Did you mean 'tiny'"):
        TinkerBackend(base_url=server.url).prepare(model=ModelSpec("tini"), run_dir=tmp_path)


def test_averages_by_a_known_number_are_undone_exactly(connect: Connect, server: ServerProcess) -> None:
    """The server sums; told that it averages, the client sends weights that are so much larger."""
    write_answer(ProbedServer("tinker", server.url, "tiny"), Facts(loss_reduction="mean_data"), {})
    client = connect(server.url)
    assert client.capabilities.summed_losses
    twice = client.forward_backward(data(client), "cross_entropy").result()
    norm = client.optim_step(AdamParams(0.0)).result().metrics["grad_norm"]
    plain = connect(server.url, use_doctor=False)
    once = plain.forward_backward(data(plain), "cross_entropy").result()
    assert norm == pytest.approx(2 * plain.optim_step(AdamParams(0.0)).result().metrics["grad_norm"], rel=1e-5)
    assert twice.loss == once.loss


def test_what_doctor_found_out_is_used(connect: Connect, server: ServerProcess) -> None:
    facts = Facts(loss_reduction="normalised", snapshot_samplers=False, top_k_logprobs=3, seeds=False)
    write_answer(ProbedServer("tinker", server.url, "tiny"), facts, {})
    client = connect(server.url)
    capabilities = client.capabilities
    assert (capabilities.summed_losses, capabilities.custom_loss, capabilities.snapshot_samplers) == (
        False,
        False,
        False,
    )
    assert (capabilities.top_k_logprobs, capabilities.seeds) == (3, False)
    with pytest.raises(BackendError, match="averages losses"):
        client.forward_backward_custom(data(client), lambda data, logprobs: None)
    with pytest.raises(BackendError, match="negative weights"):
        client.forward_backward([Datum(d.tokens, d.target_tokens, -d.weights) for d in data(client)], "cross_entropy")
    sampler = client.sampler().result()
    sampler.logprobs([1, 2, 3]).result()
    client.optim_step(AdamParams(1e-3)).result()
    with pytest.raises(BackendError, match=r"follow the live weights.*Take a new sampler"):
        sampler.sample([1, 2], 1, SamplingParams(2))


def test_soft_targets_can_be_sent_one_by_one(connect: Connect, server: ServerProcess) -> None:
    native, expanded = connect(server.url), connect(server.url, soft_targets="expanded")
    native_output = native.forward_backward(soft(native), "cross_entropy").result()
    other = expanded.forward_backward(soft(expanded), "cross_entropy").result()
    assert other.loss == pytest.approx(native_output.loss, rel=1e-6)
    for first, second in zip(native_output.logprobs, other.logprobs, strict=True):
        np.testing.assert_allclose(first, second, atol=1e-6)
    norms = [client.optim_step(AdamParams(0.0)).result().metrics["grad_norm"] for client in (native, expanded)]
    assert norms[0] == pytest.approx(norms[1], rel=1e-5)


def test_a_loss_the_server_lacks_is_computed_here(connect: Connect, server: ServerProcess) -> None:
    native, ours = connect(server.url), connect(server.url, native_losses=["cross_entropy"])
    pairs: list[tuple[float, float]] = []
    for client in (native, ours):
        plain = data(client)[0]
        logprobs = client.forward([plain]).result().logprobs[0] - np.float32(0.2)
        datum = Datum(plain.tokens, plain.target_tokens, plain.weights, np.full(len(plain), 0.5, np.float32), logprobs)
        loss = client.forward_backward([datum], "ppo").result().loss
        pairs.append((loss, client.optim_step(AdamParams(0.0)).result().metrics["grad_norm"]))
    assert pairs[0] == pytest.approx(pairs[1], rel=1e-5)


def test_checkpoints_of_one_name_do_not_collide_and_sidecars_say_what_they_are(
    connect: Connect, server: ServerProcess, tmp_path: Path
) -> None:
    client = connect(server.url)
    first, other = client.save_state("same").result(), client.save_state("same").result()
    assert first != other
    sidecars = [json.loads(path.read_text(encoding="utf-8")) for path in (tmp_path / "run" / "tinker").glob("same-*")]
    assert {sidecar["reference"] for sidecar in sidecars} == {first, other}
    assert {sidecar["model"] for sidecar in sidecars} == {"tiny"}


def test_a_checkpoint_of_another_adapter_is_refused(server: ServerProcess, tmp_path: Path) -> None:
    from evsys_sdk.backends.tinker.backend import TinkerBackend

    backend = TinkerBackend(base_url=server.url)
    handles = backend.prepare(model=ModelSpec("tiny", lora_rank=8), run_dir=tmp_path)
    ref = handles["training_client"].save_state("a").result()
    backend.teardown(handles)
    with pytest.raises(BackendError, match="rank=8, but the run asks for 16"):
        backend.prepare(model=ModelSpec("tiny", lora_rank=16, load_checkpoint_path=ref), run_dir=tmp_path)
    with pytest.raises(BackendError, match="begin with tinker://"):
        backend.prepare(model=ModelSpec("tiny", load_checkpoint_path="outputs/x"), run_dir=tmp_path)


def test_what_is_asked_of_the_server_is_counted_and_priced(connect: Connect, server: ServerProcess) -> None:
    used: list[TokenUsage] = []
    price = Tariff((Price(train=2.0, input=1.0, output=4.0),))
    client = MeteredClient(connect(server.url, native_losses=["cross_entropy"]), used.append, price)
    batch = data(client)
    trained = sum(len(datum) for datum in batch)
    client.forward_backward(batch, "cross_entropy").result()
    # A loss of one's own is computed here: the server reads everything once more.
    client.forward_backward_custom(batch, no_loss).result()
    client.optim_step(AdamParams(0.0)).result()
    client.sampler().result().sample([1, 2, 3], 2, SamplingParams(5, seed=1, stop=[])).result()
    assert used == [
        TokenUsage(0, 0, trained_tokens=trained),
        TokenUsage(trained, 0, trained_tokens=trained),
        TokenUsage(3, 10),
    ]
    assert [price.of(one) for one in used[::2]] == [Decimal(trained) * 2 / 1_000_000, Decimal(43) / 1_000_000]


def test_a_tokenizer_that_cannot_be_had_is_explained(connect: Connect, server: ServerProcess, tmp_path: Path) -> None:
    with pytest.raises(BackendError, match=r"cannot be loaded.*params.tokenizer"):
        connect(server.url, tokenizer=str(tmp_path / "nothing"))
    assert connect(server.url, tokenizer="served").tokenizer.vocab_size == 259


def test_a_server_without_ids_for_its_samples_is_tolerated(
    connect: Connect, server: ServerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As SkyRL answers: no ids for samples, and seeds of 31 bits."""
    import tinker

    from evsys_sdk.backends.tinker.backend import SkyRLBackend

    plain = connect(server.url).sampler().result()
    expected = plain.sample([1, 2], 2, SamplingParams(max_tokens=4, seed=3, stop=[])).result()
    send: Any = tinker.SamplingClient._send_asample_request

    async def without_ids(self: Any, *args: Any) -> Any:
        return (await send(self, *args)).model_copy(update={"sample_sequence_ids": None})

    monkeypatch.setattr(tinker.SamplingClient, "_send_asample_request", without_ids)
    with pytest.raises(BackendError, match="sample_sequence_ids"):
        plain.sample([1, 2], 2, SamplingParams(max_tokens=4, seed=3, stop=[])).result()
    backend = SkyRLBackend(base_url=server.url)
    handles = backend.prepare(model=ModelSpec("tiny", seed=1), run_dir=Path("run"))
    try:
        sampler = handles["training_client"].sampler().result()
        params = SamplingParams(max_tokens=4, seed=(1 << 50) + 3, stop=[])
        assert sampler.sample([1, 2], 2, params).result() == expected
    finally:
        backend.teardown(handles)


def test_params_are_checked() -> None:
    from pydantic import ValidationError

    from evsys_sdk.backends.tinker.backend import TinkerBackend

    for params in ({"base_url": "localhost:1"}, {"native_losses": ["pppo"]}, {"checkpoint_ttl_s": 5}, {"api_key": "x"}):
        with pytest.raises((ValidationError, ConfigError)):
            TinkerBackend(**params)


def test_doctor_asks_over_the_wire(
    server: ServerProcess, capsys: pytest.CaptureFixture[str], connect: Connect, tmp_path: Path
) -> None:
    from evsys_sdk.cli.main import main

    assert main(["doctor", "--base-url", server.url, "--json", "--quiet"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["model"] == "tiny"
    assert answer["problems"] == {}
    facts = answer["facts"]
    assert (facts["loss_reduction"], facts["snapshot_samplers"], facts["exact_resume"]) == ("sum", True, True)
    assert facts["rejects_unknown_model"] is True
    assert connect(server.url).capabilities.top_k_logprobs == 50


def test_a_process_that_was_forked_is_reported(connect: Connect, server: ServerProcess, tmp_path: Path) -> None:
    from evsys_sdk.backends.tinker.backend import TinkerBackend

    connect(server.url).forward(data(connect(server.url))).result()
    read, write = os.pipe()
    child = os.fork()
    if not child:
        try:
            TinkerBackend(base_url=server.url).prepare(model=ModelSpec("tiny"), run_dir=tmp_path)
        except BackendError as error:
            os.write(write, str(error).encode())
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as answer:
        message = answer.read().decode()
    os.waitpid(child, 0)
    assert "forked" in message
    assert "spawn" in message


def test_a_batch_that_would_be_averaged_in_parts_is_refused(connect: Connect, server: ServerProcess) -> None:
    write_answer(ProbedServer("tinker", server.url, "tiny"), Facts(loss_reduction="mean_data"), {})
    client = connect(server.url)
    with pytest.raises(BackendError, match="averaged by itself"):
        client.forward_backward(data(client) * 600, "cross_entropy").result(60)
