"""Makes the environments that the Makefile uses, with nothing but the standard library.

    scripts/env.sh NAME [EXTRA ...]

`main` is a plain virtual environment in `.venv` (or `$EVSYS_VENV`). Any other NAME is for heavy packages: they are
installed once into `$EVSYS_CACHE_DIR`, keyed by what was asked for, and each checkout gets a thin environment in
`.venvs/NAME` that holds only this project and finds everything else there. So a fresh clone starts at once, and two
clones never run each other's code. Where `constraints/NAME.txt` exists, it lists these packages completely.

A stamp written last says that an environment is complete. Without it, or when it no longer fits pyproject.toml and
constraints/main.txt, the environment is made again; so it does not matter when an installation is killed.
Prints the environment's folder; everything else goes to stderr.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
STAMP = "evsys-env.json"
MAIN = "constraints/main.txt"
FOREIGN = {"PIP_TARGET", "PIP_USER", "PYTHONDONTWRITEBYTECODE", "PYTHONHOME", "PYTHONPATH", "VIRTUAL_ENV"}
"""Variables that would send packages elsewhere or leave them without bytecode."""


class SetupError(Exception):
    """The environment cannot be made; the message says why and what to do."""


@dataclass(frozen=True)
class Uv:
    """Installs with uv: several times faster than pip."""

    program: str

    def create(self, folder: Path) -> None:
        # --seed, because our own error messages tell people to `pip install` what is missing
        run(self.program, "venv", "--quiet", "--seed", "--python", sys.executable, str(folder))

    def install(self, folder: Path, arguments: Sequence[str]) -> None:
        python = str(folder / "bin" / "python")
        run(self.program, "pip", "install", "--quiet", "--compile-bytecode", "--python", python, *arguments)


@dataclass(frozen=True)
class Pip:
    """Installs with what every Python brings along."""

    program: str = "pip"

    def create(self, folder: Path) -> None:
        run(sys.executable, "-m", "venv", str(folder))

    def install(self, folder: Path, arguments: Sequence[str]) -> None:
        python = str(folder / "bin" / "python")
        run(python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *arguments)


def main(arguments: Sequence[str]) -> int:
    """Make the environment and print its folder."""
    if not arguments or arguments[0].startswith("-"):
        say(__doc__ or "")
        return 2
    name, extras = arguments[0], set(arguments[1:])
    try:
        project = read_project(extras)
        print(main_environment(project, extras) if name == "main" else layered_environment(name, project, extras))
    except SetupError as error:
        say(f"error: {error}")
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


def main_environment(project: dict[str, Any], extras: set[str]) -> Path:
    """The environment with this project and its packages in one folder."""
    folder = Path(os.path.abspath(ROOT / os.environ.get("EVSYS_VENV", ".venv")))
    # an interpreter is part of it only when someone chose one: another order on PATH is no reason to start again
    fingerprint = digest([project, str(ROOT), str(folder), os.environ.get("EVSYS_PYTHON", "")])
    with locked(folder):
        present = read_stamp(folder, fingerprint)
        if present is None or not extras <= present:
            wanted = extras | (present or set())
            target = f".[{','.join(sorted(wanted))}]" if wanted else "."
            # when what is there still fits, another extra can simply be added to it
            build(folder, ["--constraint", MAIN, "--editable", target], add=present is not None)
            write_stamp(folder, fingerprint, wanted)
    return folder


def layered_environment(name: str, project: dict[str, Any], extras: set[str]) -> Path:
    """A thin environment with this project on top of packages shared by all checkouts."""
    requirements: list[str] = list(project["project"]["dependencies"])
    for extra in sorted(extras):
        requirements += project["project"]["optional-dependencies"][extra]
    arguments = ["--constraint", MAIN, *requirements]
    content: list[Any] = [requirements, project["constraints"]]
    complete = ROOT / "constraints" / f"{name}.txt"
    if complete.exists():
        # Every package is named in it, so nothing is resolved and a bound that cannot be met does not stop us.
        arguments = ["--no-deps", "--requirement", str(complete.relative_to(ROOT))]
        content = [complete.read_text(encoding="utf-8")]
    machine = [sys.version_info[:2], platform.system(), platform.machine()]
    key = digest([*content, machine])
    shared = cache_dir() / "envs" / f"{name}-{key[:16]}"
    with locked(shared):
        if read_stamp(shared, key) is None:
            build(shared, arguments)
            write_stamp(shared, key, extras)

    folder = ROOT / ".venvs" / name
    fingerprint = digest([project, str(ROOT), str(shared)])
    with locked(folder):
        if read_stamp(folder, fingerprint) is None:
            build(folder, ["--no-deps", "--editable", "."])
            # addsitedir rather than a bare path: it also honours the .pth files of the shared packages
            line = f"import site; site.addsitedir({str(site_packages(shared))!r})\n"
            (site_packages(folder) / "evsys-shared.pth").write_text(line, encoding="utf-8")
            write_stamp(folder, fingerprint, extras)
    return folder


def build(folder: Path, arguments: Sequence[str], *, add: bool = False) -> None:
    """Install into `folder`, made anew unless `add`; pip takes over where uv fails, as its settings may differ."""
    for installer in (*map(Uv, find_uv()), Pip()):
        try:
            if add:
                (folder / STAMP).unlink()
            else:
                shutil.rmtree(folder, ignore_errors=True)
                installer.create(folder)
            say(f"installing into {folder} with {Path(installer.program).name} ...")
            return installer.install(folder, arguments)
        except subprocess.CalledProcessError as error:
            say(f"{Path(installer.program).name} failed with exit code {error.returncode}.")
            add = False
    raise SetupError(f"{folder} could not be made; the reason is above. Run the same command again to retry.")


def read_project(extras: set[str]) -> dict[str, Any]:
    """What the content of an environment depends on; the settings of linters and tests are no part of it."""
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    known: dict[str, list[str]] = pyproject["project"]["optional-dependencies"]
    if unknown := sorted(extras - set(known)):
        raise SetupError(f"pyproject.toml has no extra '{unknown[0]}'; it has {', '.join(sorted(known))}.")
    hatch = pyproject["tool"]["hatch"]
    return {
        "build": pyproject["build-system"],
        "project": pyproject["project"],
        "hatch": hatch,
        "version": (ROOT / hatch["version"]["path"]).read_text(encoding="utf-8"),
        "constraints": (ROOT / MAIN).read_text(encoding="utf-8"),
    }


def read_stamp(folder: Path, fingerprint: str) -> set[str] | None:
    """The extras of a complete environment that still runs; None when it has to be made."""
    try:
        stamp = json.loads((folder / STAMP).read_text(encoding="utf-8"))
        if stamp["fingerprint"] != fingerprint:
            return None
        # the interpreter below it may have been removed since
        subprocess.run([folder / "bin" / "python", "-c", ""], check=True, capture_output=True)
    except (OSError, ValueError, KeyError, subprocess.CalledProcessError):
        return None
    return set(stamp["extras"])


def write_stamp(folder: Path, fingerprint: str, extras: set[str]) -> None:
    """Say that the environment is complete."""
    temporary = folder / f"{STAMP}.tmp"
    temporary.write_text(json.dumps({"fingerprint": fingerprint, "extras": sorted(extras)}), encoding="utf-8")
    temporary.replace(folder / STAMP)


@contextlib.contextmanager
def locked(folder: Path) -> Generator[None]:
    """Let one process at a time look after `folder`.

    The lock file stays, and so also tells a half-made environment, which may be removed, from a folder of someone else.
    """
    lock = folder.with_name(f"{folder.name}.lock")
    holds_something = folder.is_dir() and any(folder.iterdir())
    if holds_something and not (folder / "pyvenv.cfg").exists() and not lock.exists():
        raise SetupError(f"{folder} exists and is not a Python environment. Choose another folder, or remove it.")
    lock.parent.mkdir(parents=True, exist_ok=True)
    with lock.open("w", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"waiting for another process that works on {folder} ...")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def find_uv() -> list[str]:
    """The first uv on PATH that works; a version manager's placeholder may be there and fail."""
    for folder in os.environ.get("PATH", "").split(os.pathsep):
        program = shutil.which("uv", path=folder) if folder else None
        if program and subprocess.run([program, "--version"], capture_output=True, check=False).returncode == 0:
            return [program]
    return []


def cache_dir() -> Path:
    """Where shared packages are kept."""
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Path(os.environ.get("EVSYS_CACHE_DIR") or base / "evsys-sdk").absolute()


def site_packages(folder: Path) -> Path:
    """Where an environment keeps its packages."""
    return folder / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"


def digest(value: Any) -> str:
    """A short name for a JSON value."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def run(*command: str) -> None:
    """Run an installer from the project's root, free of settings that belong to another environment."""
    environment = {name: value for name, value in os.environ.items() if name not in FOREIGN}
    subprocess.run(command, cwd=ROOT, env=environment, stdout=sys.stderr, stdin=subprocess.DEVNULL, check=True)


def say(message: str) -> None:
    """Tell the person who waits."""
    print(message, file=sys.stderr, flush=True)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
