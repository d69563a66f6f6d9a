"""Checks of recipe params: unusual values, and values without the intended effect."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from ....config.prices import backend_of
from ....errors import Problem
from ....inference.renderer import get_renderer
from ....inference.renderers.chat_template import CHAT_TEMPLATE, WITH_HERMES
from ....paths import in_project
from ....record.run_files.checkpoints import locate_weights
from .claims import claim_of
from .context import Context, StageView

_MOST_PASSES, _FEW_ROWS, _MOST_SCORING = 20, 200, 20
_USUAL: dict[str, tuple[float, float, str]] = {
    "kl_coefficient": (0.0, 1.0, "the penalty outweighs any reward. Write 0.01 to 0.1"),
    "lora_rank": (1, 256, "the adapter is larger than what it learns. Write 8 to 64"),
    "beta": (0.005, 5.0, "dpo uses 0.05 to 0.5. Write 0.1"),
    "weight_decay": (0.0, 1.0, "weights vanish faster than they learn. Write 0.01"),
    "grad_clip_norm": (0.001, 1e6, "gradients are cut to almost nothing. Write 1.0, or 0 not to clip"),
    "group_size": (4, 4096, "the attempts at most tasks earn the same. Write 8"),
    "overlong_penalty": (0.0, 2.0, "it outweighs any reward. Write 0.1 to 1"),
    "temperature": (0.3, 2.0, "attempts become copies of each other, or noise. Write 1.0"),
    "label_smoothing": (0.0, 0.5, "most of the target is noise. Write 0.1"),
}
"""Param -> minimum and maximum of the usual range, and the message with its remedy."""
_FAMILIES = ("qwen", "llama", "deepseek", "kimi", "nemotron", "gpt_oss", "gemma", "mistral")


def unusual_params(context: Context) -> Iterator[Problem]:
    """Params far outside of their usual range."""
    for one in context.stages:
        rate, usual = one.cfg.learning_rate, 5e-4 if backend_of(one.run) == "mock" else 1e-4
        if rate is not None and not usual / 50 <= rate < usual * 200:
            message = "the loss will hardly move" if rate < usual else "training will diverge"
            hint = f"Write about {usual:g}, or leave it out for what suits the model."
            yield Problem(f"{message} at this learning rate", f"{one.params_place}.learning_rate", rate, hint)
        values: dict[str, Any] = {**dict(one.cfg), **dict(getattr(one.cfg, "sampling", None) or {})}
        for name, (low, high, remedy) in _USUAL.items():
            value: Any = values.get(name)
            if isinstance(value, int | float) and value != 0 and not low <= value <= high:
                place = f"{one.params_place}.{'sampling.' if name == 'temperature' else ''}{name}"
                message, _, hint = remedy.partition(". ")
                yield Problem(message, place, value, f"{hint}.")
        if values.get("updates_per_batch", 1) > 1 and values.get("loss_fn") == "importance_sampling":
            message = "importance_sampling does not limit how far several updates on the same rollouts go"
            place = f"{one.params_place}.updates_per_batch"
            yield Problem(message, place, values["updates_per_batch"], "Write loss_fn: ppo, or 1 update.")
    for one in context.benchmarks:
        entry, place = one.entry, f"{one.place}.temperature"
        if entry is not None and entry.samples > 1 and entry.temperature == 0:
            message = f"at temperature 0 the {entry.samples} samples of a task are copies of one"
            yield Problem(message, place, 0, "Remove it, or set samples: 1.")
        if entry is not None and (entry.temperature or 0) > 1.5:
            yield Problem("answers are noise at this temperature", place, entry.temperature, "Write 1 or less.")


def teacher_is_the_student(context: Context) -> Iterator[Problem]:
    """Distillation from a teacher that is the student's initial checkpoint."""
    for one in context.stages:
        teacher, start = getattr(one.cfg, "teacher", None), one.run.model.init_from_checkpoint
        if isinstance(teacher, str) and start is not None and _checkpoint(teacher) == _checkpoint(start):
            hint = "Leave out model.init_from_checkpoint, or name a better teacher."
            yield Problem("the student starts as its own teacher", f"{one.params_place}.teacher", teacher, hint)


def _checkpoint(reference: str) -> str:
    """The path of a checkpoint, for a reference to its state, its sampler weights or its run."""
    found = reference if "://" in reference else locate_weights(str(in_project(reference)))
    return re.sub(r"/(?:state|sampler)$", "", found)


def budget_ends_early(context: Context) -> Iterator[Problem]:
    """A token budget that ends during the first run, and prices that are almost zero."""
    prices = context.config.budget.prices if context.config.budget else {}
    for name, given in prices.items():
        price = given[0] if isinstance(given, list) else given
        if 0 < max(price.train, price.input, price.output) < 0.001:
            hint = "Prices are in dollars per million tokens: multiply by 1,000,000."
            yield Problem("this price is almost zero", f"budget.prices.{name}", price.train, hint)
    limit = context.config.budget.tokens if context.config.budget else None
    # A campaign gives each family a part of its budget at a time.
    is_family = any(tag.startswith("family:") for tag in context.config.metadata.tags)
    for one in context.sources[:1] if limit is not None and not is_family else ():
        some = one.examples[:200]
        lengths = [context.tokens(example.prompt + (example.answer or ""), one.client) for example in some]
        step = one.cfg.batch_size * sum(lengths) // len(lengths)
        # The factor 2 allows for budgets that stop a run early on purpose.
        if limit is not None and 2 * limit < step * (one.steps or 1):
            ends = (
                f"ends at step {limit // step} of {one.steps} of" if limit >= step else "ends before the first step of"
            )
            message = f"it {ends} '{one.run.name}', whose steps train on about {step} tokens each"
            yield Problem(message, "budget.tokens", limit, "Raise it, or train less; `evsys plan` has the whole sum.")


def never_happens(context: Context) -> Iterator[Problem]:
    """Intervals and limits longer than the run, and a warm-up of half of the run or more."""
    for one in context.stages:
        cfg, steps = one.cfg, one.steps
        if steps is not None and steps > 1 and cfg.warmup_steps >= 0.5 * steps:
            when = "until the end" if cfg.warmup_steps >= steps else "for more than half of the run"
            message = f"the learning rate rises {when}: the run has {steps} steps"
            place = f"{one.params_place}.warmup_steps"
            yield Problem(message, place, cfg.warmup_steps, f"Write {max(steps // 10, 1)} or less.")
        if steps is not None and "eval_every" in cfg.model_fields_set and (cfg.eval_every or 0) > steps:
            message = f"nothing is scored on the way: the run has {steps} steps"
            yield Problem(message, f"{one.params_place}.eval_every", cfg.eval_every, f"Write {max(steps // 4, 1)}.")
    longest = _longest_run(context)
    for one in context.benchmarks if longest else ():
        every = one.entry.run_every if one.entry else None
        if every is not None and every > longest:
            message = f"it is never scored during training: the longest run has {longest} steps"
            hint = f"Write {max(longest // 4, 1)}, or remove run_every to score it once at the end."
            yield Problem(message, f"{one.place}.run_every", every, hint)
        batch = max(stage.cfg.batch_size * getattr(stage.cfg, "group_size", 1) for stage in context.stages)
        answers = len(one.tasks) * (one.entry.samples if one.entry else 1)
        if every is not None and answers > _MOST_SCORING * every * batch:
            message = f"{answers} answers are scored for every {every * batch} that are trained on"
            yield Problem(message, f"{one.place}.run_every", every, f"Write {max(longest // 4, 1)}, or lower samples.")
    entries = [one.entry for one in context.benchmarks if one.entry]
    scored = {f"{entry.role}/{entry.label}": entry.run_every or longest for entry in entries}
    for at, spec in enumerate(context.config.callbacks if longest else ()):
        metric = str(spec.params.get("metric"))
        every = next((found for name, found in scored.items() if metric.startswith(name)), 1)
        limits = (("min_steps", longest, "steps"), ("patience", -(-longest // every), f"values of {metric}"))
        for key, most, what in limits if spec.kind == "early_stopping" else ():
            given: Any = spec.params.get(key)
            if isinstance(given, int) and given >= most:
                message = f"it can never stop a run: the longest has {most} {what}"
                yield Problem(message, f"callbacks[{at}].params.{key}", given, "Lower it, or remove the callback.")


def _longest_run(context: Context) -> int:
    """Steps of the longest run; 0 if unknown."""
    totals: dict[str, int] = {}
    for one in context.stages:
        if one.steps is None:
            return 0
        totals[one.run_place] = totals.get(one.run_place, 0) + one.steps
    return max(totals.values(), default=0)


def passes_over_the_rows(context: Context) -> Iterator[Problem]:
    """Too many passes over few rows, and runs of one to three steps."""
    for one in context.stages:
        chosen = "batch_size" in one.cfg.model_fields_set and one.cfg.max_steps is None
        asked = "max_steps" if one.cfg.max_steps is not None else "num_epochs"
        rows = len(one.pulled.rows) if one.pulled is not None and one.pulled.complete else 0
        if one.steps in (1, 2, 3) and claim_of(context) is not None and not (one.steps == 1 and chosen):
            message = f"the claim is tested after {'one step' if one.steps == 1 else f'{one.steps} steps'}"
            yield _length(one, "batch_size" if chosen else asked, message, "Train 50 steps or more.")
        if rows >= 20 and one.steps == 1 and chosen:
            message = f"all {rows} rows are one batch, so that the run has one step"
            yield _length(one, "batch_size", message, "Write 16, or raise num_epochs.")
        passes = (one.steps or 0) * min(one.cfg.batch_size, rows) / max(rows, 1)
        is_compared = len({(view.steps, view.cfg.num_epochs) for view in context.stages}) > 1
        if rows <= _FEW_ROWS and one.learns_from_answers and passes > _MOST_PASSES and not is_compared:
            message = f"{rows} rows are visited {passes:.0f} times each and will be learned by heart"
            yield _length(one, asked, message, "Use 2 to 5 passes, or add rows.")


def _length(one: StageView, param: str, message: str, hint: str) -> Problem:
    return Problem(message, f"{one.params_place}.{param}", getattr(one.cfg, param), hint)


def rows_that_do_not_fit(context: Context) -> Iterator[Problem]:
    """Rows that are longer than `max_length`."""
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
            yield _length(one, "max_length", message, "Raise it, or shorten the rows.")


def renderer_of_another_model(context: Context) -> Iterator[Problem]:
    """A renderer of another family of models, or any cookbook renderer on the mock backend."""
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
