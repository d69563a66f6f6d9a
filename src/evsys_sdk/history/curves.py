"""How training went, step by step: the loss and the scores of one arm, from its metrics and scorings."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from .outcome import is_score
from .reading import SCORES, number, part, read_lines, text

_METRICS = ("logs/metrics.jsonl", "metrics.jsonl", "logs/training/metrics.jsonl")
_PREFERRED = ("loss", "train/loss", "reward/mean", "reward")

type Points = list[tuple[float, float]]


@dataclass(frozen=True, slots=True)
class Curve:
    """One metric over the steps of one arm."""

    label: str
    metric: str
    points: Points


def training_curve(arm_dir: Path, label: str) -> Curve | None:
    """The loss of an arm, or what else it logged at every step if it has none."""
    by_metric = _logged(arm_dir)
    names = [name for name in by_metric if not is_score(name) and len(by_metric[name]) > 1]
    wanted = [*(name for name in _PREFERRED if name in names), *(name for name in names if "loss" in name)]
    return Curve(label, wanted[0], by_metric[wanted[0]]) if wanted else None


def score_curve(arm_dir: Path, preferred: str, label: str) -> Curve | None:
    """A score of an arm over its steps: the preferred one if it was taken more than once, else another that was."""
    by_metric: dict[str, dict[float, float]] = {}
    for line in read_lines(arm_dir / SCORES):
        split, name, step = text(line.get("split")), text(line.get("name")), number(line.get("step"))
        for short, found in part(line, "metrics").items():
            value = number(part({"it": found}, "it").get("value"))
            if step is not None and value is not None:
                by_metric.setdefault(full_name(split, name, short), {})[step] = value
    curves = {metric: sorted(values.items()) for metric, values in by_metric.items()}
    curves = {metric: points for metric, points in _logged(arm_dir).items() if is_score(metric)} | curves
    several = sorted(metric for metric, points in curves.items() if len(points) > 1 and is_score(metric))
    same_kind = [metric for metric in several if metric.rpartition("/")[2] == preferred.rpartition("/")[2]]
    chosen = preferred if preferred in several else next(iter([*same_kind, *several]), None)
    return None if chosen is None else Curve(label, chosen, curves[chosen])


def full_name(split: str, name: str, metric: str) -> str:
    """A metric of a scoring as results and logs call it."""
    return f"{split}/{metric}" if name in ("", split) else f"{split}/{name}/{metric}"


def _logged(arm_dir: Path) -> dict[str, Points]:
    """Every metric that was logged; of a step that was done twice, the later one counts."""
    found: dict[str, dict[float, float]] = {}
    source = next((arm_dir / name for name in _METRICS if (arm_dir / name).is_file()), None)
    for line in read_lines(source) if source else ():
        step = number(line.get("step"))
        if step is None:
            continue
        for name, raw in line.items():
            value = number(raw)
            if name != "step" and value is not None:
                found.setdefault(name, {})[step] = value
    return {name: sorted(values.items()) for name, values in found.items()}
