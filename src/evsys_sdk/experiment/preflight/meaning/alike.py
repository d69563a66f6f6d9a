"""Checks of what is learned against what is asked: answers, prompts, system prompts, and preferences."""

from __future__ import annotations

import json
import math
import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any

from ....config import TransformSpec
from ....data.shapes import is_object
from ....data.task_identity import task_key
from ....errors import Problem, show
from ....protocols import Row
from .context import Context, Example, StageView, TaskSet, is_labels
from .rows import core, count_rows, shared_start

_SOME = 0.05
"""Share of pairs from which a fault is reported."""
_MANY = 20


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
            learned = [text for stage in stages for text in stage.answers]
            if tasks.compares and (found := _other_form(learned, tasks)):
                yield Problem(found, one.data_place, hint="Check which column the answer is made of, and its template.")


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


def parts_swapped(context: Context) -> Iterator[Problem]:
    """Training on the small part of a split, and scoring on the large one."""
    scored = [_part(one.entry.transforms) for one in context.benchmarks if one.entry]
    for one in context.sources:
        part = _part(one.stage.data.transforms) if one.stage.data else None
        if part in ("val", "test") and "train" in scored:
            message = f"training takes the part '{part}' of a split, and a benchmark the part 'train'"
            yield Problem(message, one.data_place, hint="Swap `part` of the two.")


def _part(transforms: Sequence[TransformSpec]) -> str | None:
    return next((one.params.get("part", "train") for one in transforms if one.kind == "split"), None)


def _never_scores(one: StageView, tasks: TaskSet) -> Problem:
    learned, expected = show(Counter(one.answers).most_common(1)[0][0][:60]), show(tasks.expected[0][:60])
    folded = {core(text).casefold() for text in tasks.expected}
    why = "no answer it learns is one that is expected"
    if any(core(text).casefold() in folded for text in one.answers):
        why = "they differ in case or form only"
        if set(one.answers) & set(tasks.expected):
            why = f"the verifier '{getattr(tasks.tasks[0].verifier, 'fn_name', '')}' does not accept that text"
    elif any(example.prompt.strip() in set(tasks.expected) for example in one.examples[:50]):
        why = "prompt and answer look swapped"
    message = f"what is learned ({learned}) never scores on '{tasks.label}', which expects {expected}: {why}"
    hint = "Make the answers of both alike: check the column, the template, the case, or set ignore_case."
    return Problem(message, one.data_place, hint=hint)


_FORMS: dict[str, tuple[Callable[[str], bool], Sequence[str]]] = {
    "a number": (lambda text: re.search(r"\d", text) is not None, ("numeric_match",)),
    "nothing but a number": (lambda text: re.fullmatch(r"[^a-zA-Z]*\d[^a-zA-Z]*", text) is not None, ("exact_match",)),
    "JSON": (lambda text: _is_json(text), ("json_match", "exact_match")),
    "code in a fence": (lambda text: text.startswith("```"), ("exact_match",)),
    "an escaped line break": (
        lambda text: "\\n" in text and not _is_json(text),
        ("exact_match", "json_match", "contains"),
    ),
    "quotation marks around it": (lambda text: text[:1] == text[-1:] and text[:1] in "\"'", ("exact_match",)),
    "a final full stop": (lambda text: text.endswith("."), ("exact_match",)),
}
"""Form of an answer -> how it is recognised, and the verifiers that need it on both sides."""


def _other_form(learned: Sequence[str], tasks: TaskSet) -> str | None:
    """What nearly all answers of one side are, and hardly any of the other."""
    verifier = tasks.tasks[0].verifier
    fn = getattr(verifier, "fn_name", "")
    ours, theirs = (
        [re.sub(r"(?s)<think>.*?</think>|^.*<answer>|</answer>.*", "", text).strip() for text in some]
        for some in (learned, tasks.expected)
    )
    if min(len(ours), len(theirs)) < 4 or getattr(verifier, "params", None):
        return None
    for form, (has, verifiers) in _FORMS.items():
        shares = [sum(map(has, some)) / len(some) for some in (ours, theirs)]
        if fn in verifiers and shares[1] >= 0.9 and shares[0] <= 0.1:
            example = show(next(filter(has, theirs))[:60])
            return f"'{tasks.label}' expects {form}, such as {example}, and no learned answer has any"
        if (
            fn in verifiers
            and form not in ("a number", "nothing but a number", "JSON")
            and shares[0] >= 0.5
            and shares[1] <= 0.02
        ):
            example = show(next(filter(has, ours))[:60])
            return f"learned answers have {form}, such as {example}, and none that '{tasks.label}' expects"
    if fn == "json_match" and (keys := _keys(theirs)) and (learned_keys := _keys(ours)) and not keys & learned_keys:
        return (
            f"'{tasks.label}' expects JSON with the keys {show(sorted(keys))}, learned is {show(sorted(learned_keys))}"
        )
    fractions = sorted(map(_share_of_fractions, (ours, theirs)))
    if fn == "numeric_match" and fractions[0] <= 0.1 and fractions[1] >= 0.7:
        return f"'{tasks.label}' expects numbers such as {show(theirs[0])}, and learned are such as {show(ours[0])}"
    if fn == "exact_match" and (shape := _shape(theirs)) and (own := _shape(ours)) and shape != own:
        both = f"such as {show(theirs[0][:60])}, and learned are such as {show(ours[0][:60])}"
        return f"'{tasks.label}' expects answers {both}: another notation"
    if fn == "exact_match" and (part := _only_here(ours, theirs)):
        return f"learned answers all have {show(part)}, and none that '{tasks.label}' expects has it"
    return None


def _keys(texts: Sequence[str]) -> set[str]:
    """The keys of JSON objects, where all have the same; empty where they differ."""
    found: set[frozenset[str]] = set()
    for text in texts:
        with suppress(ValueError):
            value: Any = json.loads(text)
            found.add(frozenset(value) if is_object(value) else frozenset())
    return set(found.pop()) if len(found) == 1 else set()


def _share_of_fractions(texts: Sequence[str]) -> float:
    """How many are numbers between 0 and 1, as shares are written."""
    return sum(re.fullmatch(r"0?\.\d+|0|1(?:\.0+)?", text) is not None for text in texts) / len(texts)


def _shape(texts: Sequence[str]) -> str | None:
    """What all texts look like without their letters and digits, as in a date; None where they differ."""
    shapes = {re.sub(r"\w+", "0", text) for text in texts}
    return shapes.pop() if len(shapes) == 1 and any(map(str.isdigit, "".join(texts))) else None


def _is_json(text: str) -> bool:
    found = re.search(r"(?s)[\[{].*[\]}]", text)
    with suppress(ValueError):
        return found is not None and json.loads(found[0]) is not None
    return False


def prompts_unlike_the_benchmark(context: Context) -> Iterator[Problem]:
    """The same labels asked for in other words: what is learned for one prompt is scored with another."""
    for one in context.sources:
        for tasks in context.sets:
            if one.learns_from_answers and (_share_of_labels(one, tasks) or 0) < 0.5:
                continue
            if not one.learns_from_answers and not set(one.answers) & set(tasks.expected):
                continue
            if found := _other_writing(one.examples, tasks.examples):
                message = f"prompts of training have {found[0]}, and those of '{tasks.label}' {found[1]}"
                yield Problem(message, one.data_place, hint="Train on prompts as they will be asked.")
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


def _other_writing(here: Sequence[Example], there: Sequence[Example]) -> tuple[str, str] | None:
    """How two sets of prompts are written, where nearly all of one are in another way than nearly all of the other."""
    found = [Counter(_writing(example.prompt) for example in some).most_common(1)[0] for some in (here, there)]
    clear = all(count >= 0.9 * len(some) for (_, count), some in zip(found, (here, there), strict=True))
    return (found[0][0], found[1][0]) if clear and found[0][0] != found[1][0] else None


def _writing(prompt: str) -> str:
    """Tags, or the script of most letters, without the first half, which may be a template in another language."""
    half = prompt[len(prompt) // 2 :]
    letters = Counter(unicodedata.name(letter, "?").split()[0].title() for letter in half if letter.isalpha())
    return "tags" if re.search(r"</\w+>", half) else f"{max(letters, key=letters.__getitem__, default='no')} letters"


def _only_here(here: Sequence[str], there: Sequence[str]) -> str | None:
    """The beginning or end that all prompts of one side share and that no prompt of the other has."""
    if len(set(here)) < 4 or not there:
        return None
    first = shared_start(here)
    last = shared_start([text[::-1] for text in here])[::-1]
    first, last = first[: first.rfind(" ") + 1].strip(), last[last.find(" ") + 1 :].strip()
    # A few texts begin alike by chance, behind a template that both sides share.
    few, theirs = len(set(here)) < _MANY, (shared_start(there), shared_start([text[::-1] for text in there])[::-1])
    if len(first) >= 6 and not any(text.startswith(first) for text in there):
        return None if few and len(theirs[0]) >= 6 and first.startswith(theirs[0].strip()) else first[:60]
    if len(last) >= 6 and not any(text.endswith(last) for text in there):
        return None if few and len(theirs[1]) >= 6 and last.endswith(theirs[1].strip()) else last[-60:]
    return None


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
            likely, votes = _word_model(tasks), Counter[str]()
            for pair in pairs:
                words = set(task_key(pair.prompt).split())
                rated = {
                    kind: likely(words, core(text))
                    for kind, text in (("chosen", pair.answer), ("rejected", pair.rejected))
                }
                votes[max(rated, key=lambda kind: rated[kind])] += rated["chosen"] != rated["rejected"]
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


def _word_model(tasks: TaskSet) -> Callable[[set[str], str], float]:
    """How likely an answer is by the words of its question (naive Bayes over the tasks); minus infinity if unknown."""
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for example in tasks.examples[:300]:
        if example.answer:
            counts[core(example.answer)].update({"", *task_key(example.prompt).split()})
    known = {word for found in counts.values() for word in found}

    def likely(words: set[str], answer: str) -> float:
        found = counts.get(answer)
        if found is None:
            return -math.inf
        return math.log(found[""]) + sum(math.log((found[word] + 0.1) / (found[""] + 0.2)) for word in words & known)

    return likely


def _scores(row: Row) -> tuple[float, float] | None:
    """How chosen and rejected were rated, where the row has both."""
    found = [row.get(f"score_{name}", row.get(f"{name}_score")) for name in ("chosen", "rejected")]
    numbers = [one for one in found if isinstance(one, int | float)]
    return (numbers[0], numbers[1]) if len(numbers) == 2 else None
