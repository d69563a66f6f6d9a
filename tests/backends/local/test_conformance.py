from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pytest

torch = pytest.importorskip("torch", reason="needs the extra local; run make test-local")
pytest.importorskip("transformers", reason="needs the extra local; run make test-local")
pytestmark = pytest.mark.local

from evsys_sdk.backends.client import ModelSpec, SamplingClient, TrainingClient  # noqa: E402
from evsys_sdk.protocols import Backend  # noqa: E402
from evsys_sdk.registry import get_backend  # noqa: E402
from evsys_sdk.testing.backend_conformance import (  # noqa: E402
    BackendConformance,
    SamplingConformance,
    StateConformance,
)
from evsys_sdk.testing.client_probes import ClientProbes  # noqa: E402


class _Client(ClientProbes):
    arch = "llama"
    params: ClassVar[dict[str, Any]] = {"device": "cpu", "exact": True}

    @pytest.fixture(autouse=True)
    def _places(self, tmp_path: Path, tiny: Callable[[str], str]) -> None:
        self.run_dir, self.model = tmp_path, tiny(self.arch)

    def make_client(self) -> TrainingClient:
        backend = get_backend("local")(**self.params)
        assert isinstance(backend, Backend)
        model = ModelSpec(self.model, seed=3, lora_rank=8)
        client = backend.prepare(model=model, run_dir=self.run_dir)["training_client"]
        assert isinstance(client, TrainingClient)
        return client


class _Local(_Client, BackendConformance):
    linear_rate = 1e-7
    logprob_tolerance = 1e-4

    def test_the_sampler_satisfies_the_protocol(self, sampler: SamplingClient) -> None:
        assert isinstance(sampler, SamplingClient)


class TestLlama(_Local):
    arch = "llama"


class TestQwen3(_Local):
    arch = "qwen3"


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
class TestQwen3OnAGPU(_Local):
    arch = "qwen3"
    params: ClassVar[dict[str, Any]] = {"device": "cuda", "exact": True}
    exact_resume = False


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
class TestQwen3InBfloat16OnAGPU(_Client, StateConformance, SamplingConformance):
    """Fused kernels and captured graphs. Steps so small that their effect is linear are lost in rounding here."""

    arch = "qwen3"
    params: ClassVar[dict[str, Any]] = {"device": "cuda", "dtype": "bfloat16"}
    exact_resume = False
    logprob_tolerance = 0.5
