"""What a task folder declares as artifacts: fetched by Harbor at the end of a trial, kept here before its files go.

They were made by an agent, so only regular files are taken, and no more than fit a record.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from pathlib import Path
from typing import Any

from ..engine import RolloutRequest

MANIFEST = "manifest.json"
_CONVENTION = "/logs/artifacts"
_MOST_FILES = 1000
_LONGEST_INLINE = 16 * 1024


def keep_artifacts(fetched: Path, request: RolloutRequest) -> dict[str, Any]:
    """What becomes part of a rollout's `info`: each file, with its place in the record or, without one, its text."""
    target = _folder_for(request)
    listed: list[dict[str, Any]] = []
    found = sorted(path for path in fetched.rglob("*") if path.is_file() and not path.is_symlink())
    files = [path for path in found if path.name != MANIFEST or path.parent != fetched]
    for path in files[:_MOST_FILES]:
        content, name = path.read_bytes(), path.relative_to(fetched).as_posix()
        entry: dict[str, Any] = {"path": name, "bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
        if target is not None:
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target / name)
            entry["kept_at"] = (target / name).relative_to(target.parents[2]).as_posix()
        else:
            entry["text"] = content[:_LONGEST_INLINE].decode("utf-8", "replace")
        listed.append(entry)
    if len(files) > _MOST_FILES:
        listed.append({"path": f"and {len(files) - _MOST_FILES} more files", "problem": "too many to keep"})
    listed += _missing(fetched / MANIFEST)
    return {"artifacts": listed} if listed else {}


def _folder_for(request: RolloutRequest) -> Path | None:
    if request.artifacts_dir is None:
        return None
    task = re.sub(r"[^\w.-]+", "_", request.task.task_id).lstrip(".")[:80]
    unique = hashlib.sha256(request.task.task_id.encode()).hexdigest()[:8]
    return request.artifacts_dir / f"{task}-{unique}" / str(request.sample)


def _missing(manifest: Path) -> list[dict[str, Any]]:
    """Artifacts that the task declares and that could not be fetched: said, not left out."""
    try:
        entries: list[dict[str, Any]] = json.loads(manifest.read_text("utf-8"))
    except (OSError, ValueError):
        return []
    failed = [str(entry["source"]) for entry in entries if entry["status"] == "failed"]
    failed = [source for source in failed if source.rstrip("/") != _CONVENTION]  # which a task need not have
    return [{"path": source, "problem": "it could not be fetched"} for source in failed]
