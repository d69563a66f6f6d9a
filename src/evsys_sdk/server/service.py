"""Handles training requests, independently of HTTP. Runs on one event loop; the backend has threads."""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
from collections.abc import AsyncGenerator, Callable, Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from starlette.responses import Response

from ..backends import checks
from ..backends.client import AdamParams, SamplingClient, TrainingClient
from ..backends.datum import Datum
from ..backends.future import Operation
from ..errors import BackendError, EvsysError
from ..log import get_logger
from .answer import Refusal, answer_failure, answer_json
from .openai.models import OfferedModels
from .settings import ServeSettings
from .state.fair_share import FairShare
from .state.futures import Futures, Memory
from .state.model import TrainedModel
from .state.sessions import ClientSession, Sampler, Sessions
from .tinker import requests
from .tinker.protobuf import TrainingRequest, read_training_request, write_training_answer
from .trace_log import TraceLog
from .weights.catalog import Catalog
from .weights.checkpoints import EXTERNAL, SAMPLER, WEIGHTS, CheckpointPlace, Checkpoints
from .weights.engine import Engine
from .weights.external import Signer, encrypt_folder, read_recipients

_LARGE_BODY = 1 << 18
"""Longer requests are parsed on a thread, so that others do not wait."""


@dataclass(slots=True)
class Service:
    """The state of one server and the operations of its clients."""

    settings: ServeSettings
    engine: Engine
    checkpoints: Checkpoints
    sessions: Sessions = field(default_factory=Sessions)
    memory: Memory = field(init=False)
    futures: Futures = field(init=False)
    samples: FairShare = field(init=False)
    offered: OfferedModels = field(init=False)
    catalog: Catalog | None = None
    """Additional model names of OpenAI's API."""
    log: TraceLog | None = None
    """Stores conversations, if configured."""
    feedback_turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Serialises feedback."""
    signer: Signer = field(default_factory=Signer)
    draining: bool = False
    """Whether the server is shutting down: it finishes operations and refuses new ones."""
    _tasks: set[asyncio.Task[None]] = field(default_factory=set[asyncio.Task[None]])
    prompt_tokens: int = 0
    """Prompt tokens of all answers so far."""
    sampled_tokens: int = 0
    _sampling: int = 0
    """Active requests of OpenAI's API."""

    def __post_init__(self) -> None:
        self.memory = Memory(self.settings.max_held_bytes)
        self.futures = Futures(self.memory)
        self.samples = FairShare(self.settings.samples_at_once)
        self.offered = OfferedModels(self.engine, self.checkpoints, self.catalog)

    @contextlib.asynccontextmanager
    async def admit_sampling(self) -> AsyncGenerator[None]:
        """Admit a request of OpenAI's API up to the limit; a shutdown waits for it."""
        self.check_sampling_room()
        self._sampling += 1
        try:
            yield
        finally:
            self._sampling -= 1

    def check_sampling_room(self) -> None:
        """Refuse a request beyond the limit of waiting ones."""
        most = self.settings.max_samples
        if self._sampling >= most:
            raise Refusal(429, f"{most} requests are waiting here. Try again, or raise --max-samples.", retry_after_s=1)

    def gauges(self) -> dict[str, float]:
        """The gauges of `/metrics`."""
        models = [model for session in self.sessions.all() for model in session.models.values()]
        return {
            "evsys_prompt_tokens_total": self.prompt_tokens,
            "evsys_sampled_tokens_total": self.sampled_tokens,
            "evsys_operations_running": self.running,
            "evsys_results_unfetched": self.futures.count_unfetched(),
            "evsys_models_in_training": len(models),
            "evsys_draining": float(self.draining),
        }

    def count_tokens(self, prompt: int, sampled: int) -> None:
        """Count the tokens of an answer."""
        self.prompt_tokens += prompt
        self.sampled_tokens += sampled

    @property
    def running(self) -> int:
        """Number of accepted operations that have not ended."""
        return self.futures.running + self._sampling

    @classmethod
    def start(cls, settings: ServeSettings, catalog: Catalog | None = None, log: TraceLog | None = None) -> Service:
        """Load the models and check that the state folder is writable."""
        (settings.state_dir / "runs").mkdir(parents=True, exist_ok=True)
        checkpoints = Checkpoints(settings.state_dir)
        return cls(settings, Engine.start(settings), checkpoints, catalog=catalog, log=log)

    def create_session(self, request: requests.CreateSession) -> dict[str, Any]:
        session = self.sessions.create(display_name=request.display_name, user_metadata=request.user_metadata)
        return {"type": "create_session", "session_id": session.session_id}

    def create_model(self, request: requests.CreateModel) -> dict[str, Any]:
        session = self.sessions.get(request.session_id)
        model_id = f"{session.session_id}:train:{request.model_seq_id}"
        request_id = f"{model_id}:0"
        if model_id not in session.models:  # a repeated request creates no second model
            self._check_new_model(request)
            lora = request.lora_config or requests.Lora()
            # Drawn here, because the run's record needs it.
            seed = secrets.randbelow(2**31) if lora.seed is None else lora.seed
            model = TrainedModel(
                model_id,
                session.session_id,
                request.base_model,
                lora.rank,
                seed,
                self.futures,
                self.settings.max_queue,
            )
            session.models[model_id] = model
            self.futures.open(request_id, model_id, session_id=session.session_id)
            model.follow(self._prepare(model, request_id, request.user_metadata))
        return {"request_id": request_id, "model_id": model_id}

    def forward_backward(
        self, request: TrainingRequest, data: list[Datum] | EvsysError, *, size: int
    ) -> dict[str, Any]:
        """Train on data of `size` bytes, or refuse them."""
        model = self.sessions.model(request.model_id)
        if isinstance(data, EvsysError):
            if model.turns.is_taken(request.seq_id):  # raises its earlier refusal; else the result exists
                return {"request_id": model.request_id(request.seq_id)}
            raise model.refuse(request.seq_id, data)
        client, config = model.client, request.loss_fn_config or None
        run = client.forward if request.forward_only else client.forward_backward

        def check() -> None:
            checks.check_loss(request.loss_fn, config, client.capabilities)
            checks.check_data(data, client.capabilities, request.loss_fn)

        def start() -> Operation[Response]:
            return run(data, request.loss_fn, config).then(write_training_answer)

        return {"request_id": model.submit(request.seq_id, start, check, size=size)}

    async def read_training(self, body: bytes) -> tuple[TrainingRequest, list[Datum] | EvsysError]:
        """A request and its data, or its error."""

        def read() -> tuple[TrainingRequest, list[Datum] | EvsysError]:
            request = read_training_request(body)
            try:
                return request, request.data()
            except EvsysError as error:
                return request, error

        return await asyncio.to_thread(read) if len(body) > _LARGE_BODY else read()

    def optim_step(self, request: requests.OptimStep) -> dict[str, Any]:
        model = self.sessions.model(request.model_id)
        adam = AdamParams(**request.adam_params.model_dump())

        def start() -> Operation[Response]:
            return model.client.optim_step(adam).then(lambda output: answer_json({"metrics": dict(output.metrics)}))

        return {"request_id": model.submit(request.seq_id, start, lambda: checks.check_adam(adam))}

    def save_weights(self, request: requests.SaveWeights) -> dict[str, Any]:
        return self._save(request, WEIGHTS, lambda client, name: client.save_state(name), overwrite=request.overwrite)

    def save_for_sampler(self, request: requests.SaveForSampler) -> dict[str, Any]:
        if request.path is None and request.sampling_session_seq_id is not None:
            model = self.sessions.model(request.model_id)
            return {"request_id": model.submit(request.seq_id, lambda: self._snapshot(model, request))}
        return self._save(request, SAMPLER, lambda client, name: client.sampler(name).then(lambda sampler: sampler.ref))

    def save_external(self, request: requests.SaveExternal) -> dict[str, Any]:
        """Save weights as files for other programs, fetched through signed URLs."""
        model = self.sessions.model(request.model_id)
        recipients: list[Any] = []
        if request.age_encryption_recipients and not model.turns.is_taken(request.seq_id):
            try:
                recipients = read_recipients(request.age_encryption_recipients)
            except EvsysError as error:
                raise model.refuse(request.seq_id, error) from None

        def keep(sampler: SamplingClient) -> str:
            if recipients:
                encrypt_folder(Path(sampler.ref), recipients)
            return sampler.ref

        return self._save(request, EXTERNAL, lambda client, name: client.sampler(name).then(keep))

    def _save(
        self,
        request: requests.Saved,
        kind: str,
        write: Callable[[TrainingClient, str], Operation[str]],
        *,
        overwrite: bool = False,
    ) -> dict[str, Any]:
        """Save through `write` under a name."""
        model, name = self.sessions.model(request.model_id), request.path or f"{request.seq_id:06d}"
        place = CheckpointPlace(model.model_id, kind, name)

        def start() -> Operation[Response]:
            # Checked before writing, and again by `_publish`, because an earlier save may still be running.
            self._check_free(place, overwrite=overwrite)
            # Unique, because overwritten files are deleted only after the new ones are published.
            return write(model.client, f"{request.seq_id:06d}-{name}").then(
                lambda ref: self._publish(place, ref, model, request, overwrite=overwrite)
            )

        return {"request_id": model.submit(request.seq_id, start)}

    def load_weights(self, request: requests.LoadWeights) -> dict[str, Any]:
        model = self.sessions.model(request.model_id)

        def start() -> Operation[Response]:
            ref = self.checkpoints.get(request.path).ref
            answer = answer_json({"path": request.path, "model_id": model.model_id, "type": "load_weights"})
            return model.client.load_state(ref, with_optimizer=request.optimizer).then(lambda _: answer)

        return {"request_id": model.submit(request.seq_id, start)}

    def consume_number(self, body: bytes, refusal: Refusal) -> None:
        """Consume the number of a request that was refused before parsing, because its client has advanced."""
        try:
            fields: Any = json.loads(body)
            model_id, seq_id = fields["model_id"], fields["seq_id"]
        except (ValueError, TypeError, KeyError, RecursionError):
            return
        if isinstance(model_id, str) and type(seq_id) is int and seq_id >= 1:
            with contextlib.suppress(Refusal):  # an unknown model or number: keep the first refusal
                self.sessions.model(model_id).refuse(seq_id, refusal)

    def follow(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Run a background task and keep a reference to it."""
        task = asyncio.ensure_future(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def end_session(self, session: ClientSession) -> None:
        """Release everything of a session after its submitted operations have ended."""
        self.sessions.end(session.session_id)  # first, so that nothing more is submitted
        self.samples.forget(session.session_id)
        for model in session.models.values():
            await model.wait_until_settled()
            if model.handles is not None:
                await self.engine.release(model.handles)
        # Last, because ending operations deliver results there.
        self.futures.end_session(session.session_id)

    async def run_maintenance(self) -> None:
        """End idle sessions, give up overdue requests and delete expired checkpoints, until cancelled."""
        while True:
            # a quarter of the limit, which bounds the delay
            await asyncio.sleep(min(self.settings.idle_s, self.settings.gap_s, 60.0) / 4)
            try:
                for session in self.sessions.idle(self.settings.idle_s):
                    get_logger(__name__).info("session %s sent no heartbeat and is ended", session.session_id)
                    await self.end_session(session)
                self.give_up_waiting(self.settings.gap_s)
                await asyncio.to_thread(self.checkpoints.delete_expired)
            except Exception:  # keep the maintenance loop alive
                get_logger(__name__).exception("the maintenance failed")

    def give_up_waiting(self, after_s: float = 0.0) -> None:
        """End requests that have waited this long for an earlier one."""
        for session in self.sessions.all():
            for model in session.models.values():
                model.give_up_overdue(after_s)

    async def close(self) -> None:
        """Release all models."""
        for session in self.sessions.all():
            await self.end_session(session)
        await self.engine.close()

    def _check_new_model(self, request: requests.CreateModel) -> None:
        self.engine.check_name(request.base_model)
        lora = request.lora_config or requests.Lora()
        if not (lora.train_mlp and lora.train_attn and lora.train_unembed):
            raise Refusal(400, "this server trains all layers: leave train_mlp, train_attn and train_unembed at true.")
        # failed models use no memory
        models = [model for session in self.sessions.all() for model in session.models.values() if not model.broken]
        if len(models) >= self.settings.max_models:
            raise Refusal(
                429,
                f"{self.settings.max_models} models are in training here. Close a client that is done, or raise "
                "--max-models.",
                retry_after_s=5,
            )

    async def _prepare(self, model: TrainedModel, request_id: str, user_metadata: dict[str, Any] | None) -> None:
        about = {"base_model": model.base_model, "lora_rank": model.rank, "seed": model.seed}

        def prepare() -> dict[str, Any]:
            self.checkpoints.add_run(model.model_id, {**about, "user_metadata": user_metadata})
            return self.engine.prepare(
                model.base_model,
                run_dir=self.checkpoints.engine_dir(model.model_id),
                rank=model.rank,
                seed=model.seed,
            )

        try:
            model.handles = await asyncio.to_thread(prepare)
            answer = answer_json({"model_id": model.model_id, "type": "create_model"})
        except Exception as error:  # any error: a client waits for the result
            get_logger(__name__).exception("the model %s could not be created", model.model_id)
            model.broken = True
            answer = answer_failure(str(error), "user" if isinstance(error, EvsysError) else "server")
        self.futures.finish(request_id, answer)

    def _check_free(self, place: CheckpointPlace, *, overwrite: bool) -> None:
        if self.checkpoints.exists(place) and not overwrite:
            raise BackendError(f"{place.path} exists already. Use another name, or overwrite=True to replace weights.")

    def _publish(
        self, place: CheckpointPlace, ref: str, model: TrainedModel, request: requests.Saved, *, overwrite: bool
    ) -> Response:
        """Publish written weights under their name; runs on the backend's thread, in order."""
        self._check_free(place, overwrite=overwrite)
        self.checkpoints.add(
            place,
            ref,
            ttl_seconds=request.ttl_seconds,
            user_metadata=request.user_metadata,
            about={"base_model": model.base_model, "lora_rank": model.rank},
        )
        return answer_json({"path": place.path})

    def _snapshot(self, model: TrainedModel, request: requests.SaveForSampler) -> Operation[Response]:
        """Weights for one sampler that live as long as their session."""
        sampler_id = f"{model.session_id}:sample:{request.sampling_session_seq_id}"
        session = self.sessions.get(model.session_id)

        loop = asyncio.get_running_loop()

        def keep(client: SamplingClient) -> Response:
            sampler = Sampler(sampler_id, session.session_id, model.base_model, None, client)
            loop.call_soon_threadsafe(session.keep, sampler)  # ordered before the response
            return answer_json({"sampling_session_id": sampler_id, "type": "save_weights_for_sampler"})

        return model.client.sampler().then(keep)
