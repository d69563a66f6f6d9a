"""Checks that training rows and evaluation tasks have the same form and agree on the answers."""

from __future__ import annotations

import json
import math
import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from time import monotonic
from typing import Any, cast

from ....config import TransformSpec
from ....data.task_identity import task_key
from ....errors import EvsysError, Problem, show
from ...benchmark_plan import load_entry
from .context import Context, Example, StageView, TaskSet, is_labels
from .rows import core, occurrences, shared_start
from .tasks import score_answers

_MOST, _FEW_TEXTS = 0.8, 0.1
"""Minimum share of one side with a trait, and maximum share of the other, for a reported difference."""
_MANY, _MOST_PAIRS, _LEAST_PAIRS, _SECONDS = 20, 100, 8, 2.0
_PART, _IN_PART = 0.15, ("leading zeros", "the notation 0-0", "quotation marks around it")
"""Minimum share of one side with a trait that a spreadsheet adds or removes, and that the other side lacks."""
_NUMBERS = ("a number", "a number between 0 and 1")
_COMPARED: Mapping[str, tuple[str, ...]] = {
    "exact_match": ("",),
    "json_match": ("JSON", "the JSON key", "an escaped line break"),
    "numeric_match": _NUMBERS,
    "contains": ("an escaped line break",),
}
"""Verifier -> prefixes of the traits in which learned and expected answers must agree."""
_UNIT = re.compile(r"[^a-zA-Z]*\d\s*([a-zA-Z%€$£°/]{1,8})\.?")
_CALL = r"['\"](?:name|function)['\"]|<tool_call|<function"
"""Pattern of the start of a tool call in a text."""
_FUNCTION_WORDS = {
    "English": "the and is are of to what which with this that my it for you have not was",
    "German": "der die das und ist sind ein eine nicht mit wer wie was ich sie wir zu für auf dem",
    "French": "le la les et est sont un une des ne pas avec qui que je vous nous pour dans du",
    "Spanish": "el la los las y es son un una no con quien que yo usted para por del en",
    "Italian": "il lo la gli e è sono un una non con chi che io per del della di nel",
    "Portuguese": "o a os as e é são um uma não com quem que eu para por do da em",
    "Dutch": "de het een en is zijn niet met wie wat ik u wij voor van op dat",
}


def _share_of_labels(one: StageView, tasks: TaskSet) -> float | None:
    """Share of the learned answers that any task accepts; None if the expected answers are not labels."""
    kinds, n = {text.strip() for text in tasks.answers}, len(tasks.answers)
    if not tasks.compares or not kinds or len(kinds) > max(n / 2, 1) or len(kinds) > 60:
        return None
    some = Counter(one.answers).most_common(60)
    right = tasks.accepted([text for text, _ in some])
    return sum(n for (_, n), ok in zip(some, right, strict=True) if ok) / max(sum(n for _, n in some), 1)


def answers_unlike_the_benchmark(context: Context) -> Iterator[Problem]:
    """Learned answers that no task accepts, or that have another form than the expected ones."""
    for stages, sets in _by_stages(context):
        learning = [one for one in stages if one.learns_from_answers and one.answers]
        shares = [
            (tasks, share)
            for tasks in sets
            for stage in learning
            if (share := _share_of_labels(stage, tasks)) is not None
        ]
        if shares and max(share for _, share in shares) < 0.1:
            yield _never_scores(learning[-1], shares[0][0])
        learned = [text for stage in learning for text in stage.answers]
        for tasks in sets if learned else ():
            if found := _other_kind(learned, tasks):
                yield Problem(found, learning[-1].place, hint="Make the answers of both alike.")
        for tasks in sets if learned and not shares else ():
            if tasks.compares and (found := _other_form(learned, tasks)):
                yield Problem(found, learning[-1].place, hint="Check which column the answer is made of.")


def _other_kind(learned: Sequence[str], tasks: TaskSet) -> str | None:
    """Describe learned answers without the expected tool calls, or in another unit."""
    if tasks.verifier == "tool_calls_match" and not any(re.search(_CALL, text) for text in learned):
        return f"'{tasks.label}' expects tool calls, and learned are such as {show(learned[0][:60])}"
    units = [{found[1] for text in some if (found := _UNIT.fullmatch(text))} for some in (learned, tasks.answers)]
    if tasks.verifier == "numeric_match" and all(len(some) == 1 for some in units) and units[0] != units[1]:
        return f"learned answers are in {show(*units[0])}, and '{tasks.label}' expects {show(*units[1])}"
    return None


def answers_fail_their_own_tasks(context: Context) -> Iterator[Problem]:
    """Training answers that fail the task that the benchmark makes from the same row."""
    for one, tasks in pairs_of(context):
        data, entry = one.stage.data, tasks.entry
        if sum(other.run_place == one.run_place for other in context.stages) > 1:
            continue  # a later stage may teach the expected form
        if not (data and data.path and entry and entry.transforms and tasks.is_cheap and one.learns_from_answers):
            continue
        made = [spec for spec in entry.transforms if spec.kind not in ("split", "sample")]
        try:
            benchmark = load_entry(entry.model_copy(update={"path": data.path, "id": None, "transforms": made}))
        except EvsysError:  # the rows have other columns
            continue
        own = TaskSet(one.place, tasks.label, list(benchmark.tasks), len(benchmark.tasks), tasks.max_tokens)
        by_prompt = {task_key(example.prompt): example for example in own.examples}
        found = [(row, by_prompt.get(task_key(row.prompt))) for row in one.examples if row.answer]
        pairs, until = [(row, task) for row, task in found if task is not None][:_MOST_PAIRS], monotonic() + _SECONDS
        rewards = score_answers((own.tasks[task.row], row.answer or "") for row, task in pairs if monotonic() < until)
        pairs = pairs[: len(rewards)]
        wrong = [pair for pair, reward in zip(pairs, rewards, strict=True) if not reward]
        if len(wrong) >= max((0.3 if tasks.compares else 0.2) * len(pairs), _LEAST_PAIRS):
            row, task = wrong[0]
            expected, learned = (_ends_of(one.answer or "") for one in (task, row))
            message = f"{len(wrong)} of {len(pairs)} answers are wrong by '{tasks.label}'"
            message += f", which expects {expected} for the row where {learned} is learned"
            hint = "Make the answers of both alike: check the columns, the values and the form."
            if expected == learned:
                message = f"{len(wrong)} of {len(pairs)} right answers score 0 on '{tasks.label}', such as {learned}"
                hint = f"Learn answers in the form that its verifier '{tasks.verifier}' reads."
            yield Problem(message, one.place, hint=hint)


def _ends_of(text: str) -> str:
    return show(text if len(text) <= 80 else f"{text[:30]} … {text[-45:]}")


def _by_stages(context: Context) -> Iterator[tuple[list[StageView], list[TaskSet]]]:
    """Yield the stages of each run with all task sets that score them."""
    found: dict[tuple[int, ...], tuple[list[StageView], list[TaskSet]]] = {}
    for stages, tasks in context.judged:
        found.setdefault(tuple(map(id, stages)), (stages, []))[1].append(tasks)
    yield from found.values()


def _never_scores(one: StageView, tasks: TaskSet) -> Problem:
    learned, expected = show(Counter(one.answers).most_common(1)[0][0][:60]), show(tasks.answers[0][:60])
    folded = {core(text).casefold() for text in tasks.answers}
    why = "no answer it learns is one that is expected"
    if any(core(text).casefold() in folded for text in one.answers):
        why = "they differ in case or form only"
        if set(one.answers) & set(tasks.answers):
            why = f"the verifier '{tasks.verifier}' does not accept that text"
    elif any(example.prompt.strip() in set(tasks.answers) for example in one.examples[:50]):
        why = "prompt and answer look swapped"
    message = f"what is learned ({learned}) never scores on '{tasks.label}', which expects {expected}: {why}"
    hint = "Make the answers of both alike: check the column, the template, the case, or set ignore_case."
    return Problem(message, one.place, hint=hint)


def _other_form(learned: Sequence[str], tasks: TaskSet) -> str | None:
    """Describe a form that nearly all answers of one side have, and hardly any of the other."""
    wanted = _COMPARED[tasks.verifier]
    ours, theirs = (
        [re.sub(r"(?s)<think>.*?</think>|^.*<answer>|</answer>.*", "", text).strip() for text in some]
        for some in (learned, tasks.answers)
    )
    if min(len(ours), len(theirs)) < 4 or getattr(tasks.tasks[0].verifier, "params", None):
        return None
    for here, there, says in (
        (theirs, ours, f"'{tasks.label}' expects TRAIT, and learned are such as {show(ours[0][:60])}"),
        (ours, theirs, f"learned answers have TRAIT, and '{tasks.label}' expects {show(theirs[0][:60])}"),
    ):
        if (trait := _only_trait(here, there, wanted)) and (here is theirs or trait not in _NUMBERS):
            example = show(next(text for text in here if trait in _traits(text))[:60])
            return says.replace("TRAIT", f"{trait}, such as {example}")
    if tasks.verifier == "exact_match" and (part := _only_here(ours, theirs)):
        return f"learned answers all have {show(part)}, and none that '{tasks.label}' expects has it"
    return None


def _only_trait(here: Sequence[str], there: Sequence[str], wanted: tuple[str, ...]) -> str | None:
    """A trait that nearly all texts of `here` have, and hardly any of `there`."""
    ours, theirs = (Counter(trait for text in some for trait in _traits(text)) for some in (here, there))
    found = (
        trait
        for trait, count in ours.items()
        if trait.startswith(wanted)
        and (
            (count >= _MOST * len(here) and theirs[trait] <= _FEW_TEXTS * len(there))
            or (trait in _IN_PART and count >= _PART * len(here) and not theirs[trait] and len(there) >= _MANY)
        )
    )
    return next(found, None)


def _traits(text: str) -> dict[str, None]:
    """Traits of the form of an answer, the most specific first."""
    value = _json_in(text)
    keys = cast("dict[str, Any]", value) if isinstance(value, dict) else {}
    shape = re.sub(r"\w+", "0", text)
    found = {
        "JSON": value is not None,
        **{f"the JSON key {show(key)}": True for key in keys},
        **{f"the JSON key {show(key)} with text": isinstance(held, str) for key, held in keys.items()},
        "code in a fence": text.startswith("```"),
        "an escaped line break": "\\n" in text and value is None,
        "a number between 0 and 1": re.fullmatch(r"0?\.\d+|0|1(?:\.0+)?", text) is not None,
        "nothing but a number": re.fullmatch(r"[^a-zA-Z]*\d[^a-zA-Z]*", text) is not None,
        "a number": re.search(r"\d", text) is not None,
        "leading zeros": re.fullmatch(r"0\d+", text) is not None,
        "quotation marks around it": len(text) > 1 and text[0] == text[-1] and text[0] in "\"'",
        "a final full stop": text.endswith("."),
        f"the notation {shape}": re.search(r"\d", text) is not None and len(shape) < len(text) < 40 and value is None,
    }
    return dict.fromkeys(trait for trait, has in found.items() if has)


def _json_in(text: str) -> Any:
    found = re.search(r"(?s)[\[{].*[\]}]", text)
    with suppress(ValueError):
        return found and json.loads(found[0])
    return None


def classes_never_trained(context: Context) -> Iterator[Problem]:
    """Labels that tasks expect and that no training row has."""
    for stages, tasks in context.judged:
        learned = {core(text).casefold() for stage in stages if stage.learns_from_answers for text in stage.answers}
        labels = Counter(core(text).casefold() for text in tasks.answers)
        missing = [(text, count) for text, count in labels.most_common() if text not in learned]
        known = learned and len(labels) > len(missing) and is_labels(tasks.answers)
        if known and missing and tasks.compares and missing[0][1] >= 0.1 * len(tasks.answers):
            text, count = missing[0]
            message = f"{count} of {len(tasks.answers)} tasks of '{tasks.label}' expect {show(text)}"
            hint = "Check the filters of the data, or leave these tasks out."
            yield Problem(f"{message}, and no training row has that answer", stages[-1].place, hint=hint)


def rows_of_another_part(context: Context) -> Iterator[Problem]:
    """Stages of a continual run with the same rows, and runs whose `part` of a split is swapped with a benchmark's."""
    known: dict[tuple[str, int], StageView] = {}
    scored = [_param(one.entry.transforms, "split", "part", "train") for one in context.benchmarks if one.entry]
    for one in context.stages:
        first = known.setdefault((one.run_place, id(one.examples)), one) if one.run.continual and one.examples else one
        if first is not one:
            hint = "Name the rows of this stage, or raise num_epochs of the first."
            yield Problem(f"this stage trains on the same rows as {first.place}", one.place, hint=hint)
        part = _param(one.stage.data.transforms, "split", "part", "train") if one.stage.data else None
        if part in ("val", "test") and "train" in scored:
            message = f"training takes the part '{part}' of a split, and a benchmark the part 'train'"
            yield Problem(message, one.place, hint="Swap `part` of the two.")


def _param(transforms: Sequence[TransformSpec], kind: str, name: str, default: str | None = None) -> str | None:
    return next((one.params.get(name, default) for one in transforms if one.kind == kind), None)


def prompts_unlike_the_benchmark(context: Context) -> Iterator[Problem]:
    """Tasks with the same answers, but another prompt template, language or system prompt than the training rows."""
    for one, tasks in pairs_of(context):
        yield from _other_system(one, tasks)
        # If each answer is learned once, as with facts, the tasks may test other wordings on purpose.
        has_labels = is_labels(one.answers) and (_share_of_labels(one, tasks) or 0) >= 0.5
        is_same = has_labels if one.learns_from_answers else None
        if not (set(one.answers) & set(tasks.answers) if is_same is None else is_same):
            continue
        ours, theirs = ([example.prompt for example in some] for some in (one.examples, tasks.examples))
        found = [(_writing(ours), _writing(theirs)), (language_of(ours), language_of(theirs))]
        if other := next((pair for pair in found if None not in pair and pair[0] != pair[1]), None):
            message = f"prompts of training have {other[0]}, and those of '{tasks.label}' {other[1]}"
            yield Problem(message, one.place, hint="Train on prompts as they will be asked.")
            continue
        made = [source.transforms if source else () for source in (one.stage.data, tasks.entry)]
        template, other = (_param(some, "jsonl_to_chat", "user_template") for some in made)
        if template is not None and template == other:
            continue  # other wordings are content
        # Numbers are content: another date or index is the same template.
        trained, asked = ([re.sub(r"\d+", "0", " ".join(text.split())) for text in some] for some in (ours, theirs))
        sides = (trained, asked, "training", "the tasks"), (asked, trained, "the tasks", "training")
        parts = ((part, which, whose) for here, there, which, whose in sides if (part := _only_here(here, there)))
        if template := next(parts, None):
            part, which, whose = template
            message = f"prompts of {which} all have {show(part)}, and none of {whose} has it ('{tasks.label}')"
            yield Problem(message, one.place, hint="Use the same template for both.")


def pairs_of(context: Context) -> Iterator[tuple[StageView, TaskSet]]:
    """Yield each source of rows with each task set that scores its run."""
    pairs = ((one, tasks) for stages, tasks in context.judged for one in stages)
    yield from {(id(one.examples), id(tasks)): (one, tasks) for one, tasks in pairs}.values()


def _writing(prompts: Sequence[str]) -> str | None:
    """The script, or the use of tags, in the second half of nearly all prompts; the first half may be a template."""
    found: Counter[str] = Counter()
    for half in (prompt[len(prompt) // 2 :] for prompt in prompts):
        letters = Counter(unicodedata.name(letter, "?").split()[0].title() for letter in half if letter.isalpha())
        script = f"{max(letters, key=letters.__getitem__, default='no')} letters"
        found["tags" if re.search(r"</\w+>", half) else script] += 1
    return next((kind for kind, count in found.items() if count >= 0.9 * len(prompts)), None)


def language_of(prompts: Sequence[str]) -> str | None:
    """The language whose function words are by far the most frequent; None if no language is."""
    words = Counter(word for prompt in prompts for word in re.findall(r"[^\W\d_]+", prompt.casefold()))
    counts = Counter({name: sum(words[word] for word in known.split()) for name, known in _FUNCTION_WORDS.items()})
    (name, most), (_, second) = counts.most_common(2)
    return f"{name} words" if most >= max(0.5 * len(prompts), 2.5 * second, 10) else None


def _only_here(here: Sequence[str], there: Sequence[str]) -> str | None:
    """A beginning or end that all texts of `here` share and no text of `there` has."""
    if len(set(here)) < 4 or not there:
        return None
    for turn in (1, -1):
        first = shared_start([text[::turn] for text in here])
        theirs = shared_start([text[::turn] for text in there]).strip()
        first = first[: first.rfind(" ") + 1].strip()
        # A template has a delimiter; the same words alone may be the wording of a question.
        if (
            len(first) >= 6
            and re.search(r"[^\w\s,']", first)
            and not any(text[::turn].startswith(first) for text in there)
        ):
            # Among few texts, a longer common start than the shared template may be chance.
            chance = len(set(here)) < _MANY and len(theirs) >= 6 and first.startswith(theirs)
            return None if chance else first[:60][::turn]
    return None


def _other_system(one: StageView, tasks: TaskSet) -> Iterator[Problem]:
    ours, theirs = _system(one.examples), _system(tasks.examples)
    has_agent = (tasks.entry is not None and tasks.entry.agent is not None) or (
        not ours and not one.learns_from_answers and getattr(one.cfg, "agent_import_path", None)
    )
    if ours != theirs and None not in (ours, theirs) and not has_agent:
        said, expected = (
            f"the system prompt {show(text[:60])}" if text else "no system prompt"
            for text in (ours or "", theirs or "")
        )
        message = f"rows have {said}, and the tasks of '{tasks.label}' have {expected}"
        yield Problem(message, one.place, hint="Give both the same, e.g. with the transform add_system_prompt.")


def _system(examples: Sequence[Example]) -> str | None:
    """The system prompt of nearly all examples; "" if they have none, None if they differ."""
    if len(examples) < 2:
        return None
    text, count = Counter(example.system.strip() for example in examples).most_common(1)[0]
    return text if count >= 0.9 * len(examples) else None


def answers_against_the_benchmark(context: Context) -> Iterator[Problem]:
    """Labels or preferences that contradict the answers that tasks expect for similar prompts."""
    for one, tasks in pairs_of(context):
        answered = [example for example in tasks.examples[:300] if example.answer]
        if not (tasks.compares and answered and one.learns_from_answers):
            continue
        pairs = [e for e in one.examples if e.rejected is not None and e.answer != e.rejected][:300]
        if pairs:
            likely, votes = _word_model(answered), Counter[str]()
            for pair in pairs:
                chosen, rejected = likely(pair.prompt, core(pair.answer)), likely(pair.prompt, core(pair.rejected))
                votes["chosen" if chosen > rejected else "rejected"] += chosen != rejected
            if votes["rejected"] >= 4 and votes["rejected"] > 2 * votes["chosen"]:
                message = (
                    f"what '{tasks.label}' expects is more often rejected than chosen ({votes['rejected']} against "
                    f"{votes['chosen']} of {len(pairs)} pairs)"
                )
                yield Problem(message, one.place, hint="Swap the two columns, e.g. with rename_fields.")
        elif is_labels(tasks.answers) and is_labels(one.answers):
            sure = _agreement(answered[::2], answered[1::2])
            agrees, n = _agreement(answered, [example for example in one.examples[:300] if example.answer])
            if sure[1] >= 10 and sure[0] >= 0.7 and n >= _MANY and agrees <= 0.5 * sure[0]:
                message = f"only {agrees:.0%} of {n} rows have the answer that '{tasks.label}' expects for their words"
                yield Problem(message, one.place, hint="Check whether the labels were shifted, sorted or mixed up.")


def _agreement(known: Sequence[Example], asked: Sequence[Example]) -> tuple[float, int]:
    """Accuracy on `asked` of the only label that a prompt names, else of a word model of `known`; and their number."""
    likely, right = _word_model(known), list[bool]()
    labels = {core(example.answer) for example in known}
    for example in asked if len(labels) > 1 else ():
        if core(example.answer) not in labels:
            continue
        named = [label for label in labels if occurrences(example.prompt, label)]
        rated = sorted((likely(example.prompt, label), label) for label in labels)
        if len(named) == 1 or rated[-1][0] > rated[-2][0] + 1:
            right.append((named if len(named) == 1 else [rated[-1][1]]) == [core(example.answer)])
    return sum(right) / max(len(right), 1), len(right)


def _word_model(examples: Sequence[Example]) -> Callable[[str, str], float]:
    """Return a function for the log-likelihood of an answer given a prompt (naive Bayes); -inf for unknown answers."""
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for example in examples:
        counts[core(example.answer)].update({"", *task_key(example.prompt).split()})
    known = {word for found in counts.values() for word in found}

    def likely(prompt: str, answer: str) -> float:
        found = counts.get(answer)
        if found is None:
            return -math.inf
        words = set(task_key(prompt).split()) & known
        return math.log(found[""]) + sum(math.log((found[word] + 0.1) / (found[""] + 0.2)) for word in words)

    return likely
