"""Saved weights are exact, outlive the server, and can be listed, kept for a while and deleted."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from .conftest import forget_connections
from .in_process import PROMPT, as_tinker, supervised
from .serving import KEY, Raw, ServerProcess

pytestmark = pytest.mark.tinker


def train(client: Any, steps: int = 2) -> list[float]:
    from tinker import types

    data = [as_tinker(datum) for datum in supervised()]
    pending = [
        (client.forward_backward(data, "cross_entropy"), client.optim_step(types.AdamParams(learning_rate=3e-3)))
        for _ in range(steps)
    ]
    return [backward.result(60).metrics["loss:sum"] for backward, _ in pending]


def loss(client: Any) -> float:
    return client.forward([as_tinker(d) for d in supervised()], "cross_entropy").result(60).metrics["loss:sum"]


def scored(sampler: Any) -> list[float]:
    from tinker import types

    return sampler.compute_logprobs(types.ModelInput.from_ints(PROMPT)).result(60)[1:]


def test_a_state_with_its_optimizer_continues_as_if_nothing_had_happened(service: Any) -> None:
    client = service.create_lora_training_client("tiny", rank=8, seed=3)
    train(client)
    path = client.save_state("middle").result(60).path
    straight = [*train(client), loss(client)]
    resumed = service.create_training_client_from_state_with_optimizer(path)
    assert [*train(resumed), loss(resumed)] == straight
    fresh = service.create_training_client_from_state(path)
    assert loss(fresh) != straight[-1]
    assert train(fresh)[0] == straight[0], "the weights are the same"
    assert loss(fresh) != straight[-1], "the optimizer started afresh"


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_a_state_can_be_loaded_in_the_middle_of_a_run(service: Any) -> None:
    client = service.create_lora_training_client("tiny", rank=8, seed=3)
    train(client)
    path, before = client.save_state("here").result(60).path, loss(client)
    straight = train(client)
    client.load_state_with_optimizer(path).result(60)
    assert loss(client) == before
    assert train(client) == straight


def test_samplers_keep_their_weights_while_training_continues(service: Any) -> None:
    client = service.create_lora_training_client("tiny", rank=8, seed=4)
    train(client)
    live, named = client.save_weights_and_get_sampling_client(), client.save_weights_for_sampler("one").result(60).path
    before = scored(live)
    train(client)
    opened = service.create_sampling_client(model_path=named)
    after = loss(client)
    assert scored(live) == before
    assert scored(opened) == before
    assert loss(client) == after, "sampling changed the weights in training"
    assert scored(client.save_weights_and_get_sampling_client()) != before


def test_two_models_are_trained_at_once_without_touching_each_other(service: Any) -> None:
    alone = train(service.create_lora_training_client("tiny", rank=8, seed=5), steps=4)
    first, other = (service.create_lora_training_client("tiny", rank=8, seed=seed) for seed in (5, 6))
    mixed: list[float] = []
    for _ in range(4):
        mixed += train(first, steps=1)
        train(other, steps=1)
    assert mixed == alone


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_saved_weights_outlive_the_server(state_dir: Path, number: int) -> None:
    import tinker

    with ServerProcess(state_dir) as first:
        service = tinker.ServiceClient(base_url=first.url, api_key=KEY)
        client = service.create_lora_training_client("tiny", rank=8, seed=3)
        train(client)
        path = client.save_state("kept").result(60).path
        sampler = client.save_weights_for_sampler("kept").result(60).path
        expected = scored(service.create_sampling_client(model_path=sampler))
        straight = train(client)
        first.stop(number)
    with ServerProcess(state_dir) as second:
        again = tinker.ServiceClient(base_url=second.url, api_key=KEY)
        assert scored(again.create_sampling_client(model_path=sampler)) == expected
        assert train(again.create_training_client_from_state_with_optimizer(path)) == straight
        raw = Raw(second.url)
        gone = raw.forward_backward(client.model_id, 9)
        assert gone.status_code == 404
        assert "restarted" in gone.json()["error"]
        raw.http.close()
        again.close("success").result(60)
    del service, again, client
    forget_connections()


def test_a_name_is_used_once_unless_it_is_overwritten(service: Any) -> None:
    import tinker

    client = service.create_lora_training_client("tiny", rank=8, seed=3)
    path = client.save_state("same").result(60).path
    first = loss(client)
    train(client)
    with pytest.raises(tinker.BadRequestError, match="exists already"):
        client.save_state("same").result(60)
    assert loss(service.create_training_client_from_state(path)) == first
    client.save_state("same", overwrite=True).result(60)
    assert loss(service.create_training_client_from_state(path)) == loss(client) != first


@pytest.mark.parametrize("name", ["../../etc", "a/b", "", ".hidden", "x" * 200, "tinker://x"])
def test_a_name_that_is_no_file_name_is_refused_and_training_continues(service: Any, name: str) -> None:
    import tinker

    client = service.create_lora_training_client("tiny", rank=8, seed=3)
    with pytest.raises(tinker.BadRequestError):
        client.save_state(name).result(60)
    assert loss(client) > 0


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("tinker://nobody:train:0/weights/x", 404),
        ("tinker://a/../../b/weights/x", 400),
        ("/etc/passwd", 400),
        ("tinker://nobody:train:0/other/x", 400),
        ("", 400),
    ],
)
def test_a_path_that_leads_nowhere_is_refused(raw: Raw, path: str, status: int) -> None:
    model = raw.model()
    answer = raw.post("load_weights", {"model_id": model, "seq_id": 1, "path": path, "optimizer": True})
    assert answer.status_code == status
    assert raw.post("weights_info", {"tinker_path": path}).status_code == status
    assert raw.loss(raw.forward_backward(model, 2).json()["request_id"]) > 0


def test_checkpoints_are_listed_and_deleted_and_have_their_time(server: ServerProcess, service: Any) -> None:
    import tinker

    client = service.create_lora_training_client("tiny", rank=8, seed=3, user_metadata={"who": "me"})
    weights = client.save_state("w", ttl_seconds=7200, user_metadata={"step": "3"}).result(60).path
    sampler = client.save_weights_for_sampler("s").result(60).path
    rest = tinker.RestClient(base_url=server.url, api_key=KEY)
    listed = rest.list_checkpoints(client.model_id).result(60).checkpoints
    assert [c.tinker_path for c in listed] == [sampler, weights], "the latest first"
    assert listed[1].expires_at is not None
    assert listed[1].user_metadata == {"step": "3"}
    assert all(c.size_bytes for c in listed)
    assert {weights, sampler} <= {c.tinker_path for c in rest.list_user_checkpoints().result(60).checkpoints}
    rest.set_checkpoint_ttl_from_tinker_path(weights, None).result(60)
    run = rest.get_training_run_by_tinker_path(weights).result(60)
    assert (run.base_model, run.lora_rank, run.user_metadata) == ("tiny", 8, {"who": "me"})
    assert run.last_checkpoint is not None
    assert run.last_checkpoint.expires_at is None
    assert run.training_run_id in {r.training_run_id for r in rest.list_training_runs().result(60).training_runs}
    rest.delete_checkpoint_from_tinker_path(weights).result(60)
    assert [c.tinker_path for c in rest.list_checkpoints(client.model_id).result(60).checkpoints] == [sampler]
    with pytest.raises(tinker.NotFoundError, match="no saved weights"):
        service.create_training_client_from_state(weights)


def test_what_the_package_asks_about_a_server_is_answered(service: Any) -> None:
    (model,) = service.get_server_capabilities().supported_models
    assert (model.model_name, model.max_context_length) == ("tiny", 4096)
    client = service.create_lora_training_client("tiny", rank=8)
    info = client.get_info()
    assert (info.model_name, info.lora_rank, info.is_lora, info.model_id) == ("tiny", 8, True, client.model_id)
    sampler = client.save_weights_and_get_sampling_client()
    assert sampler.get_base_model() == "tiny"


def test_a_model_without_a_seed_draws_one(service: Any) -> None:
    losses = {loss(service.create_lora_training_client("tiny", rank=8)) for _ in range(2)}
    assert len(losses) == 2
    assert np.isfinite(list(losses)).all()
