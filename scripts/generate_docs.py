"""Write `docs/reference/` from the code: models, registries, command line, errors and public names.

    python scripts/generate_docs.py            # write the pages, remove those that have no subject any more
    python scripts/generate_docs.py --check    # write nothing; print a diff and exit 1 if a page is out of date

What is wrong on a page is corrected in the docstring it comes from. The pages are the same on every machine: they do
not depend on what is installed, on the width of the terminal or on the time.
"""

from __future__ import annotations

import ast
import difflib
import inspect
import itertools
import re
import sys
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, TypeAliasType

import click
from pydantic import BaseModel
from schema_tables import Schema, cell, models_in, nested_models

import evsys_sdk
from evsys_sdk import config as config_room
from evsys_sdk import errors, protocols
from evsys_sdk.builtins import BUILTINS, Builtin
from evsys_sdk.cli.main import evsys
from evsys_sdk.config import ExperimentConfig
from evsys_sdk.config.base import KindSpec
from evsys_sdk.config.yaml_text import read_yaml
from evsys_sdk.config.yaml_write import write_yaml
from evsys_sdk.errors import ConfigError, install_hint
from evsys_sdk.registry import KINDS, REGISTRIES, config_model

ROOT = Path(__file__).resolve().parents[1]
REFERENCE = ROOT / "docs" / "reference"
HELP_WIDTH = 100

NOTE = "<!-- Made by `make docs` from the code; change the docstring it comes from, not this page. -->"

EXAMPLES: dict[tuple[str, str], dict[str, Any]] = {
    ("transform", "select_fields"): {"fields": ["query", "tool_slug"]},
    ("transform", "rename_fields"): {"fields": {"question": "query"}},
    ("transform", "drop_fields"): {"fields": ["debug"]},
    ("transform", "map_values"): {"field": "team", "values": {"Billing": "billing", "N/A": None}},
    ("transform", "sample"): {"n": 100},
    ("transform", "add_system_prompt"): {"prompt": "Answer with the name of one tool."},
    ("transform", "truncate_chars"): {"max_chars": 4000},
    ("agent", "tools"): {"tools": ["my_tools:search"]},
    ("agent", "program"): {"command": "my-agent --task {instruction}", "api": "chat"},
    ("algorithm", "opd"): {"teacher": "outputs/teacher/run/checkpoints/step000080-final/sampler"},
    ("algorithm", "script"): {"file": "my_loop.py", "args": {"learning_rate": 0.002}},
    ("algorithm", "combo"): {"phases": [{"kind": "sft"}, {"kind": "sft", "params": {"learning_rate": 0.0001}}]},
}
"""Params for the example of a kind that needs some and whose docstring has no example."""

REQUIRED_AROUND: dict[tuple[str, ...], dict[str, Any]] = {("metadata", "benchmark"): {"name": "held_out"}}
"""What the example of a kind needs around it, by place."""

EXIT_CODES = {
    0: "Done.",
    1: "Bad input: a message on stderr that names the place, the value and the remedy; never a traceback. "
    "Also `verify` with something damaged.",
    2: "`evsys run` finished, but at least one run failed or could not be scored. Also `evsys benchmark run` that "
    "could not score every task, and `evsys eval model` that could score nothing, or had failures and "
    "`--fail-on-retries`.",
    130: "Interrupted. `evsys run` stops at a checkpoint after the first Ctrl-C and can be resumed.",
}

PROTOCOLS = {plain.lower(): plain for plain in dir(protocols)}
"""Kind without underscores -> name of the protocol it satisfies, where `protocols.py` has one."""


def pages() -> dict[str, str]:
    """Every generated page: file name -> text."""
    found = {"configuration.md": configuration_page()}
    found |= {f"{REGISTRIES[kind].plural}.md": registry_page(kind) for kind in KINDS if BUILTINS.get(kind)}
    found |= {"cli.md": cli_page(), "errors.md": errors_page(), "api.md": api_page()}
    titles = {name: text.split("\n", 1)[0].removeprefix("# ") for name, text in found.items()}
    listed = [f"- [{title}]({name})" for name, title in titles.items()]
    found["index.md"] = page("Reference", ["Made from the code with `make docs`.", *listed], between="\n")
    return {name: with_note(text) for name, text in found.items()}


def configuration_page() -> str:
    """Every model of a config file."""
    models = [ExperimentConfig, *nested_models(ExperimentConfig)]
    exported = (getattr(config_room, name) for name in config_room.__all__)
    others = [found for found in exported if isinstance(found, type) and issubclass(found, BaseModel)]
    models += [model for model in others if model not in models]
    names = frozenset(model.__name__ for model in models)
    parts = [
        "Every key of a config file, in the order in which a file meets them. How they work together is described in "
        "[configuration](../configuration.md). Unknown keys are refused everywhere except below `metadata`."
    ]
    for model in models:
        table = Schema.of(model, names).table(model)
        parts += [f"## {model.__name__}", docstring(model), _kinds_line(model), table]
    return page("Configuration", parts)


def _kinds_line(model: type[BaseModel]) -> str:
    if not issubclass(model, KindSpec):
        return ""
    found = REGISTRIES[model.registry]
    if BUILTINS.get(found.kind):
        return f"Built-in kinds: [{found.plural}]({found.plural}.md)."
    return f"No {found.kind.replace('_', ' ')} is built in; add one with `@{found.decorator}`."


def registry_page(kind: str) -> str:
    """Every built-in of one kind."""
    registry, place = REGISTRIES[kind], _yaml_place(kind)
    protocol = getattr(protocols, PROTOCOLS.get(kind.replace("_", ""), ""), None)
    where = f"In YAML: `{'.'.join(place)}`. " if place else ""
    add = f"Add one of your own with `@{registry.decorator}`; see [extending](../extending.md)."
    parts = [docstring(protocol) if protocol else "", where + add]
    params = ParamSections({name: config_model(found.load()) for name, found in BUILTINS[kind].items()})
    for name, builtin in BUILTINS[kind].items():
        extension = builtin.load()
        parts += [f"## `{name}`", *_description(extension, name, builtin, place[-1] if place else "")]
        parts += [*params.of(name), _example(kind, name, builtin, place)]
    return page(registry.plural.replace("_", " ").capitalize(), [*parts, *params.shared()])


class ParamSections:
    """The params of all kinds of a page, where what several kinds share is described once."""

    def __init__(self, models: dict[str, type[BaseModel] | None]) -> None:
        self._models = models
        distinct = dict.fromkeys(model for model in models.values() if model)
        bases = [base for model in distinct for base in model.__mro__[1:] if getattr(base, "model_fields", None)]
        self._bases: list[type[BaseModel]] = [base for base in dict.fromkeys(bases) if bases.count(base) > 1]
        self._told = {*config_room.__all__, *(base.__name__ for base in self._bases)}

    def of(self, name: str) -> Iterator[str]:
        """The params of one kind, with the models inside them."""
        model = self._models[name]
        if model is None or not model.model_fields:
            yield "It takes no params."
            return
        same = next(other for other, found in self._models.items() if found is model)
        if same != name:
            yield f"It takes the params of [`{same}`](#{same})."
            return
        yield from self._tables(model, "param", [base for base in self._bases if issubclass(model, base)])

    def shared(self) -> Iterator[str]:
        """Sections of the models that several kinds extend."""
        for base in self._bases:
            yield from (f"## {base.__name__}", docstring(base), *self._tables(base, "param", ()))

    def _tables(self, model: type[BaseModel], head: str, bases: Sequence[type[BaseModel]]) -> Iterator[str]:
        inner = [found for found in nested_models(model) if found.__name__ not in self._told]
        self._told |= {found.__name__ for found in inner}
        schema = Schema.of(model, frozenset(self._told - set(config_room.__all__)))
        inherited = {field for base in bases for field in base.model_fields if field not in model.__annotations__}
        yield schema.table(model, head, without=inherited)
        yield from (f"Also the params of [{base.__name__}](#{base.__name__.lower()})." for base in bases)
        for found in inner:
            yield from (f"### {found.__name__}", docstring(found), Schema.of(found, schema.here).table(found))


def _description(extension: Any, name: str, builtin: Builtin, key: str) -> Iterator[str]:
    """The description of an extension: its docstring, that of its module, and the extra it needs."""
    yield docstring(extension).split("\n\n")[0]
    if builtin.extra:
        yield f"Needs the extra `{builtin.extra}`. {install_hint(builtin.extra).replace(': ', ': `')}`"
    if builtin.replaceable:
        yield "A project may register its own class under this name."
    for paragraph in _paragraphs(extension, name):
        indented = all(line.startswith("    ") or not line for line in paragraph.split("\n"))
        is_code = indented or paragraph.startswith(f"{key}:")
        if _example_in(paragraph, key) is None:
            yield fenced("text", textwrap.dedent(paragraph)) if is_code else paragraph


def _paragraphs(extension: Any, name: str) -> list[str]:
    """What follows the first paragraph of a docstring: that of the class, and of the module if it is about it alone."""
    return [*docstring(extension).split("\n\n")[1:], *_module_paragraphs(extension, name)]


def _module_paragraphs(extension: Any, name: str) -> list[str]:
    """The module's docstring where the module is about this extension alone and says more than one sentence."""
    module = sys.modules[extension.__module__]
    if name not in module.__name__.split(".")[-2:]:
        return []
    text = inspect.cleandoc(module.__doc__ or "")
    if text.startswith(f"`{name}`:"):  # the first sentence says what the class says
        first, _, rest = text.partition("\n\n")
        after = re.split(r"\.\s+(?=[A-Z])", first, maxsplit=1)[1:]
        text = "\n\n".join([*after, rest])
    elif "\n" not in text:
        return []
    return [paragraph for paragraph in text.split("\n\n") if paragraph]


def _example_in(paragraph: str, key: str) -> dict[str, Any] | None:
    """The block that a paragraph of a docstring shows, if it is YAML: a list item, or a mapping with the right key."""
    text = textwrap.dedent(paragraph)
    if not text.startswith(("- {kind:", "- kind:", f"{key}:")):
        return None
    item = text if text.startswith("-") else textwrap.dedent(text.partition(":")[2]).strip()
    try:
        found = read_yaml(item).data
    except ConfigError:  # for example a line about the next command
        return None
    return found if hasattr(found, "keys") else found[0]


def _yaml_place(kind: str) -> tuple[str, ...]:
    """Where in a config file a kind is named first."""

    def find(model: type[BaseModel], path: tuple[str, ...]) -> tuple[str, ...] | None:
        for name, field in model.model_fields.items():
            for inner in models_in(field.annotation):
                if issubclass(inner, KindSpec):
                    found = (*path, name) if inner.registry == kind else None
                else:
                    found = find(inner, (*path, name))
                if found:
                    return found
        return None

    return find(ExperimentConfig, ()) or ()


def _example(kind: str, name: str, builtin: Builtin, place: tuple[str, ...]) -> str:
    """The smallest YAML that uses a kind; from its module's docstring where that has one."""
    if not place:
        return ""
    extension = builtin.load()
    shown = [found for part in _paragraphs(extension, name) if (found := _example_in(part, place[-1]))]
    block: dict[str, Any] = shown[0] if shown else {"kind": name, "params": EXAMPLES.get((kind, name), {})}
    block = {key: value for key, value in block.items() if value}
    model = config_model(extension)
    try:
        if model is not None:
            model.model_validate(block.get("params", {}))
    except ValueError as error:
        sys.exit(f"{kind} '{name}' has no valid example: {error}\nAdd one to EXAMPLES in {Path(__file__).name}.")
    is_list = place[-1].endswith("s") and kind in ("transform", "metric", "callback")
    unchecked = _needs_extra(kind, builtin, block) or _is_refused(extension, block)
    where = "yaml fragment" if unchecked else f"yaml at {'.'.join(place[:-1]) or '.'}"
    around = REQUIRED_AROUND.get(place[:-1], {})
    return fenced(where, write_yaml({**around, place[-1]: [block] if is_list else block}))


def _needs_extra(kind: str, builtin: Builtin, block: dict[str, Any]) -> bool:
    """Whether an example can only be validated where some extra is installed."""
    inner = [child.get("kind", "") for child in block.get("params", {}).get("children", ())]
    return bool(builtin.extra) or any(BUILTINS[kind][name].extra for name in inner)


def _is_refused(extension: Any, block: dict[str, Any]) -> bool:
    """Whether a kind is there only to say why it cannot be used."""
    check, model = getattr(extension, "check_params", None), config_model(extension)
    try:
        if check is not None and model is not None:
            check(model.model_validate(block.get("params", {})))
    except evsys_sdk.ConfigError:
        return True
    return False


def cli_page() -> str:
    """The help of every command."""
    parts = ["What `--help` prints. How to use the commands: [command line](../cli.md)."]
    parts += [part for path, text in _help(evsys, "evsys", None) for part in (f"## {path}", fenced("text", text))]
    return page("Command line", parts)


def _help(command: click.Command, name: str, parent: click.Context | None) -> Iterator[tuple[str, str]]:
    settings: dict[str, Any] = {**command.context_settings, "terminal_width": HELP_WIDTH}
    context = click.Context(command, parent=parent, info_name=name, **settings)
    yield context.command_path, command.get_help(context)
    if isinstance(command, click.Group):
        for inner in command.list_commands(context):
            found = command.get_command(context, inner)
            assert found is not None
            yield from _help(found, inner, context)


def errors_page() -> str:
    """The errors raised on purpose, and the exit codes."""
    found = [value for value in vars(errors).values() if isinstance(value, type) and issubclass(value, Exception)]
    table = ["| error | also a | meaning |", "|---|---|---|"]
    for error in found:
        builtin = next((base.__name__ for base in error.__mro__ if base.__module__ == "builtins"), "")
        public = error.__name__ in evsys_sdk.__all__
        name = f"`{'evsys_sdk' if public else 'evsys_sdk.errors'}.{error.__name__}`"
        table.append(f"| {name} | `{builtin}` | {docstring(error)} |")
    codes = ["| code | meaning |", "|---|---|", *(f"| {code} | {text} |" for code, text in EXIT_CODES.items())]
    return page(
        "Errors and exit codes",
        [
            "All of these are an `EvsysError`. Its `to_dict()` is what the command line prints under `--json`; a "
            "`ConfigError` also carries `problems`, one for everything that is wrong with a file.",
            "\n".join(table),
            "## Exit codes",
            "\n".join(codes),
            "## Problem",
            docstring(errors.Problem) + " Under `--json` each has these keys, and `value` where one was involved:",
            ", ".join(f"`{key}`" for key in errors.Problem("").to_dict()) + ".",
        ],
    )


def api_page() -> str:
    """Every public name."""
    surface = evsys_sdk._SURFACE  # pyright: ignore[reportPrivateUsage]
    parts = ["What `from evsys_sdk import ...` offers. What is not listed here may change without notice."]
    for module, names in surface.items():
        parts += [f"## {module}", "\n".join(["| name | what it is |", "|---|---|", *_api_rows(module, names.split())])]
        if module == "registry":
            parts += ["Each kind of extension has three functions:", _registry_table()]
    return page("Python API", [*parts, "`__version__` is the version of the package."])


def _api_rows(module: str, names: Iterable[str]) -> Iterator[str]:
    for name in names:
        value = getattr(import_module(f"evsys_sdk.{module}"), name)
        if not (module == "registry" and inspect.ismethod(value)):
            text = docstring(value) if not isinstance(value, TypeAliasType) else _alias_doc(value)
            yield f"| `{name}` | {cell(text.split('\n\n')[0])} |"


def _registry_table() -> str:
    rows = ["| kind | decorator | class of a name | all names |", "|---|---|---|---|"]
    for kind, registry in REGISTRIES.items():
        suffix, many = registry.decorator.removeprefix("register_"), registry.plural
        rows.append(f"| {kind} | `{registry.decorator}` | `get_{suffix}` | `list_{many}` |")
    return "\n".join(rows)


def _alias_doc(alias: TypeAliasType) -> str:
    """The string that stands below a type alias in its module."""
    body = ast.parse(inspect.getsource(import_module(str(alias.__module__)))).body
    for statement, after in itertools.pairwise(body):
        if isinstance(statement, ast.TypeAlias) and statement.name.id == alias.__name__:
            match after:
                case ast.Expr(ast.Constant(str(text))):
                    return text
                case _:
                    break
    return ""


def docstring(thing: Any) -> str:
    """The docstring of a thing itself, with the line breaks inside paragraphs kept."""
    own = vars(thing).get("__doc__") if isinstance(thing, type) else thing.__doc__
    return inspect.cleandoc(own or "")


def fenced(info: str, text: str) -> str:
    """A fenced block."""
    return f"```{info}\n{text.rstrip()}\n```"


def page(title: str, parts: Sequence[str], between: str = "\n\n") -> str:
    """A page from its parts; empty parts are left out."""
    return f"# {title}\n\n" + between.join(part for part in parts if part) + "\n"


def with_note(text: str) -> str:
    """The page with a remark for people who want to edit it."""
    title, _, rest = text.partition("\n\n")
    return f"{title}\n\n{NOTE}\n\n{rest}"


def differences(wanted: dict[str, str]) -> Iterator[str]:
    """Unified diffs between the pages on disk and what they should be."""
    existing = {path.name: path.read_text("utf-8") for path in sorted(REFERENCE.glob("*.md"))}
    for name in sorted({*existing, *wanted}):
        before, after = existing.get(name, ""), wanted.get(name, "")
        yield from difflib.unified_diff(
            before.splitlines(keepends=True), after.splitlines(keepends=True), f"docs/reference/{name}", "generated"
        )


def main(arguments: Sequence[str]) -> int:
    """Write or check the pages; returns the exit code."""
    wanted = pages()
    changes = "".join(differences(wanted))
    if arguments == ["--check"]:
        sys.stdout.write(changes)
        if changes:
            print("docs/reference/ is out of date: run `make docs`.", file=sys.stderr)
        return 1 if changes else 0
    if arguments:
        print(__doc__, file=sys.stderr)
        return 1
    REFERENCE.mkdir(parents=True, exist_ok=True)
    for path in REFERENCE.glob("*.md"):
        if path.name not in wanted:
            path.unlink()
    for name, text in wanted.items():
        (REFERENCE / name).write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
