"""`scripts/env.py` reuses an environment exactly as long as it fits. Nothing is installed here."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).parents[1] / "scripts" / "env.py"


@pytest.fixture
def env(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    """The script with a separate project in `tmp_path`."""
    spec = importlib.util.spec_from_file_location("env_script", SCRIPT)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "env_script", module)  # dataclasses look their module up
    spec.loader.exec_module(module)
    (tmp_path / "pyproject.toml").write_text(
        '[build-system]\nrequires = []\n[project]\nname = "p"\ndependencies = []\n'
        '[project.optional-dependencies]\ndev = ["a"]\nhf = ["b"]\n[tool.hatch.version]\npath = "version.py"\n',
        encoding="utf-8",
    )
    (tmp_path / "version.py").write_text("", encoding="utf-8")
    (tmp_path / "constraints").mkdir()
    (tmp_path / "constraints/main.txt").write_text("a==1\n", encoding="utf-8")
    monkeypatch.setattr(module, "ROOT", tmp_path)
    return module


@pytest.fixture
def builds(env: ModuleType, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, bool]]:
    """What was installed, and whether it was added to an environment that stayed; instead of installing."""
    calls: list[tuple[str, bool]] = []

    def build(folder: Path, arguments: list[str], *, add: bool = False) -> None:
        calls.append((arguments[-1], add))
        (folder / "bin").mkdir(parents=True, exist_ok=True)
        (folder / "bin" / "python").unlink(missing_ok=True)
        (folder / "bin" / "python").symlink_to(sys.executable)

    monkeypatch.setattr(env, "build", build)
    return calls


def test_an_environment_that_fits_is_reused(env: ModuleType, builds: list[tuple[str, bool]]) -> None:
    assert [env.main(["main", "dev"]), env.main(["main", "dev"]), env.main(["main"])] == [0, 0, 0]
    assert builds == [(".[dev]", False)]


def test_another_extra_is_added_to_what_is_there(env: ModuleType, builds: list[tuple[str, bool]]) -> None:
    env.main(["main"])
    env.main(["main", "hf"])
    env.main(["main", "dev"])
    assert builds == [(".", False), (".[hf]", True), (".[dev,hf]", True)]


@pytest.mark.parametrize("changed", ["constraints/main.txt", "version.py"])
def test_a_change_of_what_it_was_made_from_makes_it_again(
    changed: str, env: ModuleType, builds: list[tuple[str, bool]], tmp_path: Path
) -> None:
    env.main(["main", "dev"])
    (tmp_path / changed).write_text("# changed\n", encoding="utf-8")
    env.main(["main", "dev"])
    assert builds == [(".[dev]", False)] * 2


def test_an_environment_without_stamp_or_interpreter_is_made_again(
    env: ModuleType, builds: list[tuple[str, bool]], tmp_path: Path
) -> None:
    env.main(["main"])
    (tmp_path / ".venv" / env.STAMP).unlink()
    env.main(["main"])
    (tmp_path / ".venv" / "bin" / "python").unlink()
    env.main(["main"])
    assert builds == [(".", False)] * 3


def test_packages_that_are_listed_completely_are_not_resolved(
    env: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands: list[list[str]] = []

    def build(folder: Path, arguments: list[str], *, add: bool = False) -> None:
        commands.append(arguments)
        env.site_packages(folder).mkdir(parents=True)
        (folder / "bin").mkdir()
        (folder / "bin" / "python").symlink_to(sys.executable)

    monkeypatch.setattr(env, "build", build)
    monkeypatch.setenv("EVSYS_CACHE_DIR", str(tmp_path / "cache"))
    (tmp_path / "constraints/heavy.txt").write_text("b==1\n", encoding="utf-8")
    assert env.main(["heavy", "hf"]) == 0
    assert env.main(["other", "hf"]) == 0
    assert commands[0] == ["--no-deps", "--requirement", "constraints/heavy.txt"]
    assert commands[2] == ["--constraint", "constraints/main.txt", "b"]


def test_a_folder_of_someone_else_is_left_alone(
    env: ModuleType,
    builds: list[tuple[str, bool]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years of work", encoding="utf-8")
    monkeypatch.setenv("EVSYS_VENV", "mine")
    assert env.main(["main"]) == 1
    assert "not a Python environment" in capsys.readouterr().err
    assert builds == []
    assert (tmp_path / "mine" / "thesis.txt").exists()


def test_an_unknown_extra_is_named_with_the_known_ones(env: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    assert env.main(["main", "nope"]) == 1
    assert "no extra 'nope'; it has dev, hf." in capsys.readouterr().err
