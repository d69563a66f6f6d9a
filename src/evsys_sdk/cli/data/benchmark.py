"""`evsys benchmark`: the benchmarks of the workspace.

The verb `run` scores any inference client, and continues an aborted scoring.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..options import AT_LEAST_ONE, POSITIVE, import_option, json_option, quiet_option, read_json, read_params
from ..output import ProgressLine, emit, print_text, table
from .workspace import upload_verb, workspace_group

if TYPE_CHECKING:
    from ...config.specs import EnvironmentSpec
    from ...eval.benchmark import Benchmark, ScoreSettings
    from ...eval.scores import EvalResult
    from ...history.pairs import PairedDifference
    from ...rollouts.harness import Harness


@click.command("run")
@click.argument("ref", metavar="NAME_OR_PATH")
@click.option("--inference", "kind", required=True, metavar="KIND", help="Registered inference client to score.")
@click.option("--params", metavar="JSON", help='Params of the client, e.g. \'{"model": "gpt-4.1"}\'.')
@click.option("--samples", default=1, type=AT_LEAST_ONE, help="Samples per task.")
@click.option("--metrics", default="pass@1", help="Metrics to report, separated by commas.")
@click.option(
    "--breakdown",
    default="",
    show_default=False,
    metavar="KEYS",
    help="Metadata keys; each value gets separate scores.",
)
@click.option("--temperature", type=click.FloatRange(min=0), help="By default 0 for one sample, 1 for several.")
@click.option("--max-tokens", default=1024, type=AT_LEAST_ONE, help="Token limit of an answer.")
@click.option("--n-tasks", type=AT_LEAST_ONE, help="Score only this many tasks, from the first.")
@click.option("--concurrency", default=32, type=AT_LEAST_ONE, help="Concurrent rollouts.")
@click.option("--timeout", "timeout_s", default=600.0, type=POSITIVE, help="Time limit of a rollout in seconds.")
@click.option(
    "--agent",
    metavar="KIND_OR_IMPORT_PATH",
    help="Agent that drives the model: a registered one, or package.module:Class; by default one question and answer.",
)
@click.option("--agent-param", "agent_params", multiple=True, metavar="KEY=VALUE", help="A param of the agent.")
@click.option("--environment", help="Registered environment of the agent's commands.")
@click.option("--engine", default="inline", help="Rollout engine.")
@click.option("--seed", default=0, help="Seed of the samples, if the client supports it.")
@click.option(
    "-o",
    "--output-dir",
    "--output",
    "output",
    type=click.Path(file_okay=False),
    help="Folder of predictions.jsonl and result.json; by default one below outputs/benchmarks.",
)
@quiet_option
@json_option
@import_option
def run(ref: str, kind: str, params: str | None, output: str | None, quiet: bool, as_json: bool, **options: Any) -> int:
    """Score an inference client on a benchmark.

    NAME_OR_PATH is a JSONL file or folder of tasks, or a name or id in the workspace. The same command continues an
    interrupted scoring; failed rollouts are repeated.
    """
    from ...config import InferenceSpec
    from ...data.workspace.reference import slug
    from ...eval.scored_model import as_scored_model, open_client
    from ...record.project_files.known_folders import write_scoring

    spec = InferenceSpec(kind=kind, params=read_json(params, "--params"))
    settings = _settings(**options)
    benchmark = _load(ref)
    _check_metrics(settings, benchmark)
    client = open_client(spec.kind, spec.params)
    model = as_scored_model(client, ref=_identity(spec.kind, spec.params))
    folder = Path(output) if output else Path("outputs", "benchmarks", slug(benchmark.name), slug(model.ref))
    progress = None if quiet else ProgressLine(benchmark.name)
    try:
        result = benchmark.score(model, settings, journal=folder / "predictions.jsonl", progress=progress)
    finally:
        if callable(close := getattr(client, "close", None)):
            close()
    settled = {"samples": settings.samples, **settings.identity}
    answer = write_scoring(folder, "benchmark run", {**result.to_dict(), "settings": settled, "output": str(folder)})
    emit(answer, as_json, lambda: _render(result, folder))
    return 2 if result.problem else 0


def _settings(
    *,
    samples: int,
    metrics: str,
    breakdown: str,
    temperature: float | None,
    max_tokens: int,
    n_tasks: int | None,
    concurrency: int,
    timeout_s: float,
    agent: str | None,
    agent_params: tuple[str, ...],
    environment: str | None,
    engine: str,
    seed: int,
) -> ScoreSettings:
    from ...config.specs import EnvironmentSpec
    from ...eval.benchmark import ScoreSettings, check_engine
    from ...eval.metric import build_metric
    from ...eval.scored_model import Sampling
    from ...rollouts.engine import EngineLimits

    names = [name for name in metrics.split(",") if name]
    for name in names:
        build_metric(name)  # refuse unknown names before the scoring
    check_engine(engine)
    return ScoreSettings(
        samples=samples,
        # several samples at temperature 0 would be equal
        sampling=Sampling(max_tokens, float(samples > 1) if temperature is None else temperature, seed),
        harness=_harness(agent, agent_params, EnvironmentSpec(kind=environment) if environment else None),
        engine=engine,
        limits=EngineLimits(concurrency=concurrency, timeout_s=timeout_s),
        metrics=names,
        breakdown_keys=[key for key in breakdown.split(",") if key],
        n_tasks=n_tasks,
    )


def _harness(agent: str | None, pairs: tuple[str, ...], environment: EnvironmentSpec | None) -> Harness:
    """The agent by its registered kind or by its import path, with its params."""
    from ...config.specs import AgentSpec
    from ...registry import list_agents
    from ...rollouts.harness import build_harness

    params = read_params(pairs, "--agent-param")
    if agent is not None and agent not in list_agents() and ("." in agent or ":" in agent):
        return build_harness(None, environment, agent_import_path=agent, import_params=params)
    if agent is None and params:
        raise click.BadParameter("the params have no agent. Add --agent.", param_hint="--agent-param")
    return build_harness(AgentSpec(kind=agent, params=params) if agent else None, environment)


def _check_metrics(settings: ScoreSettings, benchmark: Benchmark) -> None:
    from ...errors import ConfigError, Problem

    problems = settings.metric_problems(benchmark.tasks[: settings.n_tasks])
    if problems:
        options = [(reason, remedy.replace("Set samples: ", "Add --samples ")) for _, reason, remedy in problems]
        raise ConfigError([Problem(reason, path="--metrics", hint=remedy) for reason, remedy in options])


def _load(ref: str) -> Benchmark:
    from ...errors import WorkspaceError
    from ...eval.benchmark import Benchmark
    from ...record.project_files.sealed import seal_files

    if Path(ref).exists():
        benchmark = Benchmark.load(path=ref)
        seal_files([Path(ref)])
        return benchmark
    try:
        return Benchmark.load(name=ref)
    except WorkspaceError as unknown:
        try:
            return Benchmark.load(id=ref)
        except WorkspaceError:  # most references are names, so the message about names helps more
            raise unknown from None


def _identity(kind: str, params: dict[str, Any]) -> str:
    """The identity of the model, so that stored predictions of other models or params are not reused."""
    from ...data.digest import digest

    # Without API keys, which do not change the answers and must not be stored, not even as a hash.
    named = [key for key in ("model", "checkpoint", "adapter_path", "checkpoint_path") if params.get(key)]
    others = {key: value for key, value in params.items() if key not in named and "key" not in key.lower()}
    suffix = f"@{digest(others).hex()[:8]}" if others else ""
    return ":".join([kind, *(str(params[key]) for key in named)]) + suffix


def _render(result: EvalResult, folder: Path) -> None:
    rows = [
        (name, f"{score.value:.4g}", "-" if score.stderr is None else f"{score.stderr:.2g}", score.n_tasks)
        for name, score in result.metrics.items()
    ]
    for key, groups in result.breakdown.items():
        for value, scores in groups.items():
            for name, score in scores.items():
                error = "-" if score.stderr is None else f"{score.stderr:.2g}"
                rows.append((f"{name} {key}={value}", f"{score.value:.4g}", error, score.n_tasks))
    click.echo(table(("metric", "value", "stderr", "tasks"), rows))
    cost = "unknown" if result.cost_usd is None else f"{result.cost_usd:.4g} USD"
    click.echo(
        f"model: {result.model}\ntokens: {result.tokens}\ncost: {cost}\nfailed: {result.n_failed}\noutput: {folder}"
    )
    if result.note:
        print_text(f"note: {result.note}", err=True)
    if result.problem:
        click.echo(f"{result.problem}. Run the same command again to repeat what failed.", err=True)


@click.command("restore")
@click.argument("paths", nargs=-1, type=click.Path())
@click.option("--keep", is_flag=True, help="Accept the present content instead.")
@json_option
def restore(paths: tuple[str, ...], keep: bool, as_json: bool) -> int:
    """Restore task files to their content at first use: all changed files, or PATHS."""
    from ...record.project_files.sealed import find_changed, restore_files, seal_files

    chosen = [Path(path).resolve() for path in paths]
    changed = [
        sealed for sealed in find_changed() if not chosen or any(sealed.file.is_relative_to(path) for path in chosen)
    ]
    if keep:
        changed = [sealed for sealed in changed if sealed.file.exists()]
        seal_files((sealed.file for sealed in changed), again=True)
    lost = [] if keep else restore_files(changed)
    done = [sealed.path for sealed in changed if sealed not in lost]
    answer = {"kept" if keep else "restored": done, "lost": [sealed.path for sealed in lost]}

    def render() -> None:
        for path in done:
            click.echo(f"{'accepted' if keep else 'restored'}: {path}")
        for sealed in lost:
            click.echo(
                f"{sealed.path}: its copy {sealed.copy} is gone or damaged. Restore it from version control.", err=True
            )
        if not changed:
            click.echo("No task file in use has changed.")

    emit(answer, as_json, render)
    return 1 if lost else 0


_LOG = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.command("import")
@click.argument("log", type=_LOG)
@click.option("--against", type=_LOG, help="Log of another run of the same task, for a comparison by sample.")
@click.option("--scorer", metavar="NAME[/KEY]", help="The score to read, if a log has several.")
@json_option
def import_logs(log: Path, against: Path | None, scorer: str | None, as_json: bool) -> int:
    """Read a log of inspect_ai (.eval or .json), and compare it with another log."""
    from ...eval.foreign_run import read_inspect_log
    from ...history.foreign_runs import compare_foreign_runs

    run = read_inspect_log(log, scorer=scorer)
    result = run.to_result()
    answer: dict[str, Any] = {**result.to_dict(), "program": run.program, "status": run.status, "by_task": run.by_task}
    pair = None
    if against is not None:
        pair = compare_foreign_runs(read_inspect_log(against, scorer=scorer), run)
        answer["difference"] = pair.to_dict()
    emit(answer, as_json, lambda: _render_log(result, pair))
    return 2 if result.n_failed or run.status != "success" else 0


def _render_log(result: EvalResult, pair: PairedDifference | None) -> None:
    score = result.metrics.get("mean_reward")
    shown = "no score" if score is None else f"mean_reward {score.value:.4g}"
    shown += "" if score is None or score.stderr is None else f" (standard error {score.stderr:.2g})"
    click.echo(f"{result.benchmark}: {result.model}: {shown}, {result.n_tasks} samples")
    if result.n_failed:
        click.echo(f"{result.n_failed} of {len(result.predictions)} samples failed and are not counted.")
    if pair is not None:
        interval = "" if pair.low is None or pair.high is None else f" [{pair.low:+.3g}, {pair.high:+.3g}]"
        click.echo(f"difference: {pair.difference:+.3g}{interval}, paired over {pair.n_tasks or 0} samples")
        if pair.remark:
            click.echo(f"note: {pair.remark}")


benchmark = workspace_group("benchmark", "List, inspect, add, verify, run, import and restore benchmarks.")
benchmark.add_command(upload_verb("benchmark"))
benchmark.add_command(run)
benchmark.add_command(import_logs)
benchmark.add_command(restore)
