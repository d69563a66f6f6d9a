"""Checks of the evaluation tasks: their number, settings, verifiers and overlap."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import combinations
from math import ceil
from typing import Any, cast

from ....builtins import BUILTINS
from ....data.chat import text_of
from ....data.shapes import is_object
from ....data.types import HarborTask, InProcessVerifier, Message
from ....errors import EvsysError, Problem, show
from ....eval.verifier import VerifierInput, build_verifier
from ....rollouts.rollout import opening
from ....training.blocking import run_blocking
from ...hypothesis import is_rate
from .claims import claim_of, claimed_metric
from .context import COMPARING, Context, Example, StageView, TaskSet, expected_text

_NONSENSE = "zxqv 8175309 thequickbrownfoxjumpsoverthelazydog wrong"
"""A wrong answer for every task, with every letter of the alphabet."""
_FORMS = ("<think>x</think><answer>{}</answer>", "\\boxed{{{}}}", "```\n{}\n```", "Answer: {}", '{{"answer": "{}"}}')
"""Forms that a verifier may require of a right answer."""
_TAGS = re.compile(r"<(\w+)>")
_MARK = re.compile(r"<answer>|boxed|```|Answer|\"answer\"")
"""The part of a form that a prompt mentions if it asks for the form."""
_QUICK = (*COMPARING, "regex_match", "format_only")
_TRIED = 3
"""Number of tasks on which a project's verifier is tried."""
_SEVERAL_NUMBERS = re.compile(r"\d+(?:\s*[-/:x]\s*\d+)+")
_ANCHORS = re.compile(r"\\[bBAZ]|\(\?[a-z]+\)|[\^$]")
"""Anchors and flags in a regular expression."""
_LONG_TEXT = 60
"""Characters from which an expected answer is too long for an exact match by a sample."""
_FEW = 5
_FEW_CHOSEN = 10
_TOO_LONG = 0.1
"""Minimum share of answers that are too long for a report."""
_REASONS = re.compile(
    r"(?i)\bstep[- ]by[- ]step\b|\bshow your (?:work|reasoning)\b|\bexplain your\b|\bthink (?:aloud|first)\b"
)
_REASONING = 32
"""Minimum number of tokens of an answer with reasoning."""


def val_and_test_share_tasks(context: Context) -> Iterator[Problem]:
    """Tasks that are in both a val and a test benchmark, which biases the test score."""
    for one, other, shared in _shared_tasks(context):
        roles = [found.entry.role if found.entry else None for found in (one, other)]
        if set(roles) == {"val", "test"}:
            message = f"{len(shared)} of {len(other.keys)} tasks are also in '{one.label}' ({roles[0]})"
            hint = "Choose by tasks that are not reported: split them with the transform `split`, or use other files."
            yield Problem(f"{message}, such as '{other.keys[min(shared)]}'", other.place, hint=hint)


def same_tasks_twice(context: Context) -> Iterator[Problem]:
    """Two benchmarks with the same tasks and settings."""
    for one, other, shared in _shared_tasks(context):
        settings = [found.entry.model_dump(exclude={"name", "path", "id"}) for found in (one, other) if found.entry]
        if len(shared) == len(one.keys) == len(other.keys) and settings[0] == settings[1]:
            message = f"these are the tasks of '{one.label}', scored in the same way"
            yield Problem(message, other.place, hint="Remove one of the two, or name the other file.")


def _shared_tasks(context: Context) -> Iterator[tuple[TaskSet, TaskSet, set[str]]]:
    for one, other in combinations(context.benchmarks, 2):
        if shared := one.keys.keys() & other.keys.keys():
            yield one, other, shared


def few_tasks(context: Context) -> Iterator[Problem]:
    """Too few tasks to tell two runs apart."""
    for one in context.sets:
        scored, key = len(one.keys), "n_samples" if one.entry is None else "n_tasks"
        cut = len(one.tasks) < one.available
        if 0 < scored < (_FEW_CHOSEN if cut else _FEW) and one.answers:
            of = f" of {one.available}" if cut else " different" * (scored < len(one.tasks))
            message = f"{scored}{of} tasks are scored: one answer moves the score by {1 / scored:.2f}"
            hint = f"Remove {key}, or set it to 100 or more." if cut else "Add tasks; 100 or more tell runs apart."
            yield Problem(message, f"{one.settings}.{key}" if cut else one.place, hint=hint)
            continue
        claim, judges = claim_of(context), one.entry is None or one.entry.role != "val"
        if claim and judges and is_rate(claimed_metric(context) or "") and 0 < claim.min_effect * scored < 1:
            message = f"one of {scored} answers moves the score by {1 / scored:.2g}, more than min_effect"
            hint = f"Score {ceil(1 / claim.min_effect)} tasks or more, or raise min_effect."
            yield Problem(message, one.place, claim.min_effect, hint)


def answers_do_not_fit(context: Context) -> Iterator[Problem]:
    """Expected or learned answers that do not fit into `max_tokens`."""
    for one in context.sets:
        place = f"{one.settings}.{'max_tokens' if one.entry else 'inference.params.max_tokens'}"
        yield from _too_long(context, one.examples, one.max_tokens, place, "of the expected answers")
        kinds = {*one.answers} if one.verifier == "exact_match" else set[str]()
        if (
            len(kinds) > 0.8 * len(one.tasks) > 4
            and min(len(re.sub(r"[\[{].*[\]}]", "", text)) for text in kinds) > 100
        ):
            message = (
                f"no answer will equal an expected text of {min(map(len, kinds))} characters or more word for word"
            )
            yield Problem(message, one.place, hint="Score them by a judge, or by a part that must occur.")
        learned = [stage for stage in ([one.stage] if one.stage else context.sources) if stage.learns_from_answers]
        for stage in learned[:1] if not one.entry or one.entry.agent is None else ():
            yield from _too_long(context, stage.examples, one.max_tokens, place, "of the answers it learns", share=0.5)
    for stage in context.stages:
        sampling = getattr(stage.cfg, "sampling", None)
        if sampling is not None and not getattr(stage.cfg, "agent_import_path", None):
            texts = [len(task.answer or "") for task in stage.examples]
            if {*map(_fn_of, stage.tasks)} == {"exact_match"} and min(texts, default=0) > _LONG_TEXT:
                message = f"no answer will equal an expected text of {min(texts)} characters or more word for word"
                yield Problem(message, stage.place, hint="Reward them by a judge, or by a part that must occur.")
            place = f"{stage.params_place}.sampling.max_tokens"
            yield from _too_long(context, stage.examples, sampling.max_tokens, place, "of the expected answers")


def _too_long(
    context: Context, examples: Sequence[Example], limit: int, place: str, what: str, *, share: float = _TOO_LONG
) -> Iterator[Problem]:
    answered = [one for one in examples if one.answer is not None] if limit < 1 << 20 else []
    some = answered[:: max(len(answered) // 200, 1)]
    lengths = [context.tokens(one.answer or "", context.client) for one in some]
    longer = [length for length in lengths if length > limit]
    if longer and len(longer) >= share * len(lengths):
        message = f"{len(longer) / len(lengths):.0%} {what} are longer than this, up to {max(longer)} tokens"
        yield Problem(message, place, limit, f"Set it to {_round_up(max(longer) + 8)} or more.")
    elif some and limit < _REASONING and all(_REASONS.search(f"{one.system}\n{one.prompt}") for one in some):
        message = "the prompts ask for reasoning, which does not fit into this many tokens"
        yield Problem(message, place, limit, "Set it to 256 or more, or ask for the answer alone.")


def _round_up(number: int) -> int:
    return -(-number // 16) * 16


def verifiers_tell_nothing(context: Context) -> Iterator[Problem]:
    """Verifiers that refuse the expected answer, accept any answer, or prefer wrong answers to right ones."""
    agents = any(getattr(one.cfg, name, None) for one in context.stages for name in ("agent", "agent_import_path"))
    places = [(one.place, one.tasks, one.entry is None or one.entry.agent is None) for one in context.sets]
    places += [(one.place, one.tasks, True) for one in context.sources if not one.learns_from_answers]
    taught = [answer for one in context.sources if one.learns_from_answers for answer in one.answers]
    for place, tasks, is_one_turn in places:
        some = tasks[:: max(len(tasks) // 200, 1)]
        yield from _try_verifiers([one for one in some if _fn_of(one) in _QUICK], place, taught)
        # Verifiers of the project may be slow, so that few tasks are tried; agents need more than one answer.
        own = {repr(one.verifier): one for one in tasks if (name := _fn_of(one)) and name not in BUILTINS["verifier"]}
        yield from _try_verifiers(list(own.values())[:_TRIED] if is_one_turn and not agents else [], place, taught)


def rewards_for_listing(context: Context) -> Iterator[Problem]:
    """Rewards that accept a list of labels as the answer, for several expected labels."""
    for one in context.sources:
        own = {name for task in one.tasks if (name := _fn_of(task)) and name not in BUILTINS["verifier"]}
        has_agent = any(getattr(one.cfg, name, None) for name in ("agent", "agent_import_path"))
        labels = {} if one.learns_from_answers else _labels(one.tasks, [*_QUICK, *(() if has_agent else own)])
        for between in (", ", "\n"):
            listing, n = _list_labels(context, one, labels, between)
            if n < 2:
                continue
            tried = (listing, None, _NONSENSE)
            listed, right, wrong = (
                score_answers((task, _in_tag(task, text if each is None else each)) for text, task in labels.items())
                for each in tried
            )
            found = zip(labels, listed, right, wrong, strict=True)
            won = [text for text, given, full, least in found if given == full and given > max(least, 0)]
            if len(won) > 1:
                message = f"an answer that lists {n} labels earns the reward of '{_fn_of(labels[won[0]])}'"
                hint = "Use exact_match; with answer_tag, it allows reasoning before the answer."
                yield Problem(
                    f"{message}, where {show(won[0])} is expected and where {show(won[1])} is", one.place, hint=hint
                )
                break


def _list_labels(context: Context, stage: StageView, labels: Mapping[str, HarborTask], between: str) -> tuple[str, int]:
    """The longest list of labels that fits into the answers of a stage, and its number of labels."""
    sampling, listing, n = getattr(stage.cfg, "sampling", None), "", 0
    for label in sorted(labels, key=len):
        longer = between.join(filter(None, [listing, _ANCHORS.sub("", label)]))
        answer = _in_tag(labels[label], longer)
        if sampling is not None and context.tokens(answer, context.client) > sampling.max_tokens:
            break
        listing, n = longer, n + 1
    return listing, n


def _in_tag(task: HarborTask, answer: str) -> str:
    tag = getattr(task.verifier, "params", {}).get("answer_tag")
    return f"<{tag}>{answer}</{tag}>" if tag else answer


def _fn_of(task: HarborTask) -> str | None:
    return task.verifier.fn_name if isinstance(task.verifier, InProcessVerifier) else None


def _try_verifiers(tasks: Sequence[HarborTask], place: str, taught: Sequence[str]) -> Iterator[Problem]:
    """Score wrong answers, and right answers in several forms, and yield the problems of the verifiers."""
    refused: list[tuple[str, str]] = []
    found: list[tuple[str, str | None, dict[str, float]]] = []

    async def try_all() -> None:
        for at, task in enumerate(tasks):
            try:
                found.append((task.task_id, *await _try_answers(task, tasks[at - 1], taught)))
            except EvsysError as error:
                reason, _, cause = str(error).partition(": ")
                refused.append((task.task_id, cause or reason))

    run_blocking(try_all)
    if refused:
        message = f"{len(refused)} tasks cannot be scored, such as '{refused[0][0]}': {refused[0][1].rstrip('.')}"
        yield Problem(message, place, hint="Correct the tasks, or choose another verifier.")
    if labels := _accepts_another_label(tasks):
        message = f"where {show(labels[0])} is expected, the other label {show(labels[1])} scores too"
        yield Problem(message, place, hint="Use exact_match, or whole_words and labels that do not contain each other.")
    is_text = bool(tasks) and _fn_of(tasks[0]) in ("exact_match", "contains")
    is_own = bool(tasks) and _fn_of(tasks[0]) not in BUILTINS["verifier"]
    is_builtin = bool(tasks) and _fn_of(tasks[0]) in COMPARING
    faults: tuple[tuple[Callable[[dict[str, float]], bool], str, str], ...] = (
        (lambda got: got.get("right", 0) < got.get("other", 0), "{} earns less than a wrong answer", "Check its sign"),
        (
            lambda got: got.get("changes", 0) > 0,
            "{} earns another reward each time",
            "Leave out what is random, and what is remembered from earlier answers",
        ),
        (
            lambda got: (
                min(got.get("right", 0), got.get("taught", 0)) < got["empty"]
                or got["empty"] >= got.get("right", 0) > got["wrong"]
            ),
            "an empty answer earns as much as {} or a longer answer that contains it",
            "Give it 0, and let no penalty outweigh a right answer",
        ),
        (
            lambda got: got.get("near", 0) >= got.get("right", 0) > max(got["wrong"], 0),
            "an answer that shares only a part with {} earns as much",
            "Compare the whole answer, e.g. with exact_match or numeric_match",
        ),
        (lambda got: min(got["wrong"], got["long"]) > 0, "any answer scores", "Give it what a wrong answer fails"),
        (
            lambda got: is_own and got["unasked"] > 0,
            "{} scores in a form that the prompt does not ask for, and not alone",
            "Describe the form in the prompt: an untrained model hardly finds it",
        ),
        (
            lambda got: got.get("shaped", 0) >= 1 > got["wrong"] if is_own else is_builtin and got.get("other", 0) > 0,
            "the answer of another task scores as much as {}",
            "Check its tolerance, what it expects, and that a form alone does not pass",
        ),
        (lambda got: abs(got.get("right", 0)) > 10, "rewards are far above 1", "Divide them by the largest"),
        (
            lambda got: (is_text and got.get("right") == 0) or (is_own and "right" in got and max(got.values()) == 0),
            "no answer that was tried earns more than 0, not even {}",
            "Let the expected answer earn 1: check the case, the form, and parts of the reward that cancel out",
        ),
    )
    for fault, what, hint in faults:
        bad = [one for one in found if fault(one[2])]
        if bad and len(bad) >= max(0.5 * len(found), min(_TRIED, len(found))):
            what = what.format("the same answer" if bad[0][1] is None else f"the expected answer {show(bad[0][1])}")
            message = f"{what} on {len(bad)} of {len(found)} tasks, such as '{bad[0][0]}', by '{_fn_of(tasks[0])}'"
            yield Problem(message, place, hint=f"{hint}.")
            break


async def _try_answers(
    task: HarborTask, before: HarborTask, taught: Sequence[str]
) -> tuple[str | None, dict[str, float]]:
    """The expected answer of a task, and the rewards of wrong answers and of the expected one in several forms."""
    right, other = (expected_text(getattr(one.verifier, "expected", None)) for one in (task, before))
    asked = "\n".join(text_of(one.get("content")) for one in opening(task))
    answers = {"wrong": _NONSENSE, "long": f"{_NONSENSE} " * 40, "empty": "", "right": right}
    answers["other"] = None if other == right else other
    is_own = _fn_of(task) not in BUILTINS["verifier"]
    near = [f"{right[0]}{_NONSENSE}"] if is_own and right and len(right) > 3 else []
    near += [re.sub(r"\d", r"7\g<0>", right, count=1)] if right and _SEVERAL_NUMBERS.fullmatch(right) else []
    near += [f"7{right}3"] if is_own and right and right.isdigit() else []
    forms = [*_FORMS, *(f"<{tag}>{{}}</{tag}>" for tag in _TAGS.findall(text_of(task.instruction)))]
    answers |= {form: form.format(right) for form in forms if right is not None}
    shown = [text for text in task.metadata.values() if isinstance(text, str) and text not in asked]
    answers["taught"] = next((answer for answer in (*taught, *shown) if right and right in answer), None)
    given = {name: text for name, text in answers.items() if text is not None}
    rewards = dict(zip(given, await _score((task, text) for text in given.values()), strict=True))
    rewards |= {"near": max(await _score((task, text) for text in near))} if near else {}
    if is_own:
        again = await _score((task, text) for text in reversed(given.values()))
        shaped = [form.format(other) for form in ("{}", *forms) if rewards.get(form, 1) > 0 and answers["other"]]
        passed = max(await _score((task, text) for text in shaped), default=0.0)
        rewards |= {"changes": float(again[::-1] != [rewards[name] for name in given]), "shaped": passed}
    won = [mark[0] for form in forms if rewards.get(form, 0) > 0 and (mark := _MARK.search(form))]
    is_asked = rewards.get("right", 0) > 0 or taught or any(mark in asked for mark in won)
    return right, rewards | {"unasked": float(bool(won) and not is_asked)}


def _labels(tasks: Sequence[HarborTask], verifiers: Sequence[str]) -> dict[str, HarborTask]:
    """The expected labels of classification tasks, each with one of its tasks; empty for other tasks."""
    found = {expected_text(getattr(one.verifier, "expected", None)): one for one in tasks if _fn_of(one) in verifiers}
    labels = {text: task for text, task in found.items() if text}
    return labels if 2 <= len(labels) <= min(20, len(tasks) / 3) else {}


def _accepts_another_label(tasks: Sequence[HarborTask]) -> tuple[str, str] | None:
    """A label, and another label that its verifier accepts; None if there is none."""
    labels = _labels(tasks, ["contains"])
    pairs = [(text, other) for other in labels for text in labels if text != other]
    rewards = score_answers((labels[text], other) for text, other in pairs)
    return next((pair for pair, reward in zip(pairs, rewards, strict=True) if reward > 0), None)


def score_answers(answers: Iterable[tuple[HarborTask, str]]) -> list[float]:
    """Rewards by the verifiers of the tasks, in one event loop, because starting a loop takes longer than scoring."""
    return run_blocking(lambda: _score(answers))


async def _score(answers: Iterable[tuple[HarborTask, str]]) -> list[float]:
    return [(await build_verifier(task.verifier)(_input_of(task, answer))).reward for task, answer in answers]


def _input_of(task: HarborTask, answer: str) -> VerifierInput:
    messages: list[Message] = [*opening(task), {"role": "assistant", "content": answer}]
    return VerifierInput(prompt=text_of(task.instruction), completion=answer, messages=messages, task=task)


def scored_by_something_else(context: Context) -> Iterator[Problem]:
    """Scores that do not test the claim, judges that are the trained model, and agents that were not trained."""
    text = context.claim
    for one in context.sets:
        if one.verifier == "format_only" and re.search(r"(?i)\b(?:right|correct|accura|solve)", text):
            message = "the claim is about right answers, and only their form is scored"
            yield Problem(
                message, one.place, hint="Score them with a verifier that reads `expected`, e.g. exact_match."
            )
    rewarded = [one for one in context.sources if not one.learns_from_answers]
    for one in (*context.sets, *rewarded):
        judges = {repr(task.verifier) for task in one.tasks if "judge" in repr(task.verifier)[:60].casefold()}
        names = (run.model.name for _, run in context.runs for judge in judges if repr(run.model.name) in judge)
        if name := next(names, ""):
            yield Problem("the judge is the model that is trained", one.place, name, "Name another, stronger model.")
    for one in context.stages:
        trained: str | None = getattr(one.cfg, "agent_import_path", None)
        trained = trained or getattr(getattr(one.cfg, "agent", None), "kind", None)
        for tasks in context.benchmarks if trained else ():
            entry = tasks.entry
            scored = entry and (entry.agent_import_path or (entry.agent and entry.agent.kind))
            if scored and scored != trained:
                message = f"the run is trained in the agent '{trained}', and scored in another"
                yield Problem(message, f"{tasks.place}.agent", scored, "Remove it to score what is trained.")


def scored_on_training_rows(context: Context) -> Iterator[Problem]:
    """A `run.eval` without held-out rows."""
    for place, run in context.runs:
        scores_own = run.eval.enabled and run.eval.metrics and run.eval.eval_data is None
        if scores_own and run.continual and not any(stage.eval_data for stage in run.continual.stages):
            hint = "Add eval_data to the stages, or remove eval."
            yield Problem("no stage has rows to score", f"{place}.eval.metrics", hint=hint)
        if scores_own and run.continual is None:
            message = "the training rows are scored, as train_fit/..., which says nothing about new rows"
            hint = "Add eval.eval_data, or score tasks with metadata.benchmark."
            yield Problem(message, f"{place}.eval.metrics", hint=hint)


def tools_without_definitions(context: Context) -> Iterator[Problem]:
    """Tasks that expect calls of tools that neither the prompt nor `tools` defines."""
    places = [(one.place, one.tasks, one.entry) for one in context.sets]
    places += [(one.place, one.tasks, one.cfg) for one in context.sources if not one.learns_from_answers]
    for place, tasks, asked in places:
        if any(getattr(asked, name, None) for name in ("agent", "agent_import_path")):
            continue
        unknown = [(task, name) for task in tasks if (name := _unknown_tool(task))]
        if unknown and len(unknown) >= 0.5 * len(tasks):
            message = f"{len(unknown)} of {len(tasks)} tasks expect a call of a tool that their prompt does not define"
            example = f"such as '{unknown[0][1]}' in '{unknown[0][0].task_id}'"
            yield Problem(
                f"{message}, {example}", place, hint="Give the tasks `tools`, or describe them in the prompt."
            )


def _unknown_tool(task: HarborTask) -> str | None:
    """The first expected tool that neither `tools` nor the prompt defines; None if there is none."""
    expected: Any = getattr(task.verifier, "expected", None)
    if _fn_of(task) != "tool_calls_match" or task.tools or not isinstance(expected, list):
        return None
    prompt = "\n".join(text_of(one.get("content")) for one in opening(task))
    calls = [one for one in cast("list[Any]", expected) if is_object(one)]
    needed = [[str(one.get("name")), *list(one.get("arguments") or {})[:1]] for one in calls]
    return next((names[0] for names in needed if any(name not in prompt for name in names)), None)
