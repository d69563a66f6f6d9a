"""Checks of the rows that runs learn from: answers, prompts, and how both compare with what is asked of the model."""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, cast

from ....data import describe_source
from ....data.shapes import is_object
from ....data.task_identity import task_key
from ....errors import Problem, show
from .context import Context, Example, is_labels, messages_of

_SOME = 0.05
"""Share of rows from which a fault is reported."""
_CONTROL = re.compile(
    r"<\|[\w .-]{1,40}\|>|</?s>|\[/?INST\]|<</?SYS>>|<(?:start|end)_of_turn>|<(?:eos|bos|pad|unk|eot|endoftext|im_end)>"
    r"|<\uff5c[^<>]{1,40}\uff5c>|[\x00-\x08\x0b\x0c\x0e-\x1f\ufffd]"
)
_BROKEN = re.compile(r"\u00c3[\u0080-\u00bf]|\u00c2[\u00a1-\u00bf]|\u00e2\u20ac")
"""UTF-8 that was read as Latin-1."""
_ENTITY = re.compile(r"&(?:amp|lt|gt|quot|apos|nbsp|#x?[0-9a-f]{2,5});(?![\s\S]*</?\w)")
"""Of HTML, in a text without tags behind it: escaped once too often."""
_NO_VALUE = {"nan", "none", "null", "n/a", "undefined", "<na>", "na", "todo", "tbd", "fixme", "?", "-"}
_PLACEHOLDER = re.compile(
    r"(?:^|(?<=[\s:]))(?:\{\{?\s*[A-Za-z_][\w.]*\s*\}?\}|\$\{[A-Za-z_]\w*\}|<(?:your|insert)[^<>]{0,30}>)(?=[\s.,;:!?]|$)"
)
_ANNOUNCED = re.compile(
    r"(?i)\b(?:answer|solution|expected|target|label|class|category|correct|output|intent|team|queue|tag)\b"
    r"[\s\w\"'`*>]{0,12}[:=>]\W{0,8}$"
)
_FIELD = re.compile(r"[^\w\s.,;?!-]\s*$")
"""What stands before the value of a field."""
_LONG_ANSWER = 80
"""An answer of this length does not stand in a question by accident."""


def count_rows(some: Sequence[object], n: int) -> str:
    """How many of the rows, in words."""
    return f"{len(some)} of {n} rows"


@dataclass(frozen=True, slots=True)
class RowFault:
    """A fault of single rows, reported once for each source with the number of rows and the first of them."""

    find: Callable[[Example], str | None]
    """What is wrong with a row; None where nothing is."""
    message: str
    """With `{found}`, `{rows}` and `{first}`."""
    hint: str
    share: float = 0.05
    """Share of the rows from which it is reported."""
    least: int = 1


def faulty_rows(context: Context) -> Iterator[Problem]:
    """Rows with a fault of `ROW_FAULTS`."""
    for one in context.sources:
        for fault in ROW_FAULTS:
            found = [(example, what) for example in one.examples if (what := fault.find(example)) is not None]
            if found and len(found) >= max(fault.share * len(one.examples), fault.least):
                rows, first = count_rows(found, len(one.examples)), one.where(found[0][0])
                message = fault.message.format(found=found[0][1], rows=rows, first=first)
                yield Problem(message, one.data_place, hint=fault.hint)


def _blank(example: Example) -> str | None:
    text = next(filter(_is_blank, _answers_with_rejected(example)), None)
    if text is None:
        return None
    if text.strip():
        return f"the answer {show(text)}"
    return "no answer" if _is_blank(example.answer or "") else "an empty rejected answer"


def _is_blank(answer: str) -> bool:
    text = re.sub(r"<[^<>]*>", "", answer).strip()
    return not text or text.casefold() in _NO_VALUE


def _answers_with_rejected(example: Example) -> list[str]:
    return [text for text in (example.answer, example.rejected) if text is not None]


def _in_answers(pattern: re.Pattern[str]) -> Callable[[Example], str | None]:
    return lambda example: _first_match(pattern, _answers_with_rejected(example))


def _in_prompts(pattern: re.Pattern[str]) -> Callable[[Example], str | None]:
    return lambda example: _first_match(pattern, [example.prompt])


def _first_match(pattern: re.Pattern[str], texts: Sequence[str]) -> str | None:
    return next((show(match[0]) for text in texts if (match := pattern.search(text))), None)


def _repeats_the_prompt(example: Example) -> str | None:
    prompt = example.prompt.strip()
    repeats = any(text.strip().startswith(prompt) for text in _answers_with_rejected(example))
    return prompt if len(prompt) > 3 and repeats else None


_CONTROL_HINT = "Remove them: the template writes its own, and a learned one ends or breaks the answer."
_ENCODING = "Write the file anew as UTF-8: it was read as Latin-1 once."
_BRACES = 'Write it in single braces with the name of a column, as in user_template: "{query}".'
ROW_FAULTS: tuple[RowFault, ...] = (
    RowFault(
        _blank,
        "{rows} have {found}, the first is {first}",
        "Leave them out with the transform `filter`, or fill them in.",
    ),
    *(
        RowFault(find, f"{where} hold {kind}: {{found}} in {{rows}}, the first is {{first}}", hint, share=share)
        for pattern, kind, hint, share in (
            (_CONTROL, "control tokens", _CONTROL_HINT, 0.01),
            (_BROKEN, "characters of a wrong encoding", _ENCODING, 0.01),
            (_ENTITY, "HTML entities", "Decode them, e.g. with Python's html.unescape.", 0.2),
        )
        for where, find in (("answers", _in_answers(pattern)), ("prompts", _in_prompts(pattern)))
    ),
    *(
        RowFault(find, f"{where} hold the placeholder {{found}} itself in {{rows}}", _BRACES, share=0.9, least=2)
        for where, find in (("prompts", _in_prompts(_PLACEHOLDER)), ("answers", _in_answers(_PLACEHOLDER)))
    ),
    RowFault(
        _repeats_the_prompt,
        "an answer begins with its prompt in {rows}, the first is {first}",
        "Check which columns prompt and answer are made of, and leave the prompt out of the answer.",
        share=0.5,
        least=2,
    ),
)


def prompts_without_content(context: Context) -> Iterator[Problem]:
    """The same prompt in every row, whatever the answer."""
    for one in context.sources:
        prompts = Counter(example.prompt.strip() for example in one.examples)
        # One prompt may have many answers, such as stories, unless it was made from columns.
        made = bool(one.stage.data and one.stage.data.transforms) or is_labels(one.answers)
        empty = prompts.get("", 0)
        if (
            len(one.examples) >= 8
            and made
            and len(set(one.answers)) > 1
            and prompts.most_common(1)[0][1] >= 0.9 * len(one.examples)
        ):
            shown = show(prompts.most_common(1)[0][0][:80])
            message = f"nearly every prompt is {shown}, while answers differ"
            yield Problem(message, one.data_place, hint="Check which column the prompt is made of.")
        elif empty >= max(_SOME * len(one.examples), 1) and not any(example.system for example in one.examples):
            message = f"{empty} of {len(one.examples)} rows have an empty prompt"
            yield Problem(message, one.data_place, hint="Check which column the prompt is made of, or filter them out.")


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


def several_spellings(context: Context) -> Iterator[Problem]:
    """One label in several spellings, which are learned as different answers."""
    for one in context.sources:
        spellings: dict[str, Counter[str]] = defaultdict(Counter)
        for text in one.answers if is_labels(one.answers) else ():
            spellings[core(text).strip(" .,;:!?").casefold()][text.strip()] += 1
        several = [counts for counts in spellings.values() if len(counts) > 1]
        if several:
            written = ", ".join(f"{show(text)} {count}x" for text, count in several[0].most_common(4))
            message = f"{len(several)} of {len(spellings)} labels are spelled in several ways, such as {written}"
            yield Problem(message, one.data_place, hint="Join them with the transform `map_values`.")


def turns_without_an_answer(context: Context) -> Iterator[Problem]:
    """Conversations that end with a question, and calls of tools that the prompt does not define."""
    for one in context.sources:
        rows = one.pulled.rows if one.pulled is not None and one.learns_from_answers else []
        chats = [(at, messages) for at, row in enumerate(rows) if (messages := messages_of(row.get("messages")))]
        open_ended = [
            at for at, said in chats if said[-1].get("role") == "user" and not rows[at].get("target_assistant")
        ]
        calls = [(at, why) for at, said in chats if (why := _undefined_call(rows[at].get("tools"), said))]
        for found, what, hint in (
            (open_ended, "end with a user turn that is not answered", "Add the answer, or cut the turn off."),
            ([at for at, _ in calls], calls[0][1] if calls else "", "Correct `tools` of the row, or the call."),
        ):
            if one.pulled is not None and len(found) >= max(_SOME * len(rows), 1):
                message = f"{count_rows(found, len(rows))} {what}, the first is {one.pulled.where(found[0])}"
                yield Problem(message, one.data_place, hint=hint)


def _undefined_call(tools: Any, messages: Sequence[Mapping[str, Any]]) -> str | None:
    """What is wrong with the first call that does not fit the tools of its row."""
    known: dict[str, Any] = {one["function"]["name"]: one["function"] for one in tools or () if "function" in one}
    for call in [call["function"] for one in messages for call in one.get("tool_calls") or ()]:
        name: str = call["name"]
        if not known:
            return f"call the tool {show(name)} and have no `tools`, so that the prompt never shows it"
        if name not in known:
            return f"call the tool {show(name)}, which their `tools` do not define"
        given = cast("Any", call.get("arguments") or "{}")
        with suppress(ValueError):
            given = json.loads(given) if isinstance(given, str) else given
        needed = cast("list[str]", known[name].get("parameters", {}).get("required", []))
        if missing := next((key for key in needed if is_object(given) and key not in given), None):
            return f"call {show(name)} without its required argument {show(missing)}"
    return None


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
        answers = [example.answer or "" for example in examples]
        labels = set(answers) if is_labels(answers) else set[str]()

        def is_told(example: Example, labels: set[str] = labels) -> bool:
            # Examples in the prompt announce other labels, too.
            others = (replace(example, answer=label) for label in labels - {example.answer})
            return gives_answer_away(example) and not any(map(gives_answer_away, others))

        found = [example for example in examples if (example.answer or "").strip() and is_told(example)]
        if (len(examples) >= 4 and len(found) >= 0.7 * len(examples)) or _stands_at_one_place(examples):
            shown = found[0] if found else examples[0]
            message = (
                f"the answer stands in the prompt of {len(found) or len(examples)} of {len(examples)} rows, such as "
                f"{show(core(shown.answer))} in {show(shown.prompt[-80:])}: copying it is all there is to learn"
            )
            yield Problem(message, place, hint="Take it out of the prompt, unless copying is what is to be learned.")


def core(answer: str | None) -> str:
    """An answer without tags around it."""
    return re.sub(r"</?\w+>", " ", answer or "").strip()


def shared_start(texts: Sequence[str]) -> str:
    """What all texts begin with."""
    low, high = min(texts), max(texts)
    return low[: next((at for at, (a, b) in enumerate(zip(low, high, strict=False)) if a != b), len(low))]


def _text(example: Example) -> str:
    return f"{example.system}\n{example.prompt}"


def _occurrences(text: str, answer: str) -> list[int]:
    pattern = rf"(?<!\w){re.escape(answer)}(?!\w)"
    return [match.start() for match in re.finditer(pattern, text, re.IGNORECASE)] if answer else []


def gives_answer_away(example: Example) -> bool:
    """Whether a prompt holds its answer, announced as such or too long to be chance."""
    text, answer = _text(example), core(example.answer)
    # 60 characters are more than the pattern can span; over the whole prompt it would be looked for at every place.
    return any(
        len(answer) >= _LONG_ANSWER or _ANNOUNCED.search(text[max(at - 60, 0) : at])
        for at in _occurrences(text, answer)
    )


def _stands_at_one_place(examples: Sequence[Example]) -> bool:
    """Whether the labels of a set stand in their prompts, always after the same words and without the other labels."""
    answers = [core(example.answer) for example in examples]
    labels = {answer.casefold() for answer in answers}
    if not is_labels(answers) or len(labels) < 2:
        return False
    before: Counter[str] = Counter()
    template = shared_start([_text(example) for example in examples]).rfind(" ") + 1
    for example, answer in zip(examples, answers, strict=True):
        text = _text(example)
        others = sum(label in text[template:].casefold() for label in labels) - 1
        at = _occurrences(text, answer)
        # Delimited like a field, or at the end: in the middle of a sentence it is what is to be extracted, and a
        # short prompt in another case is what is to be rewritten.
        if (
            at
            and others < 0.5 * len(labels)
            and (answer in text or len(text[template:].split()) > 3)
            and (at[-1] + len(answer) >= len(text) - 2 or _FIELD.search(text[: at[-1]]))
        ):
            before[text[max(at[-1] - 6, 0) : at[-1]]] += 1
    return bool(before) and before.most_common(1)[0][1] >= 0.8 * len(examples)


def rows_lost_in_filters(context: Context) -> Iterator[Problem]:
    """A filter or sample that leaves next to nothing."""
    for one in context.sources:
        pulled, data = one.pulled, one.stage.data
        if pulled is None or data is None or not pulled.complete:
            continue
        at = next((at for at, spec in enumerate(data.transforms) if spec.kind in ("filter", "sample")), None)
        if at is not None and len(pulled.rows) < 8 and pulled.read >= 20 * max(len(pulled.rows), 1):
            message = f"{len(pulled.rows)} of {pulled.read} rows of {describe_source(data)} are left"
            yield Problem(
                message, f"{one.data_place}.transforms[{at}]", hint="Check its conditions, and the spelling of values."
            )
