"""Checks of recipes: learning rates, schedules, penalties, passes over the rows, and what never happens."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ....config.prices import backend_of
from ....errors import Problem
from ....inference.renderer import get_renderer
from ....inference.renderers.chat_template import CHAT_TEMPLATE, WITH_HERMES
from .claims import claim_of
from .context import Context

_HIGH, _LOW = 200.0, 1 / 1000
"""Learning rates beyond these multiples of the suggested one learn nothing, or nothing but noise."""
_MOST_PASSES, _FEW_ROWS = 20, 200
_USUAL: dict[str, tuple[float, float, str]] = {
    "kl_coefficient": (0.0, 1.0, "the penalty outweighs any reward. Write 0.01 to 0.1"),
    "beta": (0.005, 5.0, "dpo uses 0.05 to 0.5. Write 0.1"),
    "weight_decay": (0.0, 1.0, "weights vanish faster than they learn. Write 0.01"),
    "grad_clip_norm": (0.001, 1e6, "gradients are cut to almost nothing. Write 1.0, or 0 not to clip"),
    "group_size": (4, 4096, "the attempts at most tasks earn the same. Write 8"),
    "overlong_penalty": (0.0, 2.0, "it outweighs any reward. Write 0.1 to 1"),
    "temperature": (0.3, 2.0, "attempts become copies of each other, or noise. Write 1.0"),
    "label_smoothing": (0.0, 0.5, "most of the target is noise. Write 0.1"),
}
"""Param -> the range that recipes use, and what to do outside of it."""
_FAMILIES = ("qwen", "llama", "deepseek", "kimi", "nemotron", "gpt_oss", "gemma", "mistral")


def learning_rate_out_of_range(context: Context) -> Iterator[Problem]:
    """Learning rates that are off by orders of magnitude."""
    for one in context.stages:
        rate = one.cfg.learning_rate
        usual = 5e-4 if backend_of(one.run) == "mock" else 1e-4
        if rate is None or usual * _LOW < rate < usual * _HIGH:
            continue
        what = "the loss will hardly move" if rate < usual else "training will diverge"
        hint = f"Write about {usual:g}, or leave it out for what suits the model."
        yield Problem(f"{what} at this learning rate", f"{one.params_place}.learning_rate", rate, hint)


def unusual_params(context: Context) -> Iterator[Problem]:
    """Params far outside of the range that recipes use."""
    for one in context.stages:
        values = {**dict(one.cfg), **(dict(sampling) if (sampling := getattr(one.cfg, "sampling", None)) else {})}
        for name, (low, high, remedy) in _USUAL.items():
            value: Any = values.get(name)
            if isinstance(value, int | float) and value != 0 and not low <= value <= high:
                place = f"{one.params_place}.{'sampling.' if name == 'temperature' else ''}{name}"
                message, _, hint = remedy.partition(". ")
                yield Problem(message, place, value, f"{hint}.")


def updates_without_a_clip(context: Context) -> Iterator[Problem]:
    """Several updates on the same rollouts with a loss that does not limit them."""
    for one in context.stages:
        updates: int = getattr(one.cfg, "updates_per_batch", 1)
        if updates > 1 and getattr(one.cfg, "loss_fn", None) == "importance_sampling":
            message = "importance_sampling does not limit how far several updates on the same rollouts go"
            yield Problem(message, f"{one.params_place}.updates_per_batch", updates, "Write loss_fn: ppo, or 1 update.")


def budget_below_one_step(context: Context) -> Iterator[Problem]:
    """A budget of tokens that ends before the first step."""
    limit = context.config.budget.tokens if context.config.budget else None
    for one in context.sources if limit is not None else ():
        lengths = [
            context.tokens(example.prompt + (example.answer or ""), one.client) for example in one.examples[:200]
        ]
        needed = one.cfg.batch_size * sum(lengths) // len(lengths)
        if limit is not None and needed > limit:
            message = f"a step of '{one.run.name}' trains on about {needed} tokens, more than the budget"
            yield Problem(
                message, "budget.tokens", limit, "Raise it, or lower batch_size; `evsys plan` has the whole sum."
            )


def warmup_reaches_the_end(context: Context) -> Iterator[Problem]:
    """A warm-up after which nothing is left to train."""
    for one in context.stages:
        if one.steps is not None and one.steps > 1 and one.cfg.warmup_steps >= 0.5 * one.steps:
            when = "until the end" if one.cfg.warmup_steps >= one.steps else "for more than half of the run"
            message = f"the learning rate rises {when}: the run has {one.steps} steps"
            hint = f"Write {max(one.steps // 10, 1)} or less."
            yield Problem(message, f"{one.params_place}.warmup_steps", one.cfg.warmup_steps, hint)


def too_many_passes(context: Context) -> Iterator[Problem]:
    """Few rows that are learned by heart, and many that are learned in one step."""
    for one in context.stages:
        rows = len(one.pulled.rows) if one.pulled is not None and one.pulled.complete else 0
        chosen = "batch_size" in one.cfg.model_fields_set and one.cfg.max_steps is None
        if one.steps in (1, 2, 3) and claim_of(context) is not None and not (one.steps == 1 and chosen):
            name = "batch_size" if chosen else "max_steps" if one.cfg.max_steps is not None else "num_epochs"
            message = f"the claim is tested after {'one step' if one.steps == 1 else f'{one.steps} steps'}"
            yield Problem(message, f"{one.params_place}.{name}", getattr(one.cfg, name), "Train 50 steps or more.")
        if rows >= 20 and one.steps == 1 and chosen:
            message = f"all {rows} rows are one batch, so that the run has one step"
            yield Problem(
                message, f"{one.params_place}.batch_size", one.cfg.batch_size, "Write 16, or raise num_epochs."
            )
        if not (0 < rows <= _FEW_ROWS and one.learns_from_answers and one.steps):
            continue
        passes = one.steps * min(one.cfg.batch_size, rows) / rows
        if passes >= _MOST_PASSES:
            asked = "max_steps" if one.cfg.max_steps is not None else "num_epochs"
            message = f"{rows} rows are visited {passes:.0f} times each and will be learned by heart"
            hint = "Use 2 to 5 passes, or add rows."
            yield Problem(message, f"{one.params_place}.{asked}", getattr(one.cfg, asked), hint)


def scored_or_saved_never(context: Context) -> Iterator[Problem]:
    """Intervals that are longer than the run."""
    for one in context.stages:
        every = one.cfg.eval_every
        if (
            every is not None
            and one.steps is not None
            and every > one.steps
            and "eval_every" in one.cfg.model_fields_set
        ):
            message = f"nothing is scored on the way: the run has {one.steps} steps"
            yield Problem(message, f"{one.params_place}.eval_every", every, f"Write {max(one.steps // 4, 1)}.")
    for at, spec in enumerate(context.config.callbacks):
        steps = max((one.steps for one in context.stages if one.steps), default=0)
        every = {f"val/{one.label}": one.entry.run_every or steps for one in context.benchmarks if one.entry}
        metric = str(spec.params.get("metric"))
        values = steps // next((found for name, found in every.items() if metric.startswith(name)), 1)
        for key, most, what in (("min_steps", steps, "steps"), ("patience", values, f"values of {metric}")):
            given: Any = spec.params.get(key) if spec.kind == "early_stopping" and steps else None
            if isinstance(given, int) and given >= most:
                message = f"it can never stop a run: the longest has {most} {what}"
                yield Problem(message, f"callbacks[{at}].params.{key}", given, "Lower it, or remove the callback.")


def rows_that_do_not_fit(context: Context) -> Iterator[Problem]:
    """Rows that are left out or cut because `max_length` is short."""
    for one in context.stages:
        limit = getattr(one.cfg, "max_length", None)
        if limit is None or one.client is None or one.client.context_length is None or not one.examples:
            continue
        some = one.examples[:: max(len(one.examples) // 200, 1)]
        renderer = one.client.renderer or get_renderer(one.client.tokenizer)
        longer = 0
        for example in some:
            asked = [{"role": "system", "content": example.system}] if example.system else []
            prompt = renderer.prompt([*asked, {"role": "user", "content": example.prompt}])
            longer += len(prompt) + context.tokens(example.answer or "", one.client) > limit
        if longer >= 0.3 * len(some):
            action = {"skip": "left out", "truncate": "cut off"}.get(one.cfg.too_long, "refused")
            message = f"about {longer / len(some):.0%} of the rows are longer and will be {action}"
            yield Problem(message, f"{one.params_place}.max_length", limit, "Raise it, or shorten the rows.")


def renderer_of_another_model(context: Context) -> Iterator[Problem]:
    """A renderer that writes the control tokens of another family of models."""
    for place, run in context.runs:
        renderer, model = run.model.renderer_name or "", run.model.name.casefold().replace("-", "_")
        if renderer and backend_of(run) == "mock" and renderer not in (CHAT_TEMPLATE, WITH_HERMES):
            message = "the mock model has an own chat template and does not use this renderer"
            yield Problem(message, f"{place}.model.renderer_name", renderer, "Remove it for runs on mock.")
        family = next((one for one in _FAMILIES if renderer.startswith(one)), None)
        other = next((one for one in _FAMILIES if one in model), None)
        if family is not None and other is not None and family != other:
            hint = f"Remove it for the template of {run.model.name}, or name a renderer of '{other}'."
            yield Problem(f"this renderer writes '{family}' prompts", f"{place}.model.renderer_name", renderer, hint)
