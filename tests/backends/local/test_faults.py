"""What used to go wrong when requests are odd, memory is short, or a process ends without a word."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs the extra local; run make test-local")
pytest.importorskip("transformers", reason="needs the extra local; run make test-local")
pytestmark = pytest.mark.local

from evsys_sdk.backends.client import SamplingParams  # noqa: E402
from evsys_sdk.backends.datum import Datum  # noqa: E402
from evsys_sdk.backends.local import memory  # noqa: E402
from evsys_sdk.backends.local.sampling import decoding, scoring  # noqa: E402
from evsys_sdk.backends.local.training import passes  # noqa: E402
from evsys_sdk.errors import BackendError  # noqa: E402

from .conftest import save_tiny  # noqa: E402

type MakeClient = Callable[..., Any]
PATIENCE_S = 60


def free(count: int, **params: Any) -> SamplingParams:
    return SamplingParams(count, stop=[], **params)


@pytest.mark.parametrize("wrong", [{"seed": 1.5}, {"top_k": 5.0}, {"max_tokens": 2.5}])
def test_a_number_that_is_not_whole_is_refused_and_hurts_no_one_else(wrong: dict[str, Any], client: Any) -> None:
    sampler = client.sampler().result()
    other = sampler.sample([1, 2], 1, free(20))
    [name] = wrong
    with pytest.raises(BackendError, match=f"{name} must be a whole number"):
        sampler.sample([1, 2], 1, SamplingParams(**{"max_tokens": 4, **wrong}))
    with pytest.raises(BackendError, match="num_samples must be a whole number"):
        sampler.sample([1, 2], 2.0, free(4))
    assert len(other.result(PATIENCE_S)[0].tokens) == 20


def test_what_follows_a_sample_may_train_and_close(client: Any) -> None:
    sampler = client.sampler().result()
    data = [Datum.supervised([1, 2, 3], [1.0] * 3)]

    def train(samples: Any) -> float:
        return client.forward_backward(data, "cross_entropy").result(PATIENCE_S).loss

    assert sampler.sample([1], 1, free(3)).then(train).result(PATIENCE_S) > 0
    assert sampler.sample([1], 1, free(3)).then(lambda _: client.close()).result(PATIENCE_S) is None


def test_an_error_that_is_no_exception_ends_its_request_and_not_the_thread(
    client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Panic(BaseException):
        """What some extensions raise."""

    sampler = client.sampler().result()
    sampler.sample([1, 2], 1, free(3)).result(PATIENCE_S)  # the base is tried out, which reads prompts as well
    with monkeypatch.context() as patch:
        patch.setattr(decoding.TokenDecoder, "prefill", lambda *_: (_ for _ in ()).throw(Panic("lost")))
        with pytest.raises(Panic):
            sampler.sample([1, 2], 1, free(3)).result(PATIENCE_S)
    assert len(sampler.sample([1, 2], 1, free(3)).result(PATIENCE_S)[0].tokens) == 3


def test_a_sample_is_tried_again_when_memory_was_given_back_elsewhere(
    make_client: MakeClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sampler = make_client(params={"samples_at_once": 1}).sampler().result()
    other = make_client(seed=3, run_dir=tmp_path / "other").sampler().result()
    other.sample(list(range(60)), 1, free(3)).result(PATIENCE_S)
    holders = [holder for holder in memory._evictable if holder.tokens]
    assert holders, "nothing is remembered"
    real = decoding.TokenDecoder.prefill

    def prefill(self: Any, *args: Any, **options: Any) -> Any:
        if any(holder.tokens for holder in holders):
            raise torch.OutOfMemoryError("no memory")
        return real(self, *args, **options)

    monkeypatch.setattr(decoding.TokenDecoder, "prefill", prefill)
    assert len(sampler.sample([1, 2, 3], 1, free(4)).result(PATIENCE_S)[0].tokens) == 4


def test_a_row_that_does_not_fit_is_split_although_others_continue_remembering(
    make_client: MakeClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = make_client()
    data = [Datum.supervised(list(range(start, start + 60)), [1.0] * 60) for start in range(4)]
    expected = client.forward(data).result().loss
    other = make_client(seed=1, run_dir=tmp_path / "other").sampler().result()
    real, tries = passes._Run._read_row, list[int]()

    def read_row(self: Any, batch: Any, slopes: Any, **options: Any) -> Any:
        if len(batch.tokens) > 100:
            tries.append(len(batch.tokens))
            other.sample(list(range(len(tries), len(tries) + 30)), 1, free(2)).result(PATIENCE_S)
            raise torch.OutOfMemoryError("no memory")
        return real(self, batch, slopes, **options)

    monkeypatch.setattr(passes._Run, "_read_row", read_row)
    assert client.forward_backward(data, "cross_entropy").result(PATIENCE_S).loss == pytest.approx(expected)
    assert len(tries) <= 4


def test_a_text_that_cannot_be_scored_fails_alone(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    sampler = client.sampler().result()
    real = scoring._score_row

    def score_row(base: Any, snapshot: Any, batch: Any, requests: Any) -> None:
        if len(batch.tokens) > 100:
            raise torch.OutOfMemoryError("no memory")
        real(base, snapshot, batch, requests)

    monkeypatch.setattr(scoring, "_score_row", score_row)
    texts = [list(range(start, start + 35)) for start in range(0, 120, 20)]
    pending = [sampler.logprobs(text) for text in texts]
    with pytest.raises(BackendError, match="a text of 179 tokens does not fit"):
        sampler.logprobs([number % 250 for number in range(180)]).result(PATIENCE_S)
    for text, operation in zip(texts, pending, strict=True):
        assert len(operation.result(PATIENCE_S)) == len(text)


def test_a_model_of_which_weights_are_missing_is_refused(tmp_path: Path, make_client: MakeClient) -> None:
    from safetensors.torch import load_file, save_file

    folder = save_tiny(tmp_path / "model")
    weights = load_file(f"{folder}/model.safetensors")
    weights.pop("model.layers.1.mlp.up_proj.weight")
    save_file(weights, f"{folder}/model.safetensors", metadata={"format": "pt"})
    with pytest.raises(BackendError, match=r"lacks model\.layers\.1\.mlp\.up_proj\.weight"):
        make_client(name=folder)


def test_a_checkpoint_of_weights_that_differ_late_in_a_tensor_is_refused(
    tmp_path: Path, make_client: MakeClient, client: Any
) -> None:
    from safetensors.torch import load_file, save_file

    folder = save_tiny(tmp_path / "model")
    weights = load_file(f"{folder}/model.safetensors")
    for tensor in weights.values():
        tensor.view(-1)[-1:] += 1.0
    save_file(weights, f"{folder}/model.safetensors", metadata={"format": "pt"})
    ref = client.save_state("here").result()
    with pytest.raises(BackendError, match="whose weights are not those of"):
        make_client(name=folder, run_dir=tmp_path / "other").load_state(ref).result()


@pytest.mark.parametrize("tokens_at_once", [4096, 70])
def test_a_custom_loss_sees_what_is_dropped_out_however_data_is_packed(
    tokens_at_once: int, make_client: MakeClient
) -> None:
    client = make_client(params={"lora_dropout": 0.5, "tokens_at_once": tokens_at_once})
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for _, b in client._state.adapter.weights.values():
            b.copy_(torch.randn(b.shape, generator=generator) * 0.2)
    data = [Datum.supervised(list(range(start, start + 60)), [1.0] * 60) for start in range(4)]
    output = client.forward_backward_custom(data, lambda _, logprobs: (sum(lp.sum() for lp in logprobs), {})).result()
    assert output.loss == pytest.approx(float(sum(lp.sum() for lp in output.logprobs)), rel=1e-5)
    assert client.forward(data).result().loss != pytest.approx(-output.loss, rel=1e-3), "nothing was dropped"


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"r": 4}, "has rank 8, its config says 4"),
        ({"r": None}, "r must be a number above 0"),
        ({"lora_alpha": "x"}, "lora_alpha must be a number above 0"),
        ({"init_lora_weights": "pissa"}, "init_lora_weights=pissa"),
    ],
)
def test_an_adapter_whose_config_does_not_fit_is_refused(change: dict[str, Any], says: str, client: Any) -> None:
    folder = Path(client.sampler("adapter").result().ref)
    (folder / "manifest.json").unlink()  # as PEFT would have saved it
    config = folder / "adapter_config.json"
    config.write_text(json.dumps({**json.loads(config.read_text("utf-8")), **change}), "utf-8")
    with pytest.raises(BackendError, match=says):
        client.open_sampler(str(folder)).result(PATIENCE_S)


def test_a_gradient_that_is_not_finite_does_not_reach_the_weights(client: Any) -> None:
    from evsys_sdk.backends.client import AdamParams

    client.forward_backward([Datum.supervised([1, 2, 3], [1.0] * 3)], "cross_entropy").result()
    before = [tensor.clone() for tensor in client._state.adapter.tensors()]
    with torch.no_grad():
        client._state.optimizer._gradient[0].fill_(float("inf"))
    assert not np.isfinite(client.optim_step(AdamParams(1e-3)).result().metrics["grad_norm"])
    assert all(torch.equal(*pair) for pair in zip(client._state.adapter.tensors(), before, strict=True))
    assert client.optim_step(AdamParams(1e-3)).result().metrics["grad_norm"] == 0


@pytest.mark.parametrize(
    ("returned", "says"),
    [
        (lambda loss: None, "Return \\(loss, metrics\\)"),
        (lambda loss: (loss.item(), {}), "no gradient can be derived"),
        (lambda loss: (loss.detach(), {}), "no gradient can be derived"),
        (lambda loss: (loss, {"x": "y"}), "the metric 'x'"),
    ],
)
def test_what_a_custom_loss_must_not_return(returned: Any, says: str, client: Any) -> None:
    def loss(data: Any, logprobs: Any) -> Any:
        return returned(sum(lp.sum() for lp in logprobs))

    with pytest.raises(BackendError, match=says):
        client.forward_backward_custom([Datum.supervised([1, 2, 3], [1.0] * 3)], loss).result(PATIENCE_S)


UNCLOSED = """
import sys, time
from pathlib import Path
from evsys_sdk.backends.client import ModelSpec, SamplingParams
from evsys_sdk.backends.datum import Datum
from evsys_sdk.backends.local.backend import LocalBackend

spec = ModelSpec(sys.argv[1], lora_rank=8)
client = LocalBackend(device="cpu", exact=True).prepare(model=spec, run_dir=Path(sys.argv[2]))["training_client"]
client.sampler().result().sample([5, 6, 7], 16, SamplingParams(400, stop=[]))
for _ in range(50):
    client.forward_backward([Datum.supervised(list(range(200)), [1.0] * 200)] * 8, "cross_entropy")
time.sleep(0.3)
print("the end")
"""


@pytest.mark.parametrize("attempt", range(3))
def test_a_process_that_closes_nothing_ends_in_peace(attempt: int, llama: str, tmp_path: Path) -> None:
    command = [sys.executable, "-c", UNCLOSED, llama, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout) == (0, "the end\n"), done.stderr[-2000:]
