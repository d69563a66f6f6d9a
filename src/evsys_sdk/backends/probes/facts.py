"""Facts about a server, probed or assumed from its kind, and their storage."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Literal

from ..._version import __version__
from ...files import write_json
from ...paths import workspace_dir

type LossReduction = Literal["sum", "mean_data", "mean_tokens", "normalised"]
"""What a server does to the sum over tokens and data.

`mean_data` divides by the number of data and `mean_tokens` by the number of tokens, which can be undone exactly.
`normalised` divides by the weights, which loses the relative weight of data.
"""


AS_DOCUMENTED, REFUSED = "as documented", "refused"


@dataclass(frozen=True, slots=True)
class Facts:
    """Behaviour of a server. None means unknown."""

    loss_reduction: LossReduction | None = None
    snapshot_samplers: bool | None = None
    """Whether a sampler keeps the weights of its creation, and leaves the live ones unchanged."""
    aligned_logprobs: bool | None = None
    """Whether scoring and training report the same log-probability of a token."""
    losses: tuple[str, ...] | None = None
    """Named losses that the server computes itself."""
    loss_checks: dict[str, str] | None = None
    """Each named loss of the protocol -> `AS_DOCUMENTED`, or what differs."""
    custom_loss: bool | None = None
    soft_targets: bool | None = None
    seeds: bool | None = None
    top_k_logprobs: int | None = None
    clips_gradients: bool | None = None
    """Whether `grad_clip_norm` bounds the gradient of a step."""
    exact_resume: bool | None = None
    """Whether a restored state continues bit-identically."""
    rejects_unknown_model: bool | None = None
    step_latency_s: float | None = None
    """Duration of an optimiser step without a gradient."""

    def to_dict(self) -> dict[str, Any]:
        """The JSON form."""
        return {key: list(value) if isinstance(value, tuple) else value for key, value in asdict(self).items()}  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> Facts:
        """The inverse of `to_dict`; unknown keys are ignored."""
        names = {fact.name for fact in fields(cls)}
        values = {key: value for key, value in stored.items() if key in names}
        if isinstance(losses := values.get("losses"), list):
            values["losses"] = tuple(losses)  # pyright: ignore[reportUnknownArgumentType]
        return cls(**values)

    def over(self, assumed: Facts) -> Facts:
        """These facts, with unknown ones taken from `assumed`."""
        known = {key: value for key, value in self._items() if value is not None}
        return Facts(**{**dict(assumed._items()), **known})

    def _items(self) -> list[tuple[str, Any]]:
        return [(field.name, getattr(self, field.name)) for field in fields(self)]


# Consequences of facts for training.

MEANING: dict[str, str] = {
    "loss_reduction": "what is done to the sum of losses over tokens and data",
    "snapshot_samplers": "a sampler keeps its weights during further training",
    "aligned_logprobs": "scoring gives a token the log-probability that training gives it",
    "losses": "named losses the server computes itself",
    "loss_checks": "of these, with the documented value and gradient",
    "custom_loss": "losses of your own have the right gradient",
    "soft_targets": "several targets per position can be sent",
    "seeds": "the same seed gives the same samples",
    "top_k_logprobs": "alternatives per position that are reported",
    "clips_gradients": "grad_clip_norm has an effect",
    "exact_resume": "a restored state continues bit by bit",
    "rejects_unknown_model": "a model that does not exist is refused",
    "step_latency_s": "seconds of an empty optimiser step",
}
"""Fact -> one line for the report."""


_OPERATIONS = {
    "sum over tokens and data": "loss_reduction",
    "custom loss": "custom_loss",
    "several targets per position": "soft_targets",
    "gradient clipping": "clips_gradients",
    "sampler is a snapshot": "snapshot_samplers",
    "log-probabilities of samples": "aligned_logprobs",
    "seeded sampling": "seeds",
    "alternatives per position": "top_k_logprobs",
    "exact resume": "exact_resume",
    "unknown model refused": "rejects_unknown_model",
}
"""What the protocol promises -> the fact that shows it."""


def list_operations(facts: Facts, problems: Mapping[str, str]) -> list[dict[str, Any]]:
    """Each loss and operation of the protocol: whether it works as documented, and the finding.

    `as_documented` is None if unknown.
    """
    checks = facts.loss_checks or {}
    losses = [
        (f"loss {name}", finding == AS_DOCUMENTED, "" if finding == AS_DOCUMENTED else finding)
        for name, finding in checks.items()
    ]
    rows: list[tuple[str, bool | None, str]] = [*losses]
    for operation, name in _OPERATIONS.items():
        value: Any = getattr(facts, name)
        if name == "loss_reduction":
            rows.append((operation, None if value is None else value == "sum", str(value or "")))
        else:
            shown = str(value) if name == "top_k_logprobs" and value else ""
            rows.append((operation, None if value is None else bool(value), problems.get(name, shown)))
    return [{"operation": label, "as_documented": holds, "found": finding} for label, holds, finding in rows]


def consequences(facts: Facts) -> list[str]:
    """What is refused, corrected or limited on a server with these facts."""
    lines: list[str] = []
    if facts.loss_reduction == "normalised":
        lines.append("Refused: dpo, rl, losses of your own and negative weights, because losses are averaged.")
        lines.append("Changed: sft and sdft weigh tokens by sequence, not evenly.")
    elif facts.loss_reduction in ("mean_data", "mean_tokens"):
        lines.append("Corrected: losses are averaged by a known number, which is multiplied back.")
    if facts.snapshot_samplers is False:
        lines.append("Refused: sdft, opd, rl with kl_coefficient or max_staleness, because samplers follow training.")
        lines.append("Refused: scoring a snapshot while training continues (benchmarks with run_every).")
    if facts.soft_targets is False:
        lines.append("Corrected: soft targets are sent as one datum for each alternative.")
    if facts.aligned_logprobs is False:
        lines.append("Beware: log-probabilities of samples do not match those of training; rl and opd will be off.")
    if facts.clips_gradients is False:
        lines.append("Beware: grad_clip_norm is ignored; lower the learning rate where gradients are large.")
    if facts.exact_resume is False:
        lines.append("Beware: a resumed run differs from an uninterrupted one.")
    if facts.seeds is False:
        lines.append("Beware: a run cannot be repeated sample by sample.")
    if facts.rejects_unknown_model is False:
        lines.append("Beware: the server takes any model name; check that it serves the one you mean.")
    return lines


# Storage of `evsys doctor`'s results: `.evsys/doctor/<hash>.json`, one file per server and model.
#
# The hash covers everything that may change the result: the kind of backend, its address, the model, and the versions
# of this SDK and of the client package. An unreadable file counts as absent.

_PACKAGES = {"tinker": "tinker", "skyrl": "tinker", "fireworks": "fireworks-ai", "local": "torch"}
"""Kind -> the package whose version is part of the key."""


@dataclass(frozen=True, slots=True)
class ProbedServer:
    """The server and model of the facts."""

    backend: str
    base_url: str
    model: str

    def path(self, workspace: Path | None = None) -> Path:
        """The file of its facts."""
        identity = json.dumps([self.backend, self.base_url, self.model, self.versions()], sort_keys=True)
        digest = hashlib.sha256(identity.encode()).hexdigest()[:16]
        return (workspace or workspace_dir()) / "doctor" / f"{digest}.json"

    def versions(self) -> dict[str, str]:
        """The versions that the result may depend on."""
        by_package = {"evsys_sdk": __version__}
        package = _PACKAGES.get(self.backend)
        if package is not None:
            try:
                by_package[package] = version(package)
            except PackageNotFoundError:
                by_package[package] = "not installed"
        return by_package


def read_facts(server: ProbedServer, workspace: Path | None = None) -> Facts | None:
    """The stored facts about a server; None if it was never probed."""
    stored = read_answer(server, workspace)
    return None if stored is None else Facts.from_dict(stored["facts"])


def read_answer(server: ProbedServer, workspace: Path | None = None) -> dict[str, Any] | None:
    """The whole stored result."""
    try:
        stored: Any = json.loads(server.path(workspace).read_text(encoding="utf-8"))
        return stored if isinstance(stored["facts"], dict) else None  # pyright: ignore[reportUnknownVariableType]
    except (OSError, ValueError, KeyError, TypeError):
        return None


def write_answer(
    server: ProbedServer, facts: Facts, problems: dict[str, str], workspace: Path | None = None
) -> dict[str, Any]:
    """Store a result; returns it."""
    answer = {
        "backend": server.backend,
        "base_url": server.base_url,
        "model": server.model,
        "versions": server.versions(),
        "asked_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "facts": facts.to_dict(),
        "problems": problems,
    }
    write_json(server.path(workspace), answer)
    return answer
