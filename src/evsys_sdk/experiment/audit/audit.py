"""Whether the record of an experiment agrees with itself: every check, with its evidence.

    report = audit_experiment(folder)
    for check in report.checks:
        print(check.name, check.state, check.evidence)

Whatever can be recomputed is: scores from answers, answers by their verifiers, files and weights from the hashes in the
journal, the journal from its own chain. What cannot be checked here is reported as unchecked.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from ...config import Metadata
from ...data.types import HarborTask
from ...errors import EvsysError
from ...record.anchors import check_anchors, is_head_noted
from ...record.events import Kind, verify_chain
from ...record.evidence import broken_seals, find_replaced_weights, hash_recorded_config
from ...record.folders import read_conclusion
from ...record.jsonl_file import find_repeated_keys
from ...record.layout import ExperimentFiles
from ...record.project_files.claims import JOURNALED, read_claims
from ...record.reader import ExperimentRecord
from ...record.run_files.scores import hash_line
from ...record.values import items, text
from ..benchmark_plan import load_entry
from ..hypothesis import hypothesis_sha256
from . import arms
from .answers import name_scoring
from .case import Case, Doubt, Fact, Unchecked
from .recheck import Rechecker, compare_conclusions, find_edited_page
from .report import AuditReport


def audit_experiment(
    path: Path,
    *,
    quick: bool = False,
    before_conclusion: bool = False,
    anchors: Path | None = None,
    witnessed: Sequence[dict[str, Any]] = (),
    imports: Sequence[str] = (),
    record: ExperimentRecord | None = None,
) -> AuditReport:
    """Check the record in a folder; `quick` leaves out what needs the project's code or other experiments.

    Anchors of its journal are looked for in git, in the file `anchors` and among what others `witnessed`. `imports`
    names code of the project that its settings do not; another process imports it.
    """
    record = record or ExperimentRecord(path)
    scored = [event.time or 0.0 for event in record.events if event.kind == Kind.SCORED]
    during = (record.began or 0.0, max(scored, default=0.0))
    with Rechecker(None if quick else [*imports, *_imports_of(record)], during=during) as recheck:
        case = Case(record, recheck, before_conclusion, partial(check_anchors, path, anchors, witnessed))
        # The conclusion was drawn with nothing but these, and is drawn again with the same.
        stated = [fact.check(case, of_record=True) for fact in _OF_RECORD]
        case.report = AuditReport(path, stated)
        beyond = [] if quick else _BEYOND if before_conclusion else [*_BEYOND, *_AFTERWARDS]
        return AuditReport(path, [*stated, *(fact.check(case) for fact in beyond)])


def _imports_of(record: ExperimentRecord) -> list[str]:
    """Files of this project that its run imported; a record from elsewhere must not choose what runs here."""
    here = Path.cwd()
    named = [text(one) for one in items(record.start.get("imports"))]
    return [one for one in named if one.endswith(".py") and (here / one).resolve().is_relative_to(here)]


def _check_chain(case: Case) -> Iterator[str]:
    """The journal is there from its first event on, and every line follows the one it was written after."""
    journal = ExperimentFiles(case.path).journal
    if not case.events:
        done = [run.name for run in case.runs if run.result is not None or run.score_lines]
        if not done and read_conclusion(case.path) is None:
            raise Unchecked("nothing has happened yet")
        yield f"{journal}: the journal is missing or empty, and {len(done)} arms have results"
        return
    if (first := case.events[0].kind) != Kind.STARTED:
        yield f"{journal}: its first event is {first}"
    elif case.events[0].format < 2:
        # Version 1 recorded none of these: an event of it that has one lost its hash.
        old = [event for event in case.events if event.format < 2]
        if not any(event.get(name) for event in old for name in ("recorded_config", "sealed", "line")):
            raise Unchecked("the record is of version 1, which kept no hashes")
    yield from verify_chain(journal)


def _check_claim(case: Case) -> Iterator[str]:
    """What is claimed now is what was claimed before the first step."""
    start = case.record.start
    registered: Any = start.get("hypothesis_sha256")
    if registered is None:
        raise Unchecked("no claim was registered")
    if hypothesis_sha256(Metadata.model_validate(case.config.get("metadata") or {})) != registered:
        yield "the claim in config.json is not the one that was registered before the first step"
    known = [one for one in read_claims() if one.get("experiment") == start.text("experiment_id")]
    # The first of them: a process that is killed may have counted an extension that its journal has not.
    if any(one.get(name) != start.get(name) for one in known[:1] for name in JOURNALED):
        yield "the project's list of claims has another claim, or another attempt at it, for it"
    # A project that noted the journal before any resume had noted the claim; a clone without `.evsys/` has neither.
    resumed = (at for at, event in enumerate(case.events) if event.kind == Kind.RESUMED)
    counted = start.get("family") is not None and not start.text("same_evidence")
    if counted and not known and is_head_noted(case.path, at_most=next(resumed, len(case.events))):
        yield "the project's list of claims lacks its claim, which was noted before the first step"


def _check_recorded_config(case: Case) -> Iterator[str]:
    """The config on disk is the one that the experiment was started, or last resumed, with."""
    turns = case.of_kind(Kind.STARTED, Kind.RESUMED)
    written = [event.text("recorded_config") for event in turns]
    if not written or not written[-1]:
        raise Unchecked("no hash of its config was taken")
    # A process that is killed after announcing a config has not written it yet.
    if any(
        turn.text("found_config") not in {"", *written[max(0, at - 2) : at]} and written[at - 1]
        for at, turn in enumerate(turns)
        if at
    ):
        yield "config.json was changed before the experiment was resumed"
    if hash_recorded_config(case.path) not in written[-2:]:
        yield "config.json was changed after the experiment was started"


def _check_files(case: Case) -> Iterator[str]:
    """The files of each arm are as they were when it ended."""
    sealed = {arm: event.part("sealed") for arm, event in case.ends.items() if event.part("sealed")}
    if not sealed:
        raise Unchecked("no hashes were taken when its arms ended")
    for arm, files in sealed.items():
        if arm not in case.busy and (case.path / arm).is_dir():
            yield from (f"{arm}: {what} after it had ended" for what in broken_seals(case.path / arm, files))


def _check_weights(case: Case) -> Iterator[str]:
    """Stored weights are those that were scored, and that were there when their arm ended."""
    known = [case.path / event.text("arm") / name for event in case.events for name in event.part("weights")]
    if not any(path.is_dir() for path in known):
        raise Unchecked("its weights are stored no longer" if known else "no hashes of stored weights were recorded")
    for run in case.runs:
        if run.name not in case.busy:
            yield from find_replaced_weights(run.folder, case.events)


def _check_scores(case: Case) -> Iterator[str]:
    """Each score follows from the rewards, and the journal has each scoring."""
    known: dict[str, set[str]] = defaultdict(set)
    for event in case.of_kind(Kind.SCORED):
        known[event.text("arm")].add(event.text("line"))
    for run in case.runs if case.is_chained and known else ():
        for line in run.score_lines:
            if hash_line(line) not in known[run.name]:
                yield f"{name_scoring(run, line)} is not the scoring that the journal heard of"
    yield from case.answers.contradictions
    yield from arms.find_misquoted_scores(case)


def _check_conclusion(case: Case) -> Iterator[str]:
    """The conclusion on disk is the one that was drawn, and follows from the record."""
    from ..conclusion.write import conclude, read_stored_conclusion

    concluded = case.of_kind(Kind.CONCLUDED)
    written = read_conclusion(case.path)
    if not concluded and (written is None or not case.is_chained):
        raise Unchecked("no conclusion was journaled")
    if not concluded or written is None:
        yield "conclusion.json is gone" if concluded else "no conclusion was journaled"
        return
    stored = read_stored_conclusion(case.path)
    if find_repeated_keys(written):
        yield f"conclusion.json gives '{find_repeated_keys(written)[0]}' twice, so that readers may differ"
    yield from find_edited_page(case.path, concluded[-1].text("page"), stored)
    known = concluded[-1].text("sha256")
    if stored is None or known not in (stored.sha256, hashlib.sha256(written.encode()).hexdigest()):
        yield "conclusion.json is not the one that the journal names"
    elif not case.record.invalidated:  # which it does not know of, and need not
        yield from compare_conclusions(stored, conclude(case.path, case.report))


def _check_judged_answers(case: Case) -> Iterator[str]:
    """Some of the answers, judged again, earn what they earned."""
    entries = Metadata.model_validate(case.config.get("metadata") or {}).benchmark
    tasks: dict[str, HarborTask] = {}
    for entry in entries:
        with suppress(EvsysError):
            tasks |= {task.task_id: task for task in load_entry(entry).tasks[: entry.n_tasks]}
    if not tasks:
        raise Unchecked("no benchmark of it can be read here")
    found, checked, changed = case.answers.judge_again(tasks, thorough=not case.before_conclusion)
    if failure := case.recheck.failure:
        found = [*found, Doubt(failure)]
    elif not checked and not found:
        raise Unchecked("its tasks have changed since" if changed else "its verifiers cannot be run here")
    yield from found


def _check_anchor(case: Case) -> Iterator[str]:
    """What was noted outside about its journal still holds."""
    known, problems = case.find_anchors()
    if not known and not problems:
        raise Unchecked("its journal was not anchored anywhere; see evsys audit --anchor")
    yield from problems


_OF_RECORD = (
    Fact("chain", _check_chain),
    Fact("claim", _check_claim),
    Fact("config", _check_recorded_config),
    Fact("arms", arms.find_stray_arms),
    Fact("files", _check_files),
    Fact("scores", _check_scores),
    Fact("copies", arms.find_equal_seeds),
    Fact("spend", arms.find_lost_spend, invalidates=False),
    Fact("identity", arms.find_unequal_parts),
    Fact("contamination", arms.find_contamination, invalidates=False),
    Fact("near_matches", lambda case: case.record.near_matches, is_remark=True),
    Fact("code", arms.find_changed_code, invalidates=False),
    Fact("dropped", arms.find_dropped_scores, is_remark=True),
    Fact("looks", arms.find_late_seeds),
)
"""What the files of the record alone decide."""
_BEYOND = (Fact("weights", _check_weights), Fact("answers", _check_judged_answers))
"""What needs the project's code, or takes long."""
_AFTERWARDS = (Fact("conclusion", _check_conclusion), Fact("anchor", _check_anchor))
