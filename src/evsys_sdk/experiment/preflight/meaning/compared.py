"""Checks that compare the texts of training rows with those of the evaluation tasks."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence

from ....errors import Problem, show
from .alike import language_of, pairs_of
from .context import Context, Example, is_labels
from .rows import core, occurrences, shared_start

_LABEL = re.compile(r"(?m)^([A-Z]\w{2,20}):")
"""The label of a field of a prompt, such as `Question:`."""
_LIST = re.compile(r"\b(?:one of:? (?:[\w-]+, ?)+[\w-]+|(?:[\w-]+(?:, ?| / ))*[\w-]+,? or [\w-]+)")
"""A list of options in a prompt, such as `yes or no`."""
_ANSWERS = {"yes", "no", "true", "false", "positive", "negative", "correct", "incorrect", "right", "wrong"}
"""Words that are answers wherever a prompt offers several of them."""
_PASSAGE = 80
"""Minimum length in characters of a sentence or line that two prompts share by more than chance."""


def texts_unlike_the_tasks(context: Context) -> Iterator[Problem]:
    """Fields that only one side has, answers of another language, and answers that only one side copies."""
    for one, tasks in pairs_of(context):
        ours, theirs = _fields(one.examples), _fields(tasks.examples)
        if ours & theirs and (other := ours ^ theirs):
            side = "training" if other & ours else f"'{tasks.label}'"
            message = (
                f"only the prompts of {side} have {show(f'{min(other)}:')}, though the others have the same fields"
            )
            yield Problem(message, one.place, hint="Use the same template for both.")
        if not one.learns_from_answers:
            continue
        languages = language_of(one.answers), language_of(tasks.answers)
        if None not in languages and languages[0] != languages[1]:
            message = f"learned answers have {languages[0]}, and those that '{tasks.label}' expects {languages[1]}"
            yield Problem(message, one.place, hint="Check which columns prompt and answer are made of.")
        copied = _copied(one.examples), _copied(tasks.examples)
        if tasks.compares and copied[0] <= 0.1 and copied[1] >= 0.9:
            message = f"the prompt contains the answer in {copied[1]:.0%} of the tasks of '{tasks.label}', and in "
            message += f"{copied[0]:.0%} of the rows, such as {show(core(one.answers[0])[:60])}"
            yield Problem(message, one.place, hint="Check the units of the answers, and that rows and answers match.")


def options_unlike_the_answers(context: Context) -> Iterator[Problem]:
    """Prompts whose list of options lacks a label, or whose options or examples are no answers."""
    for one in [*context.sources, *context.sets]:
        labels = Counter(core(text).casefold() for text in one.answers)
        if not is_labels(one.answers):
            continue
        prompts = [f"{example.system}\n{example.prompt}" for example in one.examples]
        template = f"{shared_start(prompts)}\n{shared_start([text[::-1] for text in prompts])[::-1]}"
        for found in _LIST.findall(template.casefold()):
            options = {*re.findall(r"[\w-]+", re.sub(r"^one of| or ", " ", found))}
            missing = [text for text, n in labels.most_common() if text not in options and n >= 0.05 * len(prompts)]
            if missing and (len(options & labels.keys()) >= 2 or options <= _ANSWERS - labels.keys()):
                message = f"the prompts offer {show(found)}, and an answer is {show(missing[0])}"
                yield Problem(message, one.place, hint="Write all answers, and no others, into the prompt.")
                return  # rows and tasks have the same template
        field = re.search(r"\n(\w+:)\s*$", template)
        lines = re.findall(rf"(?mi)^{field[1]} *(\S.*)$", template.casefold()) if field else []
        if len(set(lines)) > 1 and labels.keys().isdisjoint(lines):
            message = f"the examples in the prompts have answers such as {show(lines[0])}, which no row has"
            yield Problem(message, one.place, hint="Take the examples from rows of this data.")
            return


def _fields(examples: Sequence[Example]) -> set[str]:
    """The labels of fields that all prompts have."""
    found = [{*_LABEL.findall(example.prompt)} for example in examples]
    return set[str].intersection(*found) if len(found) >= 8 else set()


def _copied(examples: Sequence[Example]) -> float:
    """Share of the answers that occur in their prompts."""
    some = [example for example in examples[:200] if example.answer]
    found = [bool(occurrences(example.prompt, core(example.answer))) for example in some]
    return sum(found) / len(found) if len(found) >= 8 else 0.5


def passages_in_both(context: Context) -> Iterator[Problem]:
    """Tasks about texts that training prompts contain."""
    for one, tasks in pairs_of(context):
        if len(tasks.examples) < 8:
            continue
        known = {line for example in one.examples for line in _passages(example)}
        counts = Counter(line for example in tasks.examples for line in _passages(example))
        seen = [
            example
            for example in tasks.examples
            if any(counts[at] <= 0.2 * len(tasks.examples) and at in known for at in _passages(example))
        ]
        same = {example.prompt for example in one.examples}
        if len([e for e in seen if e.prompt not in same]) >= 0.3 * len(tasks.examples):
            message = (
                f"{len(seen)} of {len(tasks.examples)} tasks of '{tasks.label}' are about texts of training prompts"
            )
            yield Problem(
                message, one.place, hint="Split by the text (`split` with its column as key), not by the row."
            )


def _passages(example: Example) -> set[str]:
    """The long lines of a prompt."""
    return {line.strip() for line in example.prompt.splitlines() if len(line) >= _PASSAGE}
