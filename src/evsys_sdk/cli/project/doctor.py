"""`evsys doctor`: list what is installed, test a backend and store the result, or test this machine's sandboxes."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from ..options import import_option, json_option, quiet_option, read_params
from ..output import emit, fields

if TYPE_CHECKING:
    from ...backends.probes.facts import Facts, ProbedServer


@click.command()
@click.option("--backend", help="Backend to test, tinker with --base-url; evsys list backends shows all.")
@click.option("--base-url", "--server", help="Address of the server, for backends that have one.")
@click.option("--model", help="Model to test; by default the only one of the backend.")
@click.option(
    "--param", "params", multiple=True, metavar="KEY=VALUE", help="A further param of the backend. May be repeated."
)
@click.option("--sandbox", is_flag=True, help="Test the isolation of sandboxes on this machine instead.")
@click.option(
    "--markdown", is_flag=True, help="Print a Markdown table of losses and operations that match the documentation."
)
@click.option("--refresh", is_flag=True, help="Test again instead of using a stored result.")
@quiet_option
@json_option
@import_option
def doctor(
    backend: str | None,
    base_url: str | None,
    model: str | None,
    params: tuple[str, ...],
    sandbox: bool,
    markdown: bool,
    refresh: bool,
    quiet: bool,
    as_json: bool,
) -> int:
    """List what is installed here, or test a backend.

    The test shows how losses are summed, whether samplers keep their weights, and what resumes exactly. Its result is
    stored in .evsys/doctor and used by every later run on the same server: recipes that the server would silently
    corrupt are refused, and deviations that the SDK can correct are corrected.

    With --sandbox it tests this machine: which restrictions of the environment `bwrap` hold here.
    """
    if sandbox:
        return _check_sandbox(as_json)
    if backend is None and not (base_url or model or params or markdown or refresh):
        _list_installed(as_json)
        return 0
    backend = backend or "tinker"
    from ...backends.probes.facts import Facts, ProbedServer, consequences, list_operations, read_answer

    built = _build_backend(backend, base_url, params)
    server = ProbedServer(backend, _address(built), model or _only_model(built))
    answer = None if refresh else read_answer(server)
    cached = answer is not None
    if answer is None:
        answer = _probe(built, server, quiet)
    facts = Facts.from_dict(answer["facts"])
    stated = {**answer, "cached": cached, "path": str(server.path()), "consequences": consequences(facts)}
    stated["operations"] = list_operations(facts, answer["problems"])
    emit(stated, as_json, lambda: _print_markdown(stated) if markdown else _render(stated, facts))
    return 0


def _list_installed(as_json: bool) -> None:
    """Print the versions, the backends that can be used, and what each missing extra is for."""
    import platform

    from ..._version import __version__
    from ...registry import REGISTRIES, registry

    missing: dict[str, list[str]] = {}
    for group in REGISTRIES.values():
        for entry in group.entries():
            if entry.problem:
                missing.setdefault(entry.problem, []).append(f"{group.kind} {entry.name}")
    backends = [entry.name for entry in registry("backend").entries() if entry.available]
    versions = {"evsys-sdk": __version__, "python": platform.python_version()}
    answer = {"versions": versions, "backends": backends, "missing": missing}

    def render() -> None:
        click.echo(f"evsys-sdk {__version__}, Python {platform.python_version()}. Backends: {', '.join(backends)}.")
        if missing:
            click.echo("Optional, not installed:")
        click.echo(fields((problem, ", ".join(names)) for problem, names in missing.items()))
        click.echo("Test a backend with --backend NAME, and the sandboxes with --sandbox.")

    emit(answer, as_json, render)


def _check_sandbox(as_json: bool) -> int:
    import asyncio
    from dataclasses import asdict

    from ...rollouts.sandbox.promises import check_promises

    promises = asyncio.run(check_promises())
    missing = [promise.name for promise in promises if promise.held is False]
    stated = {"promises": [asdict(promise) for promise in promises], "missing": missing}

    def render() -> None:
        words = {True: "yes", False: "NO", None: "not here"}
        rows = ((promise.name, f"{words[promise.held]}, {promise.found}: {promise.meaning}") for promise in promises)
        click.echo(fields(rows))
        if missing:
            click.echo(f"Missing: {', '.join(missing)}. Run no model's code in environment 'bwrap' here.", err=True)

    emit(stated, as_json, render)
    return 1 if missing else 0


def _build_backend(kind: str, base_url: str | None, params: tuple[str, ...]) -> Any:
    from pydantic import ValidationError

    from ...config.checks.problems import problems_in
    from ...errors import ConfigError
    from ...registry import config_model, get_backend

    extension = get_backend(kind)
    values = read_params(params, "--param") | ({} if base_url is None else {"base_url": base_url})
    try:
        return extension(**values)
    except ValidationError as error:
        model = config_model(extension)
        assert model is not None  # an extension without params raises no ValidationError
        raise ConfigError(problems_in(error, model=model, data=values)) from None


def _address(backend: Any) -> str:
    """The server's address; empty for backends in this process."""
    from ...backends.tinker.backend import TinkerBackend
    from ...backends.tinker.session import resolve_url

    return resolve_url(backend.config) if isinstance(backend, TinkerBackend) else ""


def _only_model(backend: Any) -> str:
    from ...errors import ConfigError, Problem

    names: list[str] = backend.model_names() if hasattr(backend, "model_names") else []
    if len(names) == 1:
        return names[0]
    known = f"The server has {', '.join(names[:20])}." if names else "Name any that the backend has."
    raise ConfigError(Problem("the model to test is missing", path="--model", hint=known))


def _probe(backend: Any, server: ProbedServer, quiet: bool) -> dict[str, Any]:
    import tempfile
    from pathlib import Path

    from ...backends.client import ModelSpec
    from ...backends.probes.facts import write_answer
    from ...backends.probes.probe import probe

    probed = backend.for_probing(server.model) if hasattr(backend, "for_probing") else backend

    def progress(name: str) -> None:
        if not quiet:
            click.echo(f"probing {name}", err=True)

    with tempfile.TemporaryDirectory() as folder:

        def prepare(model: str) -> dict[str, Any]:
            return probed.prepare(model=ModelSpec(model, lora_rank=8), run_dir=Path(folder))

        facts, problems = probe(prepare, server.model, probed.teardown, progress)
    return write_answer(server, facts, problems)


def _render(stated: dict[str, Any], facts: Facts) -> None:
    from ...backends.probes.facts import MEANING

    problems: dict[str, str] = stated["problems"]
    results = {name: _show(name, getattr(facts, name), problems) for name in MEANING}
    where = f"at {stated['base_url']}" if stated["base_url"] else "in this process"
    click.echo(f"{stated['backend']} {where}, model {stated['model']}, asked {stated['asked_at']}")
    click.echo(fields((name, f"{value} ({MEANING[name]})") for name, value in results.items()))
    for sentence in stated["consequences"]:
        click.echo(sentence)
    for name, problem in problems.items():
        click.echo(f"{name}: {problem}", err=True)
    if stated["cached"]:
        click.echo("This is a stored result; test again with --refresh.", err=True)
    sys.stdout.flush()


def _print_markdown(stated: dict[str, Any]) -> None:
    """Print a Markdown table for publication, without the address of the server."""
    versions = ", ".join(f"{name} {version}" for name, version in stated["versions"].items())
    click.echo(f"`{stated['backend']}`, model `{stated['model']}`, {stated['asked_at'][:10]}, {versions}\n")
    click.echo("| loss or operation | as documented | result |\n|---|---|---|")
    words = {True: "yes", False: "**no**", None: "not known"}
    for row in stated["operations"]:
        result = " ".join(row["found"].replace("|", "\\|").split())
        click.echo(f"| {row['operation']} | {words[row['as_documented']]} | {result} |")


def _show(name: str, value: Any, problems: dict[str, str]) -> str:
    from ...backends.probes.facts import AS_DOCUMENTED

    if value is None:
        return "failed" if name in problems else "not known"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if name == "loss_checks":
        checks: dict[str, str] = value
        return f"{list(checks.values()).count(AS_DOCUMENTED)} of {len(checks)}"
    if isinstance(value, tuple):
        return ", ".join(str(element) for element in value)  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
    return f"{value:.4g}" if isinstance(value, float) else str(value)
