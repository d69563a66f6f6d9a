"""The question of an experiment: which metric decides, on which tasks, in which direction, of which model where.

Scores are compared only between experiments with the same question. It is computed before the first step and stored in
the first event of the journal; of a record of an earlier version it is worked out from what was scored.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..values import Object, part, text

SPLITS = ("val", "eval", "test", "train_fit")
"""How names of scores begin; where no conclusion was drawn, the earlier ones decide before the later ones."""
REPORTED = ("test", "eval", "val", "train_fit")
"""The order in which a conclusion prefers the sets that it reports."""
_OPENINGS = tuple(f"{split}/" for split in SPLITS)
_COUNTS = ("/stderr", "/tasks", "/failed_samples", "/unscored_tasks")


@dataclass(frozen=TYPE_CHECKING, slots=True, unsafe_hash=not TYPE_CHECKING)  # see `RunRecord`
class Question:
    """What an experiment asks. Two scores are comparable if they answer the same question."""

    metric: str = ""
    """Full name of the metric that decides, e.g. `test/routing/pass@1`."""
    split: str = ""
    """The set that it is computed on: test, val, eval or train_fit; empty for a measure of training."""
    tasks: str = ""
    """How many tasks and the beginning of their hash; for a measure of training, `data` and the name of the source."""
    direction: str = "max"
    """Whether more (`max`) or less (`min`) of it is better."""
    model: str = ""
    """The base models, in the order of the runs."""
    backend: str = ""
    """Where they were trained: a score on mock says nothing about another backend."""

    @property
    def label(self) -> str:
        """The question in a line."""
        where = f" on {self.backend}" if self.backend else ""
        tasks = f" ({self.tasks})" if self.tasks else ""
        return f"{self.metric or 'no metric'}{tasks} of {self.model or 'unknown model'}{where}"

    @classmethod
    def of(cls, stored: Object) -> Question | None:
        """The question that a journal holds; None where it holds none."""
        found = {name: text(stored.get(name)) for name in cls.__slots__}
        return cls(**found) if found["metric"] else None

    def to_dict(self) -> dict[str, str]:
        return {name: getattr(self, name) for name in self.__slots__}


def is_score(metric: str) -> bool:
    """Whether a metric is the score of a whole set of tasks or rows."""
    return metric.startswith(_OPENINGS) and not (metric.endswith(_COUNTS) or "=" in metric)


def split_of(metric: str) -> str:
    """The set that a score is computed on; nothing for a measure of training."""
    return metric.partition("/")[0] if is_score(metric) else ""


def wanted_metric(metadata: Object) -> tuple[str, str]:
    """The metric that a config names as success, and its direction; an empty name where it names none."""
    wanted = metadata.get("success_metric")
    return text(wanted) or text(part(wanted).get("name")), text(part(wanted).get("mode")) or "max"


def resolve_metric(name: str, known: Iterable[str], order: tuple[str, ...] = SPLITS) -> str:
    """The full name of a metric among those that are known; without a name, the first score in the order of splits."""
    names = dict.fromkeys(known)
    if name in names:
        return name
    scores = sorted(filter(is_score, names), key=lambda metric: (order.index(split_of(metric)), metric))
    if name:
        return next((metric for metric in scores if metric.endswith(f"/{name}")), name)
    return scores[0] if scores else ""


def describe_tasks(n_tasks: int | None, sha256: str) -> str:
    """A set of tasks in a few words that are different for different sets."""
    return " ".join([*([f"{n_tasks} tasks"] if n_tasks else []), *([sha256[:6]] if sha256 else [])])


def joined(values: Iterable[str]) -> str:
    """Several names as one value of a question."""
    return " + ".join(dict.fromkeys(filter(None, values)))


def models_and_backends(runs: Iterable[Mapping[str, object]]) -> tuple[str, str]:
    """Base models and backends of the runs of a config."""
    found = list(runs)
    return (
        joined(text(part(run.get("model")).get("name")) for run in found),
        joined(text(part(run.get("backend")).get("kind")) for run in found),
    )
