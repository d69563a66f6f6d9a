"""The protocols of extensions, and the types that a run passes to them.

Extensions satisfy them structurally, without inheriting from the SDK. Each declares `name` (its registry key) and, if
it takes params, `Config` (a pydantic model); it is built as `cls(**params)`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, runtime_checkable

if TYPE_CHECKING:
    from .config import ExperimentConfig
    from .config.specs import AgentSpec, EnvironmentSpec
    from .rollouts.harness import Harness
    from .training.services import RunServices

type Row = dict[str, Any]
"""One raw row of a JSONL file."""

type RunStatus = Literal["completed", "failed", "cancelled"]


@dataclass(slots=True)
class RunContext:
    """Everything an algorithm needs to train one run."""

    run_id: str
    output_dir: Path
    config: ExperimentConfig
    data_store: DataStore
    log_store: LogStore
    backend: Backend
    extras: dict[str, Any] = field(default_factory=dict[str, Any])
    """`train_rows`, `n_train_rows`, `backend_handles`, `model_name`, `tags`, and your own entries."""
    services: RunServices | None = None
    """Typed services of the run: observers, a scorer, a loader of more rows ..."""


@dataclass(slots=True)
class RunNotes:
    """Notes of the SDK about a run; None means no note.

    In `run_result.json` each note is a key of `extras`.
    """

    unscored: str | None = None
    """Why the run lacks scores; such a run cannot be the best."""
    stop_reason: str | None = None
    """Why it ended before its planned end."""
    untrained_stages: list[str] | None = None
    retryable: bool | None = None
    """Whether the arm may succeed if it is retried."""
    traceback: str | None = None
    """Traceback of an unexpected error."""
    spend: dict[str, Any] | None = None
    tokens: dict[str, int] | None = None
    """Tokens `trained` on and `sampled`; steps that a killed run repeated count once."""
    renderer: str | None = None
    trainer: str | None = None
    """The class that trained, if it was not the SDK's loop."""
    selection_metric: str | None = None
    """The metric that selected the best checkpoint ..."""
    selection_mode: str | None = None
    """... and its direction, `min` or `max`."""
    selection: str | None = None
    """A remark about the selection."""
    scoring_problems: list[str] | None = None
    """Problems of scorings, also if a later scoring succeeded."""
    findings: list[str] | None = None
    """Findings about its training, e.g. that all rewards are equal."""
    trained_on: dict[str, dict[str, Any]] | None = None
    """Benchmark -> the number of its tasks that occurred in the training data."""
    system_prompt: str | None = None
    """The tuned system prompt of a recipe without weight updates; the model is scored and deployed with it."""
    retention: dict[str, dict[str, dict[str, float]]] | None = None
    """Trained stage -> scored stage -> metric -> value."""

    def to_dict(self) -> dict[str, Any]:
        """The notes that are not None."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in values.items() if value is not None}


@dataclass(slots=True)
class RunResult:
    """The result of `Algorithm.train`, which `run_result.json` stores."""

    run_id: str
    status: RunStatus
    metrics: dict[str, float] = field(default_factory=dict[str, float])
    artifacts: dict[str, str] = field(default_factory=dict[str, str])
    error: str | None = None
    extras: dict[str, Any] = field(default_factory=dict[str, Any])
    """Further values of the algorithm for the record."""
    notes: RunNotes = field(default_factory=RunNotes)


@dataclass(frozen=True, slots=True)
class VerificationResult:
    """The reward of one completion."""

    reward: float
    info: dict[str, Any] = field(default_factory=dict[str, Any])


@runtime_checkable
class Transform(Protocol):
    """Maps rows to rows; may be lazy, and may change their number."""

    name: ClassVar[str]

    def __call__(self, rows: Iterable[Row]) -> Iterable[Row]: ...


@runtime_checkable
class DataStore(Protocol):
    """Where datasets are read from and written to."""

    name: ClassVar[str]

    def read_jsonl(self, path: str) -> Iterator[Row]: ...
    def write_jsonl(self, path: str, rows: Iterable[Row]) -> int: ...
    def read_json(self, path: str) -> Any: ...
    def write_json(self, path: str, value: Any) -> None: ...
    def exists(self, path: str) -> bool: ...
    def list(self, prefix: str = "") -> Sequence[str]: ...


@runtime_checkable
class LogStore(Protocol):
    """Where metrics, hyperparameters and artifact pointers go."""

    name: ClassVar[str]

    def log_scalar(self, key: str, value: float, step: int) -> None: ...
    def log_metrics(self, metrics: Mapping[str, float], step: int) -> None: ...
    def log_hyperparams(self, params: Mapping[str, Any]) -> None: ...
    def log_artifact(self, name: str, path: str) -> None: ...
    def close(self) -> None: ...


class ModelRequest(Protocol):
    """The requested model of a backend: a run's model config, or `ModelSpec` with seed and adapter rank."""

    @property
    def name(self) -> str: ...
    @property
    def load_checkpoint_path(self) -> str | None: ...
    @property
    def init_from_checkpoint(self) -> str | None: ...
    @property
    def renderer_name(self) -> str | None: ...


@runtime_checkable
class Backend(Protocol):
    """Holds the weights; `prepare` returns handles, among them `training_client`."""

    name: ClassVar[str]

    def prepare(self, *, model: ModelRequest, run_dir: Path) -> dict[str, Any]: ...
    def teardown(self, handles: dict[str, Any]) -> None: ...


@runtime_checkable
class Algorithm(Protocol):
    """A training recipe.

    It may also have `traits()`, see `DeclaresTraits`, and `check_params(params)`, see `ChecksParams`. A recipe for one
    backend only has the class attribute `pinned_backend = "mock"`.
    """

    name: ClassVar[str]

    def train(self, ctx: RunContext) -> RunResult: ...


@dataclass(frozen=True, slots=True)
class RolloutTraits:
    """How the policy of a recipe acts in training, so that scoring can use the same settings."""

    harness: Callable[[], Harness]
    """Agent and environment of training ..."""
    agent: AgentSpec | None = None
    agent_import_path: str | None = None
    environment: EnvironmentSpec | None = None
    """... and their specs in the config, for a benchmark that overrides a part."""
    engine: str | None = None
    """The rollout engine of the config; by default that of the harness."""
    max_tokens: int | None = None
    """Token limit of an answer, per turn."""


@dataclass(frozen=True, slots=True)
class AlgorithmTraits:
    """Properties of a recipe before it trains."""

    pinned_backend: str | None = None
    """The only backend that it supports, which overrides that of the run."""
    lora_rank: int = 32
    """Rank of the trained adapter."""
    max_steps: int | None = None
    """Number of steps, if it does not depend on the rows."""
    planned_steps: Callable[[Sequence[Row]], int | None] | None = None
    """Number of steps on given rows; None if it is known only during training."""
    stages: tuple[Algorithm, ...] = ()
    """The recipes that it runs in sequence."""
    rollouts: RolloutTraits | None = None
    """Set if the policy is trained with rollouts."""
    selection_metric: str = "loss"
    """The metric that selects the best checkpoint, unless the config or a validation set does ..."""
    selection_mode: Literal["min", "max"] = "min"
    """... and its direction."""


@runtime_checkable
class DeclaresTraits(Protocol):
    """An algorithm that declares its traits."""

    def traits(self) -> AlgorithmTraits: ...


@runtime_checkable
class ChecksParams(Protocol):
    """An extension with checks of its params beyond their schema."""

    @classmethod
    def check_params(cls, params: Any) -> None: ...


def traits_of(algorithm: Algorithm) -> AlgorithmTraits:
    """The traits of an algorithm; without `traits()`, derived from its params (`cfg`) and its class."""
    if isinstance(algorithm, DeclaresTraits):
        return algorithm.traits()
    cfg, defaults = getattr(algorithm, "cfg", None), AlgorithmTraits()
    rank, steps = getattr(cfg, "lora_rank", None), getattr(cfg, "max_steps", None)
    return AlgorithmTraits(
        pinned_backend=getattr(algorithm, "pinned_backend", None),
        lora_rank=rank if isinstance(rank, int) else defaults.lora_rank,
        max_steps=steps if isinstance(steps, int) else None,
    )


@runtime_checkable
class InferenceClient(Protocol):
    """How text is generated for evaluation and judges."""

    name: ClassVar[str]

    def generate(
        self, *, prompt: str, max_tokens: int, temperature: float, stop: Sequence[str] | None = None
    ) -> str: ...


@runtime_checkable
class Verifier(Protocol):
    """Scores one completion; the score is the reward in RL and the result in evaluation."""

    name: ClassVar[str]

    def verify(self, *, prompt: str, completion: str, target: Any) -> VerificationResult: ...


@runtime_checkable
class Metric(Protocol):
    """Aggregates predictions into one number.

    `compute(task_rewards)` receives one inner list per task; `compute(*, predictions, targets)` compares texts.
    The signature decides which of the two is called.
    """

    name: ClassVar[str]

    def compute(self, *args: Any, **kwargs: Any) -> float: ...
