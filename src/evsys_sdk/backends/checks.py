"""Validation before a call reaches a backend, so that an error has no cost or effect.

Some servers return NaN for these errors instead of failing, so all backends share these checks. Each error names the
datum, the position, the value and the remedy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import BackendError, ConfigError, DataError, Problem, closest, show
from .datum import Datum
from .losses import LOSSES, check_config

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from .client import AdamParams, Capabilities, LogitsProcessor, SamplingParams


def check_loss(name: str, config: Mapping[str, Any] | None, capabilities: Capabilities) -> None:
    """Refuse a loss that is unknown, unsupported by this backend, or has wrong parameters."""
    if name not in capabilities.losses:
        offered = ", ".join(sorted(capabilities.losses))
        if name in LOSSES:
            raise BackendError(f"the backend '{capabilities.backend}' has no loss '{name}'; it has {offered}.")
        guess = closest(name, capabilities.losses)
        hint = f" Did you mean '{guess}'?" if guess else ""
        raise BackendError(f"there is no loss called {show(name)}.{hint} This backend has {offered}.")
    check_config(name, config)
    if name != "cross_entropy":
        _check_summed(capabilities, f"the loss '{name}'")


def check_recipe(
    capabilities: Capabilities, *, path: str, sums: str | None = None, snapshots: str | None = None
) -> None:
    """Refuse a recipe that this backend would silently corrupt.

    `sums` describes what depends on summed losses, `snapshots` what depends on frozen samplers; `path` is the place in
    the config.
    """
    backend = capabilities.backend
    if sums and not capabilities.summed_losses:
        message = f"the backend '{backend}' averages losses over what is sent together, which changes {sums} unnoticed"
        raise ConfigError(Problem(message, path=path, hint=_ANOTHER_SERVER))
    if snapshots and not capabilities.snapshot_samplers:
        message = (
            f"the samplers of the backend '{backend}' follow the live weights instead of keeping theirs, which ruins "
            f"{snapshots} unnoticed"
        )
        raise ConfigError(Problem(message, path=path, hint=_ANOTHER_SERVER))


_ANOTHER_SERVER = "Use a server that keeps the protocol; `evsys doctor` says whether one does."


def _check_summed(capabilities: Capabilities, what: str) -> None:
    if not capabilities.summed_losses:
        raise BackendError(
            f"the backend '{capabilities.backend}' averages losses over what is sent together, so {what} would train "
            f"something else than was asked for, without an error. {_ANOTHER_SERVER}"
        )


def check_data(data: Sequence[Datum], capabilities: Capabilities, loss_fn: str | None = None) -> None:
    """Refuse invalid training data; `loss_fn` is None for a custom loss."""
    if not len(data):
        raise DataError("there is no data to pass through the model. Give at least one datum, or skip the step.")
    if loss_fn is None:
        _check_summed(capabilities, "a loss of your own")
    for index, datum in enumerate(data):
        if not isinstance(datum, Datum):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise DataError(
                f"datum {index} is a {type(datum).__name__}, not a Datum. Build it with Datum.supervised()."
            )
        where = f"datum {index}"
        check_tokens(datum.tokens, capabilities, where=where)
        _check_targets(datum, capabilities, where)
        _check_values(datum.weights, datum.target_tokens.shape, f"{where}: weights")
        if not capabilities.summed_losses and (datum.weights < 0).any():
            _check_summed(capabilities, f"{where}, which has negative weights,")
        needs_policy = loss_fn not in (None, "cross_entropy")
        for name, values in (("advantages", datum.advantages), ("logprobs", datum.logprobs)):
            if values is not None:
                _check_values(values, (len(datum),), f"{where}: {name}")
            elif needs_policy:
                raise DataError(f"{where}: the loss '{loss_fn}' needs {name}. Build the datum with Datum.policy().")
        if needs_policy and datum.target_tokens.ndim != 1:
            raise DataError(f"{where}: the loss '{loss_fn}' takes one target per position, not soft targets (N, K).")


def check_tokens(tokens: Sequence[int] | NDArray[Any], capabilities: Capabilities, *, where: str) -> None:
    """Refuse no tokens, tokens outside the vocabulary, and sequences beyond the context length."""
    array = np.asarray(tokens)
    if array.ndim != 1 or not array.size:
        raise DataError(f"{where}: tokens are shaped {array.shape}; they must be one row of at least one token.")
    if len(array) > capabilities.context_length:
        raise DataError(
            f"{where}: {len(array)} tokens do not fit into the context of {capabilities.context_length}. "
            "Shorten the sequence, or raise the context length if the backend has a setting for it."
        )
    _check_vocabulary(array, capabilities, f"{where}: tokens")


def check_adam(adam: AdamParams) -> None:
    """Refuse optimiser parameters that would ruin the weights."""
    for name in ("learning_rate", "weight_decay", "grad_clip_norm"):
        if not (np.isfinite(value := getattr(adam, name)) and value >= 0):
            raise BackendError(f"{name} must be 0 or more and finite (got {show(value)}).")
    for name in ("beta1", "beta2"):
        if not 0 <= (value := getattr(adam, name)) < 1:
            raise BackendError(f"{name} must lie in [0, 1) (got {show(value)}).")
    if not (np.isfinite(adam.eps) and adam.eps > 0):
        raise BackendError(f"eps must be more than 0 and finite (got {show(adam.eps)}).")


def check_sampling(prompt: Sequence[int], num_samples: int, params: SamplingParams, capabilities: Capabilities) -> None:
    """Refuse an invalid sampling request."""
    check_tokens(prompt, capabilities, where="prompt")
    counts = {"num_samples": num_samples, "max_tokens": params.max_tokens, "top_k": params.top_k, "seed": params.seed}
    for name, value in counts.items():
        if not isinstance(value, int | np.integer) and not (name == "seed" and value is None):
            raise BackendError(f"{name} must be a whole number (got {show(value)}).")
    problems = {
        f"num_samples must be 1 or more (got {show(num_samples)})": num_samples < 1,
        f"on_token follows one sample (got num_samples {show(num_samples)})": params.on_token is not None
        and num_samples != 1,
        f"max_tokens must be 1 or more (got {show(params.max_tokens)})": params.max_tokens < 1,
        # Smaller values overflow the logits.
        f"temperature must be 0 or 0.0001 to 1000000 (got {show(params.temperature)})": params.temperature != 0
        and not 1e-4 <= params.temperature <= 1e6,
        f"top_k must be -1 (all tokens) or at least 1 (got {show(params.top_k)})": params.top_k < 1
        and params.top_k != -1,
        f"top_p must lie in (0, 1] (got {show(params.top_p)})": not 0 < params.top_p <= 1,
    }
    for message, wrong in problems.items():
        if wrong:
            raise BackendError(f"{message}.")
    if (longest := len(prompt) + params.max_tokens) > capabilities.context_length:
        raise BackendError(
            f"a prompt of {len(prompt)} tokens and max_tokens={params.max_tokens} make {longest}, more than the "
            f"context of {capabilities.context_length}. Lower max_tokens or shorten the prompt."
        )
    _check_stop(params.stop)
    if params.top_logprobs:
        check_top_k(params.top_logprobs, capabilities)
    if (params.make_filter or params.top_logprobs) and not capabilities.filters:
        raise BackendError(
            f"the backend '{capabilities.backend}' cannot limit tokens or report alternatives while it samples. "
            "Use mock or local, or leave top_logprobs and make_filter out."
        )
    _check_changes(params.logit_bias, params.processors, capabilities)


def _check_changes(bias: Mapping[int, float] | None, processors: Sequence[Any], capabilities: Capabilities) -> None:
    """Refuse changes of logits that are invalid or unsupported by the backend."""
    if not bias and not processors:
        return
    if not capabilities.filters:
        raise BackendError(
            f"the backend '{capabilities.backend}' cannot change logits: it takes no logit_bias and no processors. "
            "Use mock or local, or sample more and keep what you want."
        )
    tokens = np.array(list(bias or {}))
    if tokens.size:
        _check_vocabulary(tokens, capabilities, "logit_bias: tokens")
    if bad := [token for token, value in (bias or {}).items() if np.isnan(value) or value == np.inf]:
        raise BackendError(f"logit_bias of token {bad[0]} is {bias and bias[bad[0]]}. Use a number, or -inf to ban it.")
    for processor in processors:
        if not callable(processor):
            raise BackendError(f"processors must be functions of (tokens, logprobs) (got {show(processor)}).")


def run_processors(row: NDArray[Any], tokens: Sequence[int], processors: Sequence[LogitsProcessor]) -> NDArray[Any]:
    """Log-probabilities (V,) changed by processors; refuses results of another shape or without any choice."""
    for processor in processors:
        result = np.asarray(processor(tokens, row), row.dtype)
        if result.shape != row.shape or np.isnan(result).any() or result.max() in (np.inf, -np.inf):
            name = getattr(processor, "__name__", type(processor).__name__)
            raise BackendError(
                f"the logits processor {name} returned an array of shape {result.shape} with a largest value of "
                f"{result.max(initial=-np.inf)}. Return shape {row.shape}, -inf to ban tokens."
            )
        row = result
    return row


def check_top_k(
    k: int, capabilities: Capabilities, bias: Mapping[int, float] | None = None, processors: Sequence[Any] = ()
) -> None:
    """Refuse more alternatives per position than the backend reports, and unsupported changes of logits."""
    _check_changes(bias, processors, capabilities)
    if not 1 <= k <= capabilities.top_k_logprobs:
        raise BackendError(
            f"k must lie between 1 and {capabilities.top_k_logprobs} on the backend '{capabilities.backend}' "
            f"(got {show(k)})."
        )


def _check_targets(datum: Datum, capabilities: Capabilities, where: str) -> None:
    targets = datum.target_tokens
    if targets.ndim not in (1, 2) or len(targets) != len(datum) or not targets.size:
        raise DataError(
            f"{where}: {len(datum)} tokens, but target_tokens are shaped {targets.shape}; "
            "every position needs its target: use (N,), or (N, K) for soft targets."
        )
    if targets.ndim == 2 and not capabilities.soft_targets:
        raise DataError(f"{where}: the backend '{capabilities.backend}' takes no soft targets (N, K), only (N,).")
    _check_vocabulary(targets, capabilities, f"{where}: target_tokens")


def _check_vocabulary(tokens: NDArray[Any], capabilities: Capabilities, where: str) -> None:
    if not np.issubdtype(tokens.dtype, np.integer):
        raise DataError(f"{where} must be integers (got {tokens.dtype}).")
    if outside := _first((tokens < 0) | (tokens >= capabilities.vocab_size)):
        raise DataError(
            f"{where}{_at(outside)} is {int(tokens[outside])}, which is not in the vocabulary "
            f"(0..{capabilities.vocab_size - 1}). Encode the text with this client's tokenizer."
        )


def _check_values(values: NDArray[Any], shape: tuple[int, ...], where: str) -> None:
    if values.shape != shape:
        raise DataError(f"{where} are shaped {values.shape}, but must be shaped {shape}, one for each prediction.")
    if bad := _first(~np.isfinite(values)):
        raise DataError(f"{where}{_at(bad)} is {values[bad]}. Replace what is not finite before training on it.")


def _first(wrong: NDArray[np.bool_]) -> tuple[int, ...] | None:
    if not wrong.any():
        return None
    return tuple(int(i) for i in np.unravel_index(int(wrong.argmax()), wrong.shape))


def _at(index: tuple[int, ...]) -> str:
    return f"[{', '.join(str(i) for i in index)}]"


def _check_stop(stop: Sequence[str] | Sequence[int] | None) -> None:
    if isinstance(stop, str):
        raise BackendError(f"stop must be a list (got {show(stop)}). Write [{stop!r}].")
    kinds = {type(item) for item in stop or ()}
    if kinds - {str} and kinds - {int}:
        raise BackendError(f"stop must hold texts or tokens, not both or others (got {show(stop)}).")
    if "" in (stop or ()):
        raise BackendError(f"stop holds an empty text, which would stop at once (got {show(stop)}). Remove it.")
