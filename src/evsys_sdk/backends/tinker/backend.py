"""The `tinker` backend: train on any server that speaks the Tinker protocol.

    backend: { kind: tinker }                                             # the hosted service, key in TINKER_API_KEY
    backend: { kind: tinker, params: { base_url: "http://127.0.0.1:8123" } }  # evsys serve, or another server

Deviations from the protocol come from the results of `evsys doctor`, if any; otherwise the protocol is assumed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

from ...log import get_logger
from .config import SkyRLConfig, TinkerConfig

if TYPE_CHECKING:
    from ..client import Capabilities
    from ..probes.facts import Facts
    from .client import TinkerTrainingClient
    from .pipeline import Pipeline
    from .quirks import Quirks
    from .sampling import TinkerSamplingClient
    from .session import ServedModel, Session
    from .state import TrainedAdapter

_SUGGESTED_LEARNING_RATE = 1e-4
_CONTEXT_LENGTH = 32_768


class TinkerBackend:
    """Any server with the Tinker protocol, through the tinker SDK."""

    name: ClassVar[str] = "tinker"
    Config: ClassVar[type[TinkerConfig]] = TinkerConfig

    def __init__(self, **params: Any) -> None:
        self.config = self.Config(**params)
        self._probed: str | None = None

    def for_probing(self, model: str) -> Self:
        """The same backend without assumptions about the server, to probe a model."""
        backend = type(self)(**{**self.config.model_dump(exclude_unset=True), "check_model": False})
        backend._probed = model
        return backend

    def prepare(self, *, model: Any, run_dir: Path) -> dict[str, Any]:
        """Open a session and create the model, or restore it; `model` is a ModelSpec or anything with a name."""
        from ..client import start_of

        # Called for its errors only, before a session is opened.
        start_of(model)
        session, pipeline = self.open_session()
        client = _submit(
            "creating the model", lambda: self._make(session, pipeline, model, Path(run_dir)), session, pipeline
        )
        return {"training_client": client, "tokenizer": client.tokenizer, "model_name": model.name}

    def model_names(self) -> list[str]:
        """The models that the server offers."""
        session, pipeline = self.open_session()
        pipeline.close()
        session.close("success")
        return session.model_names()

    def teardown(self, handles: dict[str, Any]) -> None:
        """End the session."""
        client = handles.get("training_client")
        if client is not None:
            client.close()

    def open_session(self) -> tuple[Session, Pipeline]:
        """An open session, and its pipeline."""
        from .pipeline import Pipeline

        limits = self.config.deadlines
        session = self._session()
        pipeline = Pipeline(
            session.where, {"connect": limits.connect_s, "train": limits.operation_s, "sample": limits.sample_s}
        )
        _submit("opening the session", session.open, session, pipeline)
        return session, pipeline

    def open_sampler(
        self, model: str, checkpoint: str | None = None
    ) -> tuple[TinkerSamplingClient, Callable[[], None]]:
        """A sampler of a base model or checkpoint without a training client; and its close function."""
        session, pipeline = self.open_session()

        def make() -> TinkerSamplingClient:
            return self._make_sampler(session, pipeline, model, checkpoint)

        def close() -> None:
            pipeline.close()
            session.close("errored" if pipeline.broken else "success")

        try:
            return pipeline.submit("sampler", make, lambda sampler: sampler, lane="connect").result(), close
        except BaseException:
            close()
            raise

    def _session(self) -> Session:
        from .session import Session

        return Session(self.config)

    def _make(self, session: Session, pipeline: Pipeline, model: Any, run_dir: Path) -> TinkerTrainingClient:
        """Create or restore the model; blocks."""
        served = session.model(model.name)
        facts = self.facts(session.base_url, model.name, served.extras)
        adapter = self._adapter(model)
        # Load the tokenizer first if it needs no server: creating a model costs money.
        asks = self.config.tokenizer == "auto" and not (served.extras or {}).get("tokenizer")
        tokenizer = None if asks else self._tokenizer(model.name, served)
        training = self._make_training(session, pipeline, adapter, model, run_dir)
        if asks:
            named = getattr(training.get_info().model_data, "tokenizer_id", None)
            tokenizer = self._tokenizer(model.name, served, named)
        capabilities = self.capabilities(facts, served, tokenizer)
        if not capabilities.summed_losses:
            get_logger(__name__).warning(
                "%s averages losses over what is sent together, so a token counts differently than on other backends; "
                "only losses with positive weights are possible",
                session.where,
            )
        return self._client_type()(
            session=session,
            pipeline=pipeline,
            training=training,
            adapter=adapter,
            capabilities=capabilities,
            tokenizer=tokenizer,
            quirks=self.quirks(facts),
            run_dir=run_dir,
            seed=getattr(model, "seed", 0),
        )

    def _client_type(self) -> type[TinkerTrainingClient]:
        from .client import TinkerTrainingClient

        return TinkerTrainingClient

    def _adapter(self, model: Any) -> TrainedAdapter:
        from .state import TrainedAdapter

        config = self.config
        return TrainedAdapter(
            model=model.name,
            rank=getattr(model, "lora_rank", 32),
            train_mlp=config.train_mlp,
            train_attn=config.train_attn,
            train_unembed=config.train_unembed,
            renderer=getattr(model, "renderer_name", None),
            tokenizer=config.tokenizer,
        )

    def _make_training(
        self, session: Session, pipeline: Pipeline, adapter: TrainedAdapter, model: Any, run_dir: Path
    ) -> Any:
        from ..client import start_of
        from .client import restore
        from .state import check_reference

        ref, with_optimizer = start_of(model)
        if ref:
            return restore(session, check_reference(ref), adapter, run_dir, with_optimizer)
        return session.service.create_lora_training_client(
            base_model=adapter.model, rank=adapter.rank, seed=getattr(model, "seed", None), **adapter.layers()
        )

    def _tokenizer(self, model: str, served: ServedModel, named: str | None = None) -> Any:
        from .tokenizers import load_tokenizer

        return load_tokenizer(self.config.tokenizer, self._probed or model, served.extras, named)

    def _make_sampler(self, session: Session, pipeline: Pipeline, model: str, checkpoint: str | None) -> Any:
        """A sampler without a training client; blocks until the server has it."""
        from ..seeds import RequestSeeds
        from .sampling import SamplerContext

        served = session.model(model, to_train=False)
        facts = self.facts(session.base_url, model, served.extras)
        tokenizer = self._tokenizer(model, served)
        # Without a training client there are no live weights to follow.
        capabilities = replace(self.capabilities(facts, served, tokenizer), snapshot_samplers=True)
        context = SamplerContext(pipeline, capabilities, tokenizer, RequestSeeds(0).next, lambda: 0, self.quirks(facts))
        return session.sampler(context, checkpoint or "", model=model)

    def assumed(self) -> Facts:
        """The assumed facts about servers of this kind."""
        from .quirks import REFERENCE

        return REFERENCE

    def facts(self, base_url: str, model: str, extras: Mapping[str, Any] | None = None) -> Facts:
        """Facts about a server: probed by `evsys doctor`, reported by the server, or assumed."""
        from ..probes.facts import Facts, ProbedServer, read_facts

        if self._probed is not None:
            from .quirks import PROMISED

            return PROMISED
        probed = read_facts(ProbedServer(self.name, base_url, model)) if self.config.use_doctor else None
        return (probed or Facts()).over(_read_facts(extras or {})).over(self.assumed())

    def quirks(self, facts: Facts) -> Quirks:
        """Deviations of this server."""
        from .quirks import Quirks

        return Quirks.of(self.config, facts)

    def capabilities(self, facts: Facts, served: ServedModel, tokenizer: Any) -> Capabilities:
        """The capabilities of this server for recipes."""
        from ..client import Capabilities
        from ..losses import LOSSES

        config, extras = self.config, served.extras or {}
        quirks = self.quirks(facts)
        top_k = config.top_k_logprobs if config.top_k_logprobs is not None else facts.top_k_logprobs or 0
        # Scoring a sequence samples one more token, which needs a position too.
        longest = served.context_length - 1 if served.context_length else _CONTEXT_LENGTH
        return Capabilities(
            backend=self.name,
            # Only the length of a tokenizer includes added tokens.
            vocab_size=int(extras.get("vocab_size") or max(len(tokenizer), int(tokenizer.vocab_size))),
            context_length=config.context_length or longest,
            # local fallbacks would hide the server's behaviour from a probe
            losses=LOSSES if quirks.summed and self._probed is None else quirks.native_losses,
            suggested_learning_rate=config.suggested_learning_rate
            or extras.get("suggested_learning_rate")
            or _SUGGESTED_LEARNING_RATE,
            custom_loss=quirks.summed and facts.custom_loss is not False,
            soft_targets=True,
            top_k_logprobs=top_k,
            summed_losses=quirks.summed,
            snapshot_samplers=facts.snapshot_samplers is not False,
            seeds=facts.seeds is not False,
        )


class SkyRLBackend(TinkerBackend):
    """A SkyRL server, with its deviations from the Tinker protocol."""

    name: ClassVar[str] = "skyrl"
    Config = SkyRLConfig

    def assumed(self) -> Facts:
        """The facts of SkyRL's JAX server, until `evsys doctor` has probed it."""
        from .quirks import SKYRL

        return SKYRL

    def quirks(self, facts: Facts) -> Quirks:
        """Its samples have no ids, and its seeds are 31 bits wide."""
        from .quirks import Quirks

        return Quirks.of(self.config, facts, seed_bits=31, fill_sequence_ids=True)


def _submit(what: str, work: Callable[[], Any], session: Session, pipeline: Pipeline) -> Any:
    """The result of an operation on the server; a failure closes the session."""
    try:
        return pipeline.submit(what, work, lambda result: result, lane="connect").result()
    except BaseException:  # also Ctrl-C
        pipeline.close(wait_s=0.0)
        session.close("errored", timeout_s=session.teardown_grace_s)
        raise


def _read_facts(extras: Mapping[str, Any]) -> Facts:
    """An evsys server's facts about itself."""
    from ..probes.facts import Facts

    summed = extras.get("summed_losses")
    return Facts(
        loss_reduction=None if summed is None else "sum" if summed else "normalised",
        snapshot_samplers=extras.get("snapshot_samplers"),
        losses=tuple(extras["losses"]) if "losses" in extras else None,
        custom_loss=extras.get("custom_loss"),
        soft_targets=extras.get("soft_targets"),
        seeds=extras.get("seeds"),
        top_k_logprobs=extras.get("top_k_logprobs"),
    )
