"""The kinds next to `tinker`: what they assume of a server, and what is refused."""

from __future__ import annotations

import pytest

from evsys_sdk.backends.probes.facts import Facts, ProbedServer, write_answer
from evsys_sdk.backends.tinker.backend import SkyRLBackend, TinkerBackend
from evsys_sdk.backends.tinker.session import HOSTED, ServedModel, resolve_url


class Tokens:
    """As much of a tokenizer as capabilities need."""

    vocab_size = 100

    def __len__(self) -> int:
        return 103


def test_skyrl_is_assumed_to_average_and_to_sample_from_live_weights() -> None:
    backend = SkyRLBackend()
    assert resolve_url(backend.config) == "http://127.0.0.1:8000"
    capabilities = backend.capabilities(backend.facts("http://x", "m"), ServedModel(4096), Tokens())
    assert (capabilities.summed_losses, capabilities.snapshot_samplers, capabilities.custom_loss) == (
        False,
        False,
        False,
    )
    assert (capabilities.backend, capabilities.top_k_logprobs, capabilities.vocab_size) == ("skyrl", 0, 103)
    assert backend.quirks(backend.facts("http://x", "m")).expand_soft_targets


def test_what_doctor_found_about_a_skyrl_server_replaces_assumptions() -> None:
    write_answer(ProbedServer("skyrl", "http://x", "m"), Facts(loss_reduction="sum", snapshot_samplers=True), {})
    backend = SkyRLBackend()
    capabilities = backend.capabilities(backend.facts("http://x", "m"), ServedModel(4096), Tokens())
    assert (capabilities.summed_losses, capabilities.snapshot_samplers, capabilities.custom_loss) == (True, True, True)
    assert not SkyRLBackend(use_doctor=False).quirks(SkyRLBackend(use_doctor=False).facts("http://x", "m")).summed


def test_the_hosted_service_is_the_default_and_the_environment_can_name_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("TINKER_BASE_URL", raising=False)
    assert resolve_url(TinkerBackend().config) == HOSTED
    monkeypatch.setenv("TINKER_BASE_URL", "http://127.0.0.1:5/")
    assert resolve_url(TinkerBackend().config) == "http://127.0.0.1:5"
    assert resolve_url(TinkerBackend(base_url="http://127.0.0.1:6").config) == "http://127.0.0.1:6"


def test_a_place_is_kept_for_the_token_that_scoring_samples() -> None:
    backend = TinkerBackend(use_doctor=False)
    facts = backend.facts("http://x", "m")
    assert backend.capabilities(facts, ServedModel(4096), Tokens()).context_length == 4095
    chosen = TinkerBackend(use_doctor=False, context_length=512)
    assert chosen.capabilities(facts, ServedModel(4096), Tokens()).context_length == 512
