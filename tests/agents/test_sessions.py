"""Whole sessions of the real Claude Code and Codex, offline: a stand-in model on loopback tells them what to do.

What is real: the programs, the plugin as they install it, its hooks, its skills, the MCP server, the experiments.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from evsys_sdk.config import load_yaml
from evsys_sdk.scaffold.project import init_project

from .stand_in import Act, Script, StandIn

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent
IN_TIER = bool(os.environ.get("EVSYS_TEST_AGENTS"))
PLUGIN = (".agents", ".claude-plugin", ".codex-plugin", "agents", "hooks", "skills", "mcp.json", "LICENSE", "README.md")


def program(name: str) -> str:
    spec = importlib.util.spec_from_file_location("fetch_npm", ROOT / "scripts" / "fetch_npm.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return str(module.find(name))


CLAUDE, CODEX = program("claude"), program("codex")

pytestmark = [
    pytest.mark.agents,
    pytest.mark.slow,
    pytest.mark.skipif(not IN_TIER, reason="`make test-agents` runs the sessions of real coding agents"),
]
needs_claude = pytest.mark.skipif(not Path(CLAUDE).exists(), reason="Claude Code: run scripts/fetch_npm.py agents")
needs_codex = pytest.mark.skipif(not Path(CODEX).exists(), reason="Codex: run scripts/fetch_npm.py agents")


@pytest.fixture
def plugin(tmp_path: Path) -> Path:
    """The plugin as it is in a checkout, without the other files of a checkout: it is copied whole."""
    for name in PLUGIN:
        source, target = ROOT / name, tmp_path / "plugin" / name
        target.parent.mkdir(exist_ok=True)
        shutil.copytree(source, target) if source.is_dir() else shutil.copy(source, target)
    return tmp_path / "plugin"


@pytest.fixture
def empty_project(tmp_path: Path) -> Path:
    return init_project("shop", into=tmp_path / "shop").root


@pytest.fixture
def project(empty_project: Path) -> Path:
    """A project with one experiment that leaves much to improve."""
    root = empty_project
    evsys(root, "new-experiment", "first")
    config = next((root / "experiments").glob("*_first")) / "config.yaml"
    text = config.read_text("utf-8").replace("max_steps: 30", "max_steps: 15").replace("n_repeats: 3", "n_repeats: 2")
    config.write_text(text, encoding="utf-8")
    evsys(root, "run", str(config), "--quiet")
    return root


def evsys(root: Path, *arguments: str) -> Any:
    done = subprocess.run(
        [sys.executable, "-m", "evsys_sdk", *arguments], cwd=root, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout) if "--json" in arguments else done.stdout


@dataclass
class Agent:
    """One program, how its tools are called, and how it is run."""

    shell: Callable[[str], Act]
    tool: Callable[[str], str]
    run: Callable[[StandIn, str], subprocess.CompletedProcess[str]]
    said: list[str] = field(default_factory=list[str])

    def mcp(self, name: str, **given: Any) -> Act:
        return Act(self.tool(name), given)


@pytest.fixture
def claude(plugin: Path, project: Path, tmp_path: Path) -> Agent:
    home = tmp_path / "home"
    home.mkdir()

    def run(server: StandIn, prompt: str) -> subprocess.CompletedProcess[str]:
        environment = claude_environment(home) | {"ANTHROPIC_BASE_URL": server.url, "ANTHROPIC_API_KEY": "dummy"}
        allowed = "Bash,Skill,Write,Edit,mcp__plugin_evsys_evsys"
        command = [CLAUDE, "-p", prompt, "--plugin-dir", str(plugin), "--allowedTools", allowed]
        return start([*command, "--permission-mode", "acceptEdits", "--output-format", "json"], project, environment)

    return Agent(
        lambda command: Act("Bash", {"command": command, "description": "research"}),
        lambda name: f"mcp__plugin_evsys_evsys__{name}",
        run,
    )


@pytest.fixture
def codex(plugin: Path, empty_project: Path, tmp_path: Path) -> Agent:
    home = tmp_path / "home"
    (home / "codex").mkdir(parents=True)
    (home / ".profile").write_text(f'export PATH="{BIN}:$PATH"\n', encoding="utf-8")  # its shell is a login shell
    environment = {"HOME": str(home), "CODEX_HOME": str(home / "codex"), "PATH": f"{BIN}:/usr/bin:/bin"}
    for arguments in (["marketplace", "add", str(plugin)], ["add", "evsys@evsys-sdk"]):
        assert start([CODEX, "plugin", *arguments], empty_project, environment).returncode == 0

    def run(server: StandIn, prompt: str) -> subprocess.CompletedProcess[str]:
        config = home / "codex" / "config.toml"
        provider = f'name = "stand-in"\nbase_url = "{server.url}/v1"\nwire_api = "responses"\n'
        head = f'model = "stand-in"\nmodel_provider = "stand_in"\n[model_providers.stand_in]\n{provider}'
        config.write_text(head + config.read_text("utf-8"), encoding="utf-8")
        options = ["--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox"]
        return start([CODEX, "exec", *options, "--dangerously-bypass-hook-trust", prompt], empty_project, environment)

    return Agent(lambda command: Act("exec_command", {"cmd": command}), lambda name: f"mcp__evsys/{name}", run)


def claude_environment(home: Path) -> dict[str, str]:
    quiet = {"DISABLE_AUTOUPDATER": "1", "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1"}
    return {"HOME": str(home), "PATH": f"{BIN}:/usr/bin:/bin", **quiet}


def start(command: list[str], cwd: Path, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        cwd=cwd,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=900,
    )


def read_json(result: str) -> Any:
    """The JSON in what a tool answered; Codex puts lines about it in front."""
    return json.loads(result[result.index("{") : result.rindex("}") + 1])


def do_research(agent: Agent, rounds: int = 3) -> Script:
    """Each round reads the context, changes the best recipe so far by what it finds there, and runs it by its plan."""
    for number in range(1, rounds + 1):
        questions = read_json((yield agent.mcp("context")))["questions"]
        known = [one for question in questions for one in question["best"] if "max_steps" in one["params"]]
        best = max(known, key=lambda one: one["score"])
        steps = 2 * int(best["params"]["max_steps"])
        change = f"--from {best['id']} --set algorithm.params.max_steps={steps}"
        content = read_json((yield agent.shell(f"evsys new-experiment round{number} {change} --json")))
        planned = read_json((yield agent.mcp("validate", config=content["config"])))
        launched = read_json((yield agent.mcp("launch", config=content["config"], plan_hash=planned["plan_hash"])))
        while read_json((yield agent.mcp("status", experiment=launched["path"], wait_s=50)))["state"] == "running":
            pass
        yield agent.mcp("note", experiment=launched["path"], text=f"Round {number}: {steps} steps.")
    yield "The campaign is over."


def drive_portfolio(agent: Agent) -> Script:
    """Go with what the campaign proposes, step by step, but for one change of strategy with a reason."""
    overruled = False
    while (state := read_json((yield Act(agent.tool("campaign"), {"name": "night"}))))["state"] != "closed":
        proposed = state["next"]
        if not overruled and proposed["action"] == "train":
            other = next(one for one in ("gentle", "sft") if one != proposed["family"])
            next_command = (
                f"evsys campaign next night --family {other} --because 'it may only be slow' --by agent --json"
            )
            assert read_json((yield agent.shell(next_command)))["family"] == other
            overruled = True
        yield agent.shell("evsys campaign run night --steps 1 --json 2>/dev/null")
    yield "The night is over."


def write_portfolio(project: Path) -> None:
    """Four families; with the confirmation, that makes five experiments."""
    config = next((project / "experiments").glob("*_first")) / "config.yaml"
    text = re.sub(r"max_steps: \d+", "max_steps: 60", config.read_text("utf-8"))
    (project / "base.yaml").write_text(text, encoding="utf-8")

    def sft(**params: Any) -> Any:
        return {"algorithm": {"kind": "sft", "params": {"max_steps": 60, "batch_size": 16, **params}}}

    gentle, small = sft(learning_rate=1e-4), sft(batch_size=2)
    families: dict[str, Any] = {"sft": {}, "gentle": gentle, "small": small, "hasty": sft(learning_rate=0.3)}
    (project / "portfolio.yaml").write_text(json.dumps({"base": "base.yaml", "families": families}), encoding="utf-8")
    terms = ("--question", "How well can tickets be sorted?", "--tokens", "600000", "--portfolio", "portfolio.yaml")
    evsys(project, "campaign", "new", "night", *terms)
    evsys(project, "campaign", "run", "night", "--steps", "1")


def check_portfolio(project: Path) -> None:
    shown = evsys(project, "campaign", "show", "night", "--json")
    assert shown["state"] == "closed"
    assert len(shown["experiments"]) == 5
    decisions = [decision for decision in shown["decisions"] if decision.get("by") == "agent"]
    assert [decision["reason"] for decision in decisions] == ["it may only be slow"]
    assert decisions[0]["instead"].startswith("train ")
    assert shown["decisions"][-1]["action"] == "confirm"
    assert (project / ".evsys" / "runs" / "night-export" / "dossier").is_dir()


@needs_claude
def test_claude_drives_a_portfolio_and_changes_its_strategy_once(claude: Agent, project: Path) -> None:
    write_portfolio(project)
    with StandIn(lambda: drive_portfolio(claude)) as server:
        done = claude.run(server, "Go on with the campaign 'night' until it is closed.")
    assert server.failure is None, (server.failure, server.results[-1:])
    assert json.loads(done.stdout)["result"] == "The night is over."
    check_portfolio(project)


@needs_codex
def test_codex_drives_a_portfolio_and_changes_its_strategy_once(codex: Agent, project: Path) -> None:
    write_portfolio(project)
    with StandIn(lambda: drive_portfolio(codex)) as server:
        done = codex.run(server, "Go on with the campaign 'night' until it is closed.")
    assert server.failure is None, (server.failure, server.results[-1:])
    assert done.stdout.strip() == "The night is over."
    check_portfolio(project)


def misbehave(agent: Agent, edits: Sequence[Act] = ()) -> Script:
    """What an agent that wants a better score at any price would try first."""
    for edit in edits:
        agent.said.append((yield edit))
    agent.said.append((yield agent.mcp("launch", config="experiments/x/config.yaml", plan_hash="0")))
    yield "I gave up."


def check_campaign(project: Path) -> None:
    """Three rounds, each derived from the best one before it, and better on the validation set in the end."""
    records = project / ".evsys" / "runs"
    first, *rounds = (
        evsys(project, "show", next(records.glob(f"*_{name}")).name, "--json")
        for name in ("first", "round1", "round2", "round3")
    )
    assert [round_["status"] for round_ in (first, *rounds)] == ["completed"] * 4
    scores = [val_score(first, "sft"), *(val_score(round_, "candidate") for round_ in rounds)]
    assert scores[0] < scores[1] < max(scores[2:])
    for number, round_ in enumerate(rounds, start=1):
        config = load_yaml(next((project / "experiments").glob(f"*_round{number}")) / "config.yaml")
        assert config.parent_experiment_id in {before["id"] for before in (first, *rounds[: number - 1])}
        assert [note["text"].partition(":")[0] for note in round_["notes"]] == [f"Round {number}"]
    assert evsys(project, "audit")


def val_score(shown: Any, run: str) -> float:
    scores = [arm["metrics"]["val/tickets_val/pass@1"] for arm in shown["arms"] if arm["run"] == run]
    return sum(scores) / len(scores)


@needs_claude
def test_claude_runs_a_campaign_of_three_rounds(claude: Agent, project: Path) -> None:
    with StandIn(lambda: do_research(claude)) as server:
        done = claude.run(server, "Raise pass@1 on the validation set.")
    assert server.failure is None, (server.failure, server.results[-1:])
    assert json.loads(done.stdout)["result"] == "The campaign is over."
    assert "What the experiments of this project have shown" in server.text()  # the hook of the session's start
    assert "evsys:deciding-experiments" in server.text()
    check_campaign(project)


@needs_codex
def test_codex_runs_a_campaign_of_three_rounds(codex: Agent, project: Path) -> None:
    with StandIn(lambda: do_research(codex)) as server:
        done = codex.run(server, "Raise pass@1 on the validation set.")
    assert server.failure is None, (server.failure, server.results[-1:])
    assert done.stdout.strip() == "The campaign is over."
    assert "What the experiments of this project have shown" in server.text()
    assert {f"mcp__evsys/{name}" for name in ("context", "validate", "launch", "status")} <= server.tool_names()
    check_campaign(project)


@needs_claude
def test_claude_is_stopped_and_told_why(claude: Agent, project: Path) -> None:
    before = evsys(project, "show", next((project / ".evsys" / "runs").glob("*_first")).name, "--json")["verdict"]

    def script() -> Script:
        yield Act("Skill", {"skill": "evsys:using-the-sdk"})
        config = {"file_path": str(project / "experiments" / "x" / "config.yaml"), "content": "name: x\nn_repeats: 0\n"}
        yield Act("Write", config)
        record = next((project / ".evsys" / "runs").glob("*_first")) / "conclusion.json"
        sealed = project / "data" / "benchmark" / "tickets_test" / "tasks.jsonl"
        yield from misbehave(
            claude, [Act("Write", {"file_path": str(path), "content": "{}"}) for path in (sealed, record)]
        )

    with StandIn(script) as server:
        claude.run(server, "Get a better score.")
    assert server.failure is None, (server.failure, server.results)
    tasks, record, launch = claude.said
    assert "sealed set of tasks" in tasks
    assert "record of experiments" in record
    assert "n_repeats: should be at least 1" in launch
    assert "Look things up instead of guessing" in server.text()  # the body of the skill
    assert "evsys validate refuses experiments/x/config.yaml" in server.text()  # the hook after the edit
    name = next((project / ".evsys" / "runs").glob("*_first")).name
    assert evsys(project, "show", name, "--json")["verdict"] == before
    assert evsys(project, "audit")


@needs_codex
def test_codex_is_told_why_a_config_cannot_be_launched(codex: Agent, project: Path) -> None:
    with StandIn(lambda: misbehave(codex)) as server:
        codex.run(server, "$evsys:using-the-sdk Get a better score.")
    assert server.failure is None, (server.failure, server.results)
    [launch] = codex.said
    assert "experiments/x/config.yaml" in launch
    assert "Look things up instead of guessing" in server.text()
    assert evsys(project, "audit")


@needs_claude
def test_claude_validates_installs_and_lists_the_plugin(plugin: Path, tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()

    def ask(*arguments: str) -> str:
        done = start([CLAUDE, "plugin", *arguments], tmp_path, claude_environment(home))
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    assert json.loads(ask("validate", str(plugin), "--strict", "--json"))["success"]
    ask("marketplace", "add", str(plugin))
    ask("install", "evsys@evsys-sdk")
    [listed] = json.loads(ask("list", "--json"))
    assert (listed["id"], listed["enabled"]) == ("evsys@evsys-sdk", True)
    details = ask("details", "evsys")
    assert "Skills (7)" in details
    assert "Agents (2)" in details
    assert "Hooks (3)" in details
    always = re.search(r"Always-on:\s+~(\d+) tok", details)
    assert always is not None
    assert int(always[1]) < 400


@needs_codex
def test_codex_lists_the_plugin(codex: Agent, tmp_path: Path) -> None:
    environment = {
        "HOME": str(tmp_path / "home"),
        "CODEX_HOME": str(tmp_path / "home" / "codex"),
        "PATH": "/usr/bin:/bin",
    }
    listed = start([CODEX, "plugin", "list"], tmp_path, environment).stdout
    assert re.search(r"evsys@evsys-sdk\s+installed, enabled", listed)
    assert '[plugins."evsys@evsys-sdk"]' in (tmp_path / "home" / "codex" / "config.toml").read_text("utf-8")
