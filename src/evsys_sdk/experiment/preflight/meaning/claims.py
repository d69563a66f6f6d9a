"""Checks of the hypothesis: metric, direction, seeds, baseline, and differences between the runs."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterator
from typing import Any, cast

from ....config import ExperimentConfig, Hypothesis, RunConfig, SuccessMetric
from ....config.metadata import BASE_MODEL
from ....config.search import success_of
from ....errors import Problem
from ....paths import in_project
from ....record.folders import find_attempts
from ....record.project_files.known_folders import read_output_roots
from ....record.reader import experiment_id
from ...hypothesis import is_rate
from .context import COMPARING, Context

_LESS_IS_BETTER = ("loss", "cost_per", "tokens_per", "time_per", "perplexity", "latency", "error", "reverse_kl", "kl")
_MORE_IS_BETTER = (
    "pass@",
    "pass^",
    "pass_rate",
    "exact_match",
    "accuracy",
    "mean_reward",
    "toolkit_match",
    "avg",
    "f1",
)
_SAYS_LESS = ("less", "lower", "worse", "hurt", "fall", "decreas", "reduc", "forget", "degrad", "lose", "drop", "cost")
_LESS_OF_WHAT_IS_BAD = re.compile(
    r"(?:lower|reduc|decreas|fewer|less|drop|cut|halv)\w*\s+(?:\w+\s+){0,2}(?:error|mistake|fail|miss)"
)
_WAY = {"min": "less", "max": "more"}
_CLAIM = "metadata.hypothesis"
_UP_TO_1 = {*COMPARING, "regex_match", "python_tests", "tool_calls_match"}
"""Verifiers whose rewards are at most 1."""
_SEEDS = 3
"""Minimum number of seeds per trained run for a supported claim."""
_CLAIMED = {
    "learning_rate": "learning[ -]?rate",
    "lora_rank": "ranks?|adapters?",
    "batch_size": "batch[ -]?size|batches",
    "num_epochs": "epochs?|passes",
    "max_steps": "steps|epochs?|passes",
    "lr_schedule": "schedules?|cosine",
    "warmup_steps": "warm-?up",
    "weight_decay": "weight decay",
    "group_size": "group size|groups",
    "beta": "beta",
    "kl_coefficient": "kl",
    "init_from_checkpoint": "checkpoints?|continu\\w+|start\\w*|warm",
}
"""Param -> pattern of its names in a claim."""
_THAN_BASE = re.compile(
    r"(?i)\bthan (?:the |our |its )?(?:(?:base|untrained|untuned|original|pretrained)\b ?)+(?:model|weights)?"
)
_AMOUNT = re.compile(r"(?i)\b(?:half|third|quarter|amount|fewer|size|steps)\b|\b(?:more|less) (?:data|rows)|\d")
_ONLY_SAVES = {"save_every", "save_at_fractions", "keep_checkpoints", "eval_every", "concurrency", "timeout_s"}
"""Params that do not affect the trained weights."""


def better_mode(metric: str) -> str | None:
    """Whether a lower (`min`) or higher (`max`) value of a metric is better; None if its name does not show it."""
    name = metric.rpartition("/")[2].removeprefix("final_")
    if name.startswith(_LESS_IS_BETTER) or name.endswith(("_loss", "_error")):
        return "min"
    return "max" if name.startswith(_MORE_IS_BETTER) or metric == "reward/mean" else None


def claim_of(context: Context) -> Hypothesis | None:
    """The structured hypothesis; None if it is plain text or missing."""
    found = context.config.metadata.hypothesis
    return found if isinstance(found, Hypothesis) else None


def claimed_metric(context: Context) -> str | None:
    """The metric of the claim, or else the success metric."""
    claim, success = claim_of(context), success_of(context.config.metadata)
    return (claim.metric if claim else None) or (success.name if success else None)


def wrong_way(context: Context) -> Iterator[Problem]:
    """A claim, success metric, early stopping or checkpoint selection in the wrong direction of its metric."""
    metadata, claim, metric = context.config.metadata, claim_of(context), claimed_metric(context)
    better = better_mode(metric) if metric is not None else None
    # A claim that a loss rises is an oversight; so is a claim that a score falls, unless its text mentions it.
    if claim is not None and better is not None and ("direction" in claim.model_fields_set or better == "min"):
        wanted, text = "decrease" if better == "min" else "increase", claim.claim.casefold()
        says_less = any(word in text for word in _SAYS_LESS) and not _LESS_OF_WHAT_IS_BAD.search(text)
        if claim.direction not in (wanted, "decrease" if says_less else wanted):
            message = f"the claim is that {metric} will {claim.direction}, and {_WAY[better]} of it is better"
            yield Problem(message, f"{_CLAIM}.direction", claim.direction, f"Write direction: {wanted}.")
    given: list[tuple[str, Any, Any]] = []
    if (success := success_of(metadata)) is not None:
        place = "metadata.success_metric" + (".mode" if isinstance(metadata.success_metric, SuccessMetric) else "")
        given.append((place, success.name, success.mode))
    for at, spec in enumerate(context.config.callbacks):
        if spec.kind == "early_stopping":
            given.append((f"callbacks[{at}].params.mode", spec.params.get("metric"), spec.params.get("mode", "min")))
    for one in context.stages:
        given.append((f"{one.params_place}.selection_mode", one.cfg.selection_metric, one.cfg.selection_mode))
    for place, name, mode in given:
        better = better_mode(name) if isinstance(name, str) else None
        if better is not None and mode is not None and mode != better:
            asked = "maximised" if mode == "max" else "minimised"
            hint = f"Write mode: {better}." if place.endswith("mode") else f"Write {{name: {name}, mode: {better}}}."
            yield Problem(f"'{name}' is to be {asked}, and {_WAY[better]} of it is better", place, mode, hint)


def claim_with_too_few_seeds(context: Context) -> Iterator[Problem]:
    """A claim about trained runs with too few seeds to be supported."""
    config, claim = context.config, claim_of(context)
    if claim is None or config.search is not None or config.n_repeats >= _SEEDS:
        return
    seeds = "one seed" if config.n_repeats == 1 else f"{config.n_repeats} seeds"
    message = f"a supported claim needs {_SEEDS} seeds of each run, and each is trained with {seeds}"
    hint = f"Set n_repeats: {_SEEDS} or more, or write the hypothesis as a sentence to explore without a claim."
    yield Problem(message, "n_repeats", config.n_repeats, hint)


def claim_that_nothing_measures(context: Context) -> Iterator[Problem]:
    """A claim without a metric in an experiment without evaluation tasks."""
    if claim_of(context) and claimed_metric(context) is None and not context.sets:
        hint = "Add metadata.benchmark with tasks to score, or name another metric."
        yield Problem("nothing is scored, so that the claim would be judged by the training loss", _CLAIM, hint=hint)


def claim_without_reasoning(context: Context) -> Iterator[Problem]:
    """A claim about reasoning, with empty <think> blocks in all training answers."""
    for one in context.sources if re.search(r"(?i)\b(?:reason|think|thought)", context.claim) else ():
        empty = [text for text in one.answers if re.match(r"\s*<think>\s*</think>", text)]
        if one.answers and len(empty) == len(one.answers):
            message = "the claim is about reasoning, and the <think> block of every answer is empty"
            yield Problem(message, one.place, hint="Make the answers with thinking switched on.")


def settings_in_metadata(context: Context) -> Iterator[Problem]:
    """Settings of the experiment that are ignored because they stand below `metadata`."""
    known = ExperimentConfig.model_fields.keys() - {"name", "version", "parent_experiment_id"}
    for key in sorted(known & (context.config.metadata.model_extra or {}).keys()):
        hint = "Move it out of metadata, to the left margin of the file."
        yield Problem("nothing reads this setting below metadata", f"metadata.{key}", hint=hint)


def sizes_out_of_range(context: Context) -> Iterator[Problem]:
    """Effects outside of the range of the metric, and levels and margins that every run meets."""
    claim, metric = claim_of(context), claimed_metric(context)
    if claim is None or metric is None or better_mode(metric) != "max":
        return
    verifiers = {getattr(task.verifier, "fn_name", None) for one in context.sets for task in one.tasks}
    is_reward = metric.rpartition("/")[2].startswith(("mean_reward", "avg"))
    for name in ("min_effect", "level", "margin"):
        value = getattr(claim, name)
        # For rates, the validation of the claim refuses such values.
        if is_reward and verifiers and verifiers <= _UP_TO_1 and value is not None and value > 1:
            hint = f"{metric} lies between 0 and 1: write {value / 100:g} if {value:g} % is meant."
            yield Problem(f"{name} lies outside of the range of the metric", f"{_CLAIM}.{name}", value, hint)
    if not is_rate(metric):
        return
    if claim.kind == "at_least" and claim.direction == "increase" and claim.level is not None and claim.level <= 0:
        hint = "Name the level that would matter."
        yield Problem("every run reaches this level", f"{_CLAIM}.level", claim.level, hint)
    if claim.kind == "not_worse" and claim.margin is not None and claim.margin >= 0.5:
        hint = "Name the loss that would not matter, such as 0.02."
        yield Problem("a run may lose this much and still count as not worse", f"{_CLAIM}.margin", claim.margin, hint)


def losses_are_not_comparable(context: Context) -> Iterator[Problem]:
    """A metric on training rows, or a training loss for runs with different rows, models or recipes."""
    metric = claimed_metric(context)
    if metric is None or not (metric.startswith("train_fit/") or metric.removeprefix("final_") == "loss"):
        return
    place = f"{_CLAIM}.metric" if (claim := claim_of(context)) and claim.metric else "metadata.success_metric"
    hint = "Score held-out tasks with metadata.benchmark, and name its metric, such as pass@1."
    if metric.startswith("train_fit/"):
        yield Problem("this is measured on the training rows, which says nothing about new ones", place, metric, hint)
    elif len({(repr(run.data), run.model.name, run.algorithm.kind) for _, run in context.runs}) > 1:
        yield Problem("losses of runs with other rows, models or recipes cannot be compared", place, metric, hint)


def baseline_is_the_only_run(context: Context) -> Iterator[Problem]:
    """A baseline that is the only run of the experiment."""
    claim = claim_of(context)
    if claim is None or claim.baseline in (None, BASE_MODEL) or _is_compared_elsewhere(context):
        return
    if [run.name for _, run in context.runs] == [claim.baseline]:
        scores_others = any(entry.models for entry in context.config.metadata.benchmark)
        message = "run that is trained" if scores_others else "run, so that nothing is compared"
        hint = "Add the run that is to be better, or `models: [base]` to a benchmark and `baseline: base`."
        yield Problem(f"the baseline is the only {message}", f"{_CLAIM}.baseline", claim.baseline, hint)


def nothing_to_compare(context: Context) -> Iterator[Problem]:
    """A comparative claim in an experiment with one run and no baseline."""
    claim = claim_of(context)
    compares = claim is not None and claim.kind in ("better", "not_worse") and claim.baseline is None
    others = any(entry.models for entry in context.config.metadata.benchmark) or _is_compared_elsewhere(context)
    if compares and len(context.runs) == 1 and not others:
        hint = "Add `models: [base]` to a benchmark and `baseline: base`, or a second run."
        yield Problem("there is one run, and nothing that it is compared with", _CLAIM, hint=hint)


def baseline_is_another(context: Context) -> Iterator[Problem]:
    """A claim about the untrained model, with a trained run as the baseline."""
    claim = claim_of(context)
    if claim and claim.baseline not in (None, BASE_MODEL) and (named := _THAN_BASE.search(claim.claim)):
        hint = "Write `baseline: base`, and `models: [base]` in a benchmark; or name the run in the claim."
        yield Problem(f"the claim says '{named[0]}'", f"{_CLAIM}.baseline", claim.baseline, hint)


def _is_compared_elsewhere(context: Context) -> bool:
    return context.config.parent_experiment_id is not None or context.config.search is not None


def other_version(context: Context) -> Iterator[Problem]:
    """A file for another version of the schema."""
    if context.config.version != 1:
        hint = "Write 1 if nothing else changes, or install the evsys-sdk that the file is for."
        yield Problem("this evsys-sdk reads version 1 of the schema", "version", context.config.version, hint)


def unknown_parent(context: Context) -> Iterator[Problem]:
    """A parent experiment that is not in any output folder of the project."""
    parent = context.config.parent_experiment_id
    if parent is None:
        return
    # An id is a folder name with a numeric suffix; a name without it means the latest attempt.
    roots = {in_project(context.config.output_dir), *read_output_roots()}
    by_id = (root / parent.rpartition("-")[0] for root in roots)
    if not any(experiment_id(path) == parent for path in by_id) and not any(
        find_attempts(root / parent) for root in roots
    ):
        hint = "Check the id with `evsys history`, or remove it: results would be compared with nothing."
        yield Problem("no experiment in this project has this id", "parent_experiment_id", parent, hint)


def runs_without_a_difference(context: Context) -> Iterator[Problem]:
    """Runs that differ only in their seed, or only in settings without effect."""
    known: dict[str, RunConfig] = {}
    rows: dict[str, str] = defaultdict(str)
    for one in context.stages:
        rows[one.run_place] += f" {hash(tuple(one.examples)) if one.examples else one.stage.data}"
    for place, run in context.runs:
        # Compare rows if they were read: different transforms may give the same rows.
        bare = run.model_copy(update={"data": None}) if place in rows else run
        same = known.setdefault(f"{_learned(bare)} {rows.get(place)}", run)
        if same.seed != run.seed:
            message = f"'{same.name}' and '{run.name}' differ in their seed alone, and are compared like recipes"
            seeds = len({one.seed for _, one in context.runs})
            yield Problem(message, f"{place}.seed", run.seed, f"Write each recipe once and set n_repeats: {seeds}.")
            return
        if same is not run:
            found = _differences(same.model_dump(mode="json"), run.model_dump(mode="json"))
            paths = [path for path in found if path != "name"]
            is_ignored = any(path.endswith("num_epochs") for path in paths)
            why = " (num_epochs is ignored while max_steps is set)" if is_ignored else ""
            message = f"has no effect{why}: " if paths else ""
            message += f"'{same.name}' and '{run.name}' train exactly the same"
            hint = "Remove max_steps." if why else "Remove one of them, or let them differ in what they learn."
            yield Problem(message, f"{place}.{paths[0] if paths else 'name'}", hint=hint)
            return


def runs_with_other_differences(context: Context) -> Iterator[Problem]:
    """A claim about one param, with runs that differ in another one."""
    claim, runs = claim_of(context), [run.model_dump(mode="json") for _, run in context.runs]
    if claim is None or len(runs) < 2 or context.config.search is not None:
        return
    named = {name for name, words in _CLAIMED.items() if re.search(rf"(?i)\b(?:{words})", claim.claim)}
    paths = [path for run in runs[1:] for path in _differences(runs[0], run) if path not in ("name", "tags", "seed")]
    differ = dict.fromkeys(path for path in paths if path.rpartition(".")[2] not in _ONLY_SAVES)
    others = [path for path in differ if path.rpartition(".")[2] not in named]
    more = [path for path in others if path.rpartition(".")[2] in _CLAIMED]
    if not named or not more:
        return
    if len(more) == len(differ):
        message = f"the claim is about {' and '.join(sorted(named))}, and the runs differ in {', '.join(more[:3])}"
        yield Problem(message, f"{_CLAIM}.claim", hint="Let the runs differ in what is claimed, or correct the claim.")
    elif len(runs) == 2 and len(others) == len(differ) - 1:
        [claimed] = differ.keys() - set(others)
        message = (
            f"the runs also differ in {', '.join(more)}, and the claim is about {claimed.rpartition('.')[2]} alone"
        )
        hint = "Let them differ in one thing, or name both in the claim."
        yield Problem(message, f"{_CLAIM}.claim", hint=hint)


def runs_of_other_lengths(context: Context) -> Iterator[Problem]:
    """Runs with the same recipe that make other numbers of steps, because their rows differ in number."""
    steps: dict[str, int] = {}
    recipes = {repr(run.algorithm) for _, run in context.runs}
    for one in context.stages:
        steps[one.run_place] = steps.get(one.run_place, 0) + (one.steps or 0)
    if claim_of(context) and len(recipes) == 1 and context.config.search is None and not _AMOUNT.search(context.claim):
        place, least = min(steps.items(), key=lambda one: one[1], default=("", 0))
        if 0 < 2 * least <= max(steps.values()):
            message = (
                f"this run makes {least} steps, and another {max(steps.values())}: rows and length change together"
            )
            yield Problem(message, f"{place}.data", hint="Set the same max_steps, or write the number into the claim.")


def _differences(one: Any, other: Any, path: str = "") -> Iterator[str]:
    """Yield the dotted paths at which two configs differ."""
    if isinstance(one, dict) and isinstance(other, dict):
        old, new = cast("dict[str, Any]", one), cast("dict[str, Any]", other)
        for key in sorted({*old, *new}):
            yield from _differences(old.get(key), new.get(key), f"{path}.{key}" if path else key)
    elif one != other:
        yield path


def _learned(run: RunConfig) -> str:
    """A key of the settings that affect training: without the seed and params without effect."""
    content = run.model_dump(mode="json", exclude={"name", "tags", "seed", "eval", "rollouts"})

    def effective(params: dict[str, Any]) -> dict[str, Any]:
        kept = {key: value for key, value in params.items() if key not in _ONLY_SAVES}
        if kept.get("max_steps") is not None:
            kept.pop("num_epochs", None)
        phases = cast("list[Any]", kept.get("phases")) if isinstance(kept.get("phases"), list) else []
        named = [cast("dict[str, Any]", one) for one in phases if isinstance(one, dict)]
        if named:
            kept["phases"] = [{**one, "params": effective(one.get("params") or {})} for one in named]
        return kept

    content["algorithm"]["params"] = effective(content["algorithm"]["params"])
    return json.dumps(content, sort_keys=True, default=str)
