from __future__ import annotations

from pathlib import Path

import pytest

from evsys_sdk.backends.client import ModelSpec, SamplingClient, TrainingClient
from evsys_sdk.backends.fireworks.backend import FireworksBackend
from evsys_sdk.protocols import Backend
from evsys_sdk.testing.backend_conformance import BackendConformance

from .stand_in import StandIn

pytestmark = pytest.mark.fireworks


class TestFireworksThroughItsOwnClient(BackendConformance):
    linear_rate = 1e-8
    logprob_tolerance = 1e-4

    @pytest.fixture(autouse=True)
    def _service(self, service: StandIn, tmp_path: Path) -> None:
        self.url, self.run_dir = service.url, tmp_path / "run"

    def make_client(self) -> TrainingClient:
        backend = FireworksBackend(base_url=self.url, tokenizer="served")
        assert isinstance(backend, Backend)
        client = backend.prepare(model=ModelSpec("tiny", seed=3), run_dir=self.run_dir)["training_client"]
        assert isinstance(client, TrainingClient)
        return client

    def test_the_sampler_satisfies_the_protocol(self, sampler: SamplingClient) -> None:
        assert isinstance(sampler, SamplingClient)
