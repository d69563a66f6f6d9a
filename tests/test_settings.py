"""The project's own code: which modules are imported, from where, and what is said when they cannot be."""

from __future__ import annotations

import pickle
import sys
from pathlib import Path

import pytest

from evsys_sdk import ConfigError, list_transforms
from evsys_sdk.settings import import_project_code

EXTENSION = """\
from evsys_sdk import register_transform

@register_transform("{name}")
class Own:
    '''One of the project's own.'''
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """An empty project to stand in."""
    return tmp_path


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def extension(path: Path, name: str) -> Path:
    return write(path, EXTENSION.format(name=name))


def refused(*references: str) -> str:
    with pytest.raises(ConfigError) as caught:
        import_project_code(references)
    assert all(problem.hint for problem in caught.value.problems)
    return str(caught.value)


@pytest.mark.usefixtures("project")
def test_a_project_without_settings_imports_nothing() -> None:
    assert import_project_code() == []


def test_the_nearest_pyproject_says_what_to_import(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(project / "pyproject.toml", '[tool.evsys]\nimports = ["own_pkg"]\n')
    write(project / "own_pkg" / "__init__.py", "from . import transforms\n")
    extension(project / "own_pkg" / "transforms.py", "from_pyproject")
    below = project / "experiments" / "first"
    below.mkdir(parents=True)
    monkeypatch.chdir(below)
    (module,) = import_project_code()
    assert module.__name__ == "own_pkg"
    assert "from_pyproject" in list_transforms()


@pytest.mark.parametrize(
    "settings",
    ['[tool]\nevsys = { imports = ["inline_own"] }\n', '[ tool . evsys ]\nimports = ["inline_own"]\n'],
)
def test_every_way_to_write_a_table_is_understood(project: Path, settings: str) -> None:
    write(project / "pyproject.toml", settings)
    extension(project / "inline_own.py", "inline_own")
    assert [module.__name__ for module in import_project_code()] == ["inline_own"]


@pytest.mark.parametrize(
    "text", ["[project]\nname = 'x'\n", "[tool.evsys]\n", "# evsys\n", '[tool]\nother = "evsys"\n']
)
def test_a_pyproject_that_asks_for_nothing_is_fine(project: Path, text: str) -> None:
    write(project / "pyproject.toml", text)
    assert import_project_code() == []


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[tool.evsys]\nimports = 'src'\n", "tool.evsys.imports: should be a list of module names (got 'src')"),
        ("[tool.evsys]\nimports = [1]\n", "tool.evsys.imports: should be a list of module names (got [1])"),
        (
            "[tool.evsys]\nimport = ['src']\n",
            "tool.evsys.import: unknown key 'import'. Known are 'imports'",
        ),
        ("[tool]\nevsys = 3\n", "tool.evsys: should be a table (got 3)"),
        ("[tool.evsys\n", "cannot be read: "),
    ],
)
def test_settings_that_cannot_be_meant_are_refused(project: Path, text: str, message: str) -> None:
    path = write(project / "pyproject.toml", text)
    assert refused().startswith(f"{path}: {message}")


def test_a_pyproject_in_another_encoding_is_refused(project: Path) -> None:
    (project / "pyproject.toml").write_bytes(b"# evsys \xe9\n")
    assert "pyproject.toml: cannot be read: 'utf-8' codec" in refused()


def test_modules_and_files_named_on_the_command_line_are_imported_in_order(project: Path) -> None:
    extension(project / "as_module.py", "as_module")
    extension(project / "folder" / "as-file.py", "as_file")
    modules = import_project_code(["as_module", "folder/as-file.py"])
    assert modules[0].__name__ == "as_module"
    assert modules[1].__file__ == str(project / "folder" / "as-file.py")
    assert {"as_module", "as_file"} <= set(list_transforms())


def test_a_file_is_imported_once(project: Path) -> None:
    path = write(project / "counting.py", "import sys\nsys.evsys_count = getattr(sys, 'evsys_count', 0) + 1\n")
    first, other = import_project_code(["counting.py", str(path)])
    assert first is other
    assert sys.evsys_count == 1  # pyright: ignore[reportAttributeAccessIssue]
    del sys.evsys_count  # pyright: ignore[reportAttributeAccessIssue]


def test_a_file_never_takes_the_place_of_another_module(project: Path) -> None:
    import json

    extension(project / "json.py", "named_like_a_library")
    extension(project / "a" / "same.py", "same_a")
    extension(project / "b" / "same.py", "same_b")
    import_project_code(["json.py", "a/same.py", "b/same.py"])
    assert sys.modules["json"] is json
    assert {"named_like_a_library", "same_a", "same_b"} <= set(list_transforms())


def test_a_file_may_import_what_lies_next_to_it(project: Path) -> None:
    write(project / "deep" / "beside_it.py", "VALUE = 7\n")
    write(project / "deep" / "main_file.py", "from beside_it import VALUE\n")
    (module,) = import_project_code(["deep/main_file.py"])
    assert module.VALUE == 7


def test_classes_of_a_file_can_be_pickled(project: Path) -> None:
    write(project / "pickled.py", "from dataclasses import dataclass\n\n@dataclass\nclass Point:\n    x: int\n")
    (module,) = import_project_code(["pickled.py"])
    assert pickle.loads(pickle.dumps(module.Point(3))) == module.Point(3)


def test_a_module_that_does_not_exist_is_refused(project: Path) -> None:
    assert refused("no_such_module") == (
        f"there is no module 'no_such_module'. Give a module that can be imported from {project}, "
        "or the path of a .py file."
    )
    assert "there is no module 'no_such.inner'" in refused("no_such.inner")
    assert f"there is no such file to import (got '{project}/missing.py')" in refused("missing.py")


def test_a_module_that_needs_something_missing_is_distinguished(project: Path) -> None:
    path = write(project / "needs.py", "import os\nimport not_installed_anywhere\n")
    for reference in ("needs", "needs.py"):
        text = refused(reference)
        assert text.startswith(
            f"{path}:2: importing '{reference}' failed: ModuleNotFoundError: No module named 'not_inst"
        )
        assert "Install what is missing" in text


def test_a_module_that_raises_is_refused_with_its_own_line(project: Path) -> None:
    write(project / "raising" / "__init__.py", "from . import inner\n")
    path = write(project / "raising" / "inner.py", "import json\n\njson.loads('{')\n")
    text = refused("raising")
    assert text.startswith(f"{path}:3: importing 'raising' failed: JSONDecodeError: ")
    assert "it is the project's own code" in text
    assert refused("raising/inner.py").startswith(f"{path}:3: ")


@pytest.mark.usefixtures("project")
@pytest.mark.parametrize("again", [1, 2])
def test_a_file_that_failed_is_not_taken_for_imported(project: Path, again: int) -> None:
    write(project / "half.py", "VALUE = 1\nraise RuntimeError('half-way')\n")
    for _ in range(again):
        assert "half-way" in refused("half.py")
    write(project / "half.py", "VALUE = 2\n")
    assert import_project_code(["half.py"])[0].VALUE == 2


def test_a_script_that_exits_is_refused(project: Path) -> None:
    path = write(project / "script.py", "import sys\nsys.exit(3)\n")
    assert refused("script").startswith(f"{path}:2: importing 'script' failed: SystemExit: 3")


def test_a_syntax_error_is_refused_with_its_line(project: Path) -> None:
    path = write(project / "broken_syntax.py", "x = 1\ndef f(:\n")
    assert refused("broken_syntax.py").startswith(f"{path}:2: importing 'broken_syntax.py' failed: SyntaxError")


def test_an_error_of_the_sdk_itself_is_passed_on(project: Path) -> None:
    write(project / "taken.py", EXTENSION.format(name="identity"))
    with pytest.raises(ValueError, match="transform 'identity' is already registered by the built-in"):
        import_project_code(["taken"])


def test_an_interruption_is_passed_on(project: Path) -> None:
    write(project / "interrupted.py", "raise KeyboardInterrupt\n")
    with pytest.raises(KeyboardInterrupt):
        import_project_code(["interrupted"])
