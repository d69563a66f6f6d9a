"""The identity of an arm: hashes of its initial weights, data, code, verifiers and benchmarks, and package versions.

Two arms are comparable if they differ only in the subject of the claim. The config names verifiers and checkpoints;
the identity records their content.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from ..._version import __version__
from ...config import ExperimentConfig, RunConfig
from ...data import describe_source
from ...data.code_hash import code_hash
from ...data.types import InProcessVerifier
from ...errors import EvsysError
from ...eval.benchmark import Benchmark
from ...paths import in_project
from ...protocols import Row
from ...record.evidence import hash_value
from ...record.layout import ExperimentFiles
from ...record.values import part, read_json, text
from ...registry import get_agent, get_algorithm, get_backend, get_transform, get_verifier
from ...rollouts.harness import import_agent
from ..arms.arm import expand_arms
from ..arms.rows import RowLoader, content_hash, row_reader
from ..benchmark_plan import PlannedBenchmark
from .recheck import is_deterministic

_PACKAGES = ("numpy", "torch", "transformers", "peft", "tinker", "harbor")
_PACKAGE = __name__.partition(".")[0]
_BUILT_IN = "evsys-sdk"
_UNKNOWN = "unknown"
_PACE = ("concurrency", "timeout_s", "run_every", "models", "tags")
"""Benchmark settings that do not affect the score of a model: schedule, speed, other models and tags."""
_MOST_HASHED = 64 << 20
"""Bytes to hash per file; a larger file is identified by its size and this beginning."""


def identify_run(run: RunConfig, load_rows: RowLoader, planned: Iterable[PlannedBenchmark]) -> dict[str, Any]:
    """Compute the identity of an arm, including the rows of all its stages; it is stored before the first step."""
    planned, stages = list(planned), run.stages()
    rows = {stage.data_path: load_rows(stage.data) for stage in stages if stage.data is not None}
    agents = [found for stage in stages if (found := _identify_agent(stage.params)) is not None]
    named = _hash_recipe(run)
    return {
        "own_code": {name: found for name, found in named.items() if _is_hash(found) and found != _hash_package()},
        "weights": _identify_weights(run),
        "backend": _identify_backend(run),
        "algorithm": named[f"algorithm '{run.algorithm.kind}'"],
        "rows": {
            stage.data_path: {
                "config": hash_value(stage.data.model_dump(mode="json")),
                "sha256": load_rows.hash_rows(stage.data),
            }
            for stage in stages
            if stage.data is not None
        },
        "rewards": _verifiers({name for found in rows.values() for name in _names_in(found)}),
        "agent": agents[0] if len(agents) == 1 else hash_value(agents) if agents else None,
        "benchmarks": {f"{one.split}/{one.label}": _identify_benchmark(one) for one in planned},
        "packages": {"evsys-sdk": __version__, **_versions()},
    }


def _identify_benchmark(planned: PlannedBenchmark) -> dict[str, Any]:
    names = {name for task in planned.benchmark.tasks for name in _verifier_names(task.verifier)}
    return {
        "tasks": planned.benchmark.sha256,
        "verifiers": _verifiers(names),
        "nondeterministic": sorted(name for name in names if not is_deterministic(name)),
        "harness": hash_value(planned.settings.harness.description),
        "settings": hash_value(planned.entry.model_dump(mode="json", exclude_defaults=True, exclude={*_PACE})),
    }


def hash_own_code(runs: Sequence[RunConfig], benchmarks: Iterable[Benchmark]) -> dict[str, str]:
    """Hashes of the project's algorithms, transforms, scripts and verifiers that the runs use, by name."""
    found = {name: code for run in runs for name, code in _hash_recipe(run).items()}
    found |= _verifiers({name for one in benchmarks for task in one.tasks for name in _verifier_names(task.verifier)})
    return {name: code for name, code in found.items() if code != _hash_package()}


def _hash_recipe(run: RunConfig) -> dict[str, str]:
    """Hashes of a run's algorithms, transforms and training scripts."""
    stages = run.stages()
    specs = [spec for stage in stages if stage.data is not None for spec in stage.data.transforms]
    found = {f"algorithm '{kind}'": _hash_code(lambda kind=kind: get_algorithm(kind)) for kind in _kinds(run)}
    found |= {f"transform '{spec.kind}'": _hash_code(lambda s=spec: get_transform(s.kind)) for spec in specs}
    named = {str(stage.params.get("file")) for stage in stages if stage.kind == "script"}
    paths = {name: path for name in named if (path := in_project(name)).is_file()}
    scripts = {f"script '{name}'": hashlib.sha256(path.read_bytes()).hexdigest()[:16] for name, path in paths.items()}
    return found | scripts


def find_changed_content(folder: Path, config: ExperimentConfig) -> list[str]:
    """List rows, transforms and reward verifiers that changed after arms with a checkpoint had trained on them."""
    read, found = row_reader(config.data_store), dict[str, None]()
    hashes: dict[str, str] = {}
    for arm in expand_arms(config):
        files = ExperimentFiles(folder).run(arm.name)
        identity = part(read_json(files.identity))
        if not identity or not files.checkpoints.exists():
            continue
        code, rewards, rows = (part(identity, name) for name in ("own_code", "rewards", "rows"))
        for stage in arm.run.stages():
            if stage.data is None:
                continue
            key = stage.data.model_dump_json()
            if key not in hashes:
                hashes[key] = content_hash(read(stage.data))
                for name in _names_in(read(stage.data)):
                    if _is_own_verifier(name) and rewards.get(name) not in (None, _verifiers([name])[name]):
                        found[f"the code of verifier '{name}'"] = None
            if part(rows, stage.data_path).get("sha256") not in (None, hashes[key]):
                found[f"the rows of {describe_source(stage.data)}"] = None
            for spec in stage.data.transforms:
                before = code.get(f"transform '{spec.kind}'")
                if before not in (None, _hash_code(lambda s=spec: get_transform(s.kind))):
                    found[f"the code of transform '{spec.kind}'"] = None
    return list(found)


def _is_own_verifier(name: str) -> bool:
    try:
        return not str(get_verifier(name).__module__).startswith(f"{_PACKAGE}.")
    except EvsysError:
        return False


def _kinds(run: RunConfig) -> list[str]:
    return list(dict.fromkeys([run.algorithm.kind, *(stage.kind for stage in run.stages())]))


def _verifier_names(verifier: Any) -> list[str]:
    return [verifier.fn_name] if isinstance(verifier, InProcessVerifier) else []


def _names_in(rows: Sequence[Row]) -> set[str]:
    """Names of the verifiers in training rows."""
    found: list[dict[str, Any]] = [one for row in rows if isinstance(one := row.get("verifier"), dict)]
    return {str(one["fn_name"]) for one in found if "fn_name" in one}


def _verifiers(names: Iterable[str]) -> dict[str, str]:
    return {name: _hash_code(lambda name=name: get_verifier(name), exact=True) for name in sorted(names)}


def _identify_backend(run: RunConfig) -> str:
    """Hash of the project's own backend; one constant for all built-in backends, which are interchangeable."""
    found = _hash_code(lambda: get_backend(run.backend.kind))
    return _BUILT_IN if found == _hash_package() else found


def _identify_agent(params: Mapping[str, Any]) -> str | None:
    if path := params.get("agent_import_path"):
        return _hash_code(lambda: import_agent(str(path)))
    agent: dict[str, Any] = params.get("agent") or {}
    return _hash_code(lambda: get_agent(str(agent["kind"]))) if "kind" in agent else None


def _hash_code(find: Callable[[], Any], *, exact: bool = False) -> str:
    """Hash the code of an extension with all project code it uses; return "unknown: ERROR" if that fails.

    For built-ins, the hash of the whole package is used, because tracing their dependencies is slow. With `exact`,
    built-ins are hashed like extensions, so that unrelated changes of the package do not change the hash.
    """
    try:
        found = find()
        is_built_in = str(found.__module__).startswith(f"{_PACKAGE}.")
        return _hash_package() if is_built_in and not exact else code_hash(found)
    except (EvsysError, KeyError, OSError, TypeError, AttributeError, ImportError) as error:
        return f"{_UNKNOWN}: {type(error).__name__}"


def _is_hash(found: str) -> bool:
    return not found.startswith(_UNKNOWN)


@cache
def _hash_package() -> str:
    """Hash all code of this package; cached from the first call."""
    folder = Path(__file__).parents[2]
    digest = hashlib.sha256()
    for file in sorted(folder.rglob("*.py")):
        # With the size of each file, so that text moved between adjacent files changes the hash.
        digest.update(f"{file.relative_to(folder).as_posix()} {file.stat().st_size} ".encode() + file.read_bytes())
    return digest.hexdigest()[:16]


def _identify_weights(run: RunConfig) -> dict[str, Any]:
    """Identify the model and its initial checkpoint: local files by their content, other references by name."""
    model = run.model
    started = model.init_from_checkpoint or model.load_checkpoint_path
    return {"model": _name_weights(model.name), "checkpoint": None if started is None else _name_weights(started)}


def _name_weights(reference: str) -> str:
    path = Path(reference)
    if not path.exists():
        return reference
    files = sorted(file for file in path.rglob("*") if file.is_file()) if path.is_dir() else [path]
    digest = hashlib.sha256()
    for file in files:
        with file.open("rb") as content:
            digest.update(f"{file.relative_to(path)} {file.stat().st_size} ".encode() + content.read(_MOST_HASHED))
    return digest.hexdigest()[:32]


def _versions() -> dict[str, str]:
    from importlib.metadata import PackageNotFoundError, version  # slow to import, and a resumed run may need none

    found: dict[str, str] = {}
    for name in _PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def _of_benchmarks(identity: Mapping[str, Any], what: str) -> dict[str, Any] | None:
    """One field of all benchmarks; None if an earlier version wrote the identity without it."""
    benchmarks: dict[str, dict[str, Any]] = identity.get("benchmarks") or {}
    found = {name: one.get(what) for name, one in benchmarks.items()}
    return None if None in found.values() else found


COMPARED: dict[str, Callable[[Mapping[str, Any]], Any]] = {
    "weights": lambda identity: text(part(identity, "weights").get("checkpoint")) or "the model's own",
    "backend": lambda identity: identity.get("backend"),
    "verifier": lambda identity: _of_benchmarks(identity, "verifiers"),
    "agent": lambda identity: _of_benchmarks(identity, "harness"),
    "benchmark": lambda identity: _of_benchmarks(identity, "tasks"),
    "way of scoring": lambda identity: _of_benchmarks(identity, "settings"),
}
"""Part of an arm -> its value; compared arms must have the same value, unless the claim is about this part."""
