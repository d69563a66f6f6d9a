"""What the adapter adds to the provider's client: keys, names, seeds, deadlines, and every failure as a sentence."""

from __future__ import annotations

import logging
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from evsys_sdk.backends.client import AdamParams, SamplingParams
from evsys_sdk.backends.datum import Datum
from evsys_sdk.backends.fireworks.backend import FireworksBackend
from evsys_sdk.backends.fireworks.client import make_label
from evsys_sdk.backends.fireworks.sampling import check_path
from evsys_sdk.errors import BackendError, EvsysAuthError

from .conftest import Connect
from .stand_in import KEY, StandIn

pytestmark = pytest.mark.fireworks

PROMPT = list(b"hello")


def batch() -> list[Datum]:
    return [Datum.supervised(PROMPT, [1.0] * len(PROMPT))]


def test_a_session_is_deleted_at_the_end_and_nothing_is_reported(connect: Connect, tmp_path: Path) -> None:
    with StandIn(tmp_path / "service") as service:
        client = connect(service)
        assert len(service.sessions) == 1
        client.close()
        client.close()
        assert not service.sessions
        assert "telemetry" not in service.names()
        undeleted = connect(service, delete_session=False)
        undeleted.close()
        assert len(service.sessions) == 1


def test_a_key_that_is_wrong_is_named_and_never_shown(
    connect: Connect, service: StandIn, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setenv("MY_KEY", "fw_wrong_secret")
    with pytest.raises(EvsysAuthError, match="refused the key") as caught:
        connect(service, api_key_env="MY_KEY")
    assert "fw_wrong_secret" not in str(caught.value) + caplog.text


def test_keys_that_cannot_work_are_refused_before_anything_is_sent(
    connect: Connect, service: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = len(service.asked)
    monkeypatch.delenv("FIREWORKS_API_KEY")
    with pytest.raises(EvsysAuthError, match="FIREWORKS_API_KEY is not set"):
        connect(service)
    monkeypatch.setenv("FIREWORKS_API_KEY", "tml-abc")
    with pytest.raises(EvsysAuthError, match="one for Tinker"):
        connect(service)
    assert len(service.asked) == before


def test_a_key_of_another_variable_is_the_only_one_that_is_sent(
    connect: Connect, service: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FIREWORKS_API_KEY", "fw_of_somebody_else")  # which the provider's client would take by itself
    monkeypatch.setenv("MY_KEY", KEY)
    client = connect(service, api_key_env="MY_KEY")
    client.forward_backward(batch(), "cross_entropy").result()
    assert client.sampler().result().sample(PROMPT, 1, SamplingParams(2)).result()
    sessions = len(service.sessions)
    client.close()
    assert len(service.sessions) == sessions - 1


def test_a_key_is_written_nowhere(connect: Connect, service: StandIn, tmp_path: Path) -> None:
    client = connect(service)
    client.forward_backward(batch(), "cross_entropy").result()
    client.save_state("kept").result()
    client.close()
    written = [path.read_text(encoding="utf-8") for path in (tmp_path / "run").rglob("*.json")]
    assert written
    assert not any(KEY in text for text in written)


def test_each_sample_has_its_own_seed_and_the_log_probabilities_of_the_model(
    connect: Connect, service: StandIn
) -> None:
    client = connect(service)
    sampler = client.sampler().result()
    samples = sampler.sample(PROMPT, 3, SamplingParams(6, temperature=0.5, seed=7, stop=[])).result()
    requests = [body for name, body in service.asked if name == "completions"][-3:]
    assert len({body["seed"] for body in requests}) == 3
    assert all(0 <= body["seed"] < 2**31 and body["ignore_eos"] for body in requests)
    scored = sampler.logprobs([*PROMPT, *samples[0].tokens]).result()[len(PROMPT) :]
    assert samples[0].logprobs == pytest.approx(scored.tolist(), abs=1e-4)


def test_the_end_of_text_stops_a_sample_that_is_to_end_with_a_control_token(connect: Connect, service: StandIn) -> None:
    client = connect(service)
    sampler = client.sampler().result()
    sampler.sample(PROMPT, 1, SamplingParams(3, seed=1, stop=[client.tokenizer.eos_token_id])).result()
    assert "ignore_eos" not in service.asked[-1][1]
    sampler.sample(PROMPT, 1, SamplingParams(3, seed=1, stop=["x"])).result()
    assert service.asked[-1][1]["ignore_eos"] is True


@pytest.mark.parametrize(("stop", "why"), [(list("abcde"), "4 at most"), ([200], "has no text")])
def test_stops_that_the_service_does_not_take_are_refused(
    stop: list[Any], why: str, connect: Connect, service: StandIn
) -> None:
    sampler = connect(service).sampler().result()
    with pytest.raises(BackendError, match=why):
        sampler.sample(PROMPT, 1, SamplingParams(3, stop=stop))


def test_alternatives_are_refused(connect: Connect, service: StandIn) -> None:
    client = connect(service, top_k_logprobs=5)
    assert client.capabilities.top_k_logprobs == 0
    with pytest.raises(BackendError):
        client.sampler().result().topk_logprobs(PROMPT, 2)


def test_a_stored_sampler_opens_without_training(connect: Connect, service: StandIn) -> None:
    stored = connect(service).sampler("best").result()
    backend = FireworksBackend(base_url=service.url, tokenizer="served")
    sampler, close = backend.open_sampler("tiny", stored.ref)
    params = SamplingParams(5, seed=3, stop=[])
    try:
        assert sampler.sample(PROMPT, 2, params).result() == stored.sample(PROMPT, 2, params).result()
    finally:
        close()
    assert any(name == "create_sampling_route" for name in service.names())


def test_a_sample_that_is_refused_fails_alone_with_the_reason(connect: Connect, service: StandIn) -> None:
    client = connect(service)
    sampler = client.sampler().result()
    service.faults["completions"] = [422]
    with pytest.raises(BackendError, match=r"sample was refused: it does not work today"):
        sampler.sample(PROMPT, 1, SamplingParams(3)).result()
    assert len(sampler.sample(PROMPT, 1, SamplingParams(3, stop=[])).result()[0].tokens) == 3


def test_a_lost_pass_ends_at_the_deadline_and_nothing_is_sent_after_it(connect: Connect, tmp_path: Path) -> None:
    with StandIn(tmp_path / "service") as service:
        client = connect(service, deadlines={"operation_s": 1.0})
        client.forward_backward(batch(), "cross_entropy").result()
        service.silent |= {"forward_backward", "optim_step"}
        lost, stepped = client.forward_backward(batch(), "cross_entropy"), client.optim_step(AdamParams(1e-3))
        with pytest.raises(BackendError, match=r"no progress for 1 s.*--resume"):
            lost.result()
        with pytest.raises(BackendError):
            stepped.result()
        with pytest.raises(BackendError, match="an operation before it was lost"):
            client.forward(batch())
        client.close()


def test_a_checkpoint_that_is_not_there_is_refused_and_training_continues(connect: Connect, service: StandIn) -> None:
    client = connect(service)
    with pytest.raises(BackendError, match="there is no checkpoint"):
        client.load_state(f"fireworks://team/run-{'0' * 32}/gone").result()
    assert client.forward(batch()).result().loss > 0


def test_a_service_that_is_not_there_is_reported_at_once(connect: Connect, service: StandIn) -> None:
    with pytest.raises(BackendError, match="nothing answers at"):
        connect(service, base_url="http://127.0.0.1:9")


def test_names_become_labels_that_are_never_taken() -> None:
    assert make_label("Step_3.final").startswith("step-3-final-")
    assert make_label("a") != make_label("a")
    assert len(make_label("x" * 200)) < 54
    with pytest.raises(BackendError, match="cannot be called"):
        make_label("...")
    with pytest.raises(BackendError, match="begin with fireworks://"):
        check_path("tinker://run/weights/a")


def test_a_service_that_goes_away_ends_the_run_and_is_not_waited_for(
    connect: Connect, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with StandIn(tmp_path / "service") as service:
        client = connect(service, deadlines={"operation_s": 1.5})
        client.forward_backward(batch(), "cross_entropy").result()
    with pytest.raises(BackendError, match="--resume"):
        client.forward_backward(batch(), "cross_entropy").result()
    client.close()
    assert "could not be deleted" in caplog.text


LOSES_A_SAMPLER = """
import sys
from pathlib import Path
from evsys_sdk.backends.client import ModelSpec
from evsys_sdk.backends.fireworks.backend import FireworksBackend

backend = FireworksBackend(base_url=sys.argv[1], tokenizer="served", deadlines={"operation_s": 1.0})
client = backend.prepare(model=ModelSpec("tiny"), run_dir=Path(sys.argv[2]))["training_client"]
try:
    client.sampler("lost").result()
except Exception as error:
    print(error)
"""


def test_a_process_ends_although_an_answer_never_came_and_nothing_was_closed(tmp_path: Path) -> None:
    with StandIn(tmp_path / "service") as service:
        service.silent.add("save_weights_for_sampler")
        command = [sys.executable, "-c", LOSES_A_SAMPLER, service.url, str(tmp_path / "run")]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 0, ended.stderr
    assert "no progress for 1 s" in ended.stdout
