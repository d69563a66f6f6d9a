"""`evsys export`: write the weights of an arm to a folder, with a page about their origin.

For `local` these are an adapter in the layout of PEFT, for `mock` its checkpoint. Weights on a server have no local
files and cannot be exported.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from ...errors import DataError, show
from ...files import write_json, write_text
from ...record.evidence import check_weights
from ...record.flat_config import data_source, settings_of
from ...record.layout import ExperimentFiles, RunFiles
from ...record.runs import RunRecord, config_runs
from ...record.values import Object, find_row, number, part, text
from ..detail import Detail
from ..text import interval_text, score_text
from .answers import choose_arm

ORIGIN = "evsys_export.json"
README = "README.md"
DOSSIER = "dossier"
"""Folder with journal, config, conclusion and the identity of the arm, for `evsys verify`."""
BEST, LAST = "best", "last"


@dataclass(frozen=True, slots=True)
class Export:
    """The exported files and their origin."""

    folder: str
    files: list[str]
    experiment: str
    run: str
    arm: str
    seed: int | None
    step: int | None
    checkpoint: str
    backend: str
    model: str
    algorithm: str
    data: str
    metric: str
    score: float | None
    """Score of these weights; None without one. The interval is that of the run, over its seeds."""
    low: float | None
    high: float | None
    verdict: str
    warnings: list[str]
    config_sha256: str
    trials: dict[str, float] = field(default_factory=dict[str, float])
    """Tested and supported claims of its project, and the expected number of false ones."""

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def export_weights(
    detail: Detail,
    folder: Path,
    *,
    arm: str | None = None,
    checkpoint: str = BEST,
    trials: dict[str, float] | None = None,
) -> Export:
    """Copy a checkpoint of an arm, by default the best, into a new folder; `trials` counts the project's claims."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise DataError(f"{folder}: exists already. Export to a new folder.")
    run = choose_arm(detail, arm)
    line, sampler = _find_checkpoint(detail, run, checkpoint)
    source = _find_files(detail, sampler)
    check_weights(source)
    export = describe_export(detail, run, line, [path.name for path in sorted(source.iterdir())])
    export = replace(export, folder=str(folder), trials=trials or {})
    # Copied to a temporary folder and renamed, so that the target is never incomplete.
    temporary = folder.with_name(f".{folder.name}.part")
    shutil.rmtree(temporary, ignore_errors=True)
    try:
        shutil.copytree(source, temporary)
        write_json(temporary / ORIGIN, export.to_dict())
        write_text(temporary / README, describe_page(export))
        for path in filter(Path.is_file, dossier_files(detail, run.name)):
            copy = temporary / DOSSIER / path.relative_to(detail.folder)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, copy)
        if folder.exists():
            folder.rmdir()
        temporary.rename(folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return export


def dossier_files(detail: Detail, arm: str) -> list[Path]:
    """The files of a dossier: hashes of data, base model, code and tasks, and scores, but no rows or answers."""
    record, run = ExperimentFiles(detail.folder), RunFiles(detail.folder / arm)
    files = [record.journal, record.config, record.conclusion, record.conclusion_page]
    files += [run.config, run.datasets, run.benchmarks, run.identity, run.checkpoints]
    return files + [path for other in detail.record.runs for path in (other.files.scores, other.files.result)]


def describe_page(export: Export) -> str:
    """The README of an export."""
    over_seeds = interval_text(export.low, export.high)
    facts = {
        "experiment": export.experiment,
        "run": f"{export.run} (arm {export.arm})",
        "step": export.step,
        "base model": export.model,
        "recipe": export.algorithm,
        "data": export.data,
        "backend": export.backend,
        export.metric or "score": score_text(export.score)
        + (f" (its run, over seeds: {over_seeds})" if over_seeds else ""),
        "verdict": export.verdict or "none",
        "expected false claims": _trials_text(export.trials),
        "config sha256": export.config_sha256,
    }
    lines = [
        f"# {export.run} of {export.experiment}",
        "",
        *(f"- {name}: {value}" for name, value in facts.items() if value),
    ]
    lines += ["", *(f"**{warning}**" for warning in export.warnings)] if export.warnings else []
    lines += ["", f"Start another run from it with `model.init_from_checkpoint: {export.folder}`.", ""]
    if "adapter_config.json" in export.files:
        lines += [f"PEFT loads it with `PeftModel.from_pretrained(base, {json.dumps(export.folder)})`.", ""]
    return "\n".join(lines)


def _trials_text(trials: dict[str, float]) -> str:
    sentence = "at most {expected_false:.2g} of the {supported} supported claims of its project ({tested} tested)"
    return sentence.format(**trials) if trials else ""


def _find_checkpoint(detail: Detail, run: RunRecord, name: str) -> tuple[Object, str]:
    """The line and the sampler of a checkpoint, by `best`, `last`, a step or a name."""
    lines = [line for line in run.checkpoints if text(line.get("sampler"))]
    if not lines:
        raise DataError(f"{run.name} of {detail.view.id} has no checkpoint on record. Name another with --arm.")
    if name == LAST:
        return lines[-1], text(lines[-1].get("sampler"))
    if name == BEST:
        best = text(part(run.result or {}, "artifacts").get("best_sampler"))
        chosen = next((line for line in lines if line.get("sampler") == best), None) or _best_scored(detail, run, lines)
        return chosen, text(chosen.get("sampler"))
    # Of a repeated step, the last checkpoint counts; its folder has another name.
    matches = [line for line in lines if name in (line.get("name"), f"step{_step(line):06d}", str(_step(line)))]
    if not matches:
        steps = ", ".join(dict.fromkeys(str(_step(line)) for line in lines))
        raise DataError(
            f"--checkpoint {show(name)}: {run.name} has no such checkpoint. It has best, last, and steps {steps}."
        )
    return matches[-1], text(matches[-1].get("sampler"))


def _best_scored(detail: Detail, run: RunRecord, lines: list[Object]) -> Object:
    """The checkpoint with the best score, for arms without a selected one; else the last."""
    scored = _scores_by_step(detail, run)
    candidates = [line for line in lines if _step(line) in scored]
    sign = 1 if detail.view.mode == "min" else -1
    return min(candidates, key=lambda line: sign * scored[_step(line)], default=lines[-1])


def _scores_by_step(detail: Detail, run: RunRecord) -> dict[int, float]:
    points = [(step, number(score.get("value"))) for name, step, _, score in run.scores if name == detail.view.metric]
    return {int(step): value for step, value in points if value is not None}


def _find_files(detail: Detail, sampler: str) -> Path:
    """The folder of a sampler, also if the experiment was moved."""
    if "://" in sampler:
        raise DataError(
            f"{sampler}: these weights are on a server, not in a local folder. Download them with that server's own "
            "tools, or start from them with model.init_from_checkpoint."
        )
    path = Path(sampler)
    parts = path.parts
    if detail.folder.name in parts:  # the path is relative to the folder of the start
        # From the last occurrence of the name, because a parent folder may have the same name.
        moved = detail.folder.joinpath(*parts[len(parts) - parts[::-1].index(detail.folder.name) :])
        path = moved if moved.is_dir() else path
    if not path.is_dir():
        raise DataError(
            f"{sampler}: this checkpoint does not exist any more. Choose another with --checkpoint or --arm."
        )
    return path


def describe_export(detail: Detail, arm: RunRecord, line: Object, files: list[str]) -> Export:
    """The facts of a checkpoint, from the files of a dossier only."""
    view, step = detail.view, _step(line)
    settings = settings_of(find_row(config_runs(detail.config), "name", arm.run))
    scored = next((run for run in view.runs if run.run == arm.run), None)
    ended = arm.metrics.get(view.metric) if line.get("final") is True else None
    warnings = [f"Invalidated: {view.invalidated}"] if view.invalidated else []
    warnings += [f"Flagged by its audit: {', '.join(view.flags)}"] if view.flags else []
    one_seed = scored is not None and scored.n_seeds == 1
    warnings += ["Trained with one seed only: seed variance may explain its score."] if one_seed else []
    return Export(
        folder="",
        files=files,
        experiment=view.id,
        run=arm.run,
        arm=arm.name,
        seed=arm.seed,
        step=step,
        checkpoint=text(line.get("sampler")),
        backend=json.loads(settings.get("backend.kind", '""')),
        model=json.loads(settings.get("model.name", '""')),
        algorithm=json.loads(settings.get("algorithm.kind", '""')),
        data=data_source(settings),
        metric=view.metric,
        score=_scores_by_step(detail, arm).get(step, ended),
        low=scored.low if scored else None,
        high=scored.high if scored else None,
        verdict=view.verdict,
        warnings=warnings,
        config_sha256=view.config_sha256,
    )


def _step(line: Object) -> int:
    return int(number(line.get("next_step")) or 0)
