"""What is refused before anything is spent; needs no package."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

from evsys_sdk.backends.client import ModelSpec
from evsys_sdk.backends.fireworks.backend import FireworksBackend
from evsys_sdk.backends.tinker.session import ServedModel
from evsys_sdk.errors import BackendError, ConfigError


class Tokens:
    """As much of a tokenizer as capabilities need."""

    vocab_size = 100

    def __len__(self) -> int:
        return 103


@pytest.mark.parametrize(
    ("params", "why"),
    [
        ({"checkpoint_ttl_s": 3600}, "time to live"),
        ({"project_id": "p"}, "no projects"),
        ({"header_env": {"A": "B"}}, "key alone"),
        ({"base_url": "https://api.fireworks.ai/training/v1/serverless"}, "Remove the path"),
    ],
)
def test_params_that_the_client_would_not_take_are_refused(params: dict[str, object], why: str) -> None:
    with pytest.raises(ValidationError, match=why):
        FireworksBackend(**params)


def test_a_tokenizer_has_to_be_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="tokenizer"):
        FireworksBackend.check_params(FireworksBackend().config)
    with pytest.raises(BackendError, match=r"which tokenizer.*backend\.params\.tokenizer"):
        FireworksBackend().prepare(model=ModelSpec("m"), run_dir=tmp_path)
    FireworksBackend.check_params(FireworksBackend(tokenizer="Qwen/Qwen3-8B").config)


def test_only_what_the_client_promises_is_relied_on() -> None:
    backend = FireworksBackend(use_doctor=False, top_k_logprobs=7)
    facts = backend.facts(backend.config.base_url or "", "m")
    capabilities = backend.capabilities(facts, ServedModel(None), Tokens())
    assert (
        capabilities.backend,
        capabilities.top_k_logprobs,
        capabilities.summed_losses,
        capabilities.custom_loss,
    ) == ("fireworks", 0, True, True)
    quirks = backend.quirks(facts)
    assert quirks.native_losses == {"cross_entropy"}
    assert quirks.expand_soft_targets
    chosen = FireworksBackend(use_doctor=False, native_losses=["ppo", "gspo"])
    assert chosen.quirks(facts).native_losses == {"cross_entropy", "ppo"}
