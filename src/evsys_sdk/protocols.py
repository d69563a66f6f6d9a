"""What every kind of extension must look like, and the types a run passes around.

Extensions satisfy these by shape; nothing has to inherit from the SDK. Each declares `name` (its registry key) and,
when it takes params, `Config` (a pydantic model); it is built as `cls(**params)`.
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
"""One raw row: what a JSONL line holds before it becomes a typed row."""

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
    """`train_rows`, `n_train_rows`, `backend_handles`, `model_name`, `tags`, and whatever else you put there."""
    services: RunServices | None = None
    """What the run offers a recipe next to these, typed: observers, a scorer, a loader of more rows ..."""


@dataclass(slots=True)
class RunNotes:
    """What the SDK itself notes about how a run went; None where there is nothing to note.

    In `run_result.json` each note is a key of `extras`.
    """

    unscored: str | None = None
    """Why a run that should have scores lacks some; it cannot win."""
    stop_reason: str | None = None
    """Why it ended before its planned end."""
    untrained_stages: list[str] | None = None
    retryable: bool | None = None
    """Whether the same arm may succeed when it is tried again."""
    traceback: str | None = None
    """Of an error that no one expected."""
    spend: dict[str, Any] | None = None
    tokens: dict[str, int] | None = None
    """How many were `trained` on and `sampled`, steps that a killed run repeated counted once."""
    renderer: str | None = None
    trainer: str | None = None
    """The class that trained, where it was not the SDK's own loop."""
    selection_metric: str | None = None
    """What chose the best checkpoint ..."""
    selection_mode: str | None = None
    """... and whether less (`min`) or more (`max`) of it is better."""
    selection: str | None = None
    """What is to be said about that choice."""
    scoring_problems: list[str] | None = None
    """Everything that went wrong with a scoring, also where a later one went well."""
    findings: list[str] | None = None
    """What was noticed while it continued, e.g. that all rewards are equal."""
    trained_on: dict[str, dict[str, Any]] | None = None
    """How many tasks of each benchmark stood in what it was trained on, whatever its config says."""
    system_prompt: str | None = None
    """What a recipe tuned instead of weights; the model is scored and shipped with it."""
    retention: dict[str, dict[str, dict[str, float]]] | None = None
    """After which stage, on which stage, metric -> value."""

    def to_dict(self) -> dict[str, Any]:
        """What there is to note."""
        found = {one.name: getattr(self, one.name) for one in fields(self)}
        return {name: value for name, value in found.items() if value is not None}


@dataclass(slots=True)
class RunResult:
    """What `Algorithm.train` returns and `run_result.json` holds."""

    run_id: str
    status: RunStatus
    metrics: dict[str, float] = field(default_factory=dict[str, float])
    artifacts: dict[str, str] = field(default_factory=dict[str, str])
    error: str | None = None
    extras: dict[str, Any] = field(default_factory=dict[str, Any])
    """Whatever else the algorithm wants in the record."""
    notes: RunNotes = field(default_factory=RunNotes)


@dataclass(frozen=True, slots=True)
class VerificationResult:
    """How one completion was judged."""

    reward: float
    info: dict[str, Any] = field(default_factory=dict[str, Any])


@runtime_checkable
class Transform(Protocol):
    """Rows in, rows out; may be lazy, may change their number."""

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
    """Which model a backend is asked for: a run's model config, or `ModelSpec`, which adds seed and adapter rank."""

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
    """Where weights live; `prepare` returns handles, among them `training_client`."""

    name: ClassVar[str]

    def prepare(self, *, model: ModelRequest, run_dir: Path) -> dict[str, Any]: ...
    def teardown(self, handles: dict[str, Any]) -> None: ...


@runtime_checkable
class Algorithm(Protocol):
    """A training recipe.

    It may also have `traits()`, see `DeclaresTraits`, and `check_params(params)`, see `ChecksParams`. One that insists
    on a backend says so on its class: `pinned_backend = "mock"`.
    """

    name: ClassVar[str]

    def train(self, ctx: RunContext) -> RunResult: ...


@dataclass(frozen=True, slots=True)
class RolloutTraits:
    """How a recipe lets its policy act, so that it can be scored the same way."""

    harness: Callable[[], Harness]
    """Agent and environment, as training has them ..."""
    agent: AgentSpec | None = None
    agent_import_path: str | None = None
    environment: EnvironmentSpec | None = None
    """... and what the config names of them, for a benchmark that names the rest."""
    engine: str | None = None
    """The rollout engine, where the config names one; else the harness says which it needs."""
    max_tokens: int | None = None
    """Longest answer, per turn."""


@dataclass(frozen=True, slots=True)
class AlgorithmTraits:
    """What is known about a recipe before it trains; the defaults hold for one that says nothing."""

    pinned_backend: str | None = None
    """The backend it insists on, whatever the run names."""
    lora_rank: int = 32
    """Rank of the adapter it trains."""
    max_steps: int | None = None
    """How many steps it takes where that does not depend on the rows."""
    planned_steps: Callable[[Sequence[Row]], int | None] | None = None
    """How many it will take on these rows; None where that shows only during training."""
    stages: tuple[Algorithm, ...] = ()
    """The recipes it trains one after another, where it is made of several."""
    rollouts: RolloutTraits | None = None
    """Set where the policy is trained as an agent."""
    selection_metric: str = "loss"
    """What chooses the best checkpoint unless the config or a validation set does ..."""
    selection_mode: Literal["min", "max"] = "min"
    """... and whether less or more of it is better."""


@runtime_checkable
class DeclaresTraits(Protocol):
    """An algorithm that says more about itself than its name."""

    def traits(self) -> AlgorithmTraits: ...


@runtime_checkable
class ChecksParams(Protocol):
    """An extension that refuses, before anything is spent, what the schema of its params cannot rule out."""

    @classmethod
    def check_params(cls, params: Any) -> None: ...


def traits_of(algorithm: Algorithm) -> AlgorithmTraits:
    """What an algorithm declares; of one that declares nothing, what its params (`cfg`) and its class say."""
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
    Which of the two a class means is recognised by its signature.
    """

    name: ClassVar[str]

    def compute(self, *args: Any, **kwargs: Any) -> float: ...
