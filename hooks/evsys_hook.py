"""What a coding agent's hooks run: `python3 evsys_hook.py context|guard|check`, with the event as JSON on stdin.

Standard library only, so that it starts at once and needs nothing installed. It fails open: whatever goes wrong here
never keeps the agent from working. It is a reminder; what holds is the audit of the record (`evsys audit`) and the
copy of each task file in use (`evsys benchmark restore`).
"""

from __future__ import annotations

import json
import os
import re
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

SEALED = ("data/benchmark/", "data/validation/")
WORKSPACE = ".evsys"
JOURNAL = "journal.jsonl"
PATCHED = re.compile(r"^\*\*\* (?:Add|Update|Delete) File: (.+)$", re.MULTILINE)


def project_of(folder: str) -> str | None:
    """The nearest folder upwards that is a project."""
    while True:
        if os.path.isdir(os.path.join(folder, WORKSPACE)):
            return folder
        above = os.path.dirname(folder)
        if above == folder:
            return None
        folder = above


def why_sealed(path: str, root: str) -> str | None:
    """Why a file may not be edited; None where it may."""
    real = os.path.realpath(path)
    inside = os.path.relpath(real, os.path.realpath(root))
    if inside.startswith(WORKSPACE + os.sep) or _is_recorded(real):
        return f"{inside} is a record of experiments, which only evsys writes. Run an experiment instead"
    if inside.replace(os.sep, "/").startswith(SEALED) and os.path.exists(real):
        return f"{inside} belongs to a sealed set of tasks: results rest on it. Put other tasks into a new folder"
    return None


def _is_recorded(path: str) -> bool:
    """Whether a folder above, five at most, has a journal."""
    for _ in range(5):
        path = os.path.dirname(path)
        if os.path.exists(os.path.join(path, JOURNAL)):
            return True
    return False


def edited_files(given: dict[str, Any]) -> list[str]:
    """The files that a tool call edits, by name or by patch."""
    patch = given.get("command") or given.get("input") or ""
    paths = [given[key] for key in ("file_path", "notebook_path", "path") if isinstance(given.get(key), str)]
    return [path.strip() for path in (*paths, *PATCHED.findall(str(patch)))]


def context(event: dict[str, Any]) -> None:
    """Put what the experiments have shown before an agent, when a session starts or was compacted."""
    root = project_of(event.get("cwd") or os.getcwd())
    said = run_evsys(root, "context", "--budget-tokens", "1500", "--markdown") if root is not None else None
    if said is not None:
        print(f"What the experiments of this project have shown (evsys context):\n{said.stdout}", end="")


def guard(event: dict[str, Any]) -> None:
    """Remind an agent that edits a sealed task or a record. What a shell does is not looked at: the seal finds it."""
    cwd = event.get("cwd") or os.getcwd()
    root = project_of(cwd)
    if root is None:
        return
    reasons = [why_sealed(os.path.join(cwd, path), root) for path in edited_files(event.get("tool_input") or {})]
    if reason := next((one for one in reasons if one), None):
        answer = {"hookEventName": "PreToolUse", "permissionDecision": "deny", "permissionDecisionReason": f"{reason}."}
        print(json.dumps({"hookSpecificOutput": answer}))


def check(event: dict[str, Any]) -> None:
    """Validate a config that was just edited, and say what is wrong with it."""
    cwd = event.get("cwd") or os.getcwd()
    root = project_of(cwd)
    paths = edited_files(event.get("tool_input") or {})
    path = next((os.path.join(cwd, one) for one in paths if os.path.basename(one) == "config.yaml"), None)
    if root is None or path is None or not os.path.exists(path):
        return
    said = run_evsys(root, "validate", path, "--deep")
    if said is not None and said.returncode == 1:
        told = f"evsys validate refuses {os.path.relpath(path, root)}:\n{said.stderr.strip()[:4000]}"
        answer = {"hookEventName": "PostToolUse", "additionalContext": told}
        print(json.dumps({"hookSpecificOutput": answer}))


def find_program(root: str) -> str | None:
    """The `evsys` that `evsys skills install` recorded, else the one on the path; never one in the checkout."""
    import shutil

    home = os.environ.get("XDG_CONFIG_HOME") or os.path.join(os.path.expanduser("~"), ".config")
    try:
        with open(os.path.join(home, "evsys", "program"), encoding="utf-8") as file:
            recorded = file.read().strip()
        if os.path.isabs(recorded) and os.access(recorded, os.X_OK):
            return recorded
    except OSError:
        pass
    found = shutil.which("evsys")
    if found is None or not os.path.isabs(found):
        return None
    inside = os.path.realpath(found).startswith(os.path.join(os.path.realpath(root), ""))
    return None if inside else found


def run_evsys(root: str, *arguments: str) -> Any:
    """Run `evsys` in a project; None where there is none to trust."""
    import subprocess

    program = find_program(root)
    if program is None:
        return None
    return subprocess.run([program, *arguments], cwd=root, capture_output=True, text=True, timeout=50, check=False)


if __name__ == "__main__":
    try:
        {"context": context, "guard": guard, "check": check}[sys.argv[1]](json.load(sys.stdin))
    except Exception as error:  # fail open, with the reason on stderr
        print(f"evsys hook: {error}", file=sys.stderr)
