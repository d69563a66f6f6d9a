"""Check that the record of an experiment is consistent; every check returns its evidence.

    report = audit_experiment(folder)
    for check in report.checks:
        print(check.name, check.state, check.evidence)

The audit recomputes scores from answers, rewards by their verifiers, hashes of files and weights, and the hash chain of
the journal. A fact that cannot be checked on this machine is reported as unchecked.
"""

from __future__ import annotations

import hashlib
import re
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
from ...record.flat_config import flatten_config
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
from .case import Case, Fact
from .recheck import Rechecker, compare_conclusions, find_edited_page
from .report import AuditReport, Unchecked


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
    """Check the record in a folder; `quick` skips the checks of weights, answers, conclusion and anchors.

    Anchors of the journal are read from git, the file `anchors` and the list `witnessed`. `imports` names further code
    of the project; a separate process imports it.
    """
    record = record or ExperimentRecord(path)
    scored = [event.time or 0.0 for event in record.events if event.kind == Kind.SCORED]
    during = (record.began or 0.0, max(scored, default=0.0))
    with Rechecker(None if quick else [*imports, *_imports_of(record)], during=during) as recheck:
        case = Case(record, recheck, before_conclusion, partial(check_anchors, path, anchors, witnessed))
        # The check of the conclusion draws it again from the results of these checks.
        stated = [fact.check(case, of_record=True) for fact in _OF_RECORD]
        case.report = AuditReport(path, stated)
        beyond = [] if quick else _BEYOND if before_conclusion else [*_BEYOND, *_AFTERWARDS]
        return AuditReport(path, [*stated, *(fact.check(case) for fact in beyond)])


def _imports_of(record: ExperimentRecord) -> list[str]:
    """Files of this project that the run imported, with its agents; the record is not trusted with other paths."""
    here = Path.cwd()
    named = [text(one) for one in items(record.start.get("imports"))]
    settings = flatten_config(record.config or {})
    agents = [text(value) for path, value in settings.items() if path.endswith("agent_import_path")]
    modules = dict.fromkeys(re.split(r":|\.(?=\w+$)", one)[0] for one in agents)
    named += [file for module in modules if Path(file := f"{module.replace('.', '/')}.py").is_file()]
    return [one for one in named if one.endswith(".py") and (here / one).resolve().is_relative_to(here)]


def _check_chain(case: Case) -> Iterator[str]:
    """Check that the journal is complete from its first event, and that its hash chain is intact."""
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
        # Version 1 recorded none of these fields: an event with one of them has lost its hash.
        old = [event for event in case.events if event.format < 2]
        if not any(event.get(name) for event in old for name in ("recorded_config", "sealed", "line")):
            raise Unchecked("the record is of version 1, which kept no hashes")
    yield from verify_chain(journal)


def _check_claim(case: Case) -> Iterator[str]:
    """Check that the claim is the one registered before the first step."""
    start = case.record.start
    registered: Any = start.get("hypothesis_sha256")
    if registered is None:
        raise Unchecked("no claim was registered")
    if hypothesis_sha256(Metadata.model_validate(case.config.get("metadata") or {})) != registered:
        yield "the claim in config.json is not the one that was registered before the first step"
    known = [one for one in read_claims() if one.get("experiment") == start.text("experiment_id")]
    # Only the first entry: a killed process may have counted an extension that is not in its journal.
    if any(one.get(name) != start.get(name) for one in known[:1] for name in JOURNALED):
        yield "the project's list of claims has another claim, or another attempt at it, for it"
    # A project with an anchor from before any resume also has the claim; a clone without `.evsys/` has neither.
    resumed = (at for at, event in enumerate(case.events) if event.kind == Kind.RESUMED)
    counted = start.get("family") is not None and not start.text("same_evidence")
    if counted and not known and is_head_noted(case.path, at_most=next(resumed, len(case.events))):
        yield "the project's list of claims lacks its claim, which was noted before the first step"


def _check_recorded_config(case: Case) -> Iterator[str]:
    """Check that the config on disk is that of the start or last resume."""
    turns = case.of_kind(Kind.STARTED, Kind.RESUMED)
    written = [event.text("recorded_config") for event in turns]
    if not written or not written[-1]:
        raise Unchecked("no hash of its config was taken")
    # A process killed between the journal event and the write leaves the previous config.
    if any(
        turn.text("found_config") not in {"", *written[max(0, at - 2) : at]} and written[at - 1]
        for at, turn in enumerate(turns)
        if at
    ):
        yield "config.json was changed before the experiment was resumed"
    if hash_recorded_config(case.path) not in written[-2:]:
        yield "config.json was changed after the experiment was started"


def _check_files(case: Case) -> Iterator[str]:
    """Check that the files of each arm are unchanged since its end."""
    sealed = {arm: event.part("sealed") for arm, event in case.ends.items() if event.part("sealed")}
    if not sealed:
        raise Unchecked("no hashes were taken when its arms ended")
    for arm, files in sealed.items():
        if arm not in case.busy and (case.path / arm).is_dir():
            yield from (f"{arm}: {what} after it had ended" for what in broken_seals(case.path / arm, files))


def _check_weights(case: Case) -> Iterator[str]:
    """Check that stored weights match the hashes from their evaluation and the end of the arm."""
    known = [case.path / event.text("arm") / name for event in case.events for name in event.part("weights")]
    if not any(path.is_dir() for path in known):
        raise Unchecked("its weights are stored no longer" if known else "no hashes of stored weights were recorded")
    for run in case.runs:
        if run.name not in case.busy:
            yield from find_replaced_weights(run.folder, case.events)


def _check_scores(case: Case) -> Iterator[str]:
    """Check that each score follows from its rewards, and that the journal has each evaluation."""
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
    """Check that the conclusion on disk is the journaled one, and that it follows from the record."""
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
    elif not case.record.invalidated:  # a later invalidation changes the verdict
        yield from compare_conclusions(stored, conclude(case.path, case.report))


def _check_judged_answers(case: Case) -> Iterator[str]:
    """Check that a sample of answers gets the same rewards again."""
    entries = Metadata.model_validate(case.config.get("metadata") or {}).benchmark
    tasks: dict[str, HarborTask] = {}
    for entry in entries:
        with suppress(EvsysError):
            tasks |= {task.task_id: task for task in load_entry(entry).tasks[: entry.n_tasks]}
    if not tasks:
        raise Unchecked("no benchmark of it can be read here")
    yield from case.answers.judge_again(tasks, thorough=not case.before_conclusion)


def _check_anchor(case: Case) -> Iterator[str]:
    """Check the journal against its external anchors."""
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
    Fact("looks", arms.find_late_seeds),
)
"""Facts that depend on the files of the record alone."""
_BEYOND = (Fact("weights", _check_weights), Fact("answers", _check_judged_answers))
"""Facts that need the project's code or take long."""
_AFTERWARDS = (Fact("conclusion", _check_conclusion), Fact("anchor", _check_anchor))
