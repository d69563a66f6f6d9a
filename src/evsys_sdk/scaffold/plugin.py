"""`evsys skills install`: copy the skills, agents and hooks of the plugin into a project for a coding agent.

The same files are at the root of a checkout and inside an installed wheel.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from ..config.yaml_text import read_yaml
from ..errors import ConfigError, WorkspaceError, show
from ..files import write_json, write_text

_PACKAGED = Path(__file__).parent / "plugin"
_CHECKOUT = Path(__file__).parents[3]
_HOOK = "evsys_hook.py"
_MANIFEST = ".agents/plugin.json"
"""Manifest of the cross-vendor format; at the root it would replace Codex's manifest with its hooks."""
_PLUGIN = (
    *(_MANIFEST, ".agents/plugins/marketplace.json", ".claude-plugin/plugin.json", ".claude-plugin/marketplace.json"),
    *(".codex-plugin/plugin.json", ".cursor-plugin/plugin.json", "mcp.json"),
    f"hooks/{_HOOK}",
    "hooks/hooks.json",
)
_BY_PLUGIN = "evsys skills install --agent plugin --target FOLDER"


@dataclass(frozen=True, slots=True)
class Home:
    """The places of a coding agent's files below the root of a project."""

    skills: str
    agents: str | None = None
    settings: str | None = None
    """JSON file of its hooks."""
    mcp: str | None = None
    """JSON file of its MCP servers."""
    files: tuple[tuple[str, str], ...] = ()
    """Other files of the plugin, and their targets."""
    note: str = ""
    """Parts that are not installed, and how to install them."""


HOMES = {
    "claude": Home(".claude/skills", ".claude/agents", ".claude/settings.json", ".mcp.json"),
    "codex": Home(
        ".agents/skills",
        note="Hooks are not set up: Codex has them from plugins only. "
        f"{_BY_PLUGIN}, then: codex plugin marketplace add FOLDER && codex plugin add evsys@evsys-sdk. "
        "The MCP server alone: codex mcp add evsys -- evsys mcp",
    ),
    "cursor": Home(
        ".cursor/skills",
        ".cursor/agents",
        mcp=".cursor/mcp.json",
        note="Hooks are not set up: Cursor has another format.",
    ),
    "any": Home(
        "skills",
        "agents",
        files=((_MANIFEST, "plugin.json"), ("mcp.json", "mcp.json")),
        note="Hooks are not part of the cross-vendor format.",
    ),
    "plugin": Home(
        "skills",
        "agents",
        files=tuple((name, name) for name in _PLUGIN),
        note="claude plugin marketplace add FOLDER && claude plugin install evsys@evsys-sdk; "
        "codex plugin marketplace add FOLDER && codex plugin add evsys@evsys-sdk",
    ),
}


@dataclass(frozen=True, slots=True)
class Skill:
    """A skill of the plugin."""

    name: str
    description: str
    path: Path


def plugin_root() -> Path:
    """The folder with `skills/`, `agents/` and `hooks/`."""
    for folder in (_PACKAGED, _CHECKOUT):
        if (folder / "skills").is_dir():
            return folder
    raise WorkspaceError("this installation has no skills. Install evsys-sdk from a wheel or a checkout.")


def list_skills() -> list[Skill]:
    """The skills of this version."""
    paths = sorted(plugin_root().glob("skills/*/SKILL.md"))
    fronts = [read_front_matter(path) for path in paths]
    return [
        Skill(str(front["name"]), str(front["description"]), path) for front, path in zip(fronts, paths, strict=True)
    ]


def read_front_matter(path: Path) -> dict[str, Any]:
    """The front matter of a page, as strict YAML."""
    _, fence, rest = path.read_text("utf-8").partition("---\n")
    text, closed, _ = rest.partition("\n---\n")
    data: Any = read_yaml(f"{text}\n").data if fence and closed else None
    if not isinstance(data, dict):
        raise ConfigError(
            f"{path}: the page has no front matter. Begin it with name and description between two lines of ---."
        )
    return cast("dict[str, Any]", data)


def install_skills(agent: str, target: Path, *, force: bool = False) -> list[Path]:
    """Copy all files for an agent; changed files are an error, unless `force` overwrites them."""
    home, source = HOMES[agent], plugin_root()
    copies = dict(_copies(home, source, target))
    # All files are checked before the first is written, so that an error changes nothing.
    differing = [file for file, text in copies.items() if file.exists() and file.read_text("utf-8") != text]
    if differing and not force:
        shown = ", ".join(str(file.relative_to(target)) for file in differing[:3])
        raise WorkspaceError(f"{shown}: changed since it was installed, or somebody else's. --force replaces it.")
    for file, text in copies.items():
        write_text(file, text, verbatim=True)
    merged = [target / name for name in (home.settings, home.mcp) if name is not None]
    if home.settings is not None:
        _merge(target / home.settings, "hooks", _hooks(source))
    if home.mcp is not None:
        _merge(target / home.mcp, "mcpServers", _read_json(source / "mcp.json")["mcpServers"])
    return [*copies, *merged]


def record_program() -> str:
    """Record this `evsys` program in the user's config for hooks and the MCP server. Returns its path."""
    program = Path(sys.executable).with_name("evsys")
    if not program.exists():
        return ""
    home = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
    write_text(home / "evsys" / "program", f"{program}\n", verbatim=True)
    return str(program)


def _copies(home: Home, source: Path, target: Path) -> Iterator[tuple[Path, str]]:
    for path in sorted((source / "skills").rglob("*.md")):
        yield target / home.skills / path.relative_to(source / "skills"), path.read_text("utf-8")
    if home.agents is not None:
        for path in sorted((source / "agents").glob("*.md")):
            yield target / home.agents / path.name, path.read_text("utf-8")
    for name, place in home.files:
        yield target / place, (source / name).read_text("utf-8")
    if home.settings is not None:
        yield target / Path(home.settings).parent / "hooks" / _HOOK, (source / "hooks" / _HOOK).read_text("utf-8")


def _hooks(source: Path) -> dict[str, Any]:
    """The hooks of the plugin, with their paths in a project."""
    text = json.dumps(_read_json(source / "hooks" / "hooks.json")["hooks"])
    return json.loads(text.replace("${CLAUDE_PLUGIN_ROOT}/hooks/", "${CLAUDE_PROJECT_DIR}/.claude/hooks/"))


def _merge(file: Path, key: str, ours: dict[str, Any]) -> None:
    """Add our entries to a settings file, and keep all others."""
    settings = _read_json(file) if file.exists() else {}
    entries = settings.get(key, {})
    if not isinstance(entries, dict):
        raise WorkspaceError(f"{file}: '{key}' should be an object (got {show(entries)}). Correct it.")
    merged = cast("dict[str, Any]", entries)
    for name, value in ours.items():
        if isinstance(value, list):  # hooks of an event: add missing ones
            others = cast("Sequence[Any]", merged.get(name, []))
            merged[name] = [*others, *(hook for hook in cast("list[Any]", value) if hook not in others)]
        else:
            merged[name] = value
    write_json(file, {**settings, key: merged})


def _read_json(file: Path) -> dict[str, Any]:
    try:
        data: Any = json.loads(file.read_text("utf-8"))
    except ValueError as error:
        raise WorkspaceError(f"{file}: not valid JSON: {error}. Correct it, or move it away.") from None
    if not isinstance(data, dict):
        raise WorkspaceError(f"{file}: this should be a JSON object (got {show(data)}). Correct it, or move it away.")
    return cast("dict[str, Any]", data)
