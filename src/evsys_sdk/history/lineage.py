"""What an experiment gained over the one it was derived from: the natural thing to compare it with.

Where its run started from a checkpoint of the parent, the gain is told against what that very checkpoint scored; else
against the parent's best run. Only the same metric on the same tasks is compared.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ..errors import DataError
from ..record.runs import RunRecord, config_runs
from ..record.values import matching, number, part, text
from .detail import Detail, read_detail
from .find import find_experiment
from .pairing import PairedDifference, SetScores, add_score, pair_scores, scores_of
from .text import interval_text, score_text


@dataclass(frozen=True, slots=True)
class Gain:
    """The best run of an experiment minus where it comes from."""

    parent: str
    run: str
    """Of the parent."""
    step: int | None
    """Of the parent's checkpoint that it started from; None where it is compared with the parent's best run."""
    difference: PairedDifference

    def to_dict(self) -> dict[str, Any]:
        """The JSON form."""
        return asdict(self)

    def tell(self) -> str:
        """In one sentence."""
        found = self.difference
        start = (
            f"its checkpoint after step {self.step}, where this one started"
            if self.step is not None
            else "its best run"
        )
        interval = interval_text(found.low, found.high, found.covers)
        scores = f"{found.metric} {score_text(found.first)} -> {score_text(found.second)}"
        told = " ".join(filter(None, (f"{found.difference:+.3g}", interval)))
        remark = f"; {found.remark}" if found.remark else ""
        return f"Against its parent {self.parent} ({self.run}, {start}): {told} ({scores}{remark})"


def find_gain(detail: Detail, roots: Sequence[Path]) -> Gain | None:
    """What it gained; None without a parent on record that has a score by the same metric on the same tasks."""
    if not detail.summary.parent_id:
        return None
    try:
        parent = read_detail(find_experiment(detail.summary.parent_id, roots))
    except DataError:  # it was removed, or its name now means several
        return None
    metric = detail.outcome.metric
    own = scores_of(detail).get(metric)
    started = _starting_point(detail, parent)
    before = scores_of(parent).get(metric) if started is None else _scores_after(*started, metric)
    if own is None or before is None or parent.folder == detail.folder:
        return None
    if own.sha256 and before.sha256 and own.sha256 != before.sha256:
        return None
    run, step = (parent.chosen_run, None) if started is None else (started[0].name, started[1])
    return Gain(parent.summary.id, run, step, pair_scores(metric, before, own))


def _starting_point(detail: Detail, parent: Detail) -> tuple[RunRecord, int] | None:
    """The arm and the step of the parent whose weights the best run started from."""
    model = part(matching(config_runs(detail.config), "name", detail.chosen_run), "model")
    reference = text(model.get("init_from_checkpoint")) or text(model.get("load_checkpoint_path"))
    for arm in parent.arms if reference else ():
        for line in arm.checkpoints:
            names = {text(line.get("state")), text(line.get("sampler"))}
            step = number(line.get("next_step"))
            if step is not None and reference in names:
                return arm, int(step)
        if Path(reference).resolve() == arm.folder.resolve() and arm.checkpoints:  # a run stands for its last one
            return arm, int(number(arm.checkpoints[-1].get("next_step")) or 0)
    return None


def _scores_after(arm: RunRecord, step: int, metric: str) -> SetScores | None:
    found: dict[str, SetScores] = {}
    for name, at, line, value in arm.scores:
        if name == metric and at == step:
            add_score(found, metric, line, value)
    return found.get(metric)
