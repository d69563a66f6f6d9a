"""What the pages say is true: links lead somewhere, code compiles, configs are valid, nothing public is left out."""

from __future__ import annotations

import ast
import importlib
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

import evsys_sdk
from evsys_sdk import ConfigError, validate_yaml
from evsys_sdk.builtins import BUILTINS
from evsys_sdk.cli.main import COMMANDS
from evsys_sdk.config.fields import split_dotted
from evsys_sdk.config.yaml_text import read_yaml
from evsys_sdk.config.yaml_write import write_yaml
from evsys_sdk.registry import KINDS

from .markdown import ROOT, Fence, anchors, fences, is_complete, links, looks_like, pages, prose

pytestmark = pytest.mark.docs

PAGES = pages()
DOCS = [page for page in PAGES if page.is_relative_to(ROOT / "docs") or page == ROOT / "README.md"]
BLOCKS = [fence for page in PAGES for fence in fences(page)]
YAML_WORDS = {"at", "invalid", "fragment"}

SMALLEST: dict[str, Any] = {
    "name": "fragment",
    "run": {
        "name": "run",
        "data": {"path": "rows.jsonl"},
        "model": {"name": "tiny"},
        "algorithm": {"kind": "sft"},
        "backend": {"kind": "mock"},
    },
}
"""What a `yaml at` block is placed in."""


def blocks(language: str) -> list[Any]:
    return [pytest.param(fence, id=fence.where) for fence in BLOCKS if fence.language == language]


@pytest.mark.parametrize("page", [pytest.param(page, id=str(page.relative_to(ROOT))) for page in PAGES])
def test_every_link_leads_to_a_file_and_a_heading(page: Path) -> None:
    broken: list[str] = []
    for target in links(page):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        if not file.exists() or (anchor and anchor not in anchors(file)):
            broken.append(target)
    assert not broken


@pytest.mark.parametrize("fence", blocks("yaml"))
def test_every_yaml_block_is_valid(fence: Fence, tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    words = [word for word in fence.words if not word.startswith("file=")]
    assert not words or words[0] in YAML_WORDS, f"{fence.where}: unknown word after 'yaml': {words[0]}"
    if not words:
        assert is_complete(fence), f"{fence.where}: not a complete config; say 'yaml at PLACE' or 'yaml fragment'"
        file.write_text(fence.text, "utf-8")
        validate_yaml(file, deep=True)
    elif words[0] == "at":
        file.write_text(write_yaml(placed(read_yaml(fence.text).data, words[1])), "utf-8")
        validate_yaml(file, deep=True)
    elif words[0] == "fragment":
        read_yaml(fence.text)


@pytest.mark.parametrize(
    "fence", [pytest.param(fence, id=fence.where) for fence in BLOCKS if fence.words[:1] == ("invalid",)]
)
def test_every_invalid_config_is_refused_with_the_message_shown(fence: Fence, tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(fence.text, "utf-8")
    with pytest.raises(ConfigError) as caught:
        validate_yaml("config.yaml", deep=True)
    after = BLOCKS[BLOCKS.index(fence) + 1]
    assert (after.page, after.language, after.words) == (fence.page, "text", ("error",)), "show the message"
    assert looks_like(after.text, str(caught.value)), str(caught.value)


def placed(part: Any, place: str) -> dict[str, Any]:
    """The smallest config with `part` put in at a dotted place."""
    if place == ".":
        others = {"runs", "matrix"} & set(part)
        return {**({"name": "fragment"} if others else SMALLEST), **part}
    config = read_yaml(write_yaml(SMALLEST)).data
    *outer, last = split_dotted(place)
    node = config
    for step in outer:
        node = node.setdefault(step, {})
    node[last] = {**node.get(last, {}), **part} if isinstance(part, dict) else part
    if "continual" in config["run"]:  # stages bring their own data
        del config["run"]["data"]
    return config


@pytest.mark.parametrize("fence", blocks("toml"))
def test_every_toml_block_is_valid(fence: Fence) -> None:
    assert tomllib.loads(fence.text)


@pytest.mark.parametrize("fence", blocks("python"))
def test_every_python_block_compiles(fence: Fence) -> None:
    assert compile(fence.text, fence.where, "exec").co_filename == fence.where


@pytest.mark.parametrize("fence", blocks("python"))
def test_every_import_in_a_python_block_works(fence: Fence) -> None:
    missing = [
        f"{node.module}.{alias.name}"
        for node in ast.walk(ast.parse(fence.text))
        if isinstance(node, ast.ImportFrom) and node.module
        for alias in node.names
        if not hasattr(importlib.import_module(node.module), alias.name)
    ]
    assert not missing


def test_generated_pages_are_up_to_date() -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "scripts" / "generate_docs.py", "--check"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"


@pytest.mark.parametrize("kind", [kind for kind in KINDS if BUILTINS.get(kind)])
def test_every_built_in_has_its_section(kind: str) -> None:
    page = ROOT / "docs" / "reference" / f"{KINDS[kind]}.md"
    assert {re.sub(r"[^\w\- ]", "", name) for name in BUILTINS[kind]} <= anchors(page)


def test_every_command_is_explained() -> None:
    text = (ROOT / "docs" / "cli.md").read_text("utf-8")
    assert not [command for command in COMMANDS if f"evsys {command}" not in text]


def test_every_public_name_is_mentioned() -> None:
    text = "\n".join(page.read_text("utf-8") for page in DOCS)
    words = set(re.findall(r"\w+", text))
    assert not set(evsys_sdk.__all__) - words


def test_every_page_can_be_reached_from_the_front_pages() -> None:
    reached, todo = set[Path](), [ROOT / "README.md", ROOT / "docs" / "index.md"]
    while todo:
        page = todo.pop()
        if page in reached:
            continue
        reached.add(page)
        targets = [target.partition("#")[0] for target in links(page) if not re.match(r"[a-z]+:", target)]
        files = [(page.parent / target).resolve() for target in targets]
        todo += [file for file in files if file.suffix == ".md" and file.exists()]
    assert not [str(page.relative_to(ROOT)) for page in DOCS if page not in reached]


@pytest.mark.parametrize("page", [pytest.param(page, id=str(page.relative_to(ROOT))) for page in PAGES])
def test_every_make_target_that_is_mentioned_exists(page: Path) -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))
    code = [*(fence.text for fence in fences(page)), *re.findall(r"`([^`\n]+)`", prose(page))]
    mentioned = {name for text in code for name in re.findall(r"^(?:\$ )?make ([a-z]+)", text, re.MULTILINE)}
    assert mentioned <= targets


def test_every_example_that_code_names_is_there() -> None:
    named = {(fence.where, name) for fence in BLOCKS for name in re.findall(r"\bexamples/(\w+)/", fence.text)}
    assert not [f"{where}: {name}" for where, name in sorted(named) if not (ROOT / "examples" / name).is_dir()]


@pytest.mark.parametrize("example", sorted(path.name for path in (ROOT / "examples").glob("[!_.]*/")))
def test_every_example_is_numbered_and_in_the_list(example: str) -> None:
    assert re.fullmatch(r"\d\d_[a-z_]+", example), "number it, and give it a README"
    listed = set(links(ROOT / "docs" / "examples.md"))
    assert not (ROOT / "examples" / example / "README.md").exists() or f"../examples/{example}/README.md" in listed
