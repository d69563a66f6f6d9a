"""`evsys eval`: score a model that exists already."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..options import AT_LEAST_ONE, import_option, json_option, quiet_option, read_json
from ..output import ProgressLine, emit

if TYPE_CHECKING:
    from ...eval import EvalArtifacts, ModelEvalConfig


eval = click.Group("eval", help="Score a model without training it.")  # named after its verb, as every command is


@eval.command("model")
@click.option("--dataset", required=True, type=click.Path(), help="JSONL with a query and a tool_slug in each row.")
@click.option("--aliases", required=True, type=click.Path(), help="JSON: slug -> slugs that count as the same.")
@click.option("--secondary-aliases", type=click.Path(), help="JSON: looser aliases, reported apart and never right.")
@click.option(
    "--output-dir", required=True, type=click.Path(), help="Folder of the results; existing answers are kept."
)
@click.option("--inference-kind", required=True, help="Who answers; evsys list --kind inference shows all.")
@click.option("--model-name", required=True, help="The model, as that client calls it.")
@click.option("--adapter-path", help="Adapter to put on the model.")
@click.option("--checkpoint-path", help="Checkpoint to answer from, as a run wrote it.")
@click.option("--inference-params", metavar="JSON", help="Further params of the client, such as its base_url.")
@click.option("--system", help="System prompt for rows with a query or prompt; '' for none.")
@click.option("--max-tokens", default=1024, type=AT_LEAST_ONE, help="Longest answer.")
@click.option("--temperature", default=0.0, type=click.FloatRange(min=0), help="Of the sampling.")
@click.option("--max-attempts", default=1, type=AT_LEAST_ONE, help="Answers per row: the k of pass@k.")
@click.option("--batch-size", default=8, type=AT_LEAST_ONE, help="Questions asked at once.")
@click.option("--metrics", default="", show_default=False, help="More metrics to report, separated by commas.")
@click.option("--fail-on-retries", is_flag=True, help="Exit 2 if any question got no answer in spite of retries.")
@quiet_option
@json_option
@import_option
def model(as_json: bool, fail_on_retries: bool, quiet: bool, **options: Any) -> int:
    """Ask a model every question of a dataset, and score the slugs it answers with: pass@k, by aliases.

    Answers are kept as they come; the same command continues where an earlier one was stopped.
    """
    artifacts = _evaluate(options, None if quiet else ProgressLine("answers"))
    summary = artifacts.summary
    emit(summary.to_dict(), as_json, lambda: _render(artifacts))
    failures = summary.retry_report.failures
    if failures:
        first = " ".join(failures[0].last_error.split())
        click.echo(f"{len(failures)} without an answer, first {failures[0].what}: {first}", err=True)
    return 2 if summary.pass_at_1 is None or (fail_on_retries and failures) else 0


def _evaluate(options: dict[str, Any], progress: ProgressLine | None) -> EvalArtifacts:
    from ...eval import AliasMatcher, evaluate_model, load_eval_dataset
    from ...eval.scored_model import client_params, open_client
    from ...record.project_files.sealed import seal_files

    rows = load_eval_dataset(options["dataset"])
    seal_files([Path(options["dataset"])])
    matcher = AliasMatcher.load(options["aliases"], options["secondary_aliases"])
    config = _config(options)
    weights = {name: options[name] for name in ("model_name", "adapter_path", "checkpoint_path")}
    kind: str = options["inference_kind"]
    params = client_params(kind, weights, read_json(options["inference_params"], "--inference-params"))
    client = open_client(kind, params, path="inference-params")
    try:
        label, folder = _label(options), options["output_dir"]
        return evaluate_model(client, rows, matcher, config=config, output_dir=folder, model=label, progress=progress)
    finally:
        if callable(close := getattr(client, "close", None)):
            close()


def _config(options: dict[str, Any]) -> ModelEvalConfig:
    from pydantic import ValidationError

    from ...config.checks.problems import problems_in
    from ...errors import ConfigError
    from ...eval import ModelEvalConfig

    asked = {name: options[name] for name in ("max_tokens", "temperature", "max_attempts", "batch_size")}
    asked["metrics"] = [name for name in options["metrics"].split(",") if name]
    if options["system"] is not None:  # '' asks for none, and not to be asked leaves the default
        asked["system"] = options["system"] or None
    try:
        return ModelEvalConfig(**asked)
    except ValidationError as error:  # what click lets pass, such as nan
        problems = problems_in(error, model=ModelEvalConfig, data=asked)
        raise ConfigError([replace(one, path=f"--{one.path.replace('_', '-')}") for one in problems]) from None


def _label(options: dict[str, Any]) -> str:
    """Which model this is, for people and for telling its answers from those of others."""
    parts = {"": "model_name", " adapter ": "adapter_path", " checkpoint ": "checkpoint_path"}
    named = "".join(f"{before}{options[name]}" for before, name in parts.items() if options[name] is not None)
    further = options["inference_params"]
    if further is not None:
        import hashlib  # the params may hold what is private

        named += f" params {hashlib.sha256(further.encode()).hexdigest()[:8]}"
    return f"{options['inference_kind']}:{named}"


def _render(artifacts: EvalArtifacts) -> None:
    from ...eval import format_summary_markdown

    click.echo(format_summary_markdown(artifacts.summary), nl=False)
    click.echo(f"\nresults: {artifacts.output_dir}")
