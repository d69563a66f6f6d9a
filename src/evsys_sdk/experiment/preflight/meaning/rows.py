"""Checks of the training rows and tasks: faulty rows, contradictions, copies and answers that leak into prompts."""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import Any, cast

from ....data.shapes import is_object
from ....data.task_identity import task_key
from ....errors import Problem, show
from .context import Context, Example, StageView, TaskSet, is_labels, messages_of

_CONTROL = re.compile(
    r"<\|[\w .-]{1,40}\|>|</?s>|\[/?INST\]|<</?SYS>>|<(?:start|end)_of_turn>|<(?:eos|bos|pad|unk|eot|endoftext|im_end)>"
    r"|<\uff5c[^<>]{1,40}\uff5c>|[\x00-\x08\x0b\x0c\x0e-\x1f\ufffd]"
)
_BROKEN = re.compile(r"\u00c3[\u0080-\u00bf]|\u00c2[\u00a1-\u00bf]|\u00e2\u20ac")
"""UTF-8 that was read as Latin-1."""
_ENCODED = re.compile(
    r"&nbsp;|&(?:amp|lt|gt|quot|apos|#x?[0-9a-f]{2,5});(?![\s\S]*</?\w)|(?<!\S)[^\s:/%]*\w%[0-9A-F]{2}\S*\+\w"
)
"""HTML entities in text without HTML tags after them, `&nbsp;` from copied pages, and URL-encoded text."""
_REFUSAL = re.compile(r"(?i)\bas an AI\b|\bAI language model\b")
_NO_VALUE = {"nan", "none", "null", "n/a", "undefined", "<na>", "na", "todo", "tbd", "fixme", "?", "-"}
_PLACEHOLDER = re.compile(
    r"(?:^|(?<=[\s:]))(?:\{\{?\s*[A-Za-z_][\w.]*\s*\}?\}|\$\{[A-Za-z_]\w*\}|<(?:your|insert)[^<>]{0,30}>)(?=[\s.,;:!?]|$)"
)
_ANNOUNCED = re.compile(
    r"(?i)\b(?:answer|solution|expected|target|label|class|category|correct|output|intent|team|queue|tag)\b"
    r"[\s\w\"'`*>]{0,12}[:=>]\W{0,8}$"
)
_ASKS_FOR_JSON = re.compile(
    r"(?i)\b(?:reply|answer|respond|output)\w*\s+(?:\w+\s+){0,3}?(?:as|in|with|only)\s+(?:\w+\s+){0,2}JSON\b"
)
_FIELD = re.compile(r"[^\w\s.,;?!-]\s*$")
"""Pattern of the delimiter before the value of a field."""
_LONG_ANSWER = 80
"""Characters from which an answer does not occur in a prompt by chance."""
_CUT = 40
"""Minimum length in characters of texts that an export may have truncated."""


@dataclass(frozen=True, slots=True)
class RowFault:
    """A fault of single rows, reported once per source with the number of faulty rows and the first of them."""

    find: Callable[[Example], str | None]
    """Describe the fault of a row; None if it has none."""
    message: str
    """Template with `{found}`, `{rows}` and `{first}`."""
    hint: str
    share: float = 0.05
    """Minimum share of faulty rows for a report."""
    least: int = 1


def faulty_rows(context: Context) -> Iterator[Problem]:
    """Rows with one of `ROW_FAULTS`."""
    for one in context.sources:
        for fault in ROW_FAULTS:
            found = [(example, what) for example in one.examples if (what := fault.find(example)) is not None]
            if found and len(found) >= max(fault.share * len(one.examples), fault.least):
                rows, first = f"{len(found)} of {len(one.examples)} rows", one.where(found[0][0])
                message = fault.message.format(found=found[0][1], rows=rows, first=first)
                yield Problem(message, one.place, hint=fault.hint)


def _texts(example: Example) -> list[str]:
    return [text for text in (example.answer, example.rejected) if text is not None]


def _blank(example: Example) -> str | None:
    text = next(filter(_is_blank, _texts(example)), None)
    if text is None or text.strip():
        return text and f"the answer {show(text)}"
    return "no answer" if _is_blank(example.answer or "") else "an empty rejected answer"


def _is_blank(answer: str) -> bool:
    text = re.sub(r"<[^<>]*>", "", answer).strip()
    return not text or text.casefold() in _NO_VALUE


def _first_match(pattern: re.Pattern[str], texts: Sequence[str]) -> str | None:
    return next((show(match[0]) for text in texts if (match := pattern.search(text))), None)


def _in_answers(pattern: re.Pattern[str]) -> Callable[[Example], str | None]:
    return lambda example: _first_match(pattern, _texts(example))


def _in_prompts(pattern: re.Pattern[str]) -> Callable[[Example], str | None]:
    return lambda example: _first_match(pattern, [example.prompt, example.system])


def _repeats_the_prompt(example: Example) -> str | None:
    prompt = example.prompt.strip()
    before = [text.partition(prompt)[0].strip() for text in _texts(example) if len(prompt) > 3 and prompt in text]
    return prompt if any(re.fullmatch(r"(?:\W*\w+:)?", text) for text in before) else None


def _is_not_answered(example: Example) -> str | None:
    said = messages_of(example.raw.get("messages"))
    return "" if said and said[-1].get("role") == "user" and not example.raw.get("target_assistant") else None


def _is_no_json(example: Example) -> str | None:
    verifier: Any = example.raw.get("verifier") or {}
    if example.answer is None or verifier.get("fn_name", "exact_match") not in ("exact_match", "contains"):
        return None
    asks = _ASKS_FOR_JSON.search(f"{example.system}\n{example.prompt}")
    return show(example.answer[:60]) if asks and not re.search(r"[\[{]", example.answer) else None


def _undefined_call(example: Example) -> str | None:
    """Describe the first tool call of a row that does not match its `tools`."""
    tools: Any = example.raw.get("tools") or ()
    known: dict[str, Any] = {one["function"]["name"]: one["function"] for one in tools if "function" in one}
    said: Sequence[Mapping[str, Any]] = messages_of(example.raw.get("messages"))
    for call in [call["function"] for one in said for call in one.get("tool_calls") or ()]:
        name: str = call["name"]
        if name not in known:
            why = "which their `tools` do not define" if known else "and have no `tools`: the prompt never shows it"
            return f"call the tool {show(name)}, {why}"
        given = cast("Any", call.get("arguments") or "{}")
        with suppress(ValueError):
            given = json.loads(given) if isinstance(given, str) else given
        needed = cast("list[str]", known[name].get("parameters", {}).get("required", []))
        if missing := next((key for key in needed if is_object(given) and key not in given), None):
            return f"call {show(name)} without its required argument {show(missing)}"
    return None


def _is_no_preference(example: Example) -> str | None:
    return "" if example.rejected is not None and (example.answer or "").split() == example.rejected.split() else None


def _is_rated_lower(example: Example) -> str | None:
    row = example.raw if example.rejected is not None else {}
    found = [row.get(f"score_{name}", row.get(f"{name}_score")) for name in ("chosen", "rejected")]
    numbers = [one for one in found if isinstance(one, int | float)]
    return "" if len(numbers) == 2 and numbers[0] < numbers[1] else None


_CONTROL_HINT = "Remove them: the template writes its own, and a learned one ends or breaks the answer."
_ENCODING = "Write the file anew as UTF-8: it was read as Latin-1 once."
_BRACES = 'Write it in single braces with the name of a column, as in user_template: "{query}".'
_FIRST = ", the first is {first}"
ROW_FAULTS: tuple[RowFault, ...] = (
    RowFault(_blank, "{rows} have {found}" + _FIRST, "Leave them out with the transform `filter`, or fill them in."),
    *(
        RowFault(find, f"{where} hold {kind}: {{found}} in {{rows}}{_FIRST}", hint, share, least)
        for pattern, kind, hint, share, least in (
            (_CONTROL, "control tokens", _CONTROL_HINT, 0.01, 1),
            (_BROKEN, "characters of a wrong encoding", _ENCODING, 0.01, 1),
            (_REFUSAL, "refusals of a chat model", "Leave these rows out, or answer them anew.", 0.03, 2),
            (
                _ENCODED,
                "HTML entities or URL encoding",
                "Decode it, e.g. with html.unescape or urllib.parse.unquote_plus.",
                0.2,
                1,
            ),
            (_PLACEHOLDER, "a placeholder that was not filled in", _BRACES, 0.9, 2),
        )
        for where, find in (("answers", _in_answers(pattern)), ("prompts", _in_prompts(pattern)))
    ),
    RowFault(
        _repeats_the_prompt,
        "an answer begins with its prompt in {rows}" + _FIRST,
        "Check which columns prompt and answer are made of, and leave the prompt out of the answer.",
        share=0.5,
        least=2,
    ),
    RowFault(
        _is_not_answered,
        "{rows} end with a user turn that is not answered" + _FIRST,
        "Add the answer, cut the turn off, or correct the names of the roles: they may be swapped.",
    ),
    RowFault(
        _is_no_json,
        "the prompt asks for JSON, and the answer is {found} in {rows}" + _FIRST,
        "Ask for the form of the answers, or compare with json_match.",
        share=0.9,
    ),
    RowFault(_undefined_call, "{rows} {found}" + _FIRST, "Correct `tools` of the row, or the call."),
    RowFault(
        _is_no_preference,
        "chosen and rejected are the same in {rows}" + _FIRST,
        "Remove these pairs: there is nothing to prefer.",
    ),
    RowFault(
        _is_rated_lower,
        "the chosen answer has the lower score in {rows}" + _FIRST,
        "Swap the two columns, e.g. with rename_fields.",
        share=0.5,
        least=4,
    ),
)


def texts_cut_off(context: Context) -> Iterator[Problem]:
    """Texts that an export truncated: many have the maximum length and end in mid-sentence."""
    for one in context.sources:
        for what, texts in (("answers", one.answers), ("prompts", [example.prompt for example in one.examples])):
            longest = max(map(len, texts), default=0)
            cut = [text for text in texts if len(text) == longest and text[-1:].isalpha()]
            if longest < _CUT or len(cut) < max(0.2 * len(texts), 8):
                continue
            if len({text.split()[-1] for text in cut if len(text.split()) > 3}) > 4:
                message = f"{len(cut)} of {len(texts)} {what} are {longest} characters long and end in mid-sentence"
                hint = "An export may have cut them off: write the file anew with the whole texts."
                yield Problem(f"{message}, such as {show('…' + cut[0][-30:])}", one.place, hint=hint)


def nothing_to_learn(context: Context) -> Iterator[Problem]:
    """Rows or tasks with nearly always the same prompt or answer, and rows with empty prompts."""
    for one in [*context.sources, *context.sets]:
        answers = Counter(one.answers)
        prompts = Counter(example.prompt.strip() for example in one.examples)
        [(prompt, same_prompts)] = prompts.most_common(1) or [("", 0)]
        [(answer, same)] = answers.most_common(1) or [("", 0)]
        rows, n = one if isinstance(one, StageView) else None, max(len(one.answers), 1)
        if isinstance(one, TaskSet) and one.compares and ((same >= 0.9 * n and same >= 18) or (same == n >= 8)):
            message = f"the answer {show(answer)} alone scores {same / n:.2f}: it is expected by {same / n:.0%} of them"
            hint = "Balance the tasks, or report a metric by class (breakdown_keys)."
            yield Problem(message, one.place, hint=hint)
        elif rows and n >= 8 and len(prompts) >= 4 and (len(answers) == 1 or (n >= 20 and same >= 0.9 * n)):
            share = f"every one of the {n}" if len(answers) == 1 else f"{same / n:.0%} of the"
            verb = "is" if len(answers) == 1 else "are"
            hint = "Check which column the answer is made of, or balance the classes: a constant is soon learned."
            if len({example.rejected for example in one.examples}) > 1:
                hint = "Check which columns are chosen and rejected: they may be swapped."
            yield Problem(f"{share} answers {verb} {show(answer)}", one.place, hint=hint)
        # One prompt may have many answers in open tasks such as stories, but not with labels or transformed prompts.
        made = rows and (is_labels(rows.answers) or (rows.stage.data and rows.stage.data.transforms))
        if made and len(answers) > 1 and 8 <= len(one.examples) <= same_prompts / 0.9:
            message = f"nearly every prompt is {show(prompt[:80])}, while answers differ"
            yield Problem(message, one.place, hint="Check which column the prompt is made of.")
        elif rows and prompts[""] >= max(0.05 * len(one.examples), 1) and not any(e.system for e in one.examples):
            message = f"{prompts['']} of {len(one.examples)} rows have an empty prompt"
            yield Problem(message, one.place, hint="Check which column the prompt is made of, or filter them out.")


def several_spellings(context: Context) -> Iterator[Problem]:
    """Labels with several spellings, which the model learns as different answers."""
    for one in context.sources:
        spellings: dict[str, Counter[str]] = defaultdict(Counter)
        for text in one.answers if is_labels(one.answers) else ():
            spellings[core(text).strip(" .,;:!?").casefold()][text.strip()] += 1
        expected = {core(text).casefold() for tasks in context.sets for text in tasks.answers}
        for typo in [text for text in spellings if text not in expected and len(text) > 4 and text.isalpha()]:
            most = 4 * spellings[typo].total()
            usual = [text for text, counts in spellings.items() if counts.total() >= most and text[0] == typo[0]]
            for right in get_close_matches(typo, usual, n=1, cutoff=0.8):
                spellings[right] += spellings.pop(typo)
        several = [counts for counts in spellings.values() if len(counts) > 1]
        if several:
            written = ", ".join(f"{show(text)} {count}x" for text, count in several[0].most_common(4))
            message = f"{len(several)} of {len(spellings)} labels are spelled in several ways, such as {written}"
            yield Problem(message, one.place, hint="Join them with the transform `map_values`.")


def contradictions(context: Context) -> Iterator[Problem]:
    """Equal prompts with different answers, and preference pairs that contradict each other."""
    for one in [*context.sources, *context.sets]:
        is_rows = isinstance(one, StageView)
        is_one_right = (
            one.compares if isinstance(one, TaskSet) else is_labels([text.casefold() for text in one.answers])
        )
        if not is_one_right:
            continue
        by_prompt: dict[str, dict[str, Example]] = defaultdict(dict)
        for example in one.examples:
            if example.answer is not None and example.rejected is None:
                by_prompt[task_key(f"{example.system}\n{example.prompt}")].setdefault(example.answer, example)
        bad = [list(found.values()) for key, found in by_prompt.items() if len(found) > 1 and key]
        if bad and len(bad) >= 0.02 * len(by_prompt) * is_rows:
            first, second = bad[0][:2]
            both = f"{one.where(first)} ({show(first.answer)}) and {one.where(second)} ({show(second.answer)})"
            what = f"{len(bad)} prompts have different answers, such as" if is_rows else "tasks ask the same:"
            hint = "Decide which is right, and remove the others; a task may have a list of right answers."
            yield Problem(f"{what} {both}", one.place, hint=hint)
    for one in context.sources:
        pairs = [example for example in one.examples if example.rejected not in (None, example.answer)]
        known = {(example.prompt, example.answer, example.rejected) for example in pairs}
        both_ways = [example for example in pairs if (example.prompt, example.rejected, example.answer) in known]
        if len(both_ways) >= max(0.05 * len(pairs), 2):
            message = f"{len(both_ways)} pairs prefer an answer that another pair rejects"
            yield Problem(f"{message}, such as {one.where(both_ways[0])}", one.place, hint="Remove one of each two.")


def many_copies(context: Context) -> Iterator[Problem]:
    """Sources in which most rows are copies, and task sets in which many are."""
    for one in [*context.sources, *context.sets]:
        kinds = {(example.system, example.prompt, example.answer, example.rejected) for example in one.examples}
        copies = len(one.examples) - len(kinds)
        if len(one.examples) >= 20 and copies > (0.5 if isinstance(one, StageView) else 0.2) * len(one.examples):
            message = f"{copies} of {len(one.examples)} rows are copies of others"
            yield Problem(message, one.place, hint="Remove them with the transform `dedupe`.")


def answer_in_the_prompt(context: Context) -> Iterator[Problem]:
    """Prompts that contain their answer."""
    for one in [*context.sources, *context.sets]:
        examples, answers = one.examples, [example.answer or "" for example in one.examples]
        labels = set(answers) if is_labels(answers) else set[str]()

        def is_told(example: Example, labels: set[str] = labels) -> bool:
            # A few-shot prompt contains the other labels too.
            others = (replace(example, answer=label) for label in labels - {example.answer})
            return gives_answer_away(example) and not any(map(gives_answer_away, others))

        found = [example for example in examples if (example.answer or "").strip() and is_told(example)]
        if (len(examples) >= 4 and len(found) >= 0.7 * len(examples)) or _stands_at_one_place(examples):
            shown = found[0] if found else examples[0]
            message = (
                f"the answer stands in the prompt of {len(found) or len(examples)} of {len(examples)} rows, such as "
                f"{show(core(shown.answer))} in {show(shown.prompt[-80:])}: copying it is all there is to learn"
            )
            yield Problem(
                message, one.place, hint="Take it out of the prompt, unless copying is what is to be learned."
            )
        elif labels and (code := _tells_by_a_code(examples)):
            message = f"an identifier in the prompt gives the answer away: {show(code)} stands for it in every row"
            yield Problem(message, one.place, hint="Leave the identifier out of the prompt.")


def core(answer: str | None) -> str:
    """An answer without its tags."""
    return re.sub(r"</?\w+>", " ", answer or "").strip()


def shared_start(texts: Sequence[str]) -> str:
    """The longest common prefix of texts."""
    low, high = min(texts), max(texts)
    return low[: next((at for at, (a, b) in enumerate(zip(low, high, strict=False)) if a != b), len(low))]


def _text(example: Example) -> str:
    return f"{example.system}\n{example.prompt}"


def occurrences(text: str, answer: str) -> list[int]:
    """Positions of an answer as whole words in a text, without regard to case."""
    pattern = rf"(?<!\w){re.escape(answer)}(?!\w)"
    return [match.start() for match in re.finditer(pattern, text, re.IGNORECASE)] if answer else []


def gives_answer_away(example: Example) -> bool:
    """Whether a prompt contains its answer after words such as "answer:", or a long answer anywhere."""
    text, answer = _text(example), core(example.answer)
    # The pattern spans less than 60 characters; a search in the whole prompt is slow.
    return any(
        len(answer) >= _LONG_ANSWER or _ANNOUNCED.search(text[max(at - 60, 0) : at]) for at in occurrences(text, answer)
    )


def _tells_by_a_code(examples: Sequence[Example]) -> str | None:
    """The first identifier, such as `AB-12`, if the letters of identifiers in prompts map one-to-one to answers."""
    pairs = [(re.findall(r"\b[A-Za-z]+[-_/.#]?\d+\b", one.prompt), one.answer) for one in examples]
    known = {(re.sub(r"\d+", "", codes[0]), answer) for codes, answer in pairs if len(codes) == 1}
    if any(len(codes) != 1 for codes, _ in pairs) or len(known) < 2:
        return None
    one_to_one = len(known) == len({code for code, _ in known}) == len({answer for _, answer in known})
    return pairs[0][0][0] if one_to_one else None


def _stands_at_one_place(examples: Sequence[Example]) -> bool:
    """Whether most prompts contain their label after the same characters, without most of the other labels."""
    answers = [core(example.answer) for example in examples]
    labels = {answer.casefold() for answer in answers}
    if not is_labels(answers) or len(labels) < 2:
        return False
    before: Counter[str] = Counter()
    template = shared_start([_text(example) for example in examples]).rfind(" ") + 1
    for example, answer in zip(examples, answers, strict=True):
        text = _text(example)
        others = sum(label in text[template:].casefold() for label in labels) - 1
        at = occurrences(text, answer)
        # Only labels at the end or in a field count: a label within a sentence belongs to an extraction task, and a
        # short prompt that differs in case to a rewriting task.
        if (
            at
            and others < 0.5 * len(labels)
            and (answer in text or len(text[template:].split()) > 3)
            and (at[-1] + len(answer) >= len(text) - 2 or _FIELD.search(text[: at[-1]]))
        ):
            before[text[max(at[-1] - 6, 0) : at[-1]]] += 1
    return bool(before) and before.most_common(1)[0][1] >= 0.8 * len(examples)
