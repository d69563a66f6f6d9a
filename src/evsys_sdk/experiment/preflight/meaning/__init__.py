"""Checks of meaning: configs that run, and do not test what their author had in mind.

Each check is a small function of the context that yields a `Problem` with its place, its value and what to do about it.
What can never be meant is refused (`REFUSED`); the rest is a warning (`WARNED`), printed once per experiment. Add a
check by writing the function and naming it in one of the two tables.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from ....errors import EvsysError, Problem
from . import alike, claims, recipes, rows, tasks
from .context import Context

type Check = Callable[[Context], Iterable[Problem]]

REFUSED: tuple[Check, ...] = (
    tasks.val_and_test_share_tasks,
    claims.baseline_is_the_only_run,
)
WARNED: tuple[Check, ...] = (
    claims.direction_against_metric,
    claims.mode_against_metric,
    claims.claim_with_too_few_seeds,
    claims.claim_that_nothing_measures,
    claims.settings_in_metadata,
    claims.effect_outside_of_range,
    claims.trivial_claim,
    claims.nothing_to_compare,
    claims.losses_are_not_comparable,
    claims.other_version,
    claims.unknown_parent,
    claims.seed_as_axis,
    claims.runs_without_a_difference,
    recipes.learning_rate_out_of_range,
    recipes.unusual_params,
    recipes.updates_without_a_clip,
    recipes.budget_below_one_step,
    recipes.warmup_reaches_the_end,
    recipes.too_many_passes,
    recipes.scored_or_saved_never,
    recipes.rows_that_do_not_fit,
    recipes.renderer_of_another_model,
    tasks.scored_on_training_rows,
    tasks.few_tasks,
    tasks.same_tasks_twice,
    tasks.run_every_beyond_the_end,
    tasks.answers_do_not_fit,
    tasks.samples_are_copies,
    tasks.verifiers_tell_nothing,
    tasks.questions_with_several_answers,
    tasks.one_answer_wins,
    tasks.tools_without_definitions,
    rows.faulty_rows,
    rows.prompts_without_content,
    rows.one_class,
    rows.several_spellings,
    rows.turns_without_an_answer,
    rows.conflicting_answers,
    rows.many_copies,
    rows.answer_in_the_prompt,
    alike.answers_unlike_the_benchmark,
    alike.classes_never_trained,
    alike.same_stage_twice,
    alike.parts_swapped,
    alike.prompts_unlike_the_benchmark,
    alike.system_prompt_on_one_side,
    alike.pairs_without_a_preference,
    alike.pairs_swapped,
    rows.rows_lost_in_filters,
)


def meaning_problems(context: Context) -> tuple[list[Problem], list[Problem]]:
    """What is refused, and what is warned of."""
    return [*_found(REFUSED, context)], [*_found(WARNED, context)]


def _found(checks: Iterable[Check], context: Context) -> Iterable[Problem]:
    for check in checks:
        try:
            yield from check(context)
        except EvsysError:  # what it looks at cannot be read, which is reported at its own place
            continue
