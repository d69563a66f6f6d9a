"""The `fireworks` backend: train on Fireworks' serverless trainers, through Fireworks' own client.

    model: { name: accounts/fireworks/models/qwen3-8b }
    backend: { kind: fireworks, params: { tokenizer: Qwen/Qwen3-8B } }       # key in FIREWORKS_API_KEY

Fireworks speaks an older, JSON form of the Tinker protocol through its own client (`fireworks-ai`), so an address
alone is not enough. What can be shared with the backend `tinker` is shared. **It was never run against the hosted
service**: it is tested with the provider's client against a stand-in on the same machine.

Trainers that have to be provisioned by the hour are not used. Full-parameter training, which needs one, is refused.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from ...errors import BackendError, ConfigError, Problem
from ..tinker.backend import Preparation, TinkerBackend
from .config import FireworksConfig

if TYPE_CHECKING:
    from ..client import Capabilities
    from ..probes.facts import Facts
    from ..tinker.pipeline import Pipeline
    from ..tinker.quirks import Quirks
    from ..tinker.session import ServedModel
    from ..tinker.state import TrainedAdapter
    from .client import FireworksTrainingClient
    from .sampling import FireworksSamplingClient
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
        """Say in deep validation what would fail later, before anything is spent."""
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

    def _preparation(self, session: Any, pipeline: Pipeline, model: Any, run_dir: Path) -> Preparation:
        return _FireworksPreparation(self, session, pipeline, model, run_dir)

    def _make_sampler(self, session: Any, pipeline: Pipeline, model: str, checkpoint: str | None) -> Any:
        return _make_sampler(self, session, pipeline, model, checkpoint)

    def assumed(self) -> Facts:
        """What Fireworks' client promises; what it does not say is not relied on."""
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

        gspo is computed here: the client has no way to say which positions were sampled.
        """
        from ..tinker.quirks import Quirks

        found = Quirks.of(self.config, facts, seed_bits=31)
        return replace(found, expand_soft_targets=True, native_losses=found.native_losses - {"gspo"})

    def capabilities(self, facts: Facts, served: ServedModel, tokenizer: Any) -> Capabilities:
        """What recipes may ask; the client cannot report alternatives, whatever a config says."""
        return replace(super().capabilities(facts, served, tokenizer), top_k_logprobs=0)


class _FireworksPreparation(Preparation):
    """Everything between an open session and a training client."""

    backend: FireworksBackend
    session: FireworksSession

    def _client_type(self) -> type[FireworksTrainingClient]:
        from .client import FireworksTrainingClient

        return FireworksTrainingClient

    def _model(self, adapter: TrainedAdapter, served: ServedModel) -> tuple[Any, Any]:
        from ..tinker.tokenizers import load_tokenizer

        # first: a model costs, a tokenizer does not
        tokenizer = load_tokenizer(self.backend.config.tokenizer, self.model.name, served.extras)
        return self._make_training(adapter), tokenizer

    def _make_training(self, adapter: TrainedAdapter) -> Any:
        from ..client import start_of
        from ..tinker.state import check_sidecar
        from .client import check_path, load_into

        ref, with_optimizer = start_of(self.model)
        path = check_path(ref) if ref else None
        if ref:
            check_sidecar(self.run_dir, ref, adapter)
        training = self.session.service.create_lora_training_client(
            base_model=adapter.model,
            rank=adapter.rank,
            seed=getattr(self.model, "seed", None),
            alpha=self.backend.config.lora_alpha,
            **adapter.layers(),
        )
        if path is not None:
            self.pipeline.wait(self.session.run(load_into(training, path, with_optimizer).result_async()))
        return training


def _make_sampler(
    backend: FireworksBackend, session: FireworksSession, pipeline: Pipeline, model: str, checkpoint: str | None
) -> FireworksSamplingClient:
    """A sampler without a training client; blocks until the service has it."""
    from ..tinker.sampling import SamplerContext, SeedCounter
    from ..tinker.tokenizers import load_tokenizer
    from .client import check_path
    from .sampling import FireworksSamplingClient

    served = session.model(model, to_train=False)
    tokenizer = load_tokenizer(backend.config.tokenizer, model, served.extras)
    facts = backend.facts(session.base_url, model, served.extras)
    source = {"base_model": model} if checkpoint is None else {"model_path": check_path(checkpoint)}
    sampler = session.service.create_sampling_client(**source, tokenizer=tokenizer)
    context = SamplerContext(
        pipeline,
        backend.capabilities(facts, served, tokenizer),
        tokenizer,
        SeedCounter(0).next,
        lambda: 0,
        backend.quirks(facts).seed_bits,
    )
    return FireworksSamplingClient(session, sampler, checkpoint or "", context)
