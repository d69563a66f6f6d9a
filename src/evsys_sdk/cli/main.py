"""The `evsys` command: runs a verb and converts expected errors to a message and an exit code.

Exit codes: 0 done, 1 bad input, 2 an arm failed or is unscored, 3 stopped by budget, 130 interrupted.
"""

from __future__ import annotations

import gc
import os
import re
import sys
from importlib import import_module
from typing import Any

import click

from .._version import __version__
from ..redact import redact_output, redact_text
from ..user_code import Containment, default_limit_s, isolate_user_code, release_output, report_exit

COMMANDS = {
    "init-project": ("project.project", "Create a research project that runs as it is."),
    "new-experiment": ("project.project", "Write the next experiment of a project."),
    "validate": ("experiment.validate", "Check a config and report all of its problems."),
    "contamination": ("data.contamination", "Find benchmark tasks in training rows."),
    "plan": ("experiment.plan", "Estimate steps, tokens, cost and time of an experiment."),
    "run": ("experiment.run", "Train and score every arm of an experiment."),
    "status": ("experiment.jobs", "Show the status of one experiment, or list running ones."),
    "attach": ("experiment.jobs", "Follow a background experiment until it ends."),
    "approve": ("experiment.jobs", "Approve or reject what waits for approval."),
    "alerts": ("experiment.jobs", "Send alerts to webhooks and commands."),
    "cancel": ("experiment.jobs", "Stop a running experiment; it can be resumed."),
    "logs": ("experiment.jobs", "Show the last output, metrics or answers of an experiment."),
    "list": ("project.registry", "List the extensions that a config can name."),
    "schema": ("project.registry", "Print the JSON schema of one extension's params."),
    "dataset": ("data.workspace", "List, inspect, add, verify and upload datasets."),
    "benchmark": ("data.benchmark", "List, inspect, add, verify, run and restore benchmarks."),
    "eval": ("experiment.eval", "Score a model without training it."),
    "conclude": ("record.audit", "Recompute the conclusion of an experiment."),
    "audit": ("record.audit", "Recompute an experiment's hashes, scores and conclusion."),
    "history": ("record.history", "List the experiments on this machine."),
    "import": ("record.experiments", "Record training runs of tinker-cookbook."),
    "show": ("record.experiments", "Show the result of one experiment, and what to do next."),
    "rollouts": ("record.rollouts", "Show the training rollouts of a run."),
    "compare": ("record.experiments", "Compare experiments: config, scores task by task, curves."),
    "errors": ("record.experiments", "Show the answers that an experiment got wrong."),
    "export": ("record.experiments", "Write the best weights of an experiment to a folder."),
    "verify": ("record.experiments", "Check an exported folder against its dossier."),
    "context": ("record.history", "Summarise all experiments for an agent, within a token budget."),
    "note": ("record.experiments", "Add a note to the record of an experiment."),
    "invalidate": ("record.experiments", "Exclude an experiment from the results."),
    "dashboard": ("serve.dashboard", "Show the experiments in a browser, or serve them to others."),
    "sync": ("serve.dashboard", "Send what a dashboard has not received yet."),
    "serve": ("serve.serve", "Serve models: the Tinker protocol and OpenAI's API."),
    "loop": ("loop.loop", "Run the closed loop of a deployed system."),
    "trigger": ("loop.loop", "Decide whether new traces justify a training round."),
    "traces": ("data.traces", "Import conversations of deployed systems as data."),
    "gate": ("loop.deploy", "Decide whether weights may replace the live ones."),
    "deploy": ("loop.deploy", "Deploy the weights of a run and record it."),
    "deployments": ("loop.deploy", "List, show and roll back deployments."),
    "doctor": ("project.doctor", "Test what a backend supports and store the result."),
    "mcp": ("mcp", "Serve tools to coding agents (MCP over stdio)."),
    "campaign": ("loop.campaign", "Run a campaign: a question, a budget, a stopping rule."),
    "skills": ("project.project", "List or install the skills for coding agents."),
    "completion": ("project.project", "Print the shell completion script."),
}
"""Verb -> (module below `evsys_sdk.cli`, one line of help). The module is imported when the verb is called."""
GROUPS = {
    "Start": ("init-project", "new-experiment", "list", "schema", "dataset", "benchmark"),
    "Run": ("validate", "plan", "run", "status", "logs", "cancel", "eval"),
    "Read": ("history", "show", "compare", "errors", "rollouts", "context", "conclude", "audit"),
    "Share": ("dashboard", "note", "campaign"),
    "Ship": ("traces", "loop", "gate", "deploy"),
    "Serve": ("serve", "mcp"),
}
"""Sections of `evsys --help`; the other verbs are named in one line."""


_PLACE = re.compile(r"^\S[^:\n]*:\d+(:\d+)?:")
"""`file:line:column:` in front of an error message."""


class LazyGroup(click.Group):
    """A click group that lists its verbs without importing them."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module = import_module(f".{COMMANDS[cmd_name][0]}", __package__)
        # `list` would hide the built-in, and `import` is a keyword.
        return getattr(module, f"{cmd_name}_" if cmd_name in ("import", "list") else cmd_name.replace("-", "_"))

    # click's method reads the help of each command, which would import all of them.
    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for title, names in GROUPS.items():
            with formatter.section(title):
                formatter.write_dl([(name, COMMANDS[name][1]) for name in names])
        shown = {name for names in GROUPS.values() for name in names}
        with formatter.section("More (evsys VERB --help)"):
            formatter.write_text(", ".join(name for name in COMMANDS if name not in shown))

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        from ..errors import closest

        name = args[0]
        if name not in COMMANDS and not ctx.resilient_parsing:
            guess = next((one for one in COMMANDS if one.startswith(f"{name}-")), None) or closest(name, COMMANDS)
            hint = f" Did you mean '{guess}'?" if guess else f" Commands: {', '.join(COMMANDS)}."
            ctx.fail(f"No such command '{name}'.{hint}")
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:  # the reader (head, less) closed the pipe
            _silence_stdout()
            ctx.exit(0)


@click.group(
    cls=LazyGroup,
    context_settings={
        "help_option_names": ["-h", "--help"],
        "max_content_width": 100,
        "show_default": True,
        "color": False if os.environ.get("NO_COLOR") else None,
    },
)
@click.version_option(__version__, "--version", prog_name="evsys", message="%(prog)s %(version)s")
@click.option("--log-level", envvar="EVSYS_LOGGING_LEVEL", default="warning", help="How much to log to stderr.")
def evsys(log_level: str) -> None:
    """Turn a coding agent into a model lab: one YAML file is one LLM-training experiment."""
    from ..log import configure_logger

    try:
        configure_logger(log_level)
    except ValueError:
        raise click.BadParameter(
            f"'{log_level}' is not a log level. Choose debug, info, warning or error.", param_hint="--log-level"
        ) from None


def main(argv: list[str] | None = None) -> int:
    """Run the command line and return its exit code; all output is redacted."""
    before = redact_output()
    if argv is None:  # the program itself, not a call from Python
        isolate_user_code(lambda message: _report(message, "--json" in sys.argv[1:]), _containment(sys.argv[1:]))
    code = 1
    try:
        code = _run(argv)
    finally:
        report_exit(code)
    # Not after an exception, which Python prints after this function and which may contain a secret.
    sys.stdout, sys.stderr = before
    if argv is None:
        gc.freeze()  # Python's last search for garbage takes a sixth of the time of a quick command
    return code


_UNCONTAINED = ("run", "campaign", "loop", "serve", "mcp", "dashboard", "attach")
"""Verbs that run until they are stopped, or that limit each call of user code themselves."""
_SCORING = ("eval", "benchmark", "gate", "deploy", "doctor", "export")
"""Verbs with long steps, such as rollouts or uploads."""


_USES_TASKS = ("run", "validate", "plan", "eval", "benchmark", "gate", "deploy", "audit", "conclude", "loop")
"""Verbs that warn about task files that changed since their first use."""


def _report_changed_tasks(arguments: list[str]) -> None:
    if _verb(arguments) not in _USES_TASKS or "restore" in arguments:
        return
    from ..paths import workspace_dir
    from ..record.layout import SEALS

    if (workspace_dir() / SEALS).exists():
        from ..record.project_files.sealed import find_changed
        from .output import print_warnings

        print_warnings(str(sealed) for sealed in find_changed())


def _verb(arguments: list[str]) -> str:
    return next((argument for argument in arguments if argument in COMMANDS), "")


def _containment(arguments: list[str]) -> Containment | None:
    """The limits of user code in a command; None for verbs without limits."""
    verb = _verb(arguments)
    if verb in _UNCONTAINED:
        return None
    scores = verb in _SCORING
    return Containment(f"evsys {verb}".strip(), default_limit_s(3600 if scores else 600), 2 if scores else 1)


def _invoke(arguments: list[str]) -> int:
    try:
        _report_changed_tasks(arguments)
        code = evsys.main(args=arguments, prog_name="evsys", standalone_mode=False)
    finally:
        release_output()
    return code if isinstance(code, int) else 0


def _run(argv: list[str] | None) -> int:
    """Run a command and convert its errors to output and an exit code."""
    arguments = sys.argv[1:] if argv is None else argv
    as_json = "--json" in arguments  # click may fail to parse the arguments
    try:
        return _invoke(arguments)
    except click.ClickException as error:
        error.show()
        _answer({"error": type(error).__name__, "message": error.format_message()}, as_json)
        return 1
    except (click.Abort, KeyboardInterrupt):
        click.echo("Interrupted.", err=True)
        return 130
    except Exception as error:
        code = _explain(error, as_json)
        if code is None:
            raise
        return code
    except BaseException as error:  # from user code: click returns exit codes here
        what = f"called sys.exit({error.code!r})" if isinstance(error, SystemExit) else f"raised {error!r:.2000}"
        _report(f"the code of this project {what}. Raise an Exception instead.", as_json)
        return 1


def _explain(error: Exception, as_json: bool) -> int | None:
    """Print an expected error and return its exit code; None for a bug."""
    from ..errors import EvsysError, blame_user_code, clean  # imported here to keep --help fast

    if isinstance(error, EvsysError):
        from .output import wrap

        for line in wrap(redact_text(str(error)), err=True).split(
            "\n"
        ):  # redacted as a whole, because a secret may have several lines
            click.echo(_PLACE.sub(lambda place: click.style(place[0], bold=True), line), err=True)
        _answer(error.to_dict(), as_json)
        return error.exit_code
    place = blame_user_code(error)
    if place or isinstance(error, OSError):  # user code or the system, not a bug of evsys: no traceback
        from ..log import get_logger

        get_logger().debug("Where it happened:", exc_info=True)
        what = f"{type(error).__name__}: {error}".removesuffix(": ")
        message = clean(f"{place}: {what}. Correct that code." if place else str(error))
        click.echo(message, err=True)
        _answer({"error": type(error).__name__, "message": message}, as_json)
        return 1
    return None


def _report(message: str, as_json: bool) -> None:
    """Report an error of user code."""
    from ..errors import clean
    from .output import print_text

    message = clean(message)
    print_text(message, err=True)
    _answer({"error": "UserCodeError", "message": message}, as_json)


def _answer(error: dict[str, Any], as_json: bool) -> None:
    from .output import emit

    try:
        emit(error, as_json, lambda: None)
    except OSError:  # stdout cannot be written; the message is on stderr
        _silence_stdout()


def _silence_stdout() -> None:
    """Redirect stdout to nothing, so that Python does not fail to flush it at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
