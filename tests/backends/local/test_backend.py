"""Preparing the backend: devices, types, what is refused, and one base for several runs."""

from __future__ import annotations

import gc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs the extra local; run make test-local")
pytest.importorskip("transformers", reason="needs the extra local; run make test-local")
pytestmark = pytest.mark.local

from evsys_sdk.backends.client import AdamParams, ModelSpec, SamplingParams  # noqa: E402
from evsys_sdk.backends.datum import Datum  # noqa: E402
from evsys_sdk.backends.local import memory  # noqa: E402
from evsys_sdk.backends.local.backend import LocalBackend  # noqa: E402
from evsys_sdk.backends.local.base import loading  # noqa: E402
from evsys_sdk.backends.local.training import passes  # noqa: E402
from evsys_sdk.errors import BackendError, DataError  # noqa: E402
from evsys_sdk.inference.renderer import get_renderer  # noqa: E402

from .conftest import save_tiny  # noqa: E402

type MakeClient = Callable[..., Any]


def datum(client: Any, text: str = "The capital of France is Paris.") -> Datum:
    ids = client.tokenizer.encode(text)
    return Datum.supervised(ids, [1.0] * len(ids))


def test_two_runs_share_one_base_and_keep_their_own_adapters(make_client: MakeClient, tmp_path: Path) -> None:
    first, two = make_client(seed=1, run_dir=tmp_path / "1"), make_client(seed=2, lora_rank=4, run_dir=tmp_path / "2")
    assert first._base is two._base
    before = two.forward([datum(two)]).result().loss
    running = two.sampler().result().sample([1, 2, 3], 2, SamplingParams(50, seed=1, stop=[]))
    for _ in range(3):
        first.forward_backward([datum(first)], "cross_entropy")
        first.optim_step(AdamParams(1e-2)).result()
    assert first.forward([datum(first)]).result().loss < before
    assert two.forward([datum(two)]).result().loss == before
    assert len(running.result()) == 2


def test_two_runs_train_at_the_same_time_as_they_do_alone(make_client: MakeClient, tmp_path: Path) -> None:
    def steps(client: Any) -> list[Any]:
        return [
            (client.forward_backward([datum(client)], "cross_entropy"), client.optim_step(AdamParams(1e-2)))
            for _ in range(5)
        ]

    alone = [backward.result().loss for backward, _ in steps(make_client(seed=1, run_dir=tmp_path / "a"))]
    first, second = make_client(seed=1, run_dir=tmp_path / "b"), make_client(seed=2, run_dir=tmp_path / "c")
    mine, others = steps(first), steps(second)
    assert [backward.result().loss for backward, _ in mine] == alone
    assert [backward.result().loss for backward, _ in others] != alone


def test_the_base_goes_with_its_last_user(llama: str, tmp_path: Path) -> None:
    backend = LocalBackend(exact=True, device="cpu")
    folder = save_tiny(tmp_path / "own")
    handles = backend.prepare(model=ModelSpec(folder, lora_rank=2), run_dir=tmp_path)
    assert any(key.model == folder for key in loading._loaded)
    backend.teardown(handles)
    handles.clear()
    gc.collect()
    assert not any(key.model == folder for key in loading._loaded)


def test_the_seed_decides_the_adapter(make_client: MakeClient) -> None:
    first, same, other = make_client(seed=1), make_client(seed=1), make_client(seed=2)
    firsts = [client._state.adapter.tensors()[0] for client in (first, same, other)]
    assert torch.equal(firsts[0], firsts[1])
    assert not torch.equal(firsts[0], firsts[2])


def test_targets_choose_layers(make_client: MakeClient) -> None:
    client = make_client(params={"lora_targets": ["q_proj", "*.mlp.*"]})
    assert len(client._state.adapter.weights) == 2 * (1 + 3)
    with pytest.raises(BackendError, match=r"no linear layer 'q_pro'. Did you mean 'q_proj'"):
        make_client(params={"lora_targets": ["q_pro"]})


def test_bfloat16_learns_and_samples_like_float32(make_client: MakeClient) -> None:
    losses: list[float] = []
    for params in ({"exact": True}, {"exact": False, "dtype": "bfloat16"}):
        client = make_client(params=params)
        for _ in range(10):
            client.forward_backward([datum(client)], "cross_entropy")
            client.optim_step(AdamParams(1e-2)).result()
        losses.append(client.forward([datum(client)]).result().loss)
        sample = client.sampler().result().sample([1, 2], 1, SamplingParams(8, seed=1, stop=[])).result()[0]
        assert np.isfinite(sample.logprobs).all()
        assert all(tensor.dtype == torch.float32 for tensor in client._state.adapter.tensors())
    assert losses[1] == pytest.approx(losses[0], rel=0.15)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("./no/such/folder", "there is no folder or GGUF file"),
        ("surely-no-such-model-anywhere", "cannot be loaded"),
    ],
)
def test_a_model_that_does_not_exist_is_refused(name: str, says: str, make_client: MakeClient) -> None:
    with pytest.raises(BackendError, match=says):
        make_client(name=name)


def test_a_folder_without_a_model_is_refused(tmp_path: Path, make_client: MakeClient) -> None:
    with pytest.raises(BackendError, match=r"cannot be loaded.*Give a folder with a transformers model"):
        make_client(name=str(tmp_path))


def test_a_model_that_does_not_fit_is_refused_before_it_is_loaded(
    tmp_path: Path, make_client: MakeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = save_tiny(tmp_path)
    monkeypatch.setattr(memory, "available_bytes", lambda device: 100_000)
    with pytest.raises(BackendError, match=r"training .* takes about .* for weights as float32.*dtype to bfloat16"):
        make_client(name=folder)


@pytest.mark.parametrize("device", ["cuda:99", "cuda"])
def test_a_gpu_that_is_not_there_is_refused(device: str, make_client: MakeClient) -> None:
    if device == "cuda" and torch.cuda.is_available():
        pytest.skip("there is a GPU")
    with pytest.raises(BackendError, match=r"CUDA devices\. Use auto or cpu"):
        make_client(params={"device": device})


def test_a_tokenizer_without_chat_template_says_what_to_do(tmp_path: Path, make_client: MakeClient) -> None:
    client = make_client(name=save_tiny(tmp_path / "model", template=None), run_dir=tmp_path)
    with pytest.raises(DataError, match=r"no chat template.*instruction-tuned variant"):
        get_renderer(client.tokenizer)


def test_a_context_longer_than_the_models_is_refused(make_client: MakeClient) -> None:
    client = make_client()
    long = Datum.supervised([1] * 514, [1.0] * 514)
    with pytest.raises(DataError, match="513 tokens do not fit into the context of 512"):
        client.forward([long])
    with pytest.raises(BackendError, match="make 600, more than the context of 512"):
        client.sampler().result().sample([1] * 100, 1, SamplingParams(500))
    shorter = make_client(params={"max_context": 64})
    assert shorter.capabilities.context_length == 64


def test_a_custom_loss_survives_a_split_too(make_client: MakeClient, monkeypatch: pytest.MonkeyPatch) -> None:
    client = make_client()
    data = [datum(client, f"sentence number {number}") for number in range(4)]

    def squared(data: Any, logprobs: Any) -> Any:
        return sum(lp.sum() for lp in logprobs) ** 2, {}

    expected = client.forward_backward_custom(data, squared).result()
    gradient = [tensor.clone() for tensor in client._state.optimizer._gradient]
    client._state.optimizer.forget_gradient()
    real = passes._Run._read_row

    def read_row(self: Any, batch: Any, slopes: Any, **options: Any) -> Any:
        if len(batch.members) > 2:
            raise torch.OutOfMemoryError("CUDA out of memory, on purpose")
        return real(self, batch, slopes, **options)

    monkeypatch.setattr(passes._Run, "_read_row", read_row)
    assert client.forward_backward_custom(data, squared).result().loss == pytest.approx(expected.loss, rel=1e-5)
    for first, other in zip(client._state.optimizer._gradient, gradient, strict=True):
        torch.testing.assert_close(first, other, rtol=1e-3, atol=1e-1)


def test_other_faults_of_torch_are_not_taken_for_lack_of_memory(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> Any:
        raise RuntimeError("expected scalar type Float but found Half")

    monkeypatch.setattr(passes.torch.autograd, "grad", broken)
    with pytest.raises(RuntimeError, match="scalar type"):
        client.forward_backward([datum(client)], "cross_entropy").result()
