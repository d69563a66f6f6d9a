"""The MCP tools, over the JSON of the command line. None can edit tasks, a budget or a record."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, Final, cast

from ...paths import project_root
from .commands import ToolError, ToolInvocation, shorten
from .protocol import Json, Tool

_POLL_S = 0.5
_MOST_WAIT_S = 50
_EXPERIMENT: Final[Json] = {"type": "string", "description": "Id, name or folder."}
_CONFIG: Final[Json] = {"type": "string", "description": "Path of the YAML file."}


# Values of a model come after `--` or in one word with their option, so that they are never read as options.


def _options(arguments: Json, *names: str) -> list[str]:
    return [f"--{name}={arguments[name]}" for name in names if arguments.get(name)]


def _get_context(call: ToolInvocation, arguments: Json) -> Any:
    budget = f"--budget-tokens={arguments.get('budget_tokens', 2000)}"
    return call.evsys("context", "--json", budget, *_options(arguments, "goal"))


def _list_experiments(call: ToolInvocation, arguments: Json) -> Any:
    options = _options({"limit": 20, **arguments}, "limit", "status", "verdict", "search")
    return shorten(call.evsys("history", "--json", *options))


def _get_experiment(call: ToolInvocation, arguments: Json) -> Any:
    """`evsys show` without empty fields and parts that repeat the conclusion, to keep the answer short."""
    shown = call.evsys("show", "--json", "--", arguments["experiment"])
    for arm in shown["arms"]:
        arm["metrics"] = {name: value for name, value in arm["metrics"].items() if _is_score(name)}
    for key in ("config_sha256", "artifacts", "checkpoints"):
        shown.pop(key, None)
    return shorten(_without_empty(shown))


def _is_score(metric: str) -> bool:
    """Whether a metric is a main number, not a standard error, a breakdown, or one of the baseline."""
    is_detail = "=" in metric or metric.endswith(("/stderr", "/tasks")) or metric.startswith("baseline/")
    return not is_detail and ("/" in metric or metric in ("steps", "final_loss"))


def _without_empty(value: Any) -> Any:
    if isinstance(value, dict):
        inner = {key: _without_empty(entry) for key, entry in cast("Json", value).items()}
        return {key: entry for key, entry in inner.items() if entry not in (None, "", [], {})}
    return [_without_empty(entry) for entry in cast("list[Any]", value)] if isinstance(value, list) else value


def _get_schema(call: ToolInvocation, arguments: Json) -> Any:
    if arguments.get("name"):
        if not arguments.get("kind"):
            raise ToolError("schema: a name needs its kind, e.g. kind: algorithm, name: sft.")
        return call.evsys("schema", "--json", "--", arguments["kind"], arguments["name"])
    return shorten(call.evsys("list", "--json", "--", *([arguments["kind"]] if arguments.get("kind") else [])))


def _config_of(arguments: Json) -> str:
    """The path of a config in this project. Other files are refused, because error messages quote their content."""
    path, root = Path(arguments["config"]), project_root()
    real = path.resolve()
    if real.suffix not in (".yaml", ".yml", ".json") or not real.is_relative_to(root):
        raise ToolError(f"config: '{path}' is no YAML file of this project ({root}). Give one that is.")
    return str(path)


def _validate(call: ToolInvocation, arguments: Json) -> Any:
    """The plan with its hash, or all problems of the config."""
    config = _config_of(arguments)
    try:
        plan = call.evsys("plan", "--json", "--", config)
    except ToolError:
        call.evsys("validate", "--deep", "--json", "--", config)  # reports all problems
        raise
    return shorten({"ok": True, "plan_hash": plan.pop("hash"), "plan": plan})


def _launch(call: ToolInvocation, arguments: Json) -> Any:
    options = ["--detach", "--json", "--quiet", f"--plan={arguments['plan_hash']}"]
    return call.evsys("run", *options, "--", _config_of(arguments))


def _get_status(call: ToolInvocation, arguments: Json) -> Any:
    selection = ["--", arguments["experiment"]] if arguments.get("experiment") else []
    deadline = time.monotonic() + arguments.get("wait_s", 0)
    while True:
        status = call.evsys("status", "--json", *selection)
        if not selection or status["state"] != "running" or time.monotonic() >= deadline:
            return shorten(status)
        time.sleep(_POLL_S)


def _get_logs(call: ToolInvocation, arguments: Json) -> Any:
    options, what = _options({"last": 20, **arguments}, "last", "arm"), arguments.get("what", "console")
    options += ["--metrics"] if what == "metrics" else [f"--rollouts={what}"] if what != "console" else []
    return shorten(call.evsys("logs", "--json", *options, "--", arguments["experiment"]))


def _get_errors(call: ToolInvocation, arguments: Json) -> Any:
    options = _options({"limit": 10, **arguments}, "limit", "arm", "search")
    return shorten(call.evsys("errors", "--json", *options, "--", arguments["experiment"]))


def _compare(call: ToolInvocation, arguments: Json) -> Any:
    return shorten(_without_empty(call.evsys("compare", "--json", "--", arguments["first"], arguments["second"])))


def _get_campaign(call: ToolInvocation, arguments: Json) -> Any:
    """All campaigns, or the state of one with its next step if it has a portfolio."""
    if not arguments.get("name"):
        return shorten(call.evsys("campaign", "list", "--json"))
    shown = call.evsys("campaign", "show", "--json", "--", arguments["name"])
    if shown["terms"].get("portfolio"):
        shown["next"] = call.evsys("campaign", "next", "--json", "--", arguments["name"])
    return shorten(_without_empty(shown))


TOOLS: Final = (
    Tool(
        "context",
        "What all experiments have shown: best runs, effects of changes, claims, untried, failed. Read first.",
        _get_context,
        {"goal": {"type": "string"}, "budget_tokens": {"type": "integer", "minimum": 200, "maximum": 8000}},
    ),
    Tool(
        "list_experiments",
        "Experiments on record, newest first.",
        _list_experiments,
        {
            "status": {"type": "string", "enum": ["running", "killed", "completed", "failed", "interrupted", "budget"]},
            "verdict": {
                "type": "string",
                "enum": ["supported", "promising_unconfirmed", "inconclusive", "refuted", "invalid", "none"],
            },
            "search": {"type": "string", "description": "All words must occur."},
            "limit": {"type": "integer", "minimum": 1, "maximum": 100},
        },
    ),
    Tool(
        "get_experiment",
        "One experiment: verdict, runs with intervals, failures, config, and how to continue.",
        _get_experiment,
        {"experiment": _EXPERIMENT},
        ["experiment"],
    ),
    Tool(
        "schema",
        "Names that a config may use, of all kinds or of one; with a name, its params as JSON schema.",
        _get_schema,
        {"kind": {"type": "string", "description": "algorithm, backend, transform ..."}, "name": {"type": "string"}},
    ),
    Tool(
        "validate",
        "Check a config deeply and plan it: every problem with its remedy, or steps, tokens, cost, the smallest effect "
        "it could show, and the plan_hash that launch needs.",
        _validate,
        {"config": _CONFIG},
        ["config"],
    ),
    Tool(
        "launch",
        "Run a validated config in the background; returns at once. Refused if anything changed since validate.",
        _launch,
        {"config": _CONFIG, "plan_hash": {"type": "string", "description": "From validate."}},
        ["config", "plan_hash"],
        reads_only=False,
    ),
    Tool(
        "status",
        "Experiment status, arm by arm; without one, all that run. Waits up to wait_s for its end.",
        _get_status,
        {"experiment": _EXPERIMENT, "wait_s": {"type": "number", "minimum": 0, "maximum": _MOST_WAIT_S}},
    ),
    Tool(
        "logs",
        "The end of what an experiment printed, of an arm's metrics, or of its scored answers (val, test, training).",
        _get_logs,
        {
            "experiment": _EXPERIMENT,
            "what": {"type": "string", "enum": ["console", "metrics", "val", "test", "training"]},
            "arm": {"type": "string"},
            "last": {"type": "integer", "minimum": 1, "maximum": 200},
        },
        ["experiment"],
    ),
    Tool(
        "cancel",
        "Stop a running experiment cleanly; it can be resumed.",
        lambda call, arguments: call.evsys("cancel", "--json", "--wait=30", "--", arguments["experiment"]),
        {"experiment": _EXPERIMENT},
        ["experiment"],
        reads_only=False,
    ),
    Tool(
        "note",
        "Add a lesson to the record of an experiment.",
        lambda call, arguments: call.evsys(
            "note", "--json", "--author=agent", "--", arguments["experiment"], arguments["text"]
        ),
        {"experiment": _EXPERIMENT, "text": {"type": "string", "maxLength": 4000}},
        ["experiment", "text"],
        reads_only=False,
    ),
    Tool(
        "audit",
        "Check whether the record of an experiment agrees with itself: hashes, scores, conclusion.",
        lambda call, arguments: shorten(_without_empty(call.evsys("audit", "--json", "--", arguments["experiment"]))),
        {"experiment": _EXPERIMENT},
        ["experiment"],
    ),
    Tool(
        "compare",
        "Two runs task by task, with what differs in their configs.",
        _compare,
        {"first": {"type": "string", "description": "EXPERIMENT or EXPERIMENT:RUN."}, "second": {"type": "string"}},
        ["first", "second"],
    ),
    Tool(
        "errors",
        "Answers that an experiment got wrong, with prompt and expected answer.",
        _get_errors,
        {
            "experiment": _EXPERIMENT,
            "arm": {"type": "string"},
            "search": {"type": "string"},
            "limit": {"type": "integer", "minimum": 1, "maximum": 100},
        },
        ["experiment"],
    ),
    Tool(
        "campaign",
        "State, budget, decisions and next step of a campaign; without a name, all campaigns.",
        _get_campaign,
        {"name": {"type": "string"}},
    ),
)
