"""The identity of an arm: hashes of its initial weights, data, code, verifiers and benchmarks, and package versions.

Two arms are comparable if they differ only in the subject of the claim. The config names verifiers and checkpoints;
the identity records their content.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from typing import Any

from ..._version import __version__
from ...config import DataConfig, ExperimentConfig, RunConfig
from ...data import describe_source
from ...data.code_hash import code_hash
from ...data.types import InProcessVerifier
from ...errors import EvsysError
from ...eval.benchmark import Benchmark
from ...paths import in_project
from ...record.evidence import hash_file, hash_value
from ...record.layout import ExperimentFiles
from ...record.values import part, read_json, text
from ...registry import get_agent, get_algorithm, get_backend, get_transform, get_verifier
from ...rollouts.harness import import_agent
from ..arms.arm import expand_arms
from ..arms.rows import RowLoader, row_reader
from ..benchmark_plan import PlannedBenchmark
from .recheck import is_deterministic

_PACKAGES = ("numpy", "torch", "transformers", "peft", "tinker", "harbor")
_PACKAGE = __name__.partition(".")[0]
_UNKNOWN = "unknown"
_PACE = ("concurrency", "timeout_s", "run_every", "models", "tags")
"""Benchmark settings that do not affect the score of a model: schedule, speed, other models and tags."""
_MOST_HASHED = 64 << 20
"""Bytes to hash per file; a larger file is identified by its size and this beginning."""


def identify_run(run: RunConfig, load_rows: RowLoader, planned: Iterable[PlannedBenchmark]) -> dict[str, Any]:
    """Compute the identity of an arm, including the rows of all its stages; it is stored before the first step."""
    started = run.model.init_from_checkpoint or run.model.load_checkpoint_path
    backend = _hash_code(partial(get_backend, run.backend.kind))
    return {
        "own_code": hash_own_code(run, _reward_verifiers(run, load_rows)),
        "weights": {
            "model": _name_weights(run.model.name),
            "checkpoint": None if started is None else _name_weights(started),
        },
        "backend": "evsys-sdk" if backend == _hash_package() else backend,  # built-in backends are interchangeable
        "rows": {
            path: {"config": hash_value(data.model_dump(mode="json")), "sha256": load_rows.hash_rows(data)}
            for path, data in _list_sources(run)
        },
        "benchmarks": {f"{one.split}/{one.label}": _identify_benchmark(one) for one in planned},
        "packages": {"evsys-sdk": __version__, **_versions()},
    }


def _identify_benchmark(planned: PlannedBenchmark) -> dict[str, Any]:
    names = sorted(_list_verifiers(planned.benchmark))
    return {
        "tasks": planned.benchmark.sha256,
        "verifiers": hash_evaluating_code([planned.benchmark]),
        "nondeterministic": [name for name in names if not is_deterministic(name)],
        "harness": hash_value(planned.settings.harness.description),
        "settings": hash_value(planned.entry.model_dump(mode="json", exclude_defaults=True, exclude={*_PACE})),
    }


def hash_evaluating_code(benchmarks: Iterable[Benchmark]) -> dict[str, str]:
    """Hashes of the verifiers of benchmarks, by name."""
    names = {name for benchmark in benchmarks for name in _list_verifiers(benchmark)}
    return {name: _hash_code(partial(get_verifier, name), exact=True) for name in sorted(names)}


def hash_own_code(run: RunConfig, verifiers: Iterable[str] = ()) -> dict[str, str]:
    """Hashes of the project's recipes, transforms, agents, scripts and `verifiers` of a run, by kind and name."""
    code: dict[str, Callable[[], Any]] = {
        f"algorithm '{run.algorithm.kind}'": partial(get_algorithm, run.algorithm.kind)
    }
    found: dict[str, str] = {}
    for stage in run.stages():
        agent: dict[str, Any] = stage.params.get("agent") or {}
        code[f"algorithm '{stage.kind}'"] = partial(get_algorithm, stage.kind)
        for spec in stage.data.transforms if stage.data is not None else ():
            code[f"transform '{spec.kind}'"] = partial(get_transform, spec.kind)
        if path := stage.params.get("agent_import_path"):
            code[f"agent '{path}'"] = partial(import_agent, str(path))
        elif "kind" in agent:
            code[f"agent '{agent['kind']}'"] = partial(get_agent, str(agent["kind"]))
        if stage.kind == "script" and (script := hash_file(in_project(str(stage.params.get("file"))))):
            found[f"script '{stage.params.get('file')}'"] = script
    code |= {f"verifier '{name}'": partial(get_verifier, name) for name in verifiers}
    found |= {name: _hash_code(load) for name, load in code.items()}
    return {name: one for name, one in found.items() if one != _hash_package() and not one.startswith(_UNKNOWN)}


def find_changed_content(folder: Path, config: ExperimentConfig) -> list[str]:
    """List rows, transforms and reward verifiers that changed after arms with a checkpoint had trained on them."""
    read, found = row_reader(config.data_store), dict[str, None]()
    for arm in expand_arms(config):
        files = ExperimentFiles(folder).run(arm.name)
        identity = part(read_json(files.identity)) if files.checkpoints.exists() else {}
        if not identity:
            continue
        rows, code = part(identity, "rows"), part(identity, "own_code")
        for path, data in _list_sources(arm.run):
            if part(rows, path).get("sha256") not in (None, read.hash_rows(data)):
                found[f"the rows of {describe_source(data)}"] = None
        now = hash_own_code(arm.run, _reward_verifiers(arm.run, read))
        # Other code may change: the audit compares it between arms.
        compared = (name for name in code if name.startswith(("transform ", "verifier ")))
        found |= {f"the code of {name}": None for name in compared if code[name] != now.get(name)}
    return list(found)


def _list_sources(run: RunConfig) -> list[tuple[str, DataConfig]]:
    return [(stage.data_path, stage.data) for stage in run.stages() if stage.data is not None]


def _list_verifiers(benchmark: Benchmark) -> set[str]:
    return {task.verifier.fn_name for task in benchmark.tasks if isinstance(task.verifier, InProcessVerifier)}


def _reward_verifiers(run: RunConfig, read: RowLoader) -> set[str]:
    """Names of the verifiers in training rows."""
    rows = (row for _, data in _list_sources(run) for row in read(data))
    return {name for row in rows if (name := text(part(row.get("verifier")).get("fn_name")))}


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


@cache
def _hash_package() -> str:
    """Hash all code of this package; cached from the first call."""
    folder = Path(__file__).parents[2]
    digest = hashlib.sha256()
    for file in sorted(folder.rglob("*.py")):
        # With the size of each file, so that text moved between adjacent files changes the hash.
        digest.update(f"{file.relative_to(folder).as_posix()} {file.stat().st_size} ".encode() + file.read_bytes())
    return digest.hexdigest()[:16]


def _name_weights(reference: str) -> str:
    """Local weights by their content, other references by name."""
    path = Path(reference)
    if not path.exists():
        return reference
    digest = hashlib.sha256()
    for file in sorted(file for file in (path, *path.rglob("*")) if file.is_file()):
        with file.open("rb") as content:
            digest.update(f"{file.relative_to(path)} {file.stat().st_size} ".encode() + content.read(_MOST_HASHED))
    return digest.hexdigest()[:32]


def _versions() -> dict[str, str]:
    from importlib.metadata import PackageNotFoundError, version  # slow to import, and a resumed run may need none

    found: dict[str, str] = {}
    for name in _PACKAGES:
        with suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


COMPARED = {"verifier": "verifiers", "agent": "harness", "benchmark": "tasks", "way of scoring": "settings"}
"""Part of an evaluation -> its field in the identity of a benchmark."""
