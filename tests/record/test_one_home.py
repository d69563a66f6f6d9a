"""The format has one home: outside `record/` no module spells a name of it, and none opens its files.

How it is looked for: every module of the package outside `record/` is parsed.

- A text is a name of the record when it is the name of a file, or a path that ends in one; docstrings and sentences
  that mention a file are not. Kinds of events are looked for as whole texts.
- A file of the record is opened when a call that opens, reads, writes or removes something (`OPENERS`) has an
  expression in it that asks the layout for a path, or a variable that was assigned from one; and when one of the
  record's own readers and writers of single files (`DOORS`) is imported.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import evsys_sdk
from evsys_sdk.record import layout
from evsys_sdk.record.events import Kind

SOURCE = Path(evsys_sdk.__file__).parent
CLASSES = (layout.LogFiles, layout.RunFiles, layout.ExperimentFiles)
NAMES = {
    place.name.rpartition("/")[2]
    for files in CLASSES
    for place in vars(files).values()
    if isinstance(place, layout.Place) and "." in place.name
} | {layout.HISTORY_CACHE, layout.OUTPUT_ROOTS}
KINDS = {str(kind) for kind in Kind}
OPENERS = {
    "open",
    "read_text",
    "read_bytes",
    "write_text",
    "write_bytes",
    "write_json",
    "atomic_write",
    "unlink",
    "load",
}
DOORS = {"JsonlFile", "read_records", "complete_lines", "last_records", "read_lines", "read_object", "load_object"}

WORDS_THAT_ARE_NO_KINDS = {
    ("cli/main.py", "note"): "the command, and the module it is in",
    ("cli/mcp/tools.py", "note"): "the tool, and the command it runs",
    ("history/cache.py", "invalidated"): "a column of the cache",
    ("dashboard/client/client.py", "note"): "a route",
    ("dashboard/server/migrations/versions/0006_views.py", "invalidated"): "a column",
    ("dashboard/server/storage/views.py", "invalidated"): "a field of a view",
    ("dashboard/server/storage/store.py", "note"): "a kind of record that clients send",
    ("dashboard/server/storage/records.py", "note"): "a kind of record that clients send",
    ("eval/scores.py", "note"): "what a scoring says about itself",
    ("cli/project/project.py", "note"): "a field of the answer of `skills install`",
}
NAMES_ELSEWHERE = {
    **{
        ("experiment/imported_run.py", name): "of a run folder of tinker-cookbook"
        for name in ("config.json", "metrics.jsonl", "checkpoints.jsonl")
    },
    ("deploy/weights.py", "config.json"): "of a model, in the layout of transformers",
    ("data/workspace/row_cache.py", ".lock"): "the lock of a dataset in the workspace",
    ("eval/model_eval/evaluate.py", ".lock"): "the lock of an evaluation's own folder, which is no experiment",
}
MAY_OPEN = {
    "dashboard/local/records.py": "pages for people are shown as text",
    "dashboard/client/upload.py": "pages for people are sent as text",
    "experiment/jobs/background.py": "console.log is written by the process in the background, and followed as text",
    "experiment/launchers/ray.py": "the token is made by the launcher, and means nothing to a reader",
    "experiment/arms/rows.py": "datasets.json is a note for people; no reader",
    "experiment/run_benchmarks.py": "benchmarks.json is a note for people; no reader",
    "training/examples.py": "rendered_examples.md is a page for people; no reader",
}
MAY_IMPORT_A_DOOR = {
    "dashboard": "its outbox is an append-only file of its own",
    "loop": "traces, rounds and the loop's own journal are append-only files of their own",
    "eval": "predictions are an append-only file of their own",
    "spend": "the ledger is written there; its format is record/ledger.py",
}


def modules() -> Iterator[tuple[str, ast.Module]]:
    for path in sorted(SOURCE.rglob("*.py")):
        name = path.relative_to(SOURCE).as_posix()
        if not name.startswith("record/"):
            yield name, ast.parse(path.read_text("utf-8"))


def texts(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Every text in a module that is not a docstring; of an f-string, its plain pieces."""
    prose = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in prose:
            yield node.lineno, node.value


def spelled_names(name: str, tree: ast.Module) -> list[str]:
    names = [(line, text, text.rpartition("/")[2]) for line, text in texts(tree)]
    return [
        f"{name}:{line}: {text}" for line, text, last in names if last in NAMES and (name, last) not in NAMES_ELSEWHERE
    ]


def spelled_kinds(name: str, tree: ast.Module) -> list[str]:
    return [
        f"{name}:{line}: {text}"
        for line, text in texts(tree)
        if text in KINDS and (name, text) not in WORDS_THAT_ARE_NO_KINDS
    ]


def opened_files(name: str, tree: ast.Module) -> list[str]:
    if name in MAY_OPEN:
        return []
    asks = {files.__name__ for files in CLASSES}
    tainted = {
        target.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and mentions(node.value, asks)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    lines: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if called in OPENERS and mentions(node, asks | tainted):
                lines.append(f"{name}:{node.lineno}: {ast.unparse(node)}")
        elif isinstance(node, ast.ImportFrom) and is_door(node) and name.split("/")[0] not in MAY_IMPORT_A_DOOR:
            lines += [f"{name}:{node.lineno}: {alias.name}" for alias in node.names if alias.name in DOORS]
    return lines


def is_door(node: ast.ImportFrom) -> bool:
    return "record" in (node.module or "").split(".")


def mentions(node: ast.AST, names: set[str]) -> bool:
    """Whether an expression has one of these names in it, or asks something for its `files`."""
    for inner in ast.walk(node):
        if isinstance(inner, ast.Name) and inner.id in names:
            return True
        if isinstance(inner, ast.Attribute) and inner.attr == "files":
            return True
    return False


@pytest.mark.parametrize(
    "source",
    [
        'path = run_dir / "scores.jsonl"',
        'glob("*/*/run_result.json")',
        'open(f"{folder}/journal.jsonl")',
        'FILES = {"x": ["config.json"]}',
    ],
)
def test_the_scan_finds_a_name_of_the_record(source: str) -> None:
    assert spelled_names("history/x.py", ast.parse(source))


@pytest.mark.parametrize(
    "source", ['"""Reads config.json."""', 'hint = "Restore config.json."', '"adapter_config.json"']
)
def test_the_scan_lets_sentences_and_other_names_pass(source: str) -> None:
    assert not spelled_names("history/x.py", ast.parse(source))


def test_the_scan_finds_a_kind() -> None:
    assert spelled_kinds("history/x.py", ast.parse('if event["kind"] == "arm_ended": pass'))
    assert spelled_kinds("history/x.py", ast.parse('journal.append("note", text=text)'))


@pytest.mark.parametrize(
    "source",
    [
        "RunFiles(folder).scores.open('rb')",
        "json.load(open(ExperimentFiles(path).config))",
        "files = RunFiles(folder)\nwrite_json(files.result, {})",
        "self.record.files.conclusion.read_text()",
        "from ..record.jsonl_file import JsonlFile",
    ],
)
def test_the_scan_finds_a_file_that_is_opened(source: str) -> None:
    assert opened_files("history/x.py", ast.parse(source))


def test_the_scan_lets_pass_who_only_names_a_path() -> None:
    assert not opened_files("history/x.py", ast.parse("print(RunFiles(folder).scores)\nopen(other)"))


def test_no_module_outside_the_record_spells_a_name_of_its_files() -> None:
    spelled = [line for name, tree in modules() for line in spelled_names(name, tree)]
    assert not spelled, "ask record/layout.py for the path:\n" + "\n".join(spelled)


def test_no_module_outside_the_record_spells_a_kind_of_event() -> None:
    spelled = [line for name, tree in modules() for line in spelled_kinds(name, tree)]
    assert not spelled, "use record.events.Kind:\n" + "\n".join(spelled)


def test_no_module_outside_the_record_opens_its_files() -> None:
    opened = [line for name, tree in modules() for line in opened_files(name, tree)]
    assert not opened, "read through record/reader.py, write through record/:\n" + "\n".join(opened)


def test_every_name_in_the_layout_is_there_once() -> None:
    for files in CLASSES:
        names = [place.name for place in vars(files).values() if isinstance(place, layout.Place)]
        assert len(names) == len(set(names)), f"{files.__name__} has a name twice"


def test_the_record_imports_the_standard_library_and_the_foundations_alone() -> None:
    allowed = {"errors", "files", "log", "paths", "redact"}
    for path in sorted((SOURCE / "record").glob("*.py")):
        tree = ast.parse(path.read_text("utf-8"))
        checked = {id(inner) for node in ast.walk(tree) if isinstance(node, ast.If) for inner in ast.walk(node)}
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.level == 2 and id(node) not in checked:
                assert node.module in allowed, f"{path.name} imports {node.module}"
