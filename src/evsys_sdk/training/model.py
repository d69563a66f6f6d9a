"""A model in one line: sample, score, train, save; for custom training loops.

    model = evsys_sdk.open_model("SmolLM2-135M-Instruct", backend="local")
    [[answer]] = model.sample(["Name a colour."], logit_bias={model.token(" blue"): 4.0})
    model.train([answer])                     # one optimiser step on the sampled answer

`x()` waits for its result; `x_async()` immediately returns an `Operation`, with `await` or `.result()`. Recipes use the
same client, so both run on every backend. Unsupported operations of a backend raise an error.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self, TypedDict, Unpack, cast

from ..backends.client import AdamParams, ModelSpec
from ..backends.datum import mean_per_token
from ..backends.future import Operation, gather
from ..errors import BackendError, DataError
from ..inference.renderer import Renderer, get_renderer
from ..paths import in_project
from ..registry import get_backend
from .batch import TrainingBatch, submit_step
from .frozen_model import Example, FrozenModel, check_options

if TYPE_CHECKING:
    from ..backends.client import ForwardBackwardOutput, SamplingClient, TrainingClient
    from ..backends.losses import LossCallable


type Loss = str | LossCallable


class LossOptions(TypedDict, total=False):
    """Options of the loss."""

    loss_config: Mapping[str, Any] | None
    """Parameters of a named loss, e.g. its clip thresholds."""
    reduce: Literal["mean", "sum"]
    """`mean` (the default) divides by the tokens with loss; a custom loss gets the data unchanged."""


class TrainOptions(LossOptions, total=False):
    """Options of an optimiser step."""

    learning_rate: float | None
    """By default a value suggested for the model."""
    adam: AdamParams | None
    """By default Adam with gradients clipped to a norm of 1."""


class Model(FrozenModel):
    """A model in training: a frozen base with an adapter and an optimizer."""

    def __init__(
        self,
        client: TrainingClient,
        renderer: Renderer | DataError,
        *,
        another: Callable[[str, int, int], TrainingClient] | None = None,
        close: Callable[[], None] | None = None,
    ) -> None:
        """`another` opens a further client on the same base, by name, rank and seed; `close` releases the backend."""
        super().__init__(None, renderer, client.tokenizer, client.capabilities)
        self.client, self.model_name = client, client.model_name
        """The underlying training client."""
        self.adapters: dict[str, Model] = {}
        """Further adapters on the same base, by name."""
        self._another, self._close = another, close
        self._live: Operation[SamplingClient] | None = None
        self._base: FrozenModel | None = None
        self.tokens_trained = 0

    @property
    def base(self) -> FrozenModel:
        """The initial weights, e.g. as the reference of a KL penalty or of DPO."""
        if self._base is None:
            self._base = self.snapshot()
        return self._base

    def snapshot(self) -> FrozenModel:
        """The current weights, frozen."""
        return FrozenModel(self._sampler(), self._renderer, self.tokenizer, self.capabilities)

    def adapter(self, name: str, *, lora_rank: int = 32, seed: int = 0) -> Model:
        """Another adapter with its own optimizer on the same base; the same name returns the same adapter."""
        if name not in self.adapters:
            if self._another is None:
                raise BackendError("this model was not opened with open_model(). Use open_model() for adapters.")
            self.adapters[name] = Model(self._another(name, lora_rank, seed), self._renderer)
        return self.adapters[name]

    def train(
        self, examples: Sequence[Example], loss: Loss = "cross_entropy", **options: Unpack[TrainOptions]
    ) -> ForwardBackwardOutput:
        """One optimiser step on examples and on gradients accumulated by `backward`; returns loss and metrics.

        `loss` names a loss (`cross_entropy`, `importance_sampling`, `ppo`, `cispo`, `dro`, `gspo`) or is a function
        of (data, logprobs). Options: `learning_rate`, `adam`, `loss_config`, `reduce`.
        """
        return self.train_async(examples, loss, **options).result()

    def train_async(
        self, examples: Sequence[Example], loss: Loss = "cross_entropy", **options: Unpack[TrainOptions]
    ) -> Operation[ForwardBackwardOutput]:
        """`train` without waiting: build the next batch meanwhile."""
        check_options("train", options, TrainOptions)
        step = self._adam(options.get("learning_rate"), options.get("adam"))
        batch = self._batch(examples, loss, options.get("loss_config"), options.get("reduce", "mean"))
        backward, optim = submit_step(self.client, batch, step)
        details = {"learning_rate": step.learning_rate, "tokens": float(sum(map(len, batch.data)))}

        def finish(both: list[Any]) -> ForwardBackwardOutput:
            return replace(both[0], metrics={"loss": both[0].loss, **both[0].metrics, **both[1].metrics, **details})

        return gather(cast("list[Operation[Any]]", [backward, optim])).then(finish)

    def backward(
        self, examples: Sequence[Example], loss: Loss = "cross_entropy", **options: Unpack[LossOptions]
    ) -> ForwardBackwardOutput:
        """Accumulate a gradient for the next `step` or `train`."""
        check_options("backward", options, LossOptions)
        batch = self._batch(examples, loss, options.get("loss_config"), options.get("reduce", "mean"))
        return submit_step(self.client, batch, None)[0].result()

    def step(self, learning_rate: float | None = None, adam: AdamParams | None = None) -> dict[str, float]:
        """Apply the gradients accumulated by `backward`."""
        self.note_change()
        return self.client.optim_step(self._adam(learning_rate, adam)).result().metrics

    def save(self, name: str) -> str:
        """Store adapter and optimizer under a new name; returns the reference."""
        return self.client.save_state(name).result()

    def load(self, ref: str, *, with_optimizer: bool = True) -> None:
        """Load a state stored by `save`, with its optimizer or a new one."""
        self.note_change()
        self.client.load_state(ref, with_optimizer=with_optimizer).result()

    def export(self, folder: str | Path) -> Path:
        """Write the adapter for other programs: on `local` in PEFT's layout with the tokenizer, for PEFT and vLLM."""
        target = Path(folder)
        stored = self.client.sampler(f"export-{target.name}").result().ref
        if "://" in stored:
            raise BackendError(
                f"the weights are on a server, at {stored}. Fetch them with `evsys deploy`, or train on local."
            )
        shutil.copytree(stored, target)
        if hasattr(self.tokenizer, "save_pretrained"):
            self.tokenizer.save_pretrained(target)
        return target

    def close(self) -> None:
        """Release the model and its adapters; closing twice has no effect."""
        for adapter in self.adapters.values():
            adapter.client.close()
        if self._close is not None:
            self._close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _sampler(self) -> Operation[SamplingClient]:
        """A sampler of the current weights, cached until they change."""
        if self._live is None:
            self._live = self.client.sampler()
        return self._live

    def note_change(self) -> None:
        """Keep the initial weights and drop the sampler before the weights change."""
        _ = self.base
        self._live = None

    def _batch(
        self, examples: Sequence[Example], loss: Loss, config: Mapping[str, Any] | None, reduce: str
    ) -> TrainingBatch:
        data = self.datums(examples)
        if reduce == "mean" and isinstance(loss, str):
            data = mean_per_token(data)
        self.note_change()
        self.tokens_trained += sum(len(datum) for datum in data)
        return TrainingBatch(data, loss, config)

    def _adam(self, learning_rate: float | None, adam: AdamParams | None) -> AdamParams:
        if adam is not None:
            return adam if learning_rate is None else replace(adam, learning_rate=learning_rate)
        rate = self.capabilities.suggested_learning_rate if learning_rate is None else learning_rate
        return AdamParams(rate, grad_clip_norm=1.0)


def open_model(
    name: str,
    backend: str = "local",
    *,
    checkpoint: str | None = None,
    lora_rank: int = 32,
    seed: int = 0,
    folder: str | Path | None = None,
    renderer_name: str | None = None,
    **params: Any,
) -> Model:
    """Open a model to sample, score and train: `mock`, `local`, or a server with Tinker's protocol.

    `checkpoint` starts from stored weights, `folder` is where `save` writes (`outputs/models/...` by default), and
    `params` are those of the backend in YAML, e.g. `device="cpu"` or `base_url=...`. Use it as a context manager, or
    call `close`. Inside `record()`, take `run.model` instead: it is metered, resumed and scored.
    """
    built = get_backend(backend)(**params)
    base = in_project("outputs/models") / f"{Path(name).name}-{backend}" if folder is None else Path(folder)
    spec = ModelSpec(name, init_from_checkpoint=checkpoint, renderer_name=renderer_name, lora_rank=lora_rank, seed=seed)
    opened: list[dict[str, Any]] = []

    def prepare(spec: ModelSpec, run_dir: Path) -> TrainingClient:
        handles = built.prepare(model=spec, run_dir=run_dir)
        opened.append(handles)
        if (client := handles.get("training_client")) is None:
            raise BackendError(f"the backend '{backend}' trains through no client. Use mock, local or tinker.")
        return client

    def another(name: str, lora_rank: int, seed: int) -> TrainingClient:
        adapter_spec = replace(spec, init_from_checkpoint=None, lora_rank=lora_rank, seed=seed)
        return prepare(adapter_spec, base / "adapters" / name)

    def close() -> None:
        while opened:
            built.teardown(opened.pop())

    client = prepare(spec, base)
    try:
        renderer = get_renderer(client.tokenizer, renderer_name)
    except DataError as error:  # a base model without a chat template: tokens only
        renderer = error
    return Model(client, renderer, another=another, close=close)
