"""Checks of what is learned against what is asked: answers, prompts, system prompts, and preferences."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence

from ....data.task_identity import task_key
from ....errors import Problem, show
from ....protocols import Row
from .context import Context, Example, StageView, TaskSet, is_labels
from .rows import core, count_rows

_SOME = 0.05
"""Share of pairs from which a fault is reported."""


def _learning(context: Context) -> list[list[StageView]]:
    """The stages of each run that learn answers as they are; runs with the same rows once."""
    by_run: dict[str, list[StageView]] = defaultdict(list)
    for one in context.stages:
        if one.learns_from_answers and one.examples:
            by_run[one.run_place].append(one)
    return list({tuple(id(one.examples) for one in stages): stages for stages in by_run.values()}.values())


def _share_of_labels(one: StageView, tasks: TaskSet) -> float | None:
    """Share of the learned labels that are right for some task; None where answers are no labels."""
    learned, expected = one.answers, [text.strip() for text in tasks.expected]
    kinds = set(expected)
    if not tasks.compares or not kinds or len(kinds) > max(len(expected) / 2, 1) or len(kinds) > 60:
        return None
    some = [text for text, _ in Counter(learned).most_common(60)]
    right = tasks.accepted(some)
    counts = Counter(learned)
    return sum(counts[text] for text, ok in zip(some, right, strict=True) if ok) / max(sum(counts[t] for t in some), 1)


def answers_unlike_the_benchmark(context: Context) -> Iterator[Problem]:
    """Learned answers none of which is right for any task: another case, form or column."""
    for stages in _learning(context):
        one = stages[-1]
        shares = [
            (tasks, share)
            for tasks in context.sets
            for stage in stages
            if stage.answers and (share := _share_of_labels(stage, tasks)) is not None
        ]
        if shares and max(share for _, share in shares) < 0.1:
            yield _never_scores(one, shares[0][0])
        for tasks in context.sets if not shares else ():
            if tasks.compares and (form := _other_form(one.answers, tasks.expected)):
                example = show(tasks.expected[0][:60])
                message = f"'{tasks.label}' expects {form}, such as {example}, and no learned answer has any"
                yield Problem(message, one.data_place, hint="Check which column the answer is made of.")


def classes_never_trained(context: Context) -> Iterator[Problem]:
    """Labels that tasks expect and no training row has."""
    for stages in _learning(context):
        learned = {core(text).casefold() for stage in stages for text in stage.answers}
        for tasks in context.sets:
            labels = Counter(core(text).casefold() for text in tasks.expected)
            missing = [(text, count) for text, count in labels.most_common() if text not in learned]
            known = len(labels) > len(missing) and is_labels(tasks.expected)
            if known and missing and tasks.compares and missing[0][1] >= 0.1 * len(tasks.expected):
                text, count = missing[0]
                message = f"{count} of {len(tasks.expected)} tasks of '{tasks.label}' expect {show(text)}"
                hint = "Check the filters of the data, or leave these tasks out."
                yield Problem(f"{message}, and no training row has that answer", stages[-1].data_place, hint=hint)


def same_stage_twice(context: Context) -> Iterator[Problem]:
    """Stages of a continual run with the same rows."""
    known: dict[tuple[str, int], StageView] = {}
    for one in context.stages if any(run.continual for _, run in context.runs) else ():
        first = known.setdefault((one.run_place, id(one.examples)), one) if one.examples else one
        if first is not one:
            message = f"this stage trains on the same rows as {first.data_place}"
            yield Problem(
                message, one.data_place, hint="Name the rows of this stage, or raise num_epochs of the first."
            )


def _never_scores(one: StageView, tasks: TaskSet) -> Problem:
    learned, expected = show(Counter(one.answers).most_common(1)[0][0][:60]), show(tasks.expected[0][:60])
    folded = {core(text).casefold() for text in tasks.expected}
    why = "no answer it learns is one that is expected"
    if any(core(text).casefold() in folded for text in one.answers):
        why = "they differ in case or form only"
    elif any(example.prompt.strip() in set(tasks.expected) for example in one.examples[:50]):
        why = "prompt and answer look swapped"
    message = f"what is learned ({learned}) never scores on '{tasks.label}', which expects {expected}: {why}"
    hint = "Make the answers of both alike: check the column, the template, the case, or set ignore_case."
    return Problem(message, one.data_place, hint=hint)


def _other_form(learned: Sequence[str], expected: Sequence[str]) -> str | None:
    """What nearly all expected answers are, and hardly any learned one holds."""
    if len(learned) < 4 or len(expected) < 4:
        return None
    forms = {"numbers": (r"-?[\d.,]*\d", r"\d"), "JSON": (r"\s*[\[{].*[\]}]\s*", r"[\[{]")}
    for name, (whole, part) in forms.items():
        wanted = sum(re.fullmatch(whole, text.strip(), re.DOTALL) is not None for text in expected)
        held = sum(re.search(part, text) is not None for text in learned)
        if wanted >= 0.9 * len(expected) and held <= 0.1 * len(learned):
            return name
    return None


def prompts_unlike_the_benchmark(context: Context) -> Iterator[Problem]:
    """The same labels asked for in other words: what is learned for one prompt is scored with another."""
    for one in context.sources:
        for tasks in context.sets:
            if one.learns_from_answers and (_share_of_labels(one, tasks) or 0) < 0.5:
                continue
            if not one.learns_from_answers and not set(one.answers) & set(tasks.expected):
                continue
            # Numbers are content: a date or an index of the file is no other template.
            trained, asked = (
                [re.sub(r"\d+", "0", " ".join(example.prompt.split())) for example in some]
                for some in (one.examples, tasks.examples)
            )
            for here, there, which, whose in (
                (trained, asked, "training", "the tasks"),
                (asked, trained, "the tasks", "training"),
            ):
                if part := _only_here(here, there):
                    message = f"prompts of {which} all have {show(part)}, and none of {whose} has it ('{tasks.label}')"
                    yield Problem(message, one.data_place, hint="Use the same template for both.")
                    break


def _only_here(here: Sequence[str], there: Sequence[str]) -> str | None:
    """The beginning or end that all prompts of one side share and that no prompt of the other has."""
    if len(set(here)) < 4 or not there:
        return None
    first = _shared_start(here)
    last = _shared_start([text[::-1] for text in here])[::-1]
    first, last = first[: first.rfind(" ") + 1].strip(), last[last.find(" ") + 1 :].strip()
    if len(first) >= 6 and not any(text.startswith(first) for text in there):
        return first[:60]
    if len(last) >= 6 and not any(text.endswith(last) for text in there):
        return last[-60:]
    return None


def _shared_start(texts: Sequence[str]) -> str:
    low, high = min(texts), max(texts)
    return low[: next((at for at, (a, b) in enumerate(zip(low, high, strict=False)) if a != b), len(low))]


def system_prompt_on_one_side(context: Context) -> Iterator[Problem]:
    """A system prompt that is trained with and never shown again, or the other way round."""
    for one in context.sources:
        for tasks in context.sets:
            ours, theirs = _system(one.examples), _system(tasks.examples)
            if ours == theirs or None in (ours, theirs) or (tasks.entry is not None and tasks.entry.agent is not None):
                continue
            if not ours and not one.learns_from_answers and getattr(one.cfg, "agent_import_path", None):
                continue
            what = (
                f"rows have the system prompt {show((ours or '')[:60])}, and the tasks of '{tasks.label}' have "
                f"{show(theirs[:60]) if theirs else 'none'}"
                if ours
                else f"rows have no system prompt, and the tasks of '{tasks.label}' have {show((theirs or '')[:60])}"
            )
            hint = "Give both the same, e.g. with the transform add_system_prompt."
            yield Problem(what, one.data_place, hint=hint)


def _system(examples: Sequence[Example]) -> str | None:
    """The system prompt that nearly all share, "" where none has any; None where they differ."""
    if len(examples) < 2:
        return None
    text, count = Counter(example.system.strip() for example in examples).most_common(1)[0]
    return text if count >= 0.9 * len(examples) else None


def pairs_without_a_preference(context: Context) -> Iterator[Problem]:
    """Preference pairs whose two answers are the same, or that contradict each other."""
    for one in context.sources:
        pairs = [example for example in one.examples if example.rejected is not None]
        same = [example for example in pairs if (example.answer or "").strip() == (example.rejected or "").strip()]
        if len(same) >= max(_SOME * len(pairs), 1):
            message = (
                f"chosen and rejected are the same in {count_rows(same, len(pairs))}, the first is {one.where(same[0])}"
            )
            yield Problem(message, one.data_place, hint="Remove these pairs: there is nothing to prefer.")
        known = {(example.prompt, example.answer, example.rejected) for example in pairs}
        both = [e for e in pairs if e.answer != e.rejected and (e.prompt, e.rejected, e.answer) in known]
        if len(both) >= max(_SOME * len(pairs), 2):
            message = f"{len(both)} pairs prefer an answer that another pair rejects, such as {one.where(both[0])}"
            yield Problem(message, one.data_place, hint="Remove one of each two.")


def pairs_swapped(context: Context) -> Iterator[Problem]:
    """Preference pairs that reject what the tasks expect."""
    for one in context.sources:
        pairs = [e for e in one.examples if e.rejected is not None and e.answer != e.rejected][:300]
        for tasks in context.sets if pairs else ():
            if not tasks.compares:
                continue
            asked = [(set(task_key(e.prompt).split()), core(e.answer)) for e in tasks.examples if e.answer][:300]
            votes = Counter[str]()
            for pair in pairs:
                words = set(task_key(pair.prompt).split())
                near = max(asked, key=lambda task: len(words & task[0]) / max(len(words | task[0]), 1), default=None)
                for kind, text in (("chosen", pair.answer), ("rejected", pair.rejected)):
                    votes[kind] += near is not None and core(text) == near[1]
            if votes["rejected"] >= 4 and votes["rejected"] > 2 * votes["chosen"]:
                message = (
                    f"what '{tasks.label}' expects is more often rejected than chosen ({votes['rejected']} against "
                    f"{votes['chosen']} of {len(pairs)} pairs)"
                )
                yield Problem(message, one.data_place, hint="Swap the two columns, e.g. with rename_fields.")
        scored = [row for row in (one.pulled.rows if one.pulled and pairs else ()) if _scores(row) is not None]
        lower = sum((found := _scores(row)) is not None and found[0] < found[1] for row in scored)
        if len(scored) >= 4 and lower > 0.5 * len(scored):
            message = f"the chosen answer has the lower score in {lower} of {len(scored)} rows"
            yield Problem(message, one.data_place, hint="Swap the two columns, e.g. with rename_fields.")


def _scores(row: Row) -> tuple[float, float] | None:
    """How chosen and rejected were rated, where the row has both."""
    found = [row.get(f"score_{name}", row.get(f"{name}_score")) for name in ("chosen", "rejected")]
    numbers = [one for one in found if isinstance(one, int | float)]
    return (numbers[0], numbers[1]) if len(numbers) == 2 else None
