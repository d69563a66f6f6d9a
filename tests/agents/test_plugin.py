"""The plugin at the root of the repository: what the vendors' validators miss, and what must stay small."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import click
import pytest

from evsys_sdk import __version__
from evsys_sdk.cli.main import evsys, main
from evsys_sdk.errors import EvsysError
from evsys_sdk.scaffold.plugin import HOMES, install_skills, list_skills, read_front_matter, record_program

ROOT = Path(__file__).parents[2]
SKILLS = sorted((ROOT / "skills").glob("*/SKILL.md"))
AGENTS = sorted((ROOT / "agents").glob("*.md"))
TEMPLATES = sorted((ROOT / "src" / "evsys_sdk" / "scaffold").rglob("*.md.tmpl"))
MANIFESTS = (
    ".agents/plugin.json",
    ".claude-plugin/plugin.json",
    ".codex-plugin/plugin.json",
    ".cursor-plugin/plugin.json",
)
PORTABLE = {"name", "description", "license", "compatibility", "metadata", "allowed-tools"}
OF_AGENTS = {"name", "description", "tools", "disallowedTools", "model", "maxTurns", "skills", "color"}
OF_AGENT_PLUGINS = {"$schema", "name", "version", "description", "author", "license", "keywords"}
TOOLS = {"Read", "Grep", "Glob", "Bash", "Edit", "Write"}
EVENTS = {"SessionStart", "PreToolUse", "PostToolUse"}
COMMAND = re.compile(r"evsys ((?:[a-z][a-z-]*)(?: [^`\n|;)]*)?)")


def read(name: str) -> Any:
    return json.loads((ROOT / name).read_text("utf-8"))


@pytest.mark.parametrize("path", SKILLS, ids=lambda path: path.parent.name)
def test_a_skill_says_what_it_is_and_when_to_use_it(path: Path) -> None:
    front = read_front_matter(path)
    assert set(front) <= PORTABLE
    assert front["name"] == path.parent.name
    assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", front["name"])
    assert len(front["name"]) <= 64
    assert re.search(r"\bUse (when|before)\b", front["description"])
    assert len(front["description"]) <= 1024
    assert len(path.read_text("utf-8").splitlines()) < 100


@pytest.mark.parametrize("path", AGENTS, ids=lambda path: path.stem)
def test_an_agent_says_what_it_is_and_has_tools_that_exist(path: Path) -> None:
    front = read_front_matter(path)
    assert set(front) <= OF_AGENTS
    assert front["name"] == path.stem
    assert " Use " in front["description"]
    assert set(re.split(r",\s*", front.get("tools", "Read"))) <= TOOLS


def test_the_reviewer_cannot_edit() -> None:
    tools = read_front_matter(ROOT / "agents" / "conclusion-reviewer.md")["tools"]
    assert not {"Edit", "Write", "NotebookEdit"} & set(re.split(r",\s*", tools))


def test_what_is_wrong_with_a_front_matter_is_found(tmp_path: Path) -> None:
    for text in ("# no front matter\n", "---\nname: [x\n---\n", "---\nname: a\nname: b\n---\n"):
        (tmp_path / "SKILL.md").write_text(text, encoding="utf-8")
        with pytest.raises(EvsysError):
            read_front_matter(tmp_path / "SKILL.md")


def test_every_manifest_says_the_same() -> None:
    manifests = [
        {key: read(name).get(key) for key in ("name", "version", "description", "license")} for name in MANIFESTS
    ]
    assert all(manifest == manifests[0] for manifest in manifests)
    assert manifests[0]["version"] == __version__
    assert set(read(".agents/plugin.json")) <= OF_AGENT_PLUGINS
    assert all(read(name)["author"]["name"] for name in MANIFESTS)
    assert read(".claude-plugin/marketplace.json")["plugins"][0]["name"] == manifests[0]["name"]
    assert read(".agents/plugins/marketplace.json")["plugins"][0]["name"] == manifests[0]["name"]


def test_every_path_in_a_manifest_is_there() -> None:
    for name in MANIFESTS:
        paths = [value for value in read(name).values() if isinstance(value, str) and value.startswith("./")]
        assert all((ROOT / path).exists() for path in paths), name
    assert not (ROOT / "plugin.json").exists(), "Codex would read it instead of its own, which has the hooks"


def test_every_hook_is_for_an_event_that_exists_and_runs_the_script() -> None:
    hooks = read("hooks/hooks.json")["hooks"]
    assert set(hooks) == EVENTS
    commands = [hook for entries in hooks.values() for entry in entries for hook in entry["hooks"]]
    for hook in commands:
        match = re.fullmatch(r'python3 "\$\{CLAUDE_PLUGIN_ROOT\}/(hooks/[a-z_]+\.\w+)"(?: \w+)?', hook["command"])
        assert match is not None
        assert (ROOT / match[1]).is_file()
        assert hook["timeout"] <= 60


def test_what_is_always_loaded_stays_below_400_tokens() -> None:
    fronts = [read_front_matter(path) for path in (*SKILLS, *AGENTS)]
    always = sum(len(f"evsys:{front['name']}: {front['description']}\n") for front in fronts)
    assert always / 4 < 400


def quoted_commands(path: Path) -> Iterator[str]:
    for span in re.findall(r"`(evsys [^`]+)`", path.read_text("utf-8")):
        yield from (f"evsys {one}" for one in COMMAND.findall(span))
    for block in re.findall(r"```bash\n(.*?)```", path.read_text("utf-8"), re.DOTALL):
        yield from (line.partition("#")[0].strip() for line in block.splitlines() if line.startswith("evsys "))


def problems_of(command: str) -> list[str]:
    """What a quoted command names that the command line does not have."""
    words = [word.strip("\"'.,:)") for word in command.split()[1:]]
    click_command: click.Command | None = evsys
    context = click.Context(evsys)
    while isinstance(click_command, click.Group) and words:
        name = words.pop(0)
        if name.startswith("--"):
            return []
        click_command = click_command.get_command(context, name)
        if click_command is None:
            return [f"no command {name}"]
    options = (
        {name for param in click_command.params for name in param.opts} | {"--help"} if click_command else set[str]()
    )
    return [f"no option {word}" for word in words if word.startswith("--") and word.partition("=")[0] not in options]


@pytest.mark.parametrize("path", [*SKILLS, *AGENTS, *TEMPLATES], ids=lambda path: path.relative_to(ROOT).as_posix())
def test_every_command_that_is_named_exists_with_its_options(path: Path) -> None:
    wrong = {command: problems for command in quoted_commands(path) if (problems := problems_of(command))}
    assert not wrong


def test_the_check_of_commands_finds_what_it_is_there_for() -> None:
    assert problems_of("evsys frobnicate") == ["no command frobnicate"]
    assert problems_of("evsys run CONFIG --detached") == ["no option --detached"]
    assert problems_of("evsys skills instal") == ["no command instal"]
    assert problems_of("evsys run CONFIG --detach") == []


@pytest.mark.parametrize("agent", sorted(HOMES))
def test_installing_copies_everything_and_twice_is_once(agent: str, tmp_path: Path) -> None:
    first = {path: path.read_bytes() for path in install_skills(agent, tmp_path)}
    assert len([path for path in first if path.name == "SKILL.md"]) == len(list_skills()) == len(SKILLS)
    assert {path: path.read_bytes() for path in install_skills(agent, tmp_path)} == first


def test_the_mcp_server_is_found_without_an_activated_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    assert record_program() == str(Path(sys.executable).with_name("evsys"))
    install_skills("claude", tmp_path)
    server = json.loads((tmp_path / ".mcp.json").read_text("utf-8"))["mcpServers"]["evsys"]
    hello = b'{"jsonrpc": "2.0", "id": 1, "method": "ping"}\n'
    for own in ({"XDG_CONFIG_HOME": str(tmp_path / "config")}, {"HOME": str(tmp_path / "home")}):
        (tmp_path / "home" / ".config" / "evsys").mkdir(parents=True, exist_ok=True)
        noted = (tmp_path / "config" / "evsys" / "program").read_text("utf-8")
        (tmp_path / "home" / ".config" / "evsys" / "program").write_text(noted, encoding="utf-8")
        done = subprocess.run(
            [server["command"], *server["args"]], input=hello, env={"PATH": "/usr/bin:/bin", **own}, capture_output=True
        )
        assert json.loads(done.stdout) == {"jsonrpc": "2.0", "id": 1, "result": {}}, done.stderr


def test_a_plugin_folder_has_the_plugin_and_nothing_else(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    written = {path.relative_to(tmp_path).as_posix() for path in install_skills("plugin", tmp_path)}
    tops = {name.partition("/")[0] for name in written}
    assert tops == {
        ".agents",
        ".claude-plugin",
        ".codex-plugin",
        ".cursor-plugin",
        "agents",
        "hooks",
        "mcp.json",
        "skills",
    }
    assert written == {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*") if path.is_file()}
    for name in MANIFESTS:
        manifest = json.loads((tmp_path / name).read_text("utf-8"))
        paths = [value for value in manifest.values() if isinstance(value, str) and value.startswith("./")]
        assert all((tmp_path / path).exists() for path in paths), name
    wheel = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert tops <= set(wheel["force-include"]), "a wheel has all that is installed from it"


@pytest.mark.parametrize("agent", sorted(HOMES))
def test_installing_says_what_it_does_not_set_up(
    agent: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    assert main(["skills", "install", "--agent", agent, "--target", str(tmp_path / "p"), "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    has_hooks = any(name.endswith("evsys_hook.py") for name in answer["files"])
    assert has_hooks or "Hooks are not" in answer["note"]
    assert answer["program"] == (tmp_path / "config" / "evsys" / "program").read_text("utf-8").strip()


def test_installing_leaves_what_was_there(tmp_path: Path) -> None:
    settings = tmp_path / ".claude" / "settings.json"
    settings.parent.mkdir()
    mine: dict[str, Any] = {"model": "opus", "hooks": {"PreToolUse": [{"matcher": "Bash", "hooks": []}]}}
    settings.write_text(json.dumps(mine), encoding="utf-8")
    install_skills("claude", tmp_path)
    parsed = json.loads(settings.read_text("utf-8"))
    assert parsed["model"] == "opus"
    assert parsed["hooks"]["PreToolUse"][0] == {"matcher": "Bash", "hooks": []}
    assert len(parsed["hooks"]["PreToolUse"]) == 2
    changed = tmp_path / ".claude" / "skills" / "using-the-sdk" / "SKILL.md"
    changed.write_text("mine", encoding="utf-8")
    with pytest.raises(EvsysError, match=r"using-the-sdk.*--force"):
        install_skills("claude", tmp_path)
    assert changed.read_text("utf-8") == "mine"
    install_skills("claude", tmp_path, force=True)
    assert changed.read_text("utf-8") != "mine"


def test_settings_that_cannot_be_read_are_refused_in_a_sentence(tmp_path: Path) -> None:
    (tmp_path / ".mcp.json").write_text("{", encoding="utf-8")
    with pytest.raises(EvsysError, match=r"\.mcp\.json: not valid JSON"):
        install_skills("claude", tmp_path)


# The hooks


def load_hook() -> ModuleType:
    spec = importlib.util.spec_from_file_location("evsys_hook", ROOT / "hooks" / "evsys_hook.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


HOOK = load_hook()


def hook(what: str, text: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-S", "-E", str(ROOT / "hooks" / "evsys_hook.py"), what]
    return subprocess.run(command, input=text, cwd=cwd, capture_output=True, text=True, check=False)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    for name in (".evsys/runs/first/sft", "data/benchmark/t", "data/validation/v", "experiments/e", "outputs/x/arm"):
        (tmp_path / name).mkdir(parents=True)
    for name in ("data/benchmark/t/tasks.jsonl", "data/validation/v/tasks.jsonl", "outputs/x/journal.jsonl"):
        (tmp_path / name).write_text("{}\n", encoding="utf-8")
    return tmp_path


REFUSED = [
    {"file_path": "data/benchmark/t/tasks.jsonl"},
    {"file_path": "./experiments/../data/validation/v/tasks.jsonl"},
    {"file_path": ".evsys/runs/first/conclusion.json"},
    {"file_path": "outputs/x/arm/scores.jsonl"},
    {"input": "*** Begin Patch\n*** Update File: data/benchmark/t/tasks.jsonl\n@@\n-a\n+b\n*** End Patch"},
]
ALLOWED = [
    {"file_path": "src/verifiers.py"},
    {"file_path": "data/benchmark/new/tasks.jsonl"},
    {"file_path": "experiments/e/config.yaml"},
    {"command": "head -3 data/benchmark/t/tasks.jsonl"},
    {"command": "rm -rf data/benchmark"},
    {"command": "cp data/benchmark/t/tasks.jsonl /tmp/look.jsonl"},
    {"command": "evsys run experiments/e/config.yaml > log.txt"},
    {"command": "evsys audit first && grep -c supported .evsys/runs/first/conclusion.json"},
    {"command": "python -c \"print(open('outputs/x/journal.jsonl').read())\""},
    {"command": "rm -rf build"},
    {},
]


@pytest.mark.parametrize("given", REFUSED, ids=lambda given: next(iter(given.values()))[:50])
def test_edits_of_sealed_tasks_and_records_are_refused_with_the_reason(
    given: dict[str, str], project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    HOOK.guard({"tool_input": given, "cwd": str(project)})
    output = json.loads(capsys.readouterr().out)["hookSpecificOutput"]
    assert output["permissionDecision"] == "deny"
    assert re.search(r"sealed|record", output["permissionDecisionReason"])


@pytest.mark.parametrize("given", ALLOWED, ids=lambda given: next(iter(given.values()), "nothing")[:50])
def test_everything_else_passes_without_a_word(
    given: dict[str, str], project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    HOOK.guard({"tool_input": given, "cwd": str(project)})
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("what", "event"),
    [("guard", ""), ("check", "[]"), ("guard", '{"tool_input": {"file_path": 3}, "cwd": 4}'), ("nonsense", "{}")],
)
def test_a_hook_that_does_not_understand_lets_everything_pass(what: str, event: str, tmp_path: Path) -> None:
    output = hook(what, event, tmp_path)
    assert (output.stdout, output.returncode) == ("", 0)


def test_outside_of_a_project_hooks_say_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tool_input = {"file_path": "data/benchmark/t/tasks.jsonl", "command": "rm -rf data/benchmark"}
    for what in (HOOK.guard, HOOK.check):
        what({"cwd": str(tmp_path), "tool_input": tool_input})
    assert capsys.readouterr() == ("", "")
    assert begin_session(tmp_path) == ""


def test_a_config_that_was_just_broken_is_reported(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=":")
    config = project / "experiments" / "e" / "config.yaml"
    config.write_text("name: x\nn_repeats: 0\n", encoding="utf-8")
    event = {"cwd": str(project), "tool_input": {"file_path": str(config)}}
    HOOK.check(event)
    output = json.loads(capsys.readouterr().out)["hookSpecificOutput"]
    assert "experiments/e/config.yaml" in output["additionalContext"]
    assert "n_repeats: should be at least 1" in output["additionalContext"]
    HOOK.check({"cwd": str(project), "tool_input": {"input": "*** Update File: experiments/e/config.yaml\n@@\n"}})
    assert "n_repeats" in capsys.readouterr().out


def begin_session(root: Path, path: str | None = None) -> str:
    """What is put before an agent when it starts in a folder."""
    programs = path if path is not None else f"{Path(sys.executable).parent}:/usr/bin:/bin"
    done = subprocess.run(
        [sys.executable, str(ROOT / "hooks" / "evsys_hook.py"), "context"],
        cwd=root,
        input="{}",
        env={"PATH": programs, "HOME": str(root)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_session_begins_with_what_the_experiments_have_shown(project: Path) -> None:
    assert begin_session(project).startswith("What the experiments of this project have shown (evsys context):")
    assert begin_session(project, path="/nowhere") == "", "without evsys it says nothing"


@pytest.mark.parametrize("place", [".venv/bin", "bin"])
def test_hooks_run_no_program_that_lies_in_the_checkout(
    project: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    planted = project / place / "evsys"
    planted.parent.mkdir(parents=True)
    planted.write_text("#!/bin/sh\necho planted\n", encoding="utf-8")
    planted.chmod(0o755)
    assert begin_session(project, path=f"{planted.parent}:/usr/bin:/bin") == ""
    monkeypatch.setenv("PATH", f"{planted.parent}:/usr/bin:/bin")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(project / "settings"))
    assert HOOK.find_program(str(project)) is None
    record_program()
    assert HOOK.find_program(str(project)) == str(Path(sys.executable).with_name("evsys"))
