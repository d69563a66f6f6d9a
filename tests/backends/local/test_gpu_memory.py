"""Memory on a GPU: the estimate, recomputation of the fused layers, and a limit that is really reached."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs the extra local; run make test-local")
pytest.importorskip("transformers", reason="needs the extra local; run make test-local")
pytestmark = [pytest.mark.local, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")]

from evsys_sdk.backends.datum import Datum  # noqa: E402
from evsys_sdk.backends.local.gpu import fused_body  # noqa: E402
from evsys_sdk.backends.local.memory_plan import Estimate, Needs, Sizes  # noqa: E402

from .conftest import save_tiny  # noqa: E402

type MakeClient = Callable[..., Any]

GPU = {"device": "cuda", "dtype": "bfloat16", "exact": False, "tokens_at_once": 8192}
SHAPE = {
    "hidden_size": 512,
    "intermediate_size": 1536,
    "num_hidden_layers": 8,
    "num_attention_heads": 8,
    "head_dim": 64,
    "max_position_embeddings": 16384,
    "initializer_range": 0.05,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return save_tiny(tmp_path_factory.mktemp("larger"), **SHAPE)


def data_of(lengths: Sequence[int]) -> list[Datum]:
    rng = np.random.default_rng(0)
    return [Datum.supervised(rng.integers(0, 256, length + 1).tolist(), [1.0] * (length + 1)) for length in lengths]


def randomise(client: Any) -> None:
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for _, b in client._state.adapter.weights.values():
            b.copy_(torch.randn(b.shape, generator=generator) * 0.05)


def gradient(client: Any) -> Any:
    flat = torch.cat([tensor.flatten().double().cpu() for tensor in client._state.optimizer._gradient])
    client._state.optimizer.forget_gradient()
    return flat


def alike(one: Any, other: Any) -> float:
    return float(torch.nn.functional.cosine_similarity(one, other, dim=0))


def estimate_of(client: Any, tokens: int, *, recompute: bool = False) -> Estimate:
    base = client._base
    needs = Needs(base.device, base.key.dtype, 8, None, tokens, 0, merge=False, recompute=recompute)
    return Estimate.of(Sizes.of(base.model.config), needs)


def clean() -> None:
    torch.cuda.synchronize()
    gc.collect()
    torch.cuda.empty_cache()


@contextmanager
def at_most(more: int) -> Iterator[None]:
    """Let torch take so many bytes more than it has."""
    clean()
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + more) / total)
    try:
        yield
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)


@pytest.mark.parametrize("tokens", [2048, 8192])
def test_recomputed_layers_give_the_same_in_as_little_as_estimated(
    tokens: int, folder: str, make_client: MakeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    again: list[int] = []
    run_again = fused_body.run_again

    def noted(*args: Any) -> Any:
        again.append(1)
        return run_again(*args)

    monkeypatch.setattr(fused_body, "run_again", noted)
    found: list[Any] = []
    peaks: list[float] = []
    for recompute in ("never", "always"):
        client = make_client(name=folder, params={**GPU, "recompute": recompute})
        randomise(client)
        client.forward_backward(data_of([64, 32]), "cross_entropy").result()  # compiles, and fills caches
        gradient(client)
        again.clear()
        clean()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        client.forward_backward(data_of([tokens // 4] * 4), "cross_entropy").result()
        peaks.append(torch.cuda.max_memory_allocated() - before)
        found.append(gradient(client))
        assert len(again) == (8 if recompute == "always" else 0)
        estimate = estimate_of(client, tokens, recompute=recompute == "always")
        expected = estimate.row + estimate.head + estimate.adapter // 3
        assert 0.7 < peaks[-1] / expected < 1.3, (peaks[-1], estimate)
    assert client._base.gpu_layers, "the fused body is not in use"
    assert alike(*found) > 0.9999
    assert peaks[1] < 0.6 * peaks[0]


@pytest.mark.parametrize("lengths", [[1024] * 8, [8192]])
def test_a_limit_is_reached_and_the_gradient_is_the_same(
    lengths: list[int], folder: str, make_client: MakeClient, caplog: pytest.LogCaptureFixture
) -> None:
    client = make_client(name=folder, params=GPU)
    randomise(client)
    expected = client.forward_backward(data_of(lengths), "cross_entropy").result().loss
    plain = gradient(client)
    with at_most(estimate_of(client, 8192).row // 2), caplog.at_level("WARNING", logger="evsys_sdk"):
        loss = client.forward_backward(data_of(lengths), "cross_entropy").result().loss
        assert "did not fit into memory" in caplog.text
        assert alike(gradient(client), plain) > 0.9999
        caplog.clear()
        client.forward_backward(data_of(lengths), "cross_entropy").result()
        assert not caplog.text, "the second pass knows what fits"
    assert loss == pytest.approx(expected, rel=1e-3)
    fitting = client._state.fitting
    assert (fitting.recompute_from == 8192) if len(lengths) == 1 else (fitting.tokens_at_once < 8192)
