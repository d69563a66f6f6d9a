"""Checks of a loaded model: compare its own forward pass with packed attention and decoding on a few tokens.

Single sequences, packed sequences, sequences with a shared prefix, and tokens decoded one by one must have the
log-probabilities of the model's own forward pass. Other sequences of the row must not change them. A model that fails
is refused, with the difference in the error.
"""

# pyright: basic, reportMissingImports=false

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ....log import get_logger
from .. import memory
from .attention import NAME, NotUnderstood, PackedLayout, Segment, Traits
from .families import explain_refusal
from .head import Head

if TYPE_CHECKING:
    from ..sampling.decoding import TokenDecoder
    from .loading import Base

_LARGEST_CRAFTED = 40.0
_LENGTH, _PREFIX, _STEPS = 12, 6, 2
"""Length of the test sequences, length of the prefix that two of them share, and number of tokens to decode."""


def head_of(model: Any, output: Any, name: str) -> Head:
    """Return the output layer with its scale and cap, found by replacing its output with known values."""
    # A wide range, because a cap or a scale shows at the ends.
    products = torch.linspace(
        -_LARGEST_CRAFTED, _LARGEST_CRAFTED, len(output.weight), device=output.weight.device, dtype=torch.float32
    )
    products = products.to(output.weight.dtype)
    calls: list[int] = []

    def craft(module: Any, args: Any, result: Tensor) -> Tensor:
        calls.append(1)
        return products.expand(result.shape)

    hook = output.register_forward_hook(craft)
    try:
        with eager_attention(model), torch.no_grad():
            tokens = torch.tensor([[0, 1]], device=products.device)
            logits = model(input_ids=tokens, use_cache=False).logits[0, -1].float()
    except Exception as error:
        raise _failure(name, model, error) from error
    finally:
        hook.remove()
    plain = products.float()
    allowed = 1e-3 if products.dtype == torch.float32 else 0.3
    for scale, cap in _changes(model.config.get_text_config()):
        head = Head(output.weight, getattr(output, "bias", None), scale, cap)
        if calls and logits.shape == plain.shape:
            # A copy, because `to_logits` may overwrite its argument.
            result = head.to_logits(plain.clone())
            if float((result - logits).abs().max()) <= allowed * max(1.0, float(result.abs().max()) / _LARGEST_CRAFTED):
                return head
    raise explain_refusal(
        name, type(model).__name__, "it changes its logits after the output layer in a way we do not know"
    )


def _changes(config: Any) -> list[tuple[float, float | None]]:
    """Return candidate pairs of scale and cap from the config; `head_of` tests which of them the model applies."""
    candidates: list[tuple[float, float | None]] = [(1.0, None)]
    if scale := getattr(config, "logit_scale", None):
        candidates.append((float(scale), None))
    if divisor := getattr(config, "logits_scaling", None):
        candidates.append((1 / float(divisor), None))
    if cap := getattr(config, "final_logit_softcapping", None):
        candidates.append((1.0, float(cap)))
    return candidates


@contextlib.contextmanager
def eager_attention(model: Any) -> Generator[None]:
    """Use the eager attention of transformers within a block."""
    model.set_attn_implementation("eager")
    try:
        yield
    finally:
        model.set_attn_implementation(NAME)


@torch.no_grad()
def check(base: Base) -> None:
    """Raise if the results of a base differ from the model's own; drop unused layers from the adaptable ones."""
    try:
        with base.switch.noting() as used:
            reason = _first_difference(base)
    except Exception as error:
        if memory.is_out_of_memory(error):
            raise
        raise _failure(base.key.model, base.model, error) from error
    if reason is not None:
        raise explain_refusal(base.key.model, type(base.model).__name__, reason)
    base.switch.layers = {name: linear for name, linear in base.switch.layers.items() if name in used}


def _failure(name: str, model: Any, error: Exception) -> Exception:
    if memory.is_out_of_memory(error):
        return error
    message = str(error).strip().splitlines()[0].rstrip(".") if str(error).strip() else "nothing"
    reason = message if isinstance(error, NotUnderstood) else f"running it fails ({type(error).__name__}: {message})"
    return explain_refusal(name, type(model).__name__, reason)


def _first_difference(base: Base) -> str | None:
    texts = _texts(base)
    with eager_attention(base.model):
        reference = base.model(input_ids=torch.stack(texts), use_cache=False).logits.float().log_softmax(-1)
    traits_of: dict[int, Traits] = {}
    count = len(texts[0])
    alone = base.hidden(
        texts[0], torch.arange(count, device=base.device), _TraitsRecorder(Segment(0, count), traits_of)
    )
    if (gap := _gap(base, alone, reference[0])) is not None:
        return f"its log-probabilities differ by {gap:.3g} from those of its forward pass in transformers"
    if not traits_of:
        return "it computes nothing by attention, so sequences that are packed into one row would not be kept apart"
    if (reason := _wrong_window(base, traits_of)) is not None:
        return reason
    return _compare_packing(base, texts, reference) or _compare_decoding(base, texts, reference)


def _texts(base: Base) -> list[Tensor]:
    """Return two sequences with a common prefix and an unrelated one."""
    count = torch.arange(min(_LENGTH, base.context_length))
    first, second, third = count * 7 + 3, count * 11 + 2, count * 5 + 1
    second[:_PREFIX] = first[:_PREFIX]
    return [(text % base.vocab_size).to(base.device) for text in (first, second, third)]


def _compare_packing(base: Base, texts: Sequence[Tensor], reference: Tensor) -> str | None:
    """Return how results change when texts are packed into one row twice, each time behind another text, or None."""
    first, second, third = texts
    prefix = min(_PREFIX, len(first) - 1)
    rests = [first[:prefix], first[prefix:], second[prefix:]]
    parts = [*(third, *rests), *((third + 1) % base.vocab_size, *rests)]
    segments: list[Segment] = []
    positions: list[Tensor] = []
    for number, part in enumerate(parts):
        start = segments[-1].start + segments[-1].length if segments else 0
        shared = segments[number // 4 * 4 + 1] if number % 4 > 1 else Segment(0, 0)
        segments.append(Segment(start, len(part), shared.start, shared.length))
        positions.append(torch.arange(len(part), device=base.device) + shared.length)
    hidden = base.hidden(torch.cat(parts), torch.cat(positions), PackedLayout(segments))
    outputs = hidden.split([len(part) for part in parts])
    before, after = torch.cat(outputs[1:4]).float(), torch.cat(outputs[5:8]).float()
    # Other sequences of the row must not matter: the states must be equal behind both.
    changed = float(((before - after).norm(dim=1) / before.norm(dim=1)).mean())
    packed = (*(torch.cat([outputs[1], rest]) for rest in outputs[2:4]), outputs[0])
    same = changed <= (1e-3 if base.key.dtype == torch.float32 else 0.1)
    if same and all(_gap(base, ours, expected) is None for ours, expected in zip(packed, reference, strict=True)):
        return None
    stateful = sorted({type(module).__name__ for module in base.model.modules() if _convolves(module)})
    return (
        "its numbers change when sequences are packed into one row: it counts positions by itself, or something"
        f"{f' ({", ".join(stateful)})' if stateful else ''} passes from token to token next to attention"
    )


def _compare_decoding(base: Base, texts: Sequence[Tensor], reference: Tensor) -> str | None:
    """Return how results change when the last tokens of each text are decoded one by one, or None."""
    from ..sampling.decoding import TokenDecoder

    logits = decode_texts(base, TokenDecoder(base, {}))
    gap = _difference(base, logits, reference[:, -logits.shape[1] :])
    return None if gap is None else f"its log-probabilities change by {gap:.3g} when tokens are decoded one by one"


def decode_texts(base: Base, decoder: TokenDecoder) -> Tensor:
    """Return the logits that a decoder computes for the last tokens of the test sequences, one step at a time."""
    texts = [text.tolist() for text in _texts(base)]
    count = len(texts[0])
    read = max(1, count - _STEPS)
    decoder.cache.reserve(len(texts), count)
    logits = [decoder.prefill([text[:read] for text in texts], list(range(len(texts))))]
    for at in range(read, count):
        logits.append(decoder.step([text[at] for text in texts], [at] * len(texts)))
    return torch.stack(logits, dim=1)


def _gap(base: Base, hidden: Tensor, expected: Tensor) -> float | None:
    return _difference(base, base.head.logits(hidden), expected)


def _difference(base: Base, logits: Tensor, expected: Tensor) -> float | None:
    """Return the difference of the log-probabilities; None if rounding explains it."""
    apart = (logits.log_softmax(-1) - expected).abs()
    exact = base.key.dtype == torch.float32
    if exact and not is_mixture(base.model):
        gap = float(apart.max())
    else:
        # In half precision, improbable tokens differ much, and rounding sometimes selects another expert.
        gap = float((apart * expected.exp()).nan_to_num(torch.inf).sum(-1).mean())
    return None if gap <= (1e-2 if exact else 0.5) else gap


def agrees(base: Base, what: str, compute: Callable[[], tuple[Tensor, Tensor]]) -> bool:
    """Whether fused code returns the logits of the model's own modules; log a warning if not."""
    try:
        with torch.no_grad():
            computed, reference = compute()
            gap = _difference(base, computed, reference.log_softmax(-1))
        problem = None if gap is None else f"differs by {gap:.3g}"
    except Exception as error:
        if memory.is_out_of_memory(error):
            raise
        problem = f"does not work ({error})"
    if problem is not None:
        get_logger(__name__).warning("%s: the fused %s %s and is not used", base.key.model, what, problem)
    return problem is None


def is_mixture(model: nn.Module) -> bool:
    """Whether a model is a mixture of experts."""
    return any("experts" in name for name, _ in model.named_modules())


def _wrong_window(base: Base, traits_of: dict[int, Traits]) -> str | None:
    """Return why the layers' windows differ from the config, or None; the test sequences are too short to show it."""
    config = base.model.config.get_text_config()  # pyright: ignore[reportAttributeAccessIssue, reportCallIssue]
    window, kinds = getattr(config, "sliding_window", None), getattr(config, "layer_types", None) or ()
    for number, traits in traits_of.items():
        if number < len(kinds):
            expected = window if kinds[number] == "sliding_attention" else None
            if traits.window != expected:
                return f"layer {number} has a window of {traits.window} tokens, and its config states {expected}"
    windows = [traits.window for traits in traits_of.values() if traits.window is not None]
    if not kinds and not windows and window is not None and window < base.context_length:
        return f"its config states a window of {window} tokens, and its layers report none"
    return None


def _convolves(module: nn.Module) -> bool:
    return any(isinstance(child, nn.Conv1d) for child in module.children())


class _TraitsRecorder(PackedLayout):
    """A row of one sequence that records the attention parameters of each layer."""

    def __init__(self, segment: Segment, traits_of: dict[int, Traits]) -> None:
        super().__init__([segment])
        self._traits = traits_of

    def attend(self, query: Tensor, key: Tensor, value: Tensor, traits: Traits) -> Tensor:
        self._traits[traits.layer] = traits
        return super().attend(query, key, value, traits)
