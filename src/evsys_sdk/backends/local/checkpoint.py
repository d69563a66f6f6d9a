"""Checkpoints on disk: an adapter in PEFT format, its optimizer, and a manifest that is written last.

    adapter_config.json, adapter_model.safetensors    loadable by PEFT and other tools
    optimizer.safetensors                             only in a training state
    manifest.json                                     format, metadata and checksums of the other files

A folder without a manifest is an incomplete checkpoint, unless it holds an adapter saved by PEFT. If a file cannot be
written, e.g. because the disk is full, the folder is removed.
"""

# pyright: basic, reportMissingImports=false

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import shutil
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import torch
from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor

from ...errors import BackendError, show
from ...files import atomic_write, write_json
from ...record.run_files.checkpoints import locate_weights
from ..checkpoint_name import MANIFEST, check_free
from .base.experts import EXPERT_PARAMETERS
from .base.lora import LoRAAdapter, Switch, matches_target

FORMAT: Final = 1
ADAPTER, ADAPTER_CONFIG = "adapter_model.safetensors", "adapter_config.json"
OPTIMIZER = "optimizer.safetensors"
_PREFIX = "base_model.model."
_REMEDY = "Use an earlier checkpoint of the run."
_UNSUPPORTED = ("use_dora", "use_rslora", "rank_pattern", "alpha_pattern")
"""PEFT options that are not supported."""

_PLAIN_STARTS = ("gaussian", "eva", "orthogonal")
"""Initializations of PEFT that do not change the base weights."""


@dataclass(frozen=True, slots=True)
class Stored:
    """The contents of a checkpoint."""

    adapter: LoRAAdapter
    moments: dict[str, Tensor] | None = None
    about: dict[str, Any] = field(default_factory=dict[str, Any])
    """The manifest; empty for an adapter saved by PEFT."""


def write_checkpoint(
    folder: Path,
    adapter: LoRAAdapter,
    about: Mapping[str, Any],
    *,
    base_model: str,
    moments: Mapping[str, Tensor] | None,
) -> None:
    """Write a checkpoint; it counts only once its manifest is written, and is removed on an error."""
    check_free(folder)
    files: dict[str, Mapping[str, Tensor]] = {ADAPTER: _peft_tensors(adapter)}
    if moments is not None:
        files[OPTIMIZER] = moments
    try:
        sums = {name: _write_tensors(folder / name, tensors) for name, tensors in files.items()}
        write_json(folder / ADAPTER_CONFIG, _peft_config(adapter, base_model))
        sums[ADAPTER_CONFIG] = hashlib.sha256((folder / ADAPTER_CONFIG).read_bytes()).hexdigest()
        write_json(folder / MANIFEST, {"format": FORMAT, "backend": "local", **about, "sha256": sums})
    except Exception as error:
        with contextlib.suppress(OSError):
            shutil.rmtree(folder)
        if not isinstance(error, OSError):
            raise
        size = sum(tensor.numel() * 4 for tensors in files.values() for tensor in tensors.values()) / 1e6
        raise BackendError(
            f"the checkpoint {folder} ({size:.1f} MB) cannot be written: {error.strerror or error}. Nothing of it is "
            "left, earlier checkpoints and the weights in memory are as they were. Make room or name another "
            "output_dir, and save again."
        ) from error


def read_checkpoint(ref: str, switch: Switch, *, device: Any) -> Stored:
    """Read an adapter and its optimizer, if any; check checksums and that the adapter fits the model."""
    folder = Path(locate_weights(ref))
    about = _read_manifest(folder)
    sums: dict[str, str | None] = about.get("sha256") or {ADAPTER: None}
    contents = {name: _content(folder / name, checksum) for name, checksum in sums.items()}
    adapter = _adapter(folder, _tensors(folder / ADAPTER, contents[ADAPTER]), switch, device)
    moments = _tensors(folder / OPTIMIZER, contents[OPTIMIZER]) if OPTIMIZER in contents else None
    return Stored(adapter, moments, about)


def _write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> str:
    """Write a float32 safetensors file, one tensor at a time to save memory; return its checksum."""
    header: dict[str, Any] = {}
    end = 0
    for name, tensor in tensors.items():
        start, end = end, end + tensor.numel() * 4
        header[name] = {"dtype": "F32", "shape": list(tensor.shape), "data_offsets": [start, end]}
    head = json.dumps(header).encode()
    head += b" " * (-len(head) % 8)  # tensor data is aligned to 8 bytes
    digest = hashlib.sha256()
    with atomic_write(path) as file:
        for part in (len(head).to_bytes(8, "little"), head):
            file.write(part)
            digest.update(part)
        for tensor in tensors.values():
            content = tensor.detach().to("cpu", torch.float32).contiguous().numpy().data
            file.write(content)
            digest.update(content)
    return digest.hexdigest()


def _peft_tensors(adapter: LoRAAdapter) -> dict[str, Tensor]:
    tensors: dict[str, Tensor] = {}
    keys = _peft_names(adapter.weights)
    for name, (a, b) in adapter.weights.items():
        if a.ndim == 3:  # PEFT concatenates the experts' rows in A, and interleaves their columns in B
            a, b = a.flatten(0, 1), b.permute(1, 2, 0).flatten(1)
        tensors[f"{_PREFIX}{keys[name]}.lora_A.weight"] = a
        tensors[f"{_PREFIX}{keys[name]}.lora_B.weight"] = b
    return tensors


def _peft_names(names: Collection[str]) -> dict[str, str]:
    """Return the layer names of PEFT, which wraps a module of experts once per parameter, the first one innermost."""
    wrapped: dict[str, str] = {}
    for name in names:
        module, _, parameter = name.rpartition(".")
        if not _is_experts(name):
            wrapped[name] = name
            continue
        place = EXPERT_PARAMETERS.index(parameter)
        outer = sum(f"{module}.{other}" in names for other in EXPERT_PARAMETERS[place + 1 :])
        wrapped[name] = module + ".base_layer" * outer
    return wrapped


def _is_experts(name: str) -> bool:
    return name.endswith(tuple(f".experts.{parameter}" for parameter in EXPERT_PARAMETERS))


def _peft_config(adapter: LoRAAdapter, base_model: str) -> dict[str, Any]:
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base_model,
        "r": adapter.rank,
        "lora_alpha": adapter.alpha,
        "lora_dropout": 0.0,
        "bias": "none",
        "target_modules": sorted(name for name in adapter.weights if not _is_experts(name)),
        "target_parameters": sorted(filter(_is_experts, adapter.weights)) or None,
        "fan_in_fan_out": adapter.transposed,
        "inference_mode": True,
    }


def _adapter(folder: Path, tensors: Mapping[str, Tensor], switch: Switch, device: Any) -> LoRAAdapter:
    config = _read_json(folder / ADAPTER_CONFIG)
    unsupported = [key for key in _UNSUPPORTED if config.get(key)]
    if (start := config.get("init_lora_weights")) and isinstance(start, str) and start not in _PLAIN_STARTS:
        unsupported.append(f"init_lora_weights={start}")  # such an adapter needs a modified base
    if config.get("peft_type") != "LORA" or unsupported:
        kind = ", ".join(unsupported) or config.get("peft_type")
        raise BackendError(f"{folder} holds an adapter of a kind that is not plain LoRA ({kind}). Use a LoRA adapter.")
    rank, alpha = (_number(folder, config, key) for key in ("r", "lora_alpha"))
    weights: dict[str, tuple[Tensor, Tensor]] = {}
    adapted = config.get("target_parameters") or []
    of_experts = [
        name for name in switch.layers if _is_experts(name) and any(matches_target(name, end) for end in adapted)
    ]
    names = {key: name for name, key in _peft_names(of_experts).items()}
    for key in tensors:
        if not key.endswith(".lora_A.weight"):
            continue
        stored = key.removeprefix(_PREFIX).removesuffix(".lora_A.weight")
        name = names.get(stored, stored)
        a, b = tensors[key], tensors.get(f"{_PREFIX}{stored}.lora_B.weight")
        layer = switch.layers.get(name)
        if layer is None or b is None or (b.shape[0], a.shape[1]) != (layer.out_features, layer.in_features):
            raise BackendError(
                f"{folder} does not fit this model: its adapter for the layer {name} has no counterpart of the same "
                "shape. Set model.name to the model that it was trained on."
            )
        experts = math.prod(layer.experts)
        if not a.shape[0] == b.shape[1] == rank * experts:
            raise BackendError(
                f"{folder}: the layer {name} has rank {a.shape[0] / experts:g}, its config says {rank:g}."
            )
        if layer.experts:
            a, b = a.unflatten(0, (experts, -1)), b.unflatten(1, (-1, experts)).permute(2, 0, 1).contiguous()
        weights[name] = (a.float().to(device), b.float().to(device))
    if not weights or 2 * len(weights) != len(tensors):
        raise BackendError(f"{folder / ADAPTER} holds other tensors than lora_A and lora_B. Use a LoRA adapter.")
    order = [name for name in switch.layers if name in weights]
    transposed = any(switch.layers[name].transposed for name in order)
    return LoRAAdapter(int(rank), alpha, {name: weights[name] for name in order}, transposed)


def _number(folder: Path, config: Mapping[str, Any], key: str) -> float:
    value = config.get(key)
    if not isinstance(value, int | float) or isinstance(value, bool) or not value > 0:
        raise BackendError(f"{folder / ADAPTER_CONFIG}: {key} must be a number above 0 (got {show(value)}). {_REMEDY}")
    return float(value)


def _content(path: Path, checksum: str | None) -> bytes:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise BackendError(f"{path} cannot be read ({error.strerror}). {_REMEDY}") from None
    if checksum is not None and hashlib.sha256(content).hexdigest() != checksum:
        raise BackendError(
            f"{path} is damaged: its {len(content)} bytes do not match the checksum in {MANIFEST}. {_REMEDY}"
        )
    return content


def _tensors(path: Path, content: bytes) -> dict[str, Tensor]:
    try:
        return load(content)
    except (SafetensorError, ValueError) as error:
        raise BackendError(f"{path} is not a safetensors file ({error}). {_REMEDY}") from None


def _read_manifest(folder: Path) -> dict[str, Any]:
    if not (folder / MANIFEST).exists():
        # PEFT writes no optimizer: an adapter with one is an incomplete state of this backend.
        if (folder / ADAPTER).is_file() and (folder / ADAPTER_CONFIG).is_file() and not (folder / OPTIMIZER).exists():
            return {}  # an adapter saved by PEFT
        raise BackendError(f"there is no complete checkpoint in {folder}: {MANIFEST} is missing. {_REMEDY}")
    about = _read_json(folder / MANIFEST)
    if about.get("format") != FORMAT or about.get("backend") != "local" or ADAPTER not in about.get("sha256", {}):
        raise BackendError(
            f"{folder / MANIFEST} is not a checkpoint of the local backend in format {FORMAT}. {_REMEDY}"
        )
    return about


def _read_json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise BackendError(f"{path} cannot be read ({error}). {_REMEDY}") from None
    if not isinstance(value, dict):
        raise BackendError(f"{path} holds {type(value).__name__}, not an object. {_REMEDY}")
    return value
