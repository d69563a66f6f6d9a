"""The arms of one experiment as the record knows them: from the journal, and from their folders where it is silent."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

from .reading import CONFIG, RESULT, Object, first, items, number, part, read_object, subfolders, text

_SEED_SUFFIX = re.compile(r"__seed(\d+)$")
SPEND = ("tokens_trained", "tokens_sampled", "usd", "wall_s", "gpu_s")


@dataclass(frozen=True, slots=True)
class ArmRecord:
    """One run with one seed."""

    name: str
    run: str
    seed: int | None = None
    status: str = "pending"
    """completed, failed, cancelled; `started` without a result, `pending` without a start."""
    error: str = ""
    unscored: str = ""
    """Why it has no score although it should."""
    metrics: dict[str, float] = field(default_factory=dict[str, float])
    spend: dict[str, float] = field(default_factory=dict[str, float])
    artifacts: dict[str, str] = field(default_factory=dict[str, str])

    @property
    def problem(self) -> str:
        """Why it cannot be counted on, if so."""
        if self.status == "failed":
            return self.error or "it failed, and no reason was recorded"
        return self.unscored and f"unscored: {self.unscored}"


def arm_records(folder: Path, config: Object, events: Sequence[Object], *, from_files: bool = False) -> list[ArmRecord]:
    """Every arm; with `from_files`, results are read from the arms' folders even if the journal has their summary."""
    arms = {arm.name: arm for arm in _planned(config, events)}
    for event in events:
        name, kind = text(event.get("arm")), text(event.get("kind"))
        if not name or not kind.startswith("arm_"):
            continue
        arm = arms.get(name) or ArmRecord(name, run_of(name, arms.values()), _seed_of(name))
        if kind == "arm_started":
            arms[name] = replace(arm, status="started", error="", unscored="")
        elif kind == "arm_ended":
            # The bill of an arm is about all of its attempts, so the last one is the whole.
            arms[name] = replace(_with_result(arm, event), spend=_plain(part(event, "spend")) or arm.spend)
    told = {text(event.get("arm")) for event in events if event.get("kind") == "arm_ended"}
    for name in sorted({*_folders(folder, told, from_files=from_files), *arms}):
        if from_files or name not in told:
            result = read_object(folder / name / RESULT)
            arm = arms.get(name) or ArmRecord(name, run_of(name, arms.values()), _seed_of(name))
            if result is not None:
                found = _with_result(arm, result)
                arms[name] = replace(found, spend=arm.spend or _plain(part(result, "extras", "spend")))
            elif name in arms or (folder / name / CONFIG).exists():
                started = arm.status == "pending" and (folder / name / CONFIG).exists()
                arms[name] = replace(arm, status="started") if started else arm
    return list(arms.values())


def run_of(arm: str, known: Iterable[ArmRecord] = ()) -> str:
    """The run an arm is a seed of."""
    return next((one.run for one in known if one.name == arm), _SEED_SUFFIX.sub("", arm))


def config_runs(config: Object) -> list[Object]:
    """The runs of a resolved config, however it was written."""
    runs = [cast(Object, run) for run in items(config.get("runs")) if isinstance(run, dict)]
    return runs or ([part(config, "run")] if part(config, "run") else [])


def add_spend(left: Mapping[str, float], right: Mapping[str, Any]) -> dict[str, float]:
    """Two bills as one; what has no known price counts for nothing."""
    total = dict(left)
    for name, value in _plain(right).items():
        total[name] = total.get(name, 0.0) + value
    return total


def _plain(spend: Mapping[str, Any]) -> dict[str, float]:
    return {name: value for name in SPEND if (value := number(spend.get(name))) is not None}


def _planned(config: Object, events: Sequence[Object]) -> Iterator[ArmRecord]:
    lists = [found for event in events if (found := items(event.get("arms")))]
    listed = [part({"arm": one}, "arm") for one in (lists[-1] if lists else ())]
    for arm in listed:
        if name := text(arm.get("arm")):
            seed = number(arm.get("seed"))
            yield ArmRecord(name, text(arm.get("run")) or run_of(name), None if seed is None else int(seed))
    if not listed:
        yield from _expanded(config)


def _expanded(config: Object) -> Iterator[ArmRecord]:
    """The arms of a config whose journal does not list them."""
    repeats = int(number(config.get("n_repeats")) or 1)
    for run in config_runs(config):
        name = text(run.get("name"))
        first_seed = number(first(config, "base_seed"))
        seed = int(first_seed if first_seed is not None else number(run.get("seed")) or 0)
        for repeat in range(min(repeats, 1000) if name else 0):
            suffix = "" if repeats == 1 else f"__seed{seed + repeat}"
            yield ArmRecord(f"{name}{suffix}", name, seed + repeat)


def _with_result(arm: ArmRecord, result: Object) -> ArmRecord:
    metrics = {name: value for name, raw in part(result, "metrics").items() if (value := number(raw)) is not None}
    unscored = text(first(result, "unscored")) or text(part(result, "extras").get("unscored"))
    artifacts = {name: value for name, value in part(result, "artifacts").items() if isinstance(value, str)}
    return replace(
        arm,
        status=text(result.get("status")) or "failed",
        error=text(result.get("error")),
        unscored=unscored,
        metrics=metrics or arm.metrics,
        artifacts=artifacts,
    )


def _folders(folder: Path, told: set[str], *, from_files: bool) -> list[str]:
    """Folders that look like arms; not looked for when the journal has said everything."""
    if told and not from_files:
        return []
    return [name for name in subfolders(folder) if _is_arm(folder / name)]


def _is_arm(folder: Path) -> bool:
    return (folder / RESULT).exists() or (folder / "starts.jsonl").exists()


def _seed_of(name: str) -> int | None:
    found = _SEED_SUFFIX.search(name)
    return int(found[1]) if found else None
