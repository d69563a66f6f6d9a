"""The `fireworks` backend: train on Fireworks' serverless trainers, through Fireworks' own client.

    model: { name: accounts/fireworks/models/qwen3-8b }
    backend: { kind: fireworks, params: { tokenizer: Qwen/Qwen3-8B } }       # key in FIREWORKS_API_KEY

Fireworks uses an older JSON form of the Tinker protocol with its own client (`fireworks-ai`), so an address alone is
not enough. Other code is shared with the backend `tinker`. **It was never run against the hosted service**: the tests
use the provider's client with a local stand-in.

Trainers provisioned by the hour are not used, so full-parameter training is refused.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from ...errors import BackendError, ConfigError, Problem
from ..tinker.backend import TinkerBackend
from .config import FireworksConfig

if TYPE_CHECKING:
    from ..client import Capabilities
    from ..probes.facts import Facts
    from ..tinker.pipeline import Pipeline
    from ..tinker.quirks import Quirks
    from ..tinker.session import ServedModel
    from ..tinker.state import TrainedAdapter
    from .client import FireworksTrainingClient
    from .session import FireworksSession

_NO_TOKENIZER = "Fireworks does not say which tokenizer goes with a model"
_NAME_ONE = "Set backend.params.tokenizer to a folder or to the name of the model on the Hugging Face hub."


class FireworksBackend(TinkerBackend):
    """Fireworks' serverless training, through the package fireworks-ai; never run against the hosted service."""

    name: ClassVar[str] = "fireworks"
    Config = FireworksConfig
    config: FireworksConfig

    @classmethod
    def check_params(cls, params: Any) -> None:
        """Refuse invalid params in deep validation."""
        if isinstance(params, FireworksConfig) and params.tokenizer == "auto":
            raise ConfigError(Problem(_NO_TOKENIZER, path="tokenizer", value=params.tokenizer, hint=_NAME_ONE))

    def prepare(self, *, model: Any, run_dir: Path) -> dict[str, Any]:
        """Open a session and create the model, or restore it; `model` is a ModelSpec or anything with a name."""
        if self.config.tokenizer == "auto":
            raise BackendError(f"{_NO_TOKENIZER}. {_NAME_ONE}")
        return super().prepare(model=model, run_dir=run_dir)

    def _session(self) -> FireworksSession:
        from .session import FireworksSession

        return FireworksSession(self.config)

    def _client_type(self) -> type[FireworksTrainingClient]:
        from .client import FireworksTrainingClient

        return FireworksTrainingClient

    def _make_training(
        self, session: Any, pipeline: Pipeline, adapter: TrainedAdapter, model: Any, run_dir: Path
    ) -> Any:
        from ..client import start_of
        from ..tinker.state import check_sidecar
        from .client import load_into
        from .sampling import check_path

        ref, with_optimizer = start_of(model)
        path = check_path(ref) if ref else None
        if ref:
            check_sidecar(run_dir, ref, adapter)
        training = session.service.create_lora_training_client(
            base_model=adapter.model,
            rank=adapter.rank,
            seed=getattr(model, "seed", None),
            alpha=self.config.lora_alpha,
            **adapter.layers(),
        )
        if path is not None:
            pipeline.wait(session.run(load_into(training, path, with_optimizer).result_async()))
        return training

    def assumed(self) -> Facts:
        """The facts that Fireworks' client promises."""
        from ..probes.facts import Facts

        return Facts(
            loss_reduction="sum",
            snapshot_samplers=True,
            losses=("cross_entropy",),
            soft_targets=False,
            seeds=True,
            top_k_logprobs=0,
        )

    def quirks(self, facts: Facts) -> Quirks:
        """Soft targets are sent as one datum for each alternative, and seeds are 31 bits wide.

        gspo is computed here: the client cannot mark sampled positions.
        """
        from ..tinker.quirks import Quirks

        quirks = Quirks.of(self.config, facts, seed_bits=31)
        return replace(quirks, expand_soft_targets=True, native_losses=quirks.native_losses - {"gspo"})

    def capabilities(self, facts: Facts, served: ServedModel, tokenizer: Any) -> Capabilities:
        """The capabilities for recipes; the client cannot report alternatives."""
        return replace(super().capabilities(facts, served, tokenizer), top_k_logprobs=0)
