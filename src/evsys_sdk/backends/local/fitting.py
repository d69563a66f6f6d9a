"""What a run does differently where memory is short, decided before its model is loaded.

Rows and the cache of samples become smaller, layers are recomputed, no merged copy is made to sample from: in this
order, only as far as needed, and nothing that the config sets itself. One line of the log says what and why.

    needs = fit(Sizes.of(config), wanted, fixed={"tokens_at_once"}, model="./model")
"""

# pyright: basic, reportMissingImports=false

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from ...errors import BackendError
from ...log import get_logger
from . import memory
from .base import families
from .base.loading import context_length_of, pick_dtype
from .estimate import Estimate, Needs, Sizes
from .memory import GIB

_USED = 0.9
"""Of what is free; the rest goes to what is not counted."""
_SURE = 0.7
"""An estimate may be too high by this much, so only what would not fit even then is refused."""
_LEAST = {"tokens_at_once": 256, "cached_tokens": 4096}


def fit(sizes: Sizes, wanted: Needs, *, fixed: Collection[str], model: str) -> Needs:
    """What is wanted, with less of it where memory is short; `fixed` names what must stay as it is."""
    free = memory.available_bytes(wanted.device)
    if free is None:
        return wanted

    def fits(needs: Needs) -> bool:
        return Estimate.of(sizes, needs).total <= free * _USED

    chosen = next((needs for needs in _list_fallbacks(wanted, fixed) if fits(needs)), None)
    if chosen is None:
        [*_, least] = _list_fallbacks(wanted, fixed)
        _refuse_if_sure(sizes, least, free, model)
        chosen = least
    elif chosen != wanted:
        chosen = _take_back(chosen, wanted, fits)
    if chosen.recompute and not wanted.recompute:
        chosen = replace(chosen, recompute_from=_longest_kept(sizes, chosen, free))
    log = get_logger(__name__)
    if chosen == wanted:
        log.info("a run takes about %.1f of %.1f GiB", Estimate.of(sizes, wanted).total / GIB, free / GIB)
    else:
        log.warning(
            "memory is short: this run would take %.1f GiB, and %s has %.1f GiB free; so %s, which takes %.1f GiB",
            Estimate.of(sizes, wanted).total / GIB,
            wanted.device,
            free / GIB,
            _differences(wanted, chosen),
            Estimate.of(sizes, chosen).total / GIB,
        )
    return chosen


def refuse_if_hopeless(sizes: Sizes, wanted: Needs, *, fixed: Collection[str], model: str, room: int) -> None:
    """Refuse a run that would not fit into `room` bytes, however little it does with."""
    [*_, least] = _list_fallbacks(wanted, fixed)
    estimate = Estimate.of(sizes, least)
    if _surely_taken(estimate) > room:
        parts = {"weights": estimate.base, "adapter and optimizer": estimate.adapter, "activations": estimate.row}
        rest = estimate.total - sum(parts.values())
        listed = ", ".join(f"{size / GIB:.1f} for {name}" for name, size in {**parts, "sampling": rest}.items())
        raise BackendError(
            f"training {model} takes about {estimate.total / GIB:.1f} GiB ({listed}), and there are {room / GIB:.1f} "
            "GiB of memory. Choose a smaller model, lower lora_rank or backend.params.lora_targets, set "
            "backend.params.dtype to bfloat16, or train elsewhere, such as on tinker."
        )


def _surely_taken(estimate: Estimate) -> float:
    certain = estimate.base + estimate.adapter
    return certain + _SURE * (estimate.total - certain)


def _list_fallbacks(wanted: Needs, fixed: Collection[str]) -> Iterator[Needs]:
    """Ways to do with less, each taking less than the one before; what costs little comes first."""
    needs = wanted
    yield needs
    tokens = () if "tokens_at_once" in fixed else ("tokens_at_once",)
    cache = () if "cached_tokens" in fixed else ("cached_tokens",)
    for part in (*tokens, *cache) * 2:
        needs = _halve(needs, part, wanted)
        yield needs
    if "recompute" not in fixed:
        needs = replace(needs, recompute=True)
        yield needs
    if "merge_samplers" not in fixed:
        needs = replace(needs, merge=False)
        yield needs
    for part in (*cache, *tokens):  # many small rows are the slowest of all
        while (smaller := _halve(needs, part, wanted)) != needs:
            needs = smaller
            yield needs


def _halve(needs: Needs, part: str, wanted: Needs) -> Needs:
    least = min(_LEAST[part], getattr(wanted, part))
    return replace(needs, **{part: max(least, getattr(needs, part) // 2)})


def _take_back(needs: Needs, wanted: Needs, fits: Callable[[Needs], bool]) -> Needs:
    """Take back what turned out not to be needed: the remedies were tried one on top of the other."""
    for part in ("merge", "recompute"):
        if fits(back := replace(needs, **{part: getattr(wanted, part)})):
            needs = back
    for part in ("tokens_at_once", "cached_tokens"):
        while getattr(needs, part) < getattr(wanted, part):
            back = replace(needs, **{part: min(getattr(wanted, part), 2 * getattr(needs, part))})
            if not fits(back):
                break
            needs = back
    return needs


def _longest_kept(sizes: Sizes, needs: Needs, free: int) -> int:
    """How long a row may be that is not recomputed."""
    estimate, kept = Estimate.of(sizes, needs), Estimate.of(sizes, needs.without_recomputation())
    room = free * _USED - (estimate.total - estimate.row)
    return int(needs.tokens_at_once * max(0.0, room) / kept.row)


def _differences(wanted: Needs, chosen: Needs) -> str:
    changes: list[str] = []
    if chosen.tokens_at_once != wanted.tokens_at_once:
        changes.append(f"tokens_at_once is {chosen.tokens_at_once} (not {wanted.tokens_at_once})")
    if chosen.cached_tokens != wanted.cached_tokens:
        changes.append(f"cached_tokens is {chosen.cached_tokens} (not {wanted.cached_tokens})")
    if chosen.recompute != wanted.recompute:
        changes.append(f"layers are recomputed in the backward pass of rows of {chosen.recompute_from} tokens or more")
    if chosen.merge != wanted.merge:
        changes.append("samples are taken without a merged copy of the weights")
    return ", ".join(changes)


def _refuse_if_sure(sizes: Sizes, least: Needs, free: int, model: str) -> None:
    estimate = Estimate.of(sizes, least)
    if _surely_taken(estimate) <= free:
        return
    raise BackendError(
        f"training {model} takes about {estimate.total / GIB:.1f} GiB, and {least.device} has {free / GIB:.1f} GiB "
        f"free, with everything as small as it goes:\n{estimate.table(least)}\n"
        "Free memory on the machine, choose a smaller model, lower lora_rank, adapt fewer layers "
        "(backend.params.lora_targets), or set backend.params.dtype to bfloat16 where it is float32; of "
        "backend.params, tokens_at_once, cached_tokens, recompute and merge_samplers are kept where they are set."
    )


# What is known of a model before any weight is read: its tokenizer, how long its texts may be, whether a run fits.
#
# found = preview_model("./model", want=..., room=...) # raises BackendError with what stands against it
# found.tokenizer, found.context_length


@dataclass(frozen=True, slots=True)
class Preview:
    """A model that could be loaded."""

    tokenizer: Any
    context_length: int


def preview_model(
    model: str, *, want: Callable[[Any, Any], Needs], dtype: str, fixed: Collection[str], room: int | None
) -> Preview | None:
    """Look at the files of a model on this machine; None where they are not here, or say too little.

    A run that would not fit into `room` bytes of main memory, even with everything as small as it goes, is refused.
    What it wants depends on where it is and how it is stored.
    """
    from transformers import AutoConfig, AutoTokenizer

    config = _read(lambda: AutoConfig.from_pretrained(model, local_files_only=True, trust_remote_code=False))
    tokenizer = _read(lambda: AutoTokenizer.from_pretrained(model, local_files_only=True, trust_remote_code=False))
    if config is None or tokenizer is None:
        return None
    families.check_family(model, config)
    if room is not None and (sizes := _read(lambda: Sizes.of(config))) is not None:
        cpu = torch.device("cpu")
        needs = want(cpu, pick_dtype(dtype, cpu))
        refuse_if_hopeless(sizes, needs, fixed=fixed, model=Path(model).name, room=room)
    return Preview(tokenizer, context_length_of(config.get_text_config(), model, warns=False))


def _read(load: Callable[[], Any]) -> Any | None:
    try:
        return load()
    except Exception:  # loading the model says what is wrong with it
        return None
