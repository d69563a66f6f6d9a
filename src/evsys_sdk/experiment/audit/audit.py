"""Whether the record of an experiment agrees with itself: every check, with its evidence.

    report = audit_experiment(folder)
    for check in report.checks:
        print(check.name, check.state, check.evidence)

Whatever can be recomputed is: scores from answers, answers by their verifiers, files and weights from the hashes in the
journal, the journal from its own chain. What cannot be checked here is reported as unchecked.
"""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from ...config import ExperimentConfig, Metadata
from ...data.types import HarborTask
from ...errors import EvsysError
from ...record.anchors import check_anchors, is_head_noted
from ...record.events import Event, Kind, verify_chain
from ...record.evidence import (
    broken_seals,
    find_replaced_weights,
    hash_file,
    hash_recorded_config,
)
from ...record.folders import read_conclusion
from ...record.jsonl_file import find_repeated_keys
from ...record.layout import ExperimentFiles
from ...record.ledger import read_tally
from ...record.project_files.claims import TOLD, read_claims
from ...record.reader import ExperimentRecord
from ...record.run_files.scores import hash_line
from ...record.runs import RunRecord
from ...record.values import items, part, text
from ..benchmark_plan import load_entry
from ..hypothesis import hypothesis_sha256
from .answers import AnswerBook, name_scoring
from .arms import (
    find_changed_code,
    find_dropped_scores,
    find_equal_seeds,
    find_foreign_weights,
    find_late_seeds,
    find_lost_spend,
    find_misquoted_scores,
    find_stray_arms,
    find_trained_tasks,
    find_unequal_parts,
)
from .recheck import Rechecker, compare_conclusions, find_edited_page
from .report import AuditCheck, AuditReport, find_contradiction


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
        auditor = _Auditor(record, recheck, before_conclusion, partial(check_anchors, path, anchors, witnessed))
        told = [auditor.check(fact) for fact in _OF_RECORD]
        # The conclusion was drawn with nothing but these, and is drawn again with the same.
        report = auditor.report = AuditReport(path, told, find_contradiction(told))
        beyond = [] if quick else _BEYOND if before_conclusion else [*_BEYOND, *_AFTERWARDS]
        return replace(report, checks=[*told, *(auditor.check(fact) for fact in beyond)])


def _imports_of(record: ExperimentRecord) -> list[str]:
    """Files of this project that its run imported; a record from elsewhere must not choose what runs here."""
    here = Path.cwd()
    named = [text(one) for one in items(record.start.get("imports"))]
    return [one for one in named if one.endswith(".py") and (here / one).resolve().is_relative_to(here)]


class _Unchecked(Exception):
    """Why a fact cannot be checked here."""


class _Doubt(str):
    """What is flagged and yet invalidates nothing."""

    __slots__ = ()


class _Auditor:
    """The facts of one experiment: each method yields what contradicts its fact."""

    def __init__(
        self,
        record: ExperimentRecord,
        recheck: Rechecker,
        before_conclusion: bool,
        find_anchors: Callable[[], tuple[int, list[str]]],
    ) -> None:
        self.record, self.recheck, self.path = record, recheck, record.folder
        self.before_conclusion, self.find_anchors = before_conclusion, find_anchors
        self.events: list[Event] = record.events
        self.is_chained = bool(self.events) and all(event.format >= 2 for event in self.events)
        self.runs: list[RunRecord] = record.runs_on_disk
        self.config: dict[str, Any] = record.config or {}
        self.report: AuditReport | None = None

    def check(self, fact: Fact) -> AuditCheck:
        """One fact; what cannot be read is a finding, not the end of the audit."""
        try:
            found = list(fact.find(self))
        except _Unchecked as why:
            return AuditCheck(fact.name, "unchecked", [str(why)], of_record=fact in _OF_RECORD)
        except (EvsysError, OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            why = f"the record could not be read: {type(error).__name__}: {error}"
            return AuditCheck(fact.name, "flagged", [why], True, fact in _OF_RECORD)
        state = "ok" if not found else "remark" if fact.is_remark else "flagged"
        certain = state == "flagged" and any(not isinstance(one, _Doubt) for one in found)
        return AuditCheck(fact.name, state, found, fact.invalidates and certain, fact in _OF_RECORD)

    def chain(self) -> Iterator[str]:
        """The journal is there from its first event on, and every line follows the one it was written after."""
        journal = ExperimentFiles(self.path).journal
        if not self.events:
            done = [run.name for run in self.runs if run.result is not None or run.score_lines]
            if not done and read_conclusion(self.path) is None:
                raise _Unchecked("nothing has happened yet")
            yield f"{journal}: the journal is missing or empty, and {len(done)} arms have results"
            return
        if (first := self.events[0].kind) != Kind.STARTED:
            yield f"{journal}: its first event is {first}"
        elif self.events[0].format < 2:
            # Version 1 recorded none of these: an event of it that has one lost its hash.
            old = [event for event in self.events if event.format < 2]
            if not any(event.get(name) for event in old for name in ("recorded_config", "sealed", "line")):
                raise _Unchecked("the record is of version 1, which kept no hashes")
        yield from verify_chain(journal)

    def claim(self) -> Iterator[str]:
        """What is claimed now is what was claimed before the first step."""
        start = self.record.start
        registered: Any = start.get("hypothesis_sha256")
        if registered is None:
            raise _Unchecked("no claim was registered")
        if hypothesis_sha256(Metadata.model_validate(self.config.get("metadata") or {})) != registered:
            yield "the claim in config.json is not the one that was registered before the first step"
        known = [one for one in read_claims() if one.get("experiment") == start.text("experiment_id")]
        # The first of them: a process that is killed may have counted an extension that its journal has not.
        if any(one.get(name) != start.get(name) for one in known[:1] for name in TOLD):
            yield "the project's list of claims has another claim, or another attempt at it, for it"
        # A project that noted the journal before any resume had noted the claim; a clone without `.evsys/` has neither.
        resumed = (at for at, event in enumerate(self.events) if event.kind == Kind.RESUMED)
        counted = start.get("family") is not None and not start.text("same_evidence")
        if counted and not known and is_head_noted(self.path, at_most=next(resumed, len(self.events))):
            yield "the project's list of claims lacks its claim, which was noted before the first step"

    def arms(self) -> Iterator[str]:
        """Every arm on disk was started by the orchestrator, and every arm that ended is there."""
        return find_stray_arms(self.record, self.runs, is_chained=self.is_chained)

    def recorded_config(self) -> Iterator[str]:
        """The config on disk is the one that the experiment was started, or last resumed, with."""
        turns = [event for event in self.events if event.kind in (Kind.STARTED, Kind.RESUMED)]
        written = [event.text("recorded_config") for event in turns]
        if not written or not written[-1]:
            raise _Unchecked("no hash of its config was taken")
        # A process that is killed after announcing a config has not written it yet.
        if any(
            turn.text("found_config") not in {"", *written[max(0, at - 2) : at]} and written[at - 1]
            for at, turn in enumerate(turns)
            if at
        ):
            yield "config.json was changed before the experiment was resumed"
        if hash_recorded_config(self.path) not in written[-2:]:
            yield "config.json was changed after the experiment was started"

    def looks(self) -> Iterator[str]:
        """Seeds were added as it was planned before the first step, and none after a look that had ended it."""
        planned = list(items(self.record.start.get("looks")))
        if not planned and not self.record.looks:
            raise _Unchecked("no interim analysis was planned")
        now = ExperimentConfig.model_validate(self.config).planned_looks
        if planned != now:
            yield f"config.json looks at {now} seeds, and {planned} had been planned"
        yield from find_late_seeds(self.events)

    def files(self) -> Iterator[str]:
        """The files of each arm are as they were when it ended."""
        last = {event.text("arm"): event for event in self.events if event.kind == Kind.ARM_ENDED}
        sealed = {arm: event.part("sealed") for arm, event in last.items() if event.part("sealed")}
        if not sealed:
            raise _Unchecked("no hashes were taken when its arms ended")
        for arm, files in sealed.items():
            if arm not in self.busy and (self.path / arm).is_dir():
                yield from (f"{arm}: {what} after it had ended" for what in broken_seals(self.path / arm, files))

    def weights(self) -> Iterator[str]:
        """Stored weights are those that were scored, and that were there when their arm ended."""
        if not any(event.part("weights") for event in self.events):
            raise _Unchecked("no hashes of stored weights were recorded")
        for run in self.runs:
            if run.name not in self.busy:
                yield from find_replaced_weights(run.folder, self.events)

    @cached_property
    def busy(self) -> set[str]:
        """Arms that have been started again and have not ended since: they write their files anew."""
        latest = {e.text("arm"): e.kind for e in self.events if e.kind in (Kind.ARM_STARTED, Kind.ARM_ENDED)}
        return {arm for arm, kind in latest.items() if kind == Kind.ARM_STARTED}

    def scores(self) -> Iterator[str]:
        """Each score follows from the rewards, and the journal has each scoring."""
        known: dict[str, set[str]] = defaultdict(set)
        for event in self.events:
            if event.kind == Kind.SCORED:
                known[event.text("arm")].add(event.text("line"))
        for run in self.runs if self.is_chained and known else ():
            for line in run.score_lines:
                if hash_line(line) not in known[run.name]:
                    yield f"{name_scoring(run, line)} is not the scoring that the journal heard of"
        yield from self.answers.contradictions
        yield from find_misquoted_scores(self.runs)

    @cached_property
    def answers(self) -> AnswerBook:
        return AnswerBook(self.runs, self.recheck, self.record.shared_answers)

    def copies(self) -> Iterator[str]:
        """No arm is another one under a new name: real runs never share the very times they took."""
        seen: dict[str, str] = {}
        for run in self.runs:
            for path in [run.files.starts, run.files.logs.timing, *run.files.all_predictions()]:
                # Files of a few bytes are equal by chance.
                content = hash_file(path, at_least=8)
                first = run.name if content is None else seen.setdefault(f"{path.name} {content}", run.name)
                if first != run.name:
                    yield f"{run.name} and {first} have the same {path.name}, down to the times they took"
                    break
        yield from find_equal_seeds(self.runs)

    def spend(self) -> Iterator[str]:
        """The ledger has at least what the journal had heard of."""
        tally = read_tally(self.path)
        yield from find_lost_spend(self.path, self.events, tally)
        # Arms that went from start to end at once: a killed process takes along what it had not written of a bill.
        starts = Counter(event.text("arm") for event in self.events if event.kind == Kind.ARM_STARTED)
        ended = [event for event in self.events if event.kind == Kind.ARM_ENDED]
        completed = {event.text("arm") for event in ended if event.text("status") == "completed"}
        yield from self.answers.find_unpaid(tally, [arm for arm, n in starts.items() if n == 1 and arm in completed])

    def identity(self) -> Iterator[str]:
        """Compared arms differ in weights, verifier or agent only where the claim is about that."""
        if all(run.identity is None for run in self.runs):
            raise _Unchecked("what its arms are made of was not recorded")
        about: list[str] = part(self.config, "metadata", "hypothesis").get("about") or []
        yield from find_unequal_parts(self.runs, about)
        yield from () if "weights" in about else find_foreign_weights(self.events)

    def contamination(self) -> Iterator[str]:
        """Neither the training rows nor what the weights learned from held the tasks."""
        yield from (str(one) for one in items(self.record.start.get("contamination")))
        yield from find_trained_tasks(self.events)

    def near_matches(self) -> list[str]:
        """No training row resembles an evaluation task."""
        return self.record.near_matches

    def code(self) -> Iterator[str]:
        """Code of the project that goes by one name is the same for all arms."""
        return find_changed_code(self.runs)

    def dropped(self) -> Iterator[str]:
        """No arm was left out after its score had been seen."""
        return find_dropped_scores(self.runs)

    def conclusion(self) -> Iterator[str]:
        """The conclusion on disk is the one that was drawn, and follows from the record."""
        from ..conclusion.write import conclude, read_stored_conclusion

        concluded = [event for event in self.events if event.kind == Kind.CONCLUDED]
        written = read_conclusion(self.path)
        if not concluded and (written is None or not self.is_chained):
            raise _Unchecked("no conclusion was journaled")
        if not concluded or written is None:
            yield "conclusion.json is gone" if concluded else "no conclusion was journaled"
            return
        stored = read_stored_conclusion(self.path)
        if find_repeated_keys(written):
            yield f"conclusion.json gives '{find_repeated_keys(written)[0]}' twice, so that readers may differ"
        yield from find_edited_page(self.path, concluded[-1].text("page"), stored)
        known = concluded[-1].text("sha256")
        if stored is None or known not in (stored.sha256, hashlib.sha256(written.encode()).hexdigest()):
            yield "conclusion.json is not the one that the journal names"
        elif not self.record.invalidated:  # which it does not know of, and need not
            yield from compare_conclusions(stored, conclude(self.path, self.report))

    def judged_answers(self) -> Iterator[str]:
        """Some of the answers, judged again, earn what they earned."""
        entries = Metadata.model_validate(self.config.get("metadata") or {}).benchmark
        tasks: dict[str, HarborTask] = {}
        for entry in entries:
            with suppress(EvsysError):
                tasks |= {task.task_id: task for task in load_entry(entry).tasks[: entry.n_tasks]}
        if not tasks:
            raise _Unchecked("no benchmark of it can be read here")
        found, checked, changed = self.answers.judge_again(tasks, thorough=not self.before_conclusion)
        if failure := self.recheck.failure:
            found = [*found, _Doubt(failure)]
        elif not checked and not found:
            raise _Unchecked("its tasks have changed since" if changed else "its verifiers cannot be run here")
        yield from found

    def anchor(self) -> Iterator[str]:
        """What was noted outside about its journal still holds."""
        known, problems = self.find_anchors()
        if not known and not problems:
            raise _Unchecked("its journal was not anchored anywhere; see evsys audit --anchor")
        yield from problems


@dataclass(frozen=True, slots=True)
class Fact:
    """Something that the record says and that is recomputed here."""

    name: str
    find: Callable[[_Auditor], Iterable[str]]
    """What contradicts it."""
    invalidates: bool = True
    """Whether nothing may be concluded while it is contradicted."""
    is_remark: bool = False
    """Whether it is worth knowing, but changes no verdict."""


_OF_RECORD = (
    Fact("chain", _Auditor.chain),
    Fact("claim", _Auditor.claim),
    Fact("config", _Auditor.recorded_config),
    Fact("arms", _Auditor.arms),
    Fact("files", _Auditor.files),
    Fact("scores", _Auditor.scores),
    Fact("copies", _Auditor.copies),
    Fact("spend", _Auditor.spend, invalidates=False),
    Fact("identity", _Auditor.identity),
    Fact("contamination", _Auditor.contamination, invalidates=False),
    Fact("near_matches", _Auditor.near_matches, is_remark=True),
    Fact("code", _Auditor.code, invalidates=False),
    Fact("dropped", _Auditor.dropped, is_remark=True),
    Fact("looks", _Auditor.looks),
)
"""What the files of the record alone decide."""
_BEYOND = (Fact("weights", _Auditor.weights), Fact("answers", _Auditor.judged_answers))
"""What needs the project's code, or takes long."""
_AFTERWARDS = (Fact("conclusion", _Auditor.conclusion), Fact("anchor", _Auditor.anchor))
