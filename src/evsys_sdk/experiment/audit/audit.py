"""Whether the record of an experiment agrees with itself: every check, with its evidence.

    report = audit_experiment(folder)
    for check in report.checks:
        print(check.name, check.state, check.evidence)

Whatever can be recomputed is: scores from answers, answers by their verifiers, files and weights from the hashes in the
journal, the journal from its own chain. What cannot be checked here is reported as unchecked.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from ...config import ExperimentConfig, Metadata
from ...data.types import HarborTask
from ...errors import EvsysError
from ...record.anchors import check_anchors
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
from ...record.project_files.claims import read_claims
from ...record.reader import ExperimentRecord
from ...record.run_files.scores import hash_line
from ...record.runs import RunRecord
from ...record.values import items, part, text
from ..benchmark_plan import load_entry
from ..hypothesis import hypothesis_sha256
from .answers import AnswerBook, name_scoring
from .arms import (
    find_changed_code,
    find_changed_models,
    find_changed_rows,
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
from .report import AuditReport, Check, find_contradiction


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
    names code of the project that its settings do not; a process of its own imports it.
    """
    record = record or ExperimentRecord(path)
    scored = [event.time or 0.0 for event in record.events if event.kind == Kind.SCORED]
    during = (record.began or 0.0, max(scored, default=0.0))
    with Rechecker(None if quick else [*imports, *_imports_of(record)], during=during) as recheck:
        return _audit(
            _Auditor(record, recheck), quick, before_conclusion, lambda: check_anchors(path, anchors, witnessed)
        )


def _imports_of(record: ExperimentRecord) -> list[str]:
    """Files of this project that its run imported; a record from elsewhere must not choose what runs here."""
    here = Path.cwd()
    named = [text(one) for one in items(record.start.get("imports"))]
    return [one for one in named if one.endswith(".py") and (here / one).resolve().is_relative_to(here)]


def _audit(
    auditor: _Auditor, quick: bool, before_conclusion: bool, find_anchors: Callable[[], tuple[int, list[str]]]
) -> AuditReport:
    of_record: list[Callable[[], Check]] = [
        auditor.check_chain,
        auditor.check_claim,
        auditor.check_config,
        auditor.check_arms,
        auditor.check_seals,
        auditor.check_scores,
        auditor.check_copies,
        auditor.check_spend,
        auditor.check_identities,
        auditor.check_contamination,
        auditor.check_code,
        auditor.check_dropped,
    ]
    if auditor.record.start.get("looks") or auditor.record.looks:
        of_record.append(auditor.check_looks)
    beyond: list[Callable[[], Check]] = []
    if not quick:
        beyond += [
            auditor.check_weights,
            partial(auditor.check_answers, not before_conclusion),
        ]
    told = [replace(_guard(check), of_record=True) for check in of_record]
    # The conclusion was drawn with nothing but these, and is drawn again with the same.
    of_record_alone = AuditReport(auditor.path, told, find_contradiction(told))
    if not quick and not before_conclusion:
        beyond += [partial(auditor.check_conclusion, of_record_alone), partial(auditor.check_anchors, find_anchors)]
    return replace(of_record_alone, checks=[*told, *(_guard(check) for check in beyond)])


def _guard(check: Callable[[], Check]) -> Check:
    """What cannot be read is a finding, not the end of the audit."""
    try:
        return check()
    except (EvsysError, OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        named = check.func if isinstance(check, partial) else check
        name = named.__name__.removeprefix("check_")
        return Check(name, "flagged", [f"the record could not be read: {type(error).__name__}: {error}"], True)


def _judge(name: str, found: list[str], *, invalidates: bool = True, said: str = "") -> Check:
    return Check(name, "flagged", found, invalidates) if found else Check(name, "ok", [said] if said else [])


def _remark(name: str, found: list[str]) -> Check:
    return Check(name, "remark" if found else "ok", found)


class _Auditor:
    """The checks of one experiment."""

    def __init__(self, record: ExperimentRecord, recheck: Rechecker) -> None:
        self.record = record
        self.recheck = recheck
        self.path = record.folder
        self.events: list[Event] = record.events
        self.is_chained = bool(self.events) and all(event.format >= 2 for event in self.events)
        self.runs: list[RunRecord] = record.runs_on_disk

    def _config(self) -> dict[str, Any]:
        return self.record.config or {}

    def check_chain(self) -> Check:
        """The journal is there from its first event on, and every line follows the one it was written after."""
        journal = ExperimentFiles(self.path).journal
        if not self.events:
            done = [run.name for run in self.runs if run.result is not None or run.score_lines]
            if not done and read_conclusion(self.path) is None:
                return Check("chain", "unchecked", ["nothing has happened yet"])
            return _judge("chain", [f"{journal}: the journal is missing or empty, and {len(done)} arms have results"])
        found = [f"{journal}: its first event is {first}"] if (first := self.events[0].kind) != Kind.STARTED else []
        # Version 1 recorded none of these: an event of it that has one lost its hash.
        old = [event for event in self.events if event.format < 2]
        hashed = any(event.get(name) for event in old for name in ("recorded_config", "sealed", "line"))
        if not found and self.events[0].format < 2 and not hashed:
            return Check("chain", "unchecked", ["the record is of version 1, which kept no hashes"])
        return _judge("chain", [*found, *verify_chain(journal)], said=f"{len(self.events)} events")

    def check_claim(self) -> Check:
        """What is claimed now is what was claimed before the first step."""
        start = self.record.start
        registered: Any = start.get("hypothesis_sha256")
        if registered is None:
            return Check("claim", "unchecked", ["no claim was registered"])
        metadata = Metadata.model_validate(self._config().get("metadata") or {})
        found: list[str] = []
        if hypothesis_sha256(metadata) != registered:
            found.append("the claim in config.json is not the one that was registered before the first step")
        known = [one for one in read_claims() if one.get("experiment") == start.text("experiment_id")]
        # The first of them: a process that is killed may have counted an extension that its journal has not.
        if any(
            (one.get("family"), one.get("attempt")) != (start.get("family"), start.get("attempt")) for one in known[:1]
        ):
            found.append("the project's list of claims has another claim, or another attempt at it, for it")
        return _judge("claim", found)

    def check_arms(self) -> Check:
        """Every arm on disk was started by the orchestrator, and every arm that ended is there."""
        found = list(find_stray_arms(self.record, self.runs, is_chained=self.is_chained))
        return _judge("arms", found, said=f"{len(self.runs)} arms")

    def check_dropped(self) -> Check:
        """No arm was left out after its score had been seen."""
        return _remark("dropped", list(find_dropped_scores(self.runs)))

    def check_config(self) -> Check:
        """The config on disk is the one that the experiment was started, or last taken up, with."""
        turns = [event for event in self.events if event.kind in (Kind.STARTED, Kind.RESUMED)]
        written = [event.text("recorded_config") for event in turns]
        if not written or not written[-1]:
            return Check("config", "unchecked", ["no hash of its config was taken"])
        # A process that is killed after announcing a config has not written it yet.
        changed = any(
            turn.text("found_config") not in {"", *written[max(0, at - 2) : at]} and written[at - 1]
            for at, turn in enumerate(turns)
            if at
        )
        found = ["config.json was changed before the experiment was taken up again"] if changed else []
        if hash_recorded_config(self.path) not in written[-2:]:
            found.append("config.json was changed after the experiment was started")
        return _judge("config", found)

    def check_code(self) -> Check:
        """Code of the project that goes by one name is the same for all arms."""
        return _judge("code", list(find_changed_code(self.identities)), invalidates=False)

    def check_looks(self) -> Check:
        """Seeds were added as it was planned before the first step, and none after a look that had ended it."""
        planned = list(items(self.record.start.get("looks")))
        now = ExperimentConfig.model_validate(self._config()).planned_looks
        found = [] if planned == now else [f"config.json looks at {now} seeds, and {planned} had been planned"]
        found += find_late_seeds(self.events)
        return _judge("looks", found, said=f"{len(self.record.looks)} looks")

    def check_seals(self) -> Check:
        """The files of each arm are as they were when it ended."""
        last = {event.text("arm"): event for event in self.events if event.kind == Kind.ARM_ENDED}
        sealed = {arm: event.part("sealed") for arm, event in last.items() if event.part("sealed")}
        if not sealed:
            return Check("files", "unchecked", ["no hashes were taken when its arms ended"])
        # An arm that was taken up again is writing its files anew.
        busy = {event.text("arm") for event in self._open_starts()}
        found = [
            f"{arm}: {what} after it had ended"
            for arm, files in sealed.items()
            if arm not in busy and (self.path / arm).is_dir()
            for what in broken_seals(self.path / arm, files)
        ]
        return _judge("files", found, said=f"{sum(map(len, sealed.values()))} files of {len(sealed)} arms")

    def check_weights(self) -> Check:
        """Stored weights are those that were scored, and that were there when their arm ended."""
        if not any(event.part("weights") for event in self.events):
            return Check("weights", "unchecked", ["no hashes of stored weights were recorded"])
        busy = {event.text("arm") for event in self._open_starts()}
        runs = [run for run in self.runs if run.name not in busy]
        return _judge("weights", [what for run in runs for what in find_replaced_weights(run.folder, self.events)])

    def _open_starts(self) -> Iterator[Event]:
        """Arms that have been started again and have not ended since."""
        latest: dict[str, Event] = {}
        for event in self.events:
            if event.kind in (Kind.ARM_STARTED, Kind.ARM_ENDED):
                latest[event.text("arm")] = event
        return (event for event in latest.values() if event.kind == Kind.ARM_STARTED)

    def check_scores(self) -> Check:
        """Each score follows from the rewards, and each scoring was heard of when it was made."""
        known: dict[str, set[str]] = defaultdict(set)
        for event in self.events:
            if event.kind == Kind.SCORED:
                known[event.text("arm")].add(event.text("line"))
        found = [
            f"{name_scoring(run, line)} is not the scoring that the journal heard of"
            for run in self.runs
            for line in run.score_lines
            if self.is_chained and known and hash_line(line) not in known[run.name]
        ]
        lines = sum(len(run.score_lines) for run in self.runs)
        found += [*self.answers.contradictions, *find_misquoted_scores(self.runs)]
        return _judge("scores", found, said=f"{lines} scorings")

    @cached_property
    def answers(self) -> AnswerBook:
        return AnswerBook(self.runs, self.recheck, self.record.shared_answers)

    def check_copies(self) -> Check:
        """No arm is another one under a new name: real runs never share the very times they took."""
        seen, found = dict[str, str](), list[str]()
        for run in self.runs:
            for path in [run.files.starts, run.files.logs.timing, *run.files.all_predictions()]:
                # Files of a few bytes are equal by chance.
                content = hash_file(path, at_least=8)
                first = run.name if content is None else seen.setdefault(f"{path.name} {content}", run.name)
                if first != run.name:
                    found.append(f"{run.name} and {first} have the same {path.name}, down to the times they took")
                    break
        return _judge("copies", [*found, *find_equal_seeds(self.runs)])

    def check_spend(self) -> Check:
        """The ledger has at least what the journal had heard of."""
        tally = read_tally(self.path)
        found = list(find_lost_spend(self.events, tally))
        found += self.answers.find_unpaid(tally, self._find_uninterrupted())
        return _judge("spend", found, invalidates=False)

    def _find_uninterrupted(self) -> list[str]:
        """Arms that went from start to end at once: a killed process takes along what it had not written of a bill."""
        starts = Counter(event.text("arm") for event in self.events if event.kind == Kind.ARM_STARTED)
        ended = [event for event in self.events if event.kind == Kind.ARM_ENDED]
        completed = {event.text("arm") for event in ended if event.text("status") == "completed"}
        return [arm for arm, n in starts.items() if n == 1 and arm in completed]

    @cached_property
    def identities(self) -> dict[str, dict[str, Any]]:
        return {run.name: identity for run in self.runs if (identity := run.identity) is not None}

    def check_identities(self) -> Check:
        """Compared arms differ in weights, verifier or agent only where the claim is about that."""
        known = self.identities
        if not known:
            return Check("identity", "unchecked", ["what its arms are made of was not recorded"])
        about: list[str] = part(self._config(), "metadata", "hypothesis").get("about") or []
        found = [*find_unequal_parts(known, about), *find_changed_models(self.runs)]
        found += [] if "weights" in about else find_foreign_weights(self.events)
        found += find_changed_rows(self.runs)
        return _judge("identity", found, said=f"{len(known)} arms")

    def check_contamination(self) -> Check:
        """Neither the training rows nor what the weights learned from held the tasks."""
        found = [str(one) for one in items(self.record.start.get("contamination"))]
        if found := [*found, *find_trained_tasks(self.events)]:
            return _judge("contamination", found, invalidates=False)
        return _remark("contamination", [str(one) for one in items(self.record.start.get("near_matches"))])

    def check_conclusion(self, audit: AuditReport) -> Check:
        """The conclusion on disk is the one that was drawn, and follows from the record."""
        import hashlib

        concluded = [event for event in self.events if event.kind == Kind.CONCLUDED]
        written = read_conclusion(self.path)
        if not concluded:
            state = "flagged" if written is not None and self.is_chained else "unchecked"
            return Check("conclusion", state, ["no conclusion was journaled"], state == "flagged")
        if written is None:
            return Check("conclusion", "flagged", ["conclusion.json is gone"], True)
        found: list[str] = []
        from ..conclusion.write import conclude, read_stored_conclusion

        stored = read_stored_conclusion(self.path)
        if find_repeated_keys(written):
            found.append(f"conclusion.json gives '{find_repeated_keys(written)[0]}' twice, so that readers may differ")
        found += find_edited_page(self.path, concluded[-1].text("page"), stored)
        known = concluded[-1].text("sha256")
        if stored is None or known not in (stored.sha256, hashlib.sha256(written.encode()).hexdigest()):
            found.append("conclusion.json is not the one that the journal names")
        elif not self.record.invalidated:  # which it does not know of, and need not
            found += compare_conclusions(stored, conclude(self.path, audit))
        return _judge("conclusion", found)

    def check_answers(self, thorough: bool) -> Check:
        """Some of the answers, judged again, earn what they earned."""
        tasks = {task.task_id: task for tasks in self.benchmarks.values() for task in tasks}
        if not tasks:
            return Check("answers", "unchecked", ["no benchmark of it can be read here"])
        found, checked, changed = self.answers.judge_again(tasks, thorough=thorough)
        if failure := self.recheck.failure:
            return _judge("answers", [*found, failure], invalidates=bool(found))
        if not checked and not found:
            why = "its tasks have changed since" if changed else "its verifiers cannot be run here"
            return Check("answers", "unchecked", [why])
        return _judge("answers", found, said=f"{checked} answers judged again")

    @cached_property
    def benchmarks(self) -> dict[str, Sequence[HarborTask]]:
        """The tasks of each benchmark that can be read here, by its label."""
        metadata = Metadata.model_validate(self._config().get("metadata") or {})
        found: dict[str, Sequence[HarborTask]] = {}
        for entry in metadata.benchmark:
            with suppress(EvsysError):
                found[entry.label or ""] = load_entry(entry).tasks[: entry.n_tasks]
        return found

    def check_anchors(self, find_anchors: Callable[[], tuple[int, list[str]]]) -> Check:
        """What was noted outside about its journal still holds."""
        known, problems = find_anchors()
        if not known and not problems:
            return Check("anchor", "unchecked", ["its journal was not anchored anywhere; see evsys audit --anchor"])
        return _judge("anchor", problems, said=f"{known} anchors hold")
