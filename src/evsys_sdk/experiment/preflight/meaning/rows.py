"""Checks of the rows that runs learn from: answers, prompts, and how both compare with what is asked of the model."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence

from ....data import describe_source
from ....data.task_identity import task_key
from ....errors import Problem, show
from .context import Context, Example, is_labels

_SOME = 0.05
"""Share of rows from which a fault is said."""
_CONTROL = re.compile(
    r"<\|[\w .-]{1,40}\|>|</?s>|\[/?INST\]|<</?SYS>>|<(?:start|end)_of_turn>|<(?:eos|bos|pad|unk|eot|endoftext|im_end)>"
    r"|<\uff5c[^<>]{1,40}\uff5c>|[\x00-\x08\x0b\x0c\x0e-\x1f\ufffd]"
)
_NO_VALUE = {"nan", "none", "null", "n/a", "undefined", "<na>", "na"}
_PLACEHOLDER = re.compile(
    r"(?:^|(?<=[\s:]))(?:\{\{?\s*[A-Za-z_][\w.]*\s*\}?\}|\$\{[A-Za-z_]\w*\}|<(?:your|insert)[^<>]{0,30}>)(?=[\s.,;:!?]|$)"
)
_ANNOUNCED = re.compile(
    r"(?i)\b(?:answer|solution|expected|target|label|class|category|correct|output|intent|team|queue|tag)\b"
    r"[\s\w\"'`*>]{0,12}[:=>]\W{0,8}$"
)
_LONG_ANSWER = 80
"""An answer of this length does not stand in a question by accident."""


def count_rows(some: Sequence[object], n: int) -> str:
    """How many of the rows, in words."""
    return f"{len(some)} of {n} rows"


def blank_answers(context: Context) -> Iterator[Problem]:
    """Answers that are empty, or that say `nan` where a column was empty."""
    for one in context.sources:
        found = [example for example in one.examples if example.answer is not None or one.learns_from_answers]
        blank = [example for example in found if example.answer is not None and _is_blank(example.answer)]
        if len(blank) >= max(_SOME * len(one.examples), 1):
            what = "no answer" if not (blank[0].answer or "").strip() else f"the answer {show(blank[0].answer)}"
            message = f"{count_rows(blank, len(one.examples))} have {what}, the first is {one.where(blank[0])}"
            yield Problem(message, one.data_place, hint="Leave them out with the transform `filter`, or fill them in.")


def _is_blank(answer: str) -> bool:
    text = re.sub(r"<[^<>]*>", "", answer).strip()
    return not text or text.casefold() in _NO_VALUE


def control_tokens(context: Context) -> Iterator[Problem]:
    """Control tokens of a chat template, and broken characters, inside of texts."""
    for one in context.sources:
        for what in ("answers", "prompts"):
            found = [
                (example, match[0])
                for example in one.examples
                for text in (_answers_with_rejected(example) if what == "answers" else [example.prompt])
                if (match := _CONTROL.search(text))
            ]
            if len(found) >= max(0.01 * len(one.examples), 1):
                example, token = found[0]
                rows = count_rows(found, len(one.examples))
                message = f"{what} hold control tokens: {show(token)} in {rows}, the first is {one.where(example)}"
                hint = "Remove them: the template writes its own, and a learned one ends or breaks the answer."
                yield Problem(message, one.data_place, hint=hint)
                break


def _answers_with_rejected(example: Example) -> list[str]:
    return [text for text in (example.answer, example.rejected) if text is not None]


def unfilled_templates(context: Context) -> Iterator[Problem]:
    """Placeholders that no value has taken the place of."""
    for one in context.sources:
        for what, texts in (("prompts", [e.prompt for e in one.examples]), ("answers", one.answers)):
            marks = Counter(mark for text in texts for mark in set(_PLACEHOLDER.findall(text)))
            if len(texts) >= 2 and marks and (top := marks.most_common(1)[0])[1] >= 0.9 * len(texts):
                message = f"{what} hold the placeholder {show(top[0])} itself in {top[1]} of {len(texts)} rows"
                hint = 'Write it in single braces with the name of a column, as in user_template: "{query}".'
                yield Problem(message, one.data_place, hint=hint)


def prompts_without_content(context: Context) -> Iterator[Problem]:
    """The same prompt in every row, whatever the answer."""
    for one in context.sources:
        prompts = Counter(example.prompt.strip() for example in one.examples)
        kinds = {example.answer for example in one.examples}
        empty = prompts.get("", 0)
        if len(one.examples) >= 8 and len(kinds) > 1 and prompts.most_common(1)[0][1] >= 0.9 * len(one.examples):
            shown = show(prompts.most_common(1)[0][0][:80])
            message = f"nearly every prompt is {shown}, while answers differ"
            yield Problem(message, one.data_place, hint="Check which column the prompt is made of.")
        elif empty >= max(_SOME * len(one.examples), 1) and not any(example.system for example in one.examples):
            message = f"{empty} of {len(one.examples)} rows have an empty prompt"
            yield Problem(message, one.data_place, hint="Check which column the prompt is made of, or filter them out.")


def answers_repeat_the_prompt(context: Context) -> Iterator[Problem]:
    """Answers that are, or begin with, their prompt."""
    for one in context.sources:
        if not one.learns_from_answers:
            continue
        pairs = [(e, e.prompt.strip(), (e.answer or "").strip()) for e in one.examples]
        same = [e for e, prompt, answer in pairs if len(prompt) > 3 and answer.startswith(prompt)]
        if len(pairs) >= 4 and len(same) >= 0.5 * len(pairs):
            rows = count_rows(same, len(pairs))
            message = f"the answer begins with its prompt in {rows}, the first is {one.where(same[0])}"
            hint = "Check which columns prompt and answer are made of, and leave the prompt out of the answer."
            yield Problem(message, one.data_place, hint=hint)


def one_class(context: Context) -> Iterator[Problem]:
    """Answers that are always, or nearly always, the same."""
    for one in context.sources:
        counts = Counter(one.answers)
        if len(one.answers) < 8 or len({e.prompt for e in one.examples}) < 4:
            continue
        answer, count = counts.most_common(1)[0]
        if len(counts) == 1:
            message = f"every one of the {count} answers is {show(answer)}"
            hint = "Check which column the answer is made of; a constant is learned in a few steps and says nothing."
            yield Problem(message, one.data_place, hint=hint)
        elif len(one.answers) >= 20 and count >= 0.9 * len(one.answers):
            message = f"{count / len(one.answers):.0%} of the answers are {show(answer)}"
            yield Problem(message, one.data_place, hint="Balance the classes, or the model will always answer that.")


def conflicting_answers(context: Context) -> Iterator[Problem]:
    """The same prompt with different labels."""
    for one in context.sources:
        if not is_labels([text.strip().casefold() for text in one.answers]):
            continue
        by_prompt: dict[str, dict[str, Example]] = defaultdict(dict)
        for example in one.examples:
            if example.answer is not None and example.rejected is None:
                by_prompt[task_key(example.system + "\n" + example.prompt)].setdefault(example.answer, example)
        bad = [list(found.values()) for found in by_prompt.values() if len(found) > 1]
        if bad and len(bad) >= 0.02 * len(by_prompt):
            first, second = bad[0][:2]
            message = (
                f"{len(bad)} prompts have different answers, such as {one.where(first)} ({show(first.answer)}) and "
                f"{one.where(second)} ({show(second.answer)})"
            )
            yield Problem(message, one.data_place, hint="Decide which is right, and remove the others.")


def many_copies(context: Context) -> Iterator[Problem]:
    """Rows that are mostly copies of each other."""
    for one in context.sources:
        kinds = Counter((example.system, example.prompt, example.answer, example.rejected) for example in one.examples)
        copies = len(one.examples) - len(kinds)
        if len(one.examples) >= 20 and copies > 0.5 * len(one.examples):
            message = f"{copies} of {len(one.examples)} rows are copies of others"
            yield Problem(message, one.data_place, hint="Remove them with the transform `dedupe`.")


def answer_in_the_prompt(context: Context) -> Iterator[Problem]:
    """Prompts that give their answer away."""
    places = [(one.data_place, one.examples) for one in context.sources]
    places += [(one.place, one.examples) for one in context.sets]
    for place, examples in places:
        found = [example for example in examples if (example.answer or "").strip() and gives_answer_away(example)]
        if (len(examples) >= 4 and 2 * len(found) >= len(examples)) or _stands_at_one_place(examples):
            shown = found[0] if found else examples[0]
            message = (
                f"the answer stands in the prompt of {len(found) or len(examples)} of {len(examples)} rows, such as "
                f"{show(core(shown.answer))} in {show(shown.prompt[-80:])}: copying it is all there is to learn"
            )
            yield Problem(message, place, hint="Take it out of the prompt, unless copying is what is to be learned.")


def core(answer: str | None) -> str:
    """An answer without tags around it."""
    return re.sub(r"</?\w+>", " ", answer or "").strip()


def _occurrences(example: Example) -> list[int]:
    answer = core(example.answer)
    pattern = rf"(?<!\w){re.escape(answer)}(?!\w)"
    return [match.start() for match in re.finditer(pattern, f"{example.system}\n{example.prompt}")] if answer else []


def gives_answer_away(example: Example) -> bool:
    """Whether a prompt holds its answer, announced as such or too long to be chance."""
    text, answer = f"{example.system}\n{example.prompt}", core(example.answer)
    # 60 characters are more than the pattern can span; over the whole prompt it would be looked for at every place.
    return any(
        len(answer) >= _LONG_ANSWER or _ANNOUNCED.search(text[max(at - 60, 0) : at]) for at in _occurrences(example)
    )


def _stands_at_one_place(examples: Sequence[Example]) -> bool:
    """Whether the labels of a set stand in their prompts, always after the same words and without the other labels."""
    labels = {core(example.answer) for example in examples}
    if not is_labels([core(example.answer) for example in examples]) or len(labels) < 2:
        return False
    before: Counter[str] = Counter()
    for example in examples:
        text = f"{example.system}\n{example.prompt}"
        others = sum(label in text for label in labels) - 1
        if (at := _occurrences(example)) and others < 0.5 * len(labels):
            before[text[max(at[-1] - 6, 0) : at[-1]]] += 1
    return bool(before) and before.most_common(1)[0][1] >= 0.8 * len(examples)


def rows_lost_in_filters(context: Context) -> Iterator[Problem]:
    """A filter that leaves next to nothing."""
    for one in context.sources:
        pulled, data = one.pulled, one.stage.data
        if pulled is None or data is None or not pulled.complete:
            continue
        at = next((at for at, spec in enumerate(data.transforms) if spec.kind == "filter"), None)
        read = max((origin for origin in pulled.origins if origin is not None), default=0)
        if at is not None and len(pulled.rows) < 8 and read >= 20 * max(len(pulled.rows), 1):
            message = f"{len(pulled.rows)} of {read} rows of {describe_source(data)} are left"
            yield Problem(
                message, f"{one.data_place}.transforms[{at}]", hint="Check its conditions, and the spelling of values."
            )
