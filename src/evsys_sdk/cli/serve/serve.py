"""`evsys serve`: serve training and sampling over the network, with the Tinker protocol."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from ...errors import ConfigError
from ...user_code import results
from ..options import AT_LEAST_ONE, POSITIVE, import_option, json_option, read_key, read_params

KEY_VARIABLE = "EVSYS_SERVE_API_KEY"
FEEDBACK_KEY_VARIABLE = "EVSYS_SERVE_FEEDBACK_KEY"


@click.command()
@click.option("--backend", default="mock", help="Training backend; evsys list --kind backend shows all.")
@click.option(
    "--model", "models", multiple=True, help="Base model to serve. May be repeated.  [default for mock: tiny]"
)
@click.option(
    "--backend-param", "params", multiple=True, metavar="KEY=VALUE", help="A param of the backend. May be repeated."
)
@click.option("--host", default="127.0.0.1", help="Address to listen on; only this machine by default.")
@click.option("--port", default=8000, type=click.IntRange(0, 65535), help="0 chooses a free port.")
@click.option(
    "--api-key-file", type=click.Path(), help=f"File with the key that clients must send; or set {KEY_VARIABLE}."
)
@click.option("--allow-anyone", is_flag=True, help="Listen to other machines without a key.")
@click.option("--state-dir", type=click.Path(), help="Folder of saved weights.  [default: .evsys/serve]")
@click.option(
    "--tokenizer", help="Tokenizer that clients load, a name or a folder on their machine.  [default: the model]"
)
@click.option("--max-models", default=16, type=AT_LEAST_ONE, help="Models in training at once.")
@click.option("--max-queue", default=256, type=AT_LEAST_ONE, help="Waiting requests of one model.")
@click.option("--max-samples", default=2000, type=AT_LEAST_ONE, help="Waiting sampling requests.")
@click.option("--samples-at-once", default=40, type=AT_LEAST_ONE, help="Samples per batch.")
@click.option(
    "--max-tokens",
    default=1024,
    type=AT_LEAST_ONE,
    help="Default max_tokens of samples.",
)
@click.option("--max-request-mb", default=64.0, type=POSITIVE, help="Size limit of a request.")
@click.option("--idle-s", default=300.0, type=POSITIVE, help="Idle time after which a client's session ends.")
@click.option("--grace-s", default=60.0, type=POSITIVE, help="Longest wait for running work at shutdown.")
@click.option("--traces", metavar="NAME", help="Keep chats as traces in this store: see evsys traces.")
@click.option(
    "--feedback", multiple=True, metavar="NAME[=LOW:HIGH]", help="Feedback that is the reward. May be repeated."
)
@click.option(
    "--feedback-key-file",
    type=click.Path(),
    help=f"File with a key for feedback only; or set {FEEDBACK_KEY_VARIABLE}.",
)
@json_option
@import_option
def serve(
    as_json: bool,
    params: tuple[str, ...],
    api_key_file: str | None,
    state_dir: str | None,
    traces: str | None,
    feedback: tuple[str, ...],
    feedback_key_file: str | None,
    **options: Any,
) -> int:
    """Serve models to any client of the Tinker protocol, for instance the `tinker` package, and of OpenAI's API.

    Weights that evsys deploy --to openai_server made live are served under their name. Prints the URL and runs until
    Ctrl-C or SIGTERM; then it finishes running requests and exits.
    """
    from ...config.building import check_params
    from ...deploy.catalog import DeployedModels
    from ...paths import workspace_dir
    from ...registry import get_backend
    from ...server.run import serve as run
    from ...server.settings import ServeSettings
    from ..data.traces import read_rules

    folder = Path(state_dir) if state_dir else workspace_dir() / "serve"
    catalog = DeployedModels()
    bases = catalog.base_models(options["backend"])  # deployed adapters need their base models
    options["models"] = tuple(dict.fromkeys([*options["models"], *bases]))
    backend_params = read_params(params, "--backend-param")
    keys = {
        "api_key": _key(api_key_file),
        "feedback_key": read_key(feedback_key_file, "--feedback-key-file", FEEDBACK_KEY_VARIABLE) or None,
    }
    settings = ServeSettings(state_dir=folder.resolve(), backend_params=backend_params, **keys, **options)
    check_params(get_backend(settings.backend), settings.backend_params, path="--backend-param")  # needs no extra
    if traces is None:
        if feedback or settings.feedback_key:
            raise ConfigError("feedback is stored with its traces. Name their store with --traces.")
        run(settings, lambda url: _announce(url, settings, as_json), catalog)
        return 0
    from ...loop.traces.request_log import RequestLog
    from ...loop.traces.store import LiveStore

    log = RequestLog(LiveStore(traces), read_rules(feedback))
    try:
        run(settings, results()(lambda url: _announce(url, settings, as_json)), catalog, log)
    finally:
        log.close()
    return 0


def _announce(url: str, settings: Any, as_json: bool) -> None:
    if as_json:
        import json

        about = {
            "url": url,
            "backend": settings.backend,
            "models": settings.models,
            "state_dir": str(settings.state_dir),
        }
        click.echo(json.dumps(about))
        return
    key = "with the API key of this server" if settings.api_key else "with any API key that starts with 'tml-'"
    click.echo(f"{settings.backend} serves {', '.join(settings.models)} at {url} {key}. Ctrl-C stops it.")


def _key(file: str | None) -> str | None:
    key = read_key(file, "--api-key-file", KEY_VARIABLE)
    if key and not key.startswith(("tml-", "eyJ")):
        from ...log import get_logger

        get_logger(__name__).warning("the tinker package takes only keys that start with 'tml-'; this one does not.")
    return key or None
