"""The package reads like the data flow: a room imports itself and earlier rooms; starting up imports nothing heavy."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = "evsys_sdk"
SOURCE = Path(__file__).parents[1] / "src" / PACKAGE

FOUNDATIONS = {
    "_version",
    "builtins",
    "errors",
    "files",
    "lazy",
    "log",
    "paths",
    "protocols",
    "redact",
    "registry",
    "secret_names",
    "settings",
    "processes",
    "user_code",
}
ROOMS = [
    "config",
    "record",
    "data",
    "backends",
    "inference",
    "rollouts",
    "training",
    "algorithms",
    "eval",
    "spend",
    "experiment",
    "history",
    "observers",
    "server",
    "dashboard",
    "deploy",
    "loop",
    "scaffold",
    "testing",
    "cli",
]
"""In the order of the data flow; the doors come last."""

FRONT = {"__init__", "__main__"}
"""The package's own front: it may show anything, and nothing inside may import it back."""

HEAVY = [
    "torch",
    "transformers",
    "tinker",
    "harbor",
    "ray",
    "datasets",
    "wandb",
    "tensorboard",
    "numpy",
    "httpx",
    "rich",
]


def rank(part: str) -> int:
    """How late in the flow a top-level module or package is; the foundations share the first place."""
    if part in FOUNDATIONS:
        return 0
    return 1 + ROOMS.index(part) if part in ROOMS else 1 + len(ROOMS)


def is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING")


def statements(node: ast.AST) -> Iterator[ast.AST]:
    """Every node that runs; what stands under `if TYPE_CHECKING` does not."""
    children = node.orelse if isinstance(node, ast.If) and is_type_checking(node) else ast.iter_child_nodes(node)
    for child in children:
        yield child
        yield from statements(child)


def imported_modules(node: ast.AST, module: str, *, is_package: bool) -> list[str]:
    """Absolute names that a statement imports, also through `import_module` with a literal name."""
    match node:
        case ast.Import():
            return [alias.name for alias in node.names]
        case ast.ImportFrom(level=0):
            return [f"{node.module}.{alias.name}" for alias in node.names]
        case ast.ImportFrom():
            parents = module.split(".")[: (1 if is_package else 0) - node.level or None]
            base = ".".join([*parents, node.module] if node.module else parents)
            return [f"{base}.{alias.name}" for alias in node.names]
        case ast.Call(
            func=ast.Name("import_module") | ast.Attribute(attr="import_module"), args=[ast.Constant(str(name)), *_]
        ):
            return [name]
        case _:
            return []


def violations(source: str, module: str, *, is_package: bool = False) -> list[str]:
    """What `module` imports although it comes later, as `line: name`."""
    part = module.split(".")[1]
    lines: list[str] = []
    for node in statements(ast.parse(source)):
        for name in imported_modules(node, module, is_package=is_package):
            package, _, rest = f"{name}.".partition(".")
            target = rest.split(".")[0]
            if package == PACKAGE and target != part and rank(target) > rank(part):
                lines.append(f"{getattr(node, 'lineno', 0)}: {name}")
    return lines


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("evsys_sdk.config.run", "from ..data import types"),
        ("evsys_sdk.config.run", "from evsys_sdk.data.types import Row"),
        ("evsys_sdk.config.run", "from evsys_sdk import data"),
        ("evsys_sdk.config.run", "import evsys_sdk.data.types as types"),
        ("evsys_sdk.config.run", "def load():\n    from ..data import types"),
        ("evsys_sdk.config.run", "import_module('evsys_sdk.data.types')"),
        ("evsys_sdk.config.run", "if TYPE_CHECKING:\n    x = 1\nelse:\n    from ..data import types"),
        ("evsys_sdk.config.run", "from evsys_sdk import load_yaml"),
        ("evsys_sdk.config.run", "from .. import load_yaml"),
        ("evsys_sdk.errors", "from .config import run"),
        ("evsys_sdk.errors", "from . import config"),
    ],
)
def test_the_check_finds_an_import_of_a_later_room(module: str, source: str) -> None:
    assert len(violations(source, module)) == 1


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("evsys_sdk.data.types", "from ..config.run import RunConfig"),
        ("evsys_sdk.data.types", "from ..errors import DataError"),
        ("evsys_sdk.data.types", "from .jsonl import read"),
        ("evsys_sdk.data.types", "from evsys_sdk.data import jsonl"),
        ("evsys_sdk.data.types", "import json, pydantic.dataclasses"),
        ("evsys_sdk.data.types", "if TYPE_CHECKING:\n    from ..eval import metric"),
        ("evsys_sdk.errors", "from .log import get_logger"),
        ("evsys_sdk.protocols", "if typing.TYPE_CHECKING:\n    from .config import run"),
    ],
)
def test_the_check_accepts_imports_of_the_same_and_earlier_rooms(module: str, source: str) -> None:
    assert violations(source, module) == []


def test_a_relative_import_in_a_package_file_starts_at_that_package() -> None:
    assert violations("from .run import RunConfig", "evsys_sdk.config", is_package=True) == []
    assert len(violations("from ..data import types", "evsys_sdk.config", is_package=True)) == 1


def test_every_part_of_the_package_has_its_place_in_the_order() -> None:
    parts = {path.stem for path in SOURCE.iterdir() if path.suffix == ".py" or any(path.rglob("*.py"))}
    unplaced = parts - FOUNDATIONS - set(ROOMS) - FRONT
    assert not unplaced, f"add to FOUNDATIONS or ROOMS in {Path(__file__).name}: {', '.join(sorted(unplaced))}"


def test_no_room_imports_a_later_one() -> None:
    problems: list[str] = []
    for path in sorted(SOURCE.rglob("*.py")):
        parts = path.relative_to(SOURCE).with_suffix("").parts
        if parts[0] in FRONT:
            continue
        is_package = parts[-1] == "__init__"
        module = ".".join([PACKAGE, *(parts[:-1] if is_package else parts)])
        shown = path.relative_to(SOURCE.parents[1])
        problems += [f"{shown}:{line}" for line in violations(path.read_text("utf-8"), module, is_package=is_package)]
    assert not problems, "imports of a later room (reach it through a registry or a protocol):\n" + "\n".join(problems)


@pytest.mark.parametrize(
    "start",
    [
        pytest.param("import evsys_sdk", id="import evsys_sdk"),
        pytest.param("sys.argv = ['evsys', '--help']; from evsys_sdk.cli.main import main; main()", id="evsys --help"),
        pytest.param("from evsys_sdk.cli.main import main; main(['list'])", id="evsys list"),
        pytest.param("from evsys_sdk.history.effects import _quantile; _quantile(8)", id="evsys context"),
    ],
)
def test_starting_up_imports_nothing_heavy(start: str) -> None:
    report = f"print(json.dumps([name for name in {HEAVY} if name in sys.modules]), file=sys.stderr)"
    code = f"import atexit, json, sys\natexit.register(lambda: {report})\n{start}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stderr) == []
