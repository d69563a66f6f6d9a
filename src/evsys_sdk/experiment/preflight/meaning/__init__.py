"""Checks of meaning: valid configs that probably do not test what their author intends.

Each check is a function of the `Context` that yields a `Problem` with its place, value and remedy. Problems of checks
in `REFUSED` are errors; those of checks in `WARNED` are warnings, printed once per experiment. To add a check, write
the function and add it to one of the two tables.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from ....errors import EvsysError, Problem
from . import agents, alike, claims, compared, recipes, rows, tasks, transforms
from .context import Context

type Check = Callable[[Context], Iterable[Problem]]

REFUSED: tuple[Check, ...] = (
    tasks.val_and_test_share_tasks,
    tasks.rewards_for_listing,
    claims.baseline_is_the_only_run,
)
WARNED: tuple[Check, ...] = (
    claims.wrong_way,
    claims.claim_with_too_few_seeds,
    claims.claim_that_nothing_measures,
    claims.claim_without_reasoning,
    claims.settings_in_metadata,
    claims.sizes_out_of_range,
    claims.nothing_to_compare,
    claims.baseline_is_another,
    claims.runs_of_other_lengths,
    claims.losses_are_not_comparable,
    claims.other_version,
    claims.unknown_parent,
    claims.runs_without_a_difference,
    claims.runs_with_other_differences,
    recipes.unusual_params,
    recipes.teacher_is_the_student,
    recipes.budget_ends_early,
    recipes.never_happens,
    recipes.passes_over_the_rows,
    recipes.rows_that_do_not_fit,
    recipes.renderer_of_another_model,
    tasks.scored_by_something_else,
    tasks.scored_on_training_rows,
    tasks.few_tasks,
    tasks.same_tasks_twice,
    tasks.answers_do_not_fit,
    tasks.verifiers_tell_nothing,
    tasks.tools_without_definitions,
    rows.faulty_rows,
    rows.texts_cut_off,
    rows.nothing_to_learn,
    rows.several_spellings,
    rows.contradictions,
    rows.many_copies,
    rows.answer_in_the_prompt,
    transforms.rows_lost_in_filters,
    transforms.own_transforms,
    agents.agents_of_the_project,
    alike.answers_unlike_the_benchmark,
    alike.answers_fail_their_own_tasks,
    alike.answers_against_the_benchmark,
    alike.classes_never_trained,
    alike.rows_of_another_part,
    alike.prompts_unlike_the_benchmark,
    compared.texts_unlike_the_tasks,
    compared.options_unlike_the_answers,
    compared.passages_in_both,
)


def meaning_problems(context: Context) -> tuple[list[Problem], list[Problem]]:
    """Run all checks; return errors and warnings."""
    return [*_found(REFUSED, context)], [*_found(WARNED, context)]


def _found(checks: Iterable[Check], context: Context) -> Iterable[Problem]:
    for check in checks:
        try:
            yield from check(context)
        except EvsysError:  # data that cannot be read is reported elsewhere
            continue
