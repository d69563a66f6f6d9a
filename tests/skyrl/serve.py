"""SkyRL's Tinker server with its JAX engine, without `uv run`. Runs in SkyRL's environment.

    python tests/skyrl/serve.py --model FOLDER --state FOLDER

SkyRL's own entry point starts the engine by `uv run`, which would resolve and install SkyRL with everything it has.
Here the engine is this file once more, with the same interpreter. Nothing else about SkyRL is changed. Listens to this
machine only, on a free port; prints one JSON line with the address when the engine is ready, which is some time after
the server begins to answer. Both processes end when their parent does.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import socket
import sys
import threading
import time
from pathlib import Path

import thin_install  # noqa: F401 (before SkyRL)

BACKEND = {
    "max_lora_adapters": 32,
    "max_lora_rank": 8,
    "train_micro_batch_size": 0,
    "sample_max_num_sequences": 4,
    "loss_chunk_size": 0,
}
"""Few shapes, because each is compiled; more adapters than there are tests, as they are freed late."""
READY = "EVSYS_SKYRL_READY"


def main() -> None:
    """Start the requested server."""
    threading.Thread(target=end_with_parent, args=(os.getppid(),), daemon=True).start()
    if sys.argv[1:2] == ["engine"]:
        run_engine(sys.argv[2:])
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--state", type=Path, required=True)
    parser.add_argument("--devices", type=int, default=1, help="how many share the layers of the model")
    options = parser.parse_args()
    options.state.mkdir(parents=True, exist_ok=True)
    answer = os.dup(1)
    os.dup2(2, 1)  # SkyRL logs to stdout, which no one may be reading
    asyncio.run(run_api(options.model, options.state, answer, options.devices))


def end_with_parent(parent: int) -> None:
    """A test run that was killed must leave nothing behind."""
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(1)


def run_engine(arguments: list[str]) -> None:
    """The engine, which says when it is ready."""
    from skyrl.tinker.config import EngineConfig, add_model
    from skyrl.tinker.engine import TinkerEngine

    parser = argparse.ArgumentParser()
    add_model(parser, EngineConfig)
    engine = TinkerEngine(EngineConfig.model_validate(vars(parser.parse_args(arguments))))
    Path(os.environ[READY]).touch()
    engine.run()


async def run_api(model: Path, state: Path, answer: int, devices: int) -> None:
    """The HTTP server, which starts the engine."""
    import uvicorn
    from skyrl.tinker import api
    from skyrl.tinker.config import EngineConfig, config_to_argv

    ready = state / "ready"
    ready.unlink(missing_ok=True)
    os.environ[READY] = str(ready)
    api._build_uv_run_cmd_engine = lambda parent, config: [sys.executable, __file__, "engine", *config_to_argv(config)]
    api.app.state.engine_config = EngineConfig(
        base_model=str(model),
        backend="jax",
        backend_config={**BACKEND, "tensor_parallel_size": devices},
        checkpoints_base=state / "checkpoints",
        database_url=f"sqlite:///{state / 'tinker.db'}",
        session_cleanup_interval_sec=10,
        session_timeout_sec=60,
    )
    listening = socket.create_server(("127.0.0.1", 0))
    url = f"http://127.0.0.1:{listening.getsockname()[1]}"
    settings = uvicorn.Config(api.app, log_level="warning", log_config=None, timeout_graceful_shutdown=5)
    announcement = asyncio.create_task(announce(url, ready, answer))
    try:
        await uvicorn.Server(settings).serve(sockets=[listening])
    finally:
        announcement.cancel()


async def announce(url: str, ready: Path, answer: int) -> None:
    while not ready.exists():
        await asyncio.sleep(0.1)
    os.write(answer, json.dumps({"url": url}).encode() + b"\n")


if __name__ == "__main__":
    main()
