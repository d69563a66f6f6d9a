"""The step metrics of arms on this disk; a file is read again when it has changed."""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from pathlib import Path

from ...record.layout import LogFiles, RunFiles
from ...record.values import number, read_lines
from ...record.view.question import is_score

_LOGS, _TRAINING = RunFiles(Path()).logs, RunFiles(Path()).logs.below(LogFiles.training.name)
_METRICS = tuple(path.as_posix() for path in (_LOGS.metrics, LogFiles(Path()).metrics, _TRAINING.metrics))
_TIMING = tuple(path.as_posix() for path in (_LOGS.timing, _TRAINING.timing))
_MOST_POINTS = 2_000_000
"""Number of points kept in memory; the arms that were read first are evicted first."""

type Metrics = dict[str, dict[float, float | None]]


class LocalMetrics:
    """Metrics by the folder of an arm; thread-safe."""

    def __init__(self) -> None:
        self._cache: dict[Path, tuple[tuple[int, ...], Metrics, int]] = {}
        self._points = 0
        self._lock = threading.Lock()

    def read(self, folder: Path) -> Metrics:
        """Every logged metric by step; for a repeated step, the later value."""
        present = [first for names in (_METRICS, _TIMING) if (first := _first_file(folder, names)) is not None]
        stamp = tuple(part for _, *parts in present for part in parts)
        with self._lock:
            cached = self._cache.get(folder)
        if cached is not None and cached[0] == stamp:
            return cached[1]
        # Without the lock, so that a long file does not block other readers. Two threads may read the same file.
        metrics = _read_metrics([file for file, *_ in present])
        points = sum(map(len, metrics.values()))
        with self._lock:
            self._points += points - self._cache.pop(folder, ((), {}, 0))[2]
            self._cache[folder] = (stamp, metrics, points)
            while self._points > _MOST_POINTS and len(self._cache) > 1:  # the arm just read always stays
                self._points -= self._cache.pop(next(iter(self._cache)))[2]
        return metrics

    def read_steps(self, folder: Path) -> list[tuple[int, dict[str, float]]]:
        """Every logged metric as a list of steps, with NaN for non-finite values."""
        by_step: dict[int, dict[str, float]] = {}
        for name, values in self.read(folder).items():
            for step, value in values.items():
                by_step.setdefault(int(step), {})[name] = math.nan if value is None else value
        return sorted(by_step.items())

    def last(self, folder: Path) -> dict[str, float]:
        """The latest value of each metric, if it is finite."""
        latest = {name: values[max(values)] for name, values in self.read(folder).items() if values}
        return {name: value for name, value in latest.items() if value is not None}

    def furthest(self, folder: Path) -> int | None:
        """The last logged step, ignoring scores."""
        steps = [max(values) for name, values in self.read(folder).items() if values and not is_score(name)]
        return int(max(steps)) if steps else None


def _read_metrics(files: Sequence[str]) -> Metrics:
    metrics: Metrics = {}
    for file in files:
        for line in read_lines(Path(file)):
            step = number(line.get("step"))
            for name, raw in line.items() if step is not None else ():
                if name not in ("step", "_nonfinite") and (raw is None or number(raw) is not None):
                    metrics.setdefault(name, {})[step or 0.0] = number(raw)
    return metrics


def _first_file(folder: Path, names: Sequence[str]) -> tuple[str, int, int] | None:
    """The first existing file, with its time and size."""
    from os import stat

    for name in names:
        path = f"{folder}/{name}"
        try:
            status = stat(path)
        except OSError:
            continue
        # The size too, because two lines may be written within one tick of the file system's clock.
        return path, status.st_mtime_ns, status.st_size
    return None
