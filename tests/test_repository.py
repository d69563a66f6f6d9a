"""Promises about the repository as a whole that no single module can keep."""

from __future__ import annotations

import ast
import re
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from evsys_sdk.builtins import BUILTINS, EXTRA_MODULES, Builtin
from evsys_sdk.registry import KINDS, config_model, summary_of

ROOT = Path(__file__).parents[1]
MODULES = sorted((ROOT / "src" / "evsys_sdk").rglob("*.py"))
LONGEST_MODULE = 400

MACHINE = re.compile(
    r"""
    pypi\.org | pythonhosted\.org | npmjs\.(?:org|com) | artifactory\. | index[-_]url  # package registries
    | (?<![\w.~/-])/(?:(?:root|work)\b(?!-) | (?:home|Users)/\w)  # paths of one machine
    """,
    re.VERBOSE,
)
LOCK_FILES = {"uv.lock", "poetry.lock", "pdm.lock", "Pipfile.lock"}

BUILTIN_ROWS = [
    pytest.param(kind, name, builtin, id=f"{kind}-{name}")
    for kind, rows in BUILTINS.items()
    for name, builtin in rows.items()
]


def repository_files() -> list[Path]:
    """Files that are tracked or would be; outside a git checkout, everything that is not hidden or generated."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode == 0:
        paths = [ROOT / name for name in listed.stdout.split("\0") if name]
    else:
        generated = re.compile(r"(?:^|/)(?:\.(?!ci/|gitignore|python-version)|__pycache__/|build/|dist/|outputs/)")
        paths = [path for path in ROOT.rglob("*") if not generated.search(path.relative_to(ROOT).as_posix())]
    return [path for path in paths if path.is_file()]


def machine_names(text: str) -> Iterator[str]:
    for number, line in enumerate(text.splitlines(), start=1):
        for match in MACHINE.finditer(f"{line} "):
            yield f"{number}: {match.group().strip()}"


@pytest.mark.parametrize(
    "line",
    [
        "index" + "-url = https://packages.example/all",
        "see https://" + "pypi" + ".org/project/x",
        "url = 'https://files.python" + "hosted.org/packages/x.whl'",
        "see /" + "work/main",
        "cd /" + "root",
        "open('/" + "home/ada/data.jsonl')",
    ],
)
def test_the_check_finds_hosts_and_paths_of_one_machine(line: str) -> None:
    assert list(machine_names(line))


@pytest.mark.parametrize(
    "line",
    ["pip install 'evsys-sdk[hf]'", "path/work/rows.jsonl", "~/.cache/evsys-sdk", "the /home page", "s3://b/root/x"],
)
def test_the_check_accepts_ordinary_lines(line: str) -> None:
    assert list(machine_names(line)) == []


def test_no_file_names_a_package_registry_or_a_path_of_one_machine() -> None:
    problems: list[str] = []
    for path in repository_files():
        text = path.read_bytes().decode("utf-8", errors="replace")
        problems += [f"{path.relative_to(ROOT)}:{name}" for name in machine_names(text)]
    assert not problems, "\n".join(problems)


def test_there_is_no_lock_file_with_addresses() -> None:
    assert not [path for path in repository_files() if path.name in LOCK_FILES]


@pytest.mark.parametrize("environment", sorted(path.stem for path in (ROOT / "constraints").glob("*.in")))
def test_every_pin_of_an_environment_is_a_plain_version(environment: str) -> None:
    lines = (ROOT / "constraints" / f"{environment}.txt").read_text("utf-8").splitlines()
    pins = [line for line in lines if line and not line.startswith("#")]
    assert pins
    assert not [line for line in pins if not re.fullmatch(r"[a-z0-9._-]+==[\w.!+]+( ; .+)?", line)]


def test_every_core_and_dev_dependency_is_pinned() -> None:
    project = pyproject()["project"]
    pinned = re.findall(r"^([a-z0-9._-]+)==", (ROOT / "constraints/main.txt").read_text("utf-8"), re.MULTILINE)
    requirements = [*project["dependencies"], *project["optional-dependencies"]["dev"]]
    names = {re.split(r"[\[<>=!~ ;]", requirement, maxsplit=1)[0].lower() for requirement in requirements}
    assert names <= set(pinned), "run `make constraints`"


@pytest.mark.parametrize("command", ["make quickstart", "make test"])
def test_the_readme_names_the_two_commands(command: str) -> None:
    assert command in (ROOT / "README.md").read_text("utf-8")


def test_agents_of_every_brand_read_the_same_rules() -> None:
    assert (ROOT / "CLAUDE.md").read_text("utf-8").strip() == "@AGENTS.md"
    assert (ROOT / "AGENTS.md").is_file()


def test_every_module_says_what_it_is() -> None:
    silent = [path for path in MODULES if not ast.get_docstring(ast.parse(path.read_text("utf-8")))]
    assert not silent, f"without a docstring: {', '.join(str(path.relative_to(ROOT)) for path in silent)}"


def test_no_module_is_too_long_to_read_at_once() -> None:
    lengths = {path.relative_to(ROOT).as_posix(): len(path.read_text("utf-8").splitlines()) for path in MODULES}
    too_long = {path: length for path, length in lengths.items() if length > LONGEST_MODULE}
    assert not too_long, f"split these, none may exceed {LONGEST_MODULE} lines: {too_long}"


def test_every_built_in_belongs_to_a_known_kind() -> None:
    assert set(BUILTINS) <= set(KINDS)


def test_every_extra_can_be_installed_and_detected() -> None:
    extras = set(pyproject()["project"]["optional-dependencies"]) - {"dev"}
    needed = {builtin.extra for rows in BUILTINS.values() for builtin in rows.values() if builtin.extra}
    assert needed <= extras, "built-ins name extras that pyproject.toml does not have"
    assert extras <= set(EXTRA_MODULES), "pyproject.toml has extras that builtins.EXTRA_MODULES cannot detect"


@pytest.mark.parametrize(("kind", "name", "builtin"), BUILTIN_ROWS)
def test_a_built_in_loads_without_its_extra_and_describes_itself(kind: str, name: str, builtin: Builtin) -> None:
    extension = builtin.load()
    assert summary_of(extension), f"{kind} '{name}' ({builtin.target}) has no docstring of its own for `evsys list`"
    assert builtin.read_summary() == summary_of(extension), "`evsys list` shows what stands in the source"
    assert undescribed_fields(extension) == [], (
        "write a docstring under each of these fields; it reaches the JSON schema"
    )


class Inner(BaseModel, use_attribute_docstrings=True):
    silent: int = 0


class ExtensionWithSilentParam:
    class Config(BaseModel, use_attribute_docstrings=True):
        inner: Inner = Inner()
        """Says what it is, unlike the field inside."""


def test_the_check_finds_params_without_a_description() -> None:
    assert undescribed_fields(ExtensionWithSilentParam) == ["Inner.silent"]


def undescribed_fields(extension: Any) -> list[str]:
    """Params without a description, also in models nested inside the params."""
    config = config_model(extension)
    if config is None:
        return []
    schema = config.model_json_schema()
    models = {config.__name__: schema, **schema.get("$defs", {})}
    return [
        f"{model}.{field}"
        for model, definition in models.items()
        for field, properties in definition.get("properties", {}).items()
        if "description" not in properties and "const" not in properties
    ]


def pyproject() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
