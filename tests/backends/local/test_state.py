"""Checkpoints: exact, in PEFT's layout, and either whole or absent."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs the extra local; run make test-local")
pytest.importorskip("transformers", reason="needs the extra local; run make test-local")
pytestmark = pytest.mark.local

from evsys_sdk.backends.client import AdamParams, ModelSpec  # noqa: E402
from evsys_sdk.backends.datum import Datum  # noqa: E402
from evsys_sdk.backends.local import checkpoint as files  # noqa: E402
from evsys_sdk.backends.local.backend import LocalBackend  # noqa: E402
from evsys_sdk.errors import BackendError  # noqa: E402

from .conftest import save_tiny  # noqa: E402

type MakeClient = Callable[..., Any]


def data(client: Any) -> list[Datum]:
    texts = ["The capital of France is Paris.", "One two three four five", "abc"]
    return [Datum.supervised(ids, [1.0] * len(ids)) for ids in map(client.tokenizer.encode, texts)]


def learn(client: Any, steps: int = 3, rate: float = 1e-3) -> list[float]:
    losses: list[float] = []
    for _ in range(steps):
        losses.append(client.forward_backward(data(client), "cross_entropy").result().loss)
        client.optim_step(AdamParams(rate, weight_decay=0.01, grad_clip_norm=1.0)).result()
    return losses


@pytest.mark.parametrize("dropout", [0.0, 0.2])
def test_a_restored_run_continues_bit_by_bit(dropout: float, make_client: MakeClient) -> None:
    params = {"lora_dropout": dropout}
    client = make_client(params=params)
    learn(client)
    ref = client.save_state("a").result()
    straight = learn(client)
    other = make_client(params=params)
    other.load_state(ref).result()
    assert learn(other) == straight
    for first, two in zip(client._state.adapter.tensors(), other._state.adapter.tensors(), strict=True):
        assert torch.equal(first, two)


def test_prepare_resumes_or_starts_from_a_checkpoint(make_client: MakeClient) -> None:
    client = make_client()
    learn(client)
    ref = client.save_state("a").result()
    straight = learn(client)
    assert learn(make_client(load_checkpoint_path=ref)) == straight
    fresh = make_client(init_from_checkpoint=ref)
    assert fresh._state.optimizer.steps == 0
    losses = learn(fresh)
    assert losses[0] == straight[0]
    assert losses[1:] != straight[1:]
    with pytest.raises(BackendError, match="are both set"):
        make_client(load_checkpoint_path=ref, init_from_checkpoint=ref)


def test_peft_loads_the_adapter_and_computes_the_same(llama: str, client: Any) -> None:
    peft = pytest.importorskip("peft")
    from transformers import AutoModelForCausalLM

    learn(client, rate=1e-2)
    ref = client.save_state("a").result()
    model = peft.PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(llama, dtype=torch.float32), ref)
    [datum, *_] = data(client)
    with torch.no_grad():
        logits = model(input_ids=torch.from_numpy(datum.tokens)[None]).logits[0]
    expected = logits.log_softmax(-1).gather(1, torch.from_numpy(datum.target_tokens)[:, None])[:, 0]
    np.testing.assert_allclose(client.forward([datum]).result().logprobs[0], expected.numpy(), atol=1e-4)


def test_an_adapter_that_peft_has_saved_can_be_started_from_and_sampled(
    llama: str, tmp_path: Path, make_client: MakeClient
) -> None:
    peft = pytest.importorskip("peft")
    from transformers import AutoModelForCausalLM

    config = peft.LoraConfig(r=8, lora_alpha=32, target_modules="all-linear", init_lora_weights=False)
    model = peft.get_peft_model(AutoModelForCausalLM.from_pretrained(llama, dtype=torch.float32), config)
    model.save_pretrained(tmp_path / "theirs")
    client = make_client(init_from_checkpoint=str(tmp_path / "theirs"))
    [datum, *_] = data(client)
    with torch.no_grad():
        logits = model(input_ids=torch.from_numpy(datum.tokens)[None]).logits[0]
    expected = logits.log_softmax(-1).gather(1, torch.from_numpy(datum.target_tokens)[:, None])[:, 0].numpy()
    np.testing.assert_allclose(client.forward([datum]).result().logprobs[0], expected, atol=1e-3)
    sampler = make_client().open_sampler(str(tmp_path / "theirs")).result()
    scored = sampler.logprobs([*datum.tokens.tolist(), int(datum.target_tokens[-1])]).result()
    np.testing.assert_allclose(scored[1:], expected, atol=1e-3)
    with pytest.raises(BackendError, match="holds weights only"):
        client.load_state(str(tmp_path / "theirs"), with_optimizer=True).result()


@pytest.mark.parametrize("name", [files.ADAPTER, files.ADAPTER_CONFIG, files.OPTIMIZER])
@pytest.mark.parametrize("damage", ["flip", "cut", "missing"])
def test_a_damaged_checkpoint_is_noticed_and_the_client_keeps_its_weights(name: str, damage: str, client: Any) -> None:
    learn(client)
    good = client.save_state("good").result()
    ref = client.save_state("bad").result()
    path = Path(ref) / name
    content = bytearray(path.read_bytes())
    if damage == "missing":
        path.unlink()
    elif damage == "cut":
        path.write_bytes(content[: len(content) // 2])
    else:
        content[-5] ^= 1
        path.write_bytes(content)
    before = client.forward(data(client)).result().loss
    with pytest.raises(BackendError, match="earlier checkpoint"):
        client.load_state(ref).result()
    assert client.forward(data(client)).result().loss == before
    client.load_state(good).result()
    assert client.forward(data(client)).result().loss == before


def test_a_checkpoint_without_its_manifest_is_absent(client: Any) -> None:
    ref = client.save_state("a").result()
    (Path(ref) / files.MANIFEST).unlink()
    with pytest.raises(BackendError, match="no complete checkpoint"):
        client.load_state(ref).result()


def test_a_full_disk_leaves_no_half_checkpoint_and_loses_nothing(
    client: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    learn(client)
    before = client.forward(data(client)).result().loss
    earlier = client.save_state("earlier").result()
    real = files.atomic_write

    def full(path: Path, mode: str = "wb") -> Any:
        if path.name == files.OPTIMIZER:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(path, mode)

    monkeypatch.setattr(files, "atomic_write", full)
    with pytest.raises(BackendError, match=r"No space left on device.*Make room"):
        client.save_state("later").result()
    monkeypatch.undo()
    assert not (tmp_path / "checkpoints" / "later" / "state").exists()
    assert client.forward(data(client)).result().loss == before
    assert Path(client.save_state("later").result()).is_dir()
    client.load_state(earlier).result()


def test_a_checkpoint_of_other_weights_is_refused(tmp_path: Path, client: Any, make_client: MakeClient) -> None:
    ref = client.save_state("a").result()
    other = make_client(name=save_tiny(tmp_path / "other", seed=1), run_dir=tmp_path / "run")
    with pytest.raises(BackendError, match="whose weights are not those of"):
        other.load_state(ref).result()
    wider = make_client(
        name=save_tiny(tmp_path / "wide", hidden_size=96, intermediate_size=160), run_dir=tmp_path / "w"
    )
    with pytest.raises(BackendError, match="does not fit this model"):
        wider.load_state(ref).result()


def test_a_checkpoint_may_be_loaded_from_a_copy_of_the_base_elsewhere(llama: str, tmp_path: Path, client: Any) -> None:
    import shutil

    learn(client)
    ref = client.save_state("a").result()
    moved = shutil.copytree(llama, tmp_path / "moved")
    backend = LocalBackend(exact=True, device="cpu")
    model = ModelSpec(str(moved), lora_rank=8, load_checkpoint_path=ref)
    handles = backend.prepare(model=model, run_dir=tmp_path / "b")
    try:
        again = handles["training_client"].forward(data(client)).result().loss
        assert again == client.forward(data(client)).result().loss
    finally:
        backend.teardown(handles)


def test_names_that_are_taken_or_no_names_are_refused(client: Any) -> None:
    client.save_state("a").result()
    with pytest.raises(BackendError, match="exists already"):
        client.save_state("a")
    with pytest.raises(BackendError, match="cannot be called"):
        client.save_state("../a")
