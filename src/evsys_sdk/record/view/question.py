"""The question of an experiment: deciding metric, tasks, direction, models and backends.

Scores are compared only between experiments with the same question. It is computed before the first step and stored in
the first event of the journal; for records of earlier versions it is derived from the scores.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..values import Object, part, text

SPLITS = ("val", "eval", "test", "train_fit")
"""First parts of score names; without a conclusion, the metric of the first split decides."""
REPORTED = ("test", "eval", "val", "train_fit")
"""The splits that a conclusion reports, in order of preference."""
_OPENINGS = tuple(f"{split}/" for split in SPLITS)
_COUNTS = ("/stderr", "/tasks", "/failed_samples", "/unscored_tasks")


@dataclass(frozen=TYPE_CHECKING, slots=True, unsafe_hash=not TYPE_CHECKING)  # see `RunRecord`
class Question:
    """The question of an experiment. Two scores are comparable if their questions are equal."""

    metric: str = ""
    """Full name of the deciding metric, e.g. `test/routing/pass@1`."""
    split: str = ""
    """The split of the metric: test, val, eval or train_fit; empty for a training metric."""
    tasks: str = ""
    """The number of tasks and the beginning of their hash; for a training metric, `data` and the source's name."""
    direction: str = "max"
    """`max` or `min`: whether a higher or a lower value is better."""
    model: str = ""
    """The base models, in the order of the runs."""
    backend: str = ""
    """The backends, because a score on mock does not compare with another backend."""

    @property
    def label(self) -> str:
        """The question as one line."""
        where = f" on {self.backend}" if self.backend else ""
        tasks = f" ({self.tasks})" if self.tasks else ""
        return f"{self.metric or 'no metric'}{tasks} of {self.model or 'unknown model'}{where}"

    @classmethod
    def of(cls, stored: Object) -> Question | None:
        """The stored question of a journal; None without one."""
        fields = {name: text(stored.get(name)) for name in cls.__slots__}
        return cls(**fields) if fields["metric"] else None

    def to_dict(self) -> dict[str, str]:
        return {name: getattr(self, name) for name in self.__slots__}


def is_score(metric: str) -> bool:
    """Whether a metric is a score on a whole set of tasks or rows."""
    return metric.startswith(_OPENINGS) and not (metric.endswith(_COUNTS) or "=" in metric)


def split_of(metric: str) -> str:
    """The split of a score; empty for a training metric."""
    return metric.partition("/")[0] if is_score(metric) else ""


def success_metric(metadata: Object) -> tuple[str, str]:
    """Name and direction of a config's success metric; the name is empty without one."""
    metric = metadata.get("success_metric")
    return text(metric) or text(part(metric).get("name")), text(part(metric).get("mode")) or "max"


def resolve_metric(name: str, known: Iterable[str], order: tuple[str, ...] = SPLITS) -> str:
    """The full name of a metric among the known ones; without a name, the first score in the order of splits."""
    names = dict.fromkeys(known)
    if name in names:
        return name
    ending = f"/{name}" if name else ""
    scores = [metric for metric in names if metric.endswith(ending) and is_score(metric)]
    return min(scores, key=lambda metric: (order.index(split_of(metric)), metric), default=name)


def describe_tasks(n_tasks: int | None, sha256: str) -> str:
    """A short text that identifies a set of tasks."""
    return " ".join([*([f"{n_tasks} tasks"] if n_tasks else []), *([sha256[:6]] if sha256 else [])])


def joined(values: Iterable[str]) -> str:
    """Names joined to one value of a question."""
    return " + ".join(dict.fromkeys(filter(None, values)))


def models_and_backends(runs: Iterable[Mapping[str, object]]) -> tuple[str, str]:
    """Base models and backends of the runs of a config."""
    run_list = list(runs)
    return (
        joined(text(part(run.get("model")).get("name")) for run in run_list),
        joined(text(part(run.get("backend")).get("kind")) for run in run_list),
    )
