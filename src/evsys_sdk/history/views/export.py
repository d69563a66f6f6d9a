"""`evsys export`: the weights of one arm in their own folder, with a page that says where they come from.

Of `local` that is an adapter in the layout of PEFT, of `mock` its checkpoint. Weights that a server keeps have no files
here, and are named instead.
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
"""Folder with the journal, the config, the conclusion and what the arm is made of, for `evsys verify`."""
BEST, LAST = "best", "last"


@dataclass(frozen=True, slots=True)
class Export:
    """What was exported, and where it comes from."""

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
    """Of these weights; None where they were not scored. The interval is that of the whole run, over its seeds."""
    low: float | None
    high: float | None
    verdict: str
    warnings: list[str]
    config_sha256: str
    trials: dict[str, float] = field(default_factory=dict[str, float])
    """Of its project: claims tested and supported, and how many of these are expected to be false."""

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
    """Copy a checkpoint of the best arm, or of another, into a new folder; `trials` counts the project's claims."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise DataError(f"{folder}: there is something already. Export to a new folder: nothing is overwritten.")
    run = choose_arm(detail, arm)
    line, sampler = _find_checkpoint(detail, run, checkpoint)
    source = _find_files(detail, sampler)
    check_weights(source)
    found = describe_export(detail, run, line, [path.name for path in sorted(source.iterdir())])
    found = replace(found, folder=str(folder), trials=trials or {})
    # Copied next to it and renamed: a folder of this name is never half of one.
    temporary = folder.with_name(f".{folder.name}.part")
    shutil.rmtree(temporary, ignore_errors=True)
    try:
        shutil.copytree(source, temporary)
        write_json(temporary / ORIGIN, found.to_dict())
        write_text(temporary / README, describe_page(found))
        for path in filter(Path.is_file, dossier_files(detail, run.name)):
            copy = temporary / DOSSIER / path.relative_to(detail.folder)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, copy)
        if folder.exists():
            folder.rmdir()
        temporary.rename(folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return found


def dossier_files(detail: Detail, arm: str) -> list[Path]:
    """What a dossier has of an experiment: hashes of data, base, code and tasks, and scores; no rows and no answers."""
    record, run = ExperimentFiles(detail.folder), RunFiles(detail.folder / arm)
    found = [record.journal, record.config, record.conclusion, record.conclusion_page]
    found += [run.config, run.datasets, run.benchmarks, run.identity, run.checkpoints]
    return found + [path for one in detail.record.runs for path in (one.files.scores, one.files.result)]


def describe_page(found: Export) -> str:
    """The page next to the weights."""
    over_seeds = interval_text(found.low, found.high)
    facts = {
        "experiment": found.experiment,
        "run": f"{found.run} (arm {found.arm})",
        "step": found.step,
        "base model": found.model,
        "recipe": found.algorithm,
        "data": found.data,
        "backend": found.backend,
        found.metric or "score": score_text(found.score)
        + (f" (its run, over seeds: {over_seeds})" if over_seeds else ""),
        "verdict": found.verdict or "none",
        "expected false claims": _trials_text(found.trials),
        "config sha256": found.config_sha256,
    }
    lines = [
        f"# {found.run} of {found.experiment}",
        "",
        *(f"- {name}: {value}" for name, value in facts.items() if value),
    ]
    lines += ["", *(f"**{warning}**" for warning in found.warnings)] if found.warnings else []
    lines += ["", f"Start another run from it with `model.init_from_checkpoint: {found.folder}`.", ""]
    if "adapter_config.json" in found.files:
        lines += [f"PEFT loads it with `PeftModel.from_pretrained(base, {json.dumps(found.folder)})`.", ""]
    return "\n".join(lines)


def _trials_text(trials: dict[str, float]) -> str:
    said = "at most {expected_false:.2g} of the {supported} supported claims of its project ({tested} tested)"
    return said.format(**trials) if trials else ""


def _find_checkpoint(detail: Detail, run: RunRecord, name: str) -> tuple[Object, str]:
    """The line of a checkpoint and its sampler; by `best`, `last`, a step or a name."""
    lines = [line for line in run.checkpoints if text(line.get("sampler"))]
    if not lines:
        raise DataError(f"{run.name} of {detail.view.id} has no checkpoint on record. Name another with --arm.")
    if name == LAST:
        return lines[-1], text(lines[-1].get("sampler"))
    if name == BEST:
        best = text(part(run.result or {}, "artifacts").get("best_sampler"))
        chosen = next((line for line in lines if line.get("sampler") == best), None) or _best_scored(detail, run, lines)
        return chosen, text(chosen.get("sampler"))
    # Of a step that was repeated after a pause, the later one counts; its folder has another name.
    own = [line for line in lines if name in (line.get("name"), f"step{_step(line):06d}", str(_step(line)))]
    if not own:
        known = ", ".join(dict.fromkeys(str(_step(line)) for line in lines))
        raise DataError(
            f"--checkpoint {show(name)}: {run.name} has none of it. There are best, last, and steps {known}."
        )
    return own[-1], text(own[-1].get("sampler"))


def _best_scored(detail: Detail, run: RunRecord, lines: list[Object]) -> Object:
    """The checkpoint after whose step the arm scored best, where no one has chosen one yet; else the last."""
    scored = _scores_by_step(detail, run)
    known = [line for line in lines if _step(line) in scored]
    sign = 1 if detail.view.mode == "min" else -1
    return min(known, key=lambda line: sign * scored[_step(line)], default=lines[-1])


def _scores_by_step(detail: Detail, run: RunRecord) -> dict[int, float]:
    taken = [(step, number(found.get("value"))) for name, step, _, found in run.scores if name == detail.view.metric]
    return {int(step): value for step, value in taken if value is not None}


def _find_files(detail: Detail, sampler: str) -> Path:
    """The folder that a sampler is in; also where the experiment was moved since."""
    if "://" in sampler:
        raise DataError(
            f"{sampler}: these weights are on a server, not in a folder here. Download them with that server's own "
            "tools, or start from them with model.init_from_checkpoint."
        )
    path = Path(sampler)
    parts = path.parts
    if detail.folder.name in parts:  # written relative to the folder that it was started in
        # From the last part of that name on, because an experiment may have the name of a folder above it.
        moved = detail.folder.joinpath(*parts[len(parts) - parts[::-1].index(detail.folder.name) :])
        path = moved if moved.is_dir() else path
    if not path.is_dir():
        raise DataError(f"{sampler}: this checkpoint is no longer there. Choose another with --checkpoint or --arm.")
    return path


def describe_export(detail: Detail, arm: RunRecord, line: Object, files: list[str]) -> Export:
    """The facts of a checkpoint, all from what a dossier has."""
    shown, step = detail.view, _step(line)
    settings = settings_of(find_row(config_runs(detail.config), "name", arm.run))
    scored = next((one for one in shown.runs if one.run == arm.run), None)
    ended = arm.metrics.get(shown.metric) if line.get("final") is True else None
    warnings = [f"Invalidated: {shown.invalidated}"] if shown.invalidated else []
    warnings += [f"Flagged by its audit: {', '.join(shown.flags)}"] if shown.flags else []
    one_seed = scored is not None and scored.n_seeds == 1
    warnings += ["Trained with one seed only: seed variance may explain its score."] if one_seed else []
    return Export(
        folder="",
        files=files,
        experiment=shown.id,
        run=arm.run,
        arm=arm.name,
        seed=arm.seed,
        step=step,
        checkpoint=text(line.get("sampler")),
        backend=json.loads(settings.get("backend.kind", '""')),
        model=json.loads(settings.get("model.name", '""')),
        algorithm=json.loads(settings.get("algorithm.kind", '""')),
        data=data_source(settings),
        metric=shown.metric,
        score=_scores_by_step(detail, arm).get(step, ended),
        low=scored.low if scored else None,
        high=scored.high if scored else None,
        verdict=shown.verdict,
        warnings=warnings,
        config_sha256=shown.config_sha256,
    )


def _step(line: Object) -> int:
    return int(number(line.get("next_step")) or 0)
