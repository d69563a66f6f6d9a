"""The mock backend's training and sampling clients around the numpy model.

Calls are validated immediately and run in order on one worker thread. A sampler keeps references to its weight arrays;
training replaces arrays instead of changing them, so snapshots are free.
"""

from __future__ import annotations

import hashlib
import io
import json
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ...errors import BackendError, show
from ...files import atomic_write, write_json
from ...record.run_files.checkpoints import locate_weights
from .. import checks
from ..checkpoint_name import MANIFEST, check_free, checkpoint_folder
from ..client import Capabilities, Sample, SamplingParams, TopLogprobs
from ..datum import Floats
from ..future import Operation
from ..in_process import InProcessClient
from ..losses import LOSSES
from ..seeds import RequestSeeds
from ..worker import UNFINISHED, CallWorker
from . import model
from .sampling import Drawing, SampleRequest, advance, change_logits
from .state import Identity, MockState, pack_arrays, unpack_arrays
from .tokenizer import VOCABULARY, ByteTokenizer
from .weights import Weights

_SUGGESTED_LEARNING_RATE = 5e-4
_TOKENS_IN_A_ROW = 16
"""Tokens per turn of a sample, so that short samples do not wait for long ones."""


@dataclass(frozen=True, slots=True)
class MockSettings:
    """Options of a mock client."""

    model: str
    seed: int = 0
    lora_rank: int = 32
    """Recorded with every checkpoint; this model trains all weights for any rank."""
    hidden: int = 64
    context_length: int = 4096
    latency_ms: float = 0.0


class MockTrainingClient(InProcessClient[MockState]):
    """A numpy model in training."""

    def __init__(self, settings: MockSettings, run_dir: Path) -> None:
        self._settings, self._run_dir = settings, run_dir
        self._state = MockState(Identity(settings.model, settings.seed, settings.hidden))
        self._seeds = RequestSeeds(settings.seed)
        self._worker = CallWorker(f"mock-{settings.model}", latency_s=settings.latency_ms / 1000)
        self.model_name = settings.model
        self.tokenizer = ByteTokenizer()
        self.capabilities = Capabilities(
            backend="mock",
            vocab_size=VOCABULARY,
            context_length=settings.context_length,
            losses=LOSSES,
            suggested_learning_rate=_SUGGESTED_LEARNING_RATE,
            top_k_logprobs=VOCABULARY,
            filters=True,
        )

    def save_state(self, name: str) -> Operation[str]:
        """Store weights and optimizer under a new name; returns the folder."""
        folder = checkpoint_folder(self._run_dir, name, "state")
        # The seed counter at this call; later samples belong to later states.
        sampled = self._seeds.used

        def save() -> str:
            extra = {"optimizer": True, "steps": self._state.adam.steps, "sampled": sampled}
            write_checkpoint(folder, self._state.arrays(), {**self._about(), **extra})
            return str(folder)

        return self._worker.submit("save_state", save)

    def load_state(self, ref: str, *, with_optimizer: bool = True) -> Operation[None]:
        """Load a stored state; without its optimizer, the optimizer is reset."""

        def load() -> None:
            arrays, about = self._read(ref)
            if with_optimizer and not about["optimizer"]:
                raise BackendError(f"{ref} holds weights only. Load it with with_optimizer=False.")
            self._state.restore(arrays, about, with_optimizer=with_optimizer)
            if with_optimizer:
                self._seeds.used = int(about["sampled"])

        return self._worker.submit("load_state", load)

    def sampler(self, name: str | None = None) -> Operation[MockSamplingClient]:
        """A frozen copy of the current weights; with a name it is stored and can be reopened."""
        folder = None if name is None else checkpoint_folder(self._run_dir, name, "sampler")

        def snapshot() -> MockSamplingClient:
            weights = self._state.weights
            if folder is not None:
                rows = np.flatnonzero(self._state.trained)
                write_checkpoint(folder, pack_arrays({"weights": weights}, rows), {**self._about(), "optimizer": False})
            return self._sampler_of(weights, ref="" if folder is None else str(folder))

        return self._worker.submit("sampler", snapshot)

    def open_sampler(self, ref: str) -> Operation[MockSamplingClient]:
        """Open a stored sampler, or the folder of a saved state."""

        def reopen() -> MockSamplingClient:
            arrays, about = self._read(ref)
            base = Identity(about["model"], about["seed"], about["hidden"]).weights()
            return self._sampler_of(unpack_arrays(arrays, "weights", base), ref=ref)

        return self._worker.submit("open_sampler", reopen)

    def close(self) -> None:
        """Finish submitted operations and stop the thread; closing twice has no effect."""
        self._worker.close()

    def _sampler_of(self, weights: Weights, *, ref: str) -> MockSamplingClient:
        return MockSamplingClient(weights, ref, self._worker, self._seeds, self.capabilities)

    def _about(self) -> dict[str, Any]:
        identity = self._state.identity
        return {
            "model": identity.model,
            "seed": identity.seed,
            "hidden": identity.hidden,
            "lora_rank": self._settings.lora_rank,
        }

    def _read(self, ref: str) -> tuple[dict[str, Any], dict[str, Any]]:
        arrays, about = read_checkpoint(ref)
        for key, ours in (("model", self._settings.model), ("hidden", self._settings.hidden)):
            if about[key] != ours:
                raise BackendError(
                    f"{ref} was saved with {key}={show(about[key])}, but this client has {show(ours)}. "
                    f"Prepare the backend with the same {key}, or use another checkpoint."
                )
        return arrays, about


class MockSamplingClient:
    """Frozen weights to sample from."""

    def __init__(
        self, weights: Weights, ref: str, worker: CallWorker, seeds: RequestSeeds, capabilities: Capabilities
    ) -> None:
        self._weights, self._worker, self._seeds, self._capabilities = weights, worker, seeds, capabilities
        self.ref = ref
        self.tokenizer = ByteTokenizer()

    def sample(self, prompt: Sequence[int], num_samples: int, params: SamplingParams) -> Operation[list[Sample]]:
        """Sample several continuations of a prompt."""
        checks.check_sampling(prompt, num_samples, params, self._capabilities)
        seed = self._seeds.next() if params.seed is None else params.seed
        sampling = Drawing(SampleRequest(np.asarray(prompt, np.int64), num_samples, params, seed))
        weights = self._weights

        def grow(many: Sequence[Drawing]) -> list[Any]:
            advance(weights, many, _TOKENS_IN_A_ROW)
            return [sampling.samples() if sampling.done else UNFINISHED for sampling in many]

        # Only samples of the same weights are batched.
        return self._worker.submit_many("sample", sampling, grow, group=weights)

    def logprobs(self, tokens: Sequence[int]) -> Operation[Floats]:
        """The log-probability of each token given its predecessors, (N,); the first is nan."""
        ids = self._check(tokens)

        def score() -> Floats:
            logprobs = np.full(len(ids), np.nan, np.float32)
            if len(ids) > 1:
                run = model.forward(self._weights, [ids[:-1]])
                logprobs[1:] = model.target_logprobs(self._weights, run, ids[1:])
            return logprobs

        return self._worker.submit("logprobs", score)

    def topk_logprobs(self, tokens: Sequence[int], k: int, *changes: Any) -> Operation[TopLogprobs]:
        """The most probable tokens at each position; the first row has tokens -1, logprobs nan."""
        ids = self._check(tokens)
        checks.check_top_k(k, self._capabilities, *changes)

        def score() -> TopLogprobs:
            best = np.full((len(ids), k), -1, np.int64)
            logprobs = np.full((len(ids), k), np.nan, np.float32)
            scored = np.full(len(ids), np.nan, np.float32)
            if len(ids) > 1:
                run = model.forward(self._weights, [ids[:-1]])
                rows = model.log_softmax(run.logits(self._weights))
                if any(changes):
                    changed = [change_logits(row, ids[: at + 1], *changes) for at, row in enumerate(rows)]
                    rows = model.log_softmax(np.stack(changed))
                # Stable: of equally probable tokens, the lower id comes first.
                best[1:] = np.argsort(-rows, axis=1, kind="stable")[:, :k]
                logprobs[1:] = np.take_along_axis(rows, best[1:], axis=1)
                scored[1:] = np.take_along_axis(rows, ids[1:, None], axis=1)[:, 0]
            return TopLogprobs(best, logprobs, scored)

        return self._worker.submit("topk_logprobs", score)

    def _check(self, tokens: Sequence[int]) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        checks.check_tokens(tokens, self._capabilities, where="tokens")
        return np.array(tokens, np.int64)


# Checkpoints on disk: a folder with `weights.npz` and `manifest.json`, which is written last.
#
# Only trained values are stored; the rest is rebuilt from the model's name and seed. A folder without a manifest is
# incomplete and counts as absent. The manifest has a checksum to detect damage.

FORMAT: Final = 1
_WEIGHTS = "weights.npz"

type Arrays = Mapping[str, NDArray[Any]]


def write_checkpoint(folder: Path, arrays: Arrays, about: Mapping[str, Any]) -> None:
    """Store a checkpoint; it does not exist until complete."""
    check_free(folder)
    buffer = io.BytesIO()
    np.savez(buffer, allow_pickle=False, **arrays)
    content = buffer.getvalue()
    with atomic_write(folder / _WEIGHTS) as file:
        file.write(content)
    manifest = {"format": FORMAT, **about, "sha256": hashlib.sha256(content).hexdigest(), "bytes": len(content)}
    write_json(folder / MANIFEST, manifest)


def read_checkpoint(ref: str) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
    """The arrays and the manifest of a checkpoint, with its checksum verified."""
    folder = Path(locate_weights(ref))
    manifest = _read_manifest(folder)
    try:
        content = (folder / _WEIGHTS).read_bytes()
    except OSError as error:
        raise BackendError(f"{folder / _WEIGHTS} cannot be read ({error.strerror}). {_REMEDY}") from None
    if hashlib.sha256(content).hexdigest() != manifest.get("sha256"):
        raise BackendError(
            f"{folder / _WEIGHTS} is damaged: its {len(content)} bytes do not match the checksum in {MANIFEST} "
            f"({manifest.get('bytes')} bytes were written). {_REMEDY}"
        )
    try:
        with np.load(io.BytesIO(content), allow_pickle=False) as stored:
            return {name: stored[name] for name in stored.files}, manifest
    except (ValueError, zipfile.BadZipFile) as error:
        raise BackendError(f"{folder / _WEIGHTS} is not a checkpoint ({error}). {_REMEDY}") from None


_REMEDY: Final = "Use an earlier checkpoint of the run."


def _read_manifest(folder: Path) -> dict[str, Any]:
    path = folder / MANIFEST
    try:
        manifest: Any = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise BackendError(f"there is no complete checkpoint in {folder}: {MANIFEST} is missing. {_REMEDY}") from None
    except (OSError, ValueError) as error:
        raise BackendError(f"{path} cannot be read ({error}). {_REMEDY}") from None
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:  # pyright: ignore[reportUnknownMemberType]
        raise BackendError(f"{path} is not a checkpoint of the mock backend in format {FORMAT}. {_REMEDY}")
    return manifest  # pyright: ignore[reportUnknownVariableType]
