"""`evsys eval`: score an existing model."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..options import AT_LEAST_ONE, import_option, json_option, quiet_option, read_json
from ..output import ProgressLine, emit

if TYPE_CHECKING:
    from ...eval import EvalArtifacts, ModelEvalConfig


eval = click.Group("eval", help="Score a model without training it.")  # named after its verb


@eval.command("model")
@click.option("--dataset", required=True, type=click.Path(), help="JSONL with a query and a tool_slug in each row.")
@click.option("--aliases", required=True, type=click.Path(), help="JSON: slug -> slugs that count as the same.")
@click.option(
    "--secondary-aliases", type=click.Path(), help="JSON: looser aliases, reported separately, not as correct."
)
@click.option(
    "--output-dir", required=True, type=click.Path(), help="Folder of the results; existing answers are kept."
)
@click.option("--inference-kind", required=True, help="Inference client; evsys list --kind inference shows all.")
@click.option("--model-name", required=True, help="Name of the model at that client.")
@click.option("--adapter-path", help="Adapter of the model.")
@click.option("--checkpoint-path", help="Checkpoint of a run to sample from.")
@click.option("--inference-params", metavar="JSON", help="Further params of the client, such as its base_url.")
@click.option("--system", help="System prompt for rows with a query or prompt; '' for none.")
@click.option("--max-tokens", default=1024, type=AT_LEAST_ONE, help="Token limit of an answer.")
@click.option("--temperature", default=0.0, type=click.FloatRange(min=0), help="Sampling temperature.")
@click.option("--max-attempts", default=1, type=AT_LEAST_ONE, help="Answers per row: the k of pass@k.")
@click.option("--batch-size", default=8, type=AT_LEAST_ONE, help="Concurrent requests.")
@click.option("--metrics", default="", show_default=False, help="More metrics to report, separated by commas.")
@click.option("--fail-on-retries", is_flag=True, help="Exit 2 if any question has no answer after retries.")
@quiet_option
@json_option
@import_option
def model(as_json: bool, fail_on_retries: bool, quiet: bool, **options: Any) -> int:
    """Sample answers to all questions of a dataset, and score their slugs: pass@k, by aliases.

    Answers are stored as they arrive; the same command continues an interrupted one.
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

    fields = {name: options[name] for name in ("max_tokens", "temperature", "max_attempts", "batch_size")}
    fields["metrics"] = [name for name in options["metrics"].split(",") if name]
    if options["system"] is not None:  # '' means none; None leaves the default
        fields["system"] = options["system"] or None
    try:
        return ModelEvalConfig(**fields)
    except ValidationError as error:  # values that click accepts, such as nan
        problems = problems_in(error, model=ModelEvalConfig, data=fields)
        renamed = [replace(problem, path=f"--{problem.path.replace('_', '-')}") for problem in problems]
        raise ConfigError(renamed) from None


def _label(options: dict[str, Any]) -> str:
    """The label of the model, which also separates its stored answers from those of other models."""
    parts = {"": "model_name", " adapter ": "adapter_path", " checkpoint ": "checkpoint_path"}
    label = "".join(f"{before}{options[name]}" for before, name in parts.items() if options[name] is not None)
    params = options["inference_params"]
    if params is not None:
        import hashlib  # hashed, because the params may be private

        label += f" params {hashlib.sha256(params.encode()).hexdigest()[:8]}"
    return f"{options['inference_kind']}:{label}"


def _render(artifacts: EvalArtifacts) -> None:
    from ...eval import format_summary_markdown

    click.echo(format_summary_markdown(artifacts.summary), nl=False)
    click.echo(f"\nresults: {artifacts.output_dir}")
