"""Read-only queries about a server and its content."""

from __future__ import annotations

from typing import Any

from ..._version import __version__
from ...errors import show
from ..answer import Refusal
from ..service import Service
from ..weights.checkpoints import SAMPLER, WEIGHTS, ServedRunRecord
from . import requests


def client_config(service: Service) -> dict[str, Any]:
    """The config that the `tinker` package fetches at its start."""
    return {
        "sample_max_concurrent_requests": service.settings.max_samples_per_session,
        "fwdbwd_max_chunk_bytes_count": min(5_000_000, service.settings.max_request_bytes // 2),
    }


def capabilities(service: Service) -> dict[str, Any]:
    """The offered models."""
    return {
        "supported_models": [
            {
                "model_name": model,
                "max_context_length": service.engine.capabilities(model).context_length,
                "trainable": True,
                "sampleable": True,
            }
            for model in service.settings.models
        ]
    }


def evsys_model(service: Service, base_model: str | None) -> dict[str, Any]:
    """Facts for clients of this SDK beyond the protocol: vocabulary and capabilities of a model."""
    name = base_model or service.settings.models[0]
    service.engine.check_name(name)
    facts = service.engine.capabilities(name)
    return {
        "server": f"evsys-sdk {__version__}",
        "model_name": name,
        "backend": service.settings.backend,
        "backend_params": dict(service.settings.backend_params),
        "vocab_size": facts.vocab_size,
        "context_length": facts.context_length,
        "losses": sorted(facts.losses),
        "suggested_learning_rate": facts.suggested_learning_rate,
        "custom_loss": facts.custom_loss,
        "soft_targets": facts.soft_targets,
        "top_k_logprobs": facts.top_k_logprobs,
        "summed_losses": facts.summed_losses,
        "snapshot_samplers": facts.snapshot_samplers,
        "seeds": facts.seeds,
        "tokenizer": {
            "kind": "bytes" if service.settings.backend == "mock" else "huggingface",
            "id": service.settings.tokenizer or name,
        },
    }


def model_info(service: Service, request: requests.ModelOnly) -> dict[str, Any]:
    """One model in training."""
    model = service.sessions.model(request.model_id)
    return {
        "type": "get_info",
        "model_id": model.model_id,
        "model_name": model.base_model,
        "is_lora": True,
        "lora_rank": model.rank,
        "model_data": {
            "arch": service.settings.backend,
            "model_name": model.base_model,
            "tokenizer_id": service.settings.tokenizer or model.base_model,
        },
    }


def describe_run(service: Service, run_id: str, record: ServedRunRecord | None = None) -> dict[str, Any]:
    """One model that was trained here."""
    record = record or service.checkpoints.run(run_id)
    if record is None:
        raise Refusal(404, f"there is no training run {show(run_id)} here.")
    saved = service.checkpoints.describe_all(run_id)
    latest = {
        kind: next((c for c in saved if c["checkpoint_id"].startswith(f"{kind}/")), None) for kind in (WEIGHTS, SAMPLER)
    }
    return {
        "training_run_id": run_id,
        "base_model": record.base_model,
        "model_owner": "local",
        "is_lora": True,
        "lora_rank": record.lora_rank,
        "last_request_time": saved[0]["time"] if saved else record.created,
        "last_checkpoint": latest[WEIGHTS],
        "last_sampler_checkpoint": latest[SAMPLER],
        "user_metadata": _texts(record.user_metadata),
    }


def list_runs(service: Service, *, limit: int, offset: int) -> dict[str, Any]:
    """All models that were trained here, the latest first."""
    records = service.checkpoints.runs()
    shown = [describe_run(service, run.training_run_id, run) for run in records[offset : offset + limit]]
    return {"training_runs": shown, "cursor": _cursor(limit, offset, len(records))}


def checkpoints(service: Service, run_id: str | None, *, limit: int, offset: int) -> dict[str, Any]:
    """All saved weights, of one run or of all."""
    if run_id is not None and service.checkpoints.run(run_id) is None:
        raise Refusal(404, f"there is no training run {show(run_id)} here.")
    records = service.checkpoints.describe_all(run_id)
    return {"checkpoints": records[offset : offset + limit], "cursor": _cursor(limit, offset, len(records))}


def weights_info(service: Service, request: requests.WeightsInfo) -> dict[str, Any]:
    """Facts needed to continue from saved weights."""
    record = service.checkpoints.get(request.tinker_path)
    flags = {"train_unembed": True, "train_mlp": True, "train_attn": True}
    return {"base_model": record.base_model, "is_lora": True, "lora_rank": record.lora_rank, **flags}


def sessions(service: Service) -> dict[str, Any]:
    """The open sessions."""
    return {"sessions": [entry.session_id for entry in service.sessions.all()]}


def session(service: Service, session_id: str) -> dict[str, Any]:
    """The models and samplers of a session."""
    entry = service.sessions.get(session_id)
    return {
        "training_run_ids": list(entry.models),
        "sampler_ids": list(entry.samplers),
        "user_metadata": _texts(entry.user_metadata),
        "display_name": entry.display_name,
    }


def sampler(service: Service, sampler_id: str) -> dict[str, Any]:
    """The weights of a sampler."""
    entry = service.sessions.sampler(sampler_id)
    return {"sampler_id": sampler_id, "base_model": entry.base_model, "model_path": entry.model_path}


def health(service: Service) -> dict[str, Any]:
    """Whether the server accepts requests, and its load."""
    sessions = service.sessions.all()
    return {
        "status": "ok",
        "draining": service.draining,
        "sessions": len(sessions),
        "models": sum(len(entry.models) for entry in sessions),
        "running": service.futures.running,
    }


def _texts(metadata: dict[str, Any] | None) -> dict[str, str] | None:
    return {key: str(value) for key, value in metadata.items()} if metadata else None


def _cursor(limit: int, offset: int, total: int) -> dict[str, int]:
    return {"limit": limit, "offset": offset, "total_count": total}
