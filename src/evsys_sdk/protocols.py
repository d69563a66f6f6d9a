"""What every kind of extension must look like, and the types a run passes around.

Extensions satisfy these by shape; nothing has to inherit from the SDK. Each declares `name` (its registry key) and,
when it takes params, `Config` (a pydantic model); it is built as `cls(**params)`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, runtime_checkable

if TYPE_CHECKING:
    from .config import ExperimentConfig

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
    """Free bag: `train_rows`, `n_train_rows`, `backend_handles`, `model_name`, `tags` ..."""


@dataclass(slots=True)
class RunResult:
    """What `Algorithm.train` returns and `run_result.json` holds."""

    run_id: str
    status: RunStatus
    metrics: dict[str, float] = field(default_factory=dict[str, float])
    artifacts: dict[str, str] = field(default_factory=dict[str, str])
    error: str | None = None
    extras: dict[str, Any] = field(default_factory=dict[str, Any])


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
    """A training recipe."""

    name: ClassVar[str]

    def train(self, ctx: RunContext) -> RunResult: ...


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
    Which of the two a class means is told by its signature.
    """

    name: ClassVar[str]

    def compute(self, *args: Any, **kwargs: Any) -> float: ...
