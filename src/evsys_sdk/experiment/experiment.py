"""Run an experiment, from its config to its conclusion.

    result = Experiment.from_yaml("config.yaml").run()
    for arm in result.arms:
        print(arm.name, arm.status, arm.metrics)
    print(result.best_arm, result.conclusion)

Modules that only a run needs are imported when it starts, so that `validate` stays fast.
"""

from __future__ import annotations

import hashlib
import json
import secrets
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .._version import __version__
from ..config import ExperimentConfig, LauncherSpec, load_yaml
from ..errors import ConfigError, UserCodeError
from ..log import get_logger
from ..paths import in_project
from ..protocols import RunResult
from ..record.anchors import note_head
from ..record.events import Journal, Kind
from ..record.evidence import hash_conclusion_page, hash_recorded_config, hash_value, seal_ledger
from ..record.lock import FolderBusy, folder_lock
from ..record.project_files.known_folders import remember_output_root
from ..record.project_files.sealed import seal_files
from ..record.reader import ExperimentRecord, experiment_id
from ..record.values import items, part, text
from ..registry import get_callback, get_launcher
from ..settings import import_project_code, imported_by_name
from ..spend.ledger import STOP_PREFIX, SpendLedger, find_deadline, find_exhausted, is_budget_stop, open_ledger
from ..training.callback import STOPPED_ON_DASHBOARD, Callback, is_deadline_stop
from ..user_code import default_limit_s, limit_user_code
from .arms.arm import Arm, Sweep, expand_arms, first_arms
from .arms.interrupts import Interrupt, stop_on_interrupt
from .arms.results import ArmResult, ExperimentResult, ExperimentStatus
from .benchmark_plan import task_files
from .deadline import check_deadline, find_training_end
from .hypothesis import hypothesis_sha256, normalise_hypothesis
from .jobs.approval import wait_for_approval
from .record_dir import ExperimentDir, extend_experiment_dir, open_experiment_dir
from .search import allocation_for

if TYPE_CHECKING:
    from .audit.audit import AuditReport
    from .conclusion import Conclusion
    from .launcher import Launcher


class Experiment:
    """One experiment: validated, expanded into arms, trained, scored, recorded, concluded."""

    def __init__(
        self,
        config: ExperimentConfig,
        *,
        sweep: Sweep | None = None,
        callbacks: Sequence[Callable[[], Callback]] = (),
        watch: Callable[[Path], AbstractContextManager[None]] | None = None,
        checked: bool = False,
        launcher: Launcher | None = None,
    ) -> None:
        """Expand the config.

        `callbacks` are factories of callbacks for each arm, next to those of the config. `watch` is a context manager
        that is entered with the experiment's folder while the arms run, e.g. a progress display. `checked` says that
        `check_file` has found no problem in the config. `launcher` replaces the launcher of the config.
        """
        self.config = sweep.over(config) if sweep is not None else config.expanded()
        self._checked = checked and sweep is None
        self._extra_callbacks = callbacks
        self._watch: Callable[[Path], AbstractContextManager[None]] = watch or (lambda _: nullcontext())
        self._n_asked_for, self._launcher = 0, launcher

    @classmethod
    def from_yaml(cls, path: str | Path, **options: Any) -> Experiment:
        """Load an experiment from a YAML file, after importing the extensions that the project's settings name."""
        import_project_code()
        return cls(load_yaml(path), **options)

    def run(
        self,
        *,
        resume: bool = False,
        fresh: bool = False,
        extend: bool = False,
        interrupt: Interrupt | None = None,
        until: float | None = None,
    ) -> ExperimentResult:
        """Run every arm and conclude. An unfinished attempt is resumed, unless `fresh`.

        `resume` also resumes a finished attempt: failed and unscored arms are tried again. `extend` adds seeds and
        runs to a finished experiment, with one conclusion over all of them. `interrupt` stops the experiment when the
        caller handles signals itself. `until` is a deadline, in seconds since the epoch.
        """
        began = time.time()
        with (
            self._lock_folder(resume=resume, fresh=fresh, extend=extend) as folder,
            Journal.of(folder.path) as journal,
            closing(open_ledger(folder.path)) as ledger,
            nullcontext(interrupt) if interrupt else stop_on_interrupt() as interrupt,
        ):
            self.config = check_deadline(self.config, ledger, until)
            remember_output_root(in_project(self.config.output_dir))
            self._announce(folder, journal)
            prepared_s = time.time() - began
            refusal = wait_for_approval(self.config, folder.path, lambda: interrupt.is_requested)
            if refusal is not None:
                get_logger(__name__).error("nothing was run: %s", refusal)
            self.config, deadline = find_training_end(self.config, ledger, until, prepared_s)
            arms = self._train(folder, journal, ledger, interrupt, deadline) if refusal is None else []
            status = self._status(arms, ledger, interrupt) if refusal is None else "interrupted"
            conclusion = self._conclude(folder, journal) if status != "interrupted" else None
            spend = ledger.total().to_dict()
            journal.append(Kind.ENDED, status=status, spend=spend, ledger=seal_ledger(folder.path))
            note_head(folder.path)
        left = not call_experiment_end(self.config, folder.path)
        id = experiment_id(folder.path) or folder.path.name
        return ExperimentResult(self.config.name, folder.path, arms, status, id, conclusion, left)

    def open(self, *, resume: bool = False, fresh: bool = False, extend: bool = False) -> ExperimentDir:
        """Validate, and find or make the folder. Nothing is trained."""
        self.validate(resumes=resume)
        if extend:
            return extend_experiment_dir(self.config)
        return open_experiment_dir(self.config, resume=resume, fresh=fresh)

    @contextmanager
    def _lock_folder(self, *, resume: bool, fresh: bool, extend: bool) -> Generator[ExperimentDir]:
        """Choose and lock the folder; if another process locks it first, choose again."""
        while True:
            lock = ExitStack()
            folder = self.open(resume=resume, fresh=fresh, extend=extend)
            what, remedy = f"the experiment in {folder.path}", "Wait for it, or stop it with `evsys cancel`."
            try:
                lock.enter_context(folder_lock(folder.path, what=what, remedy=remedy))
            except FolderBusy:
                if resume or extend:
                    raise
                continue  # the next iteration sees the lock and makes another folder
            with lock:
                if not (resume or extend) and ExperimentRecord(folder.path).is_finished:
                    continue  # another process has finished this experiment meanwhile
                yield folder
            return

    def validate(self, *, resumes: bool = False) -> None:
        """Run all checks that cost nothing; raise on problems, log warnings, except again for one that `resumes`."""
        from .preflight import check_config

        if not self._checked:
            report = check_config(self.config, resumes=resumes)
            if report.problems:
                raise ConfigError(report.problems)
            for warning in report.warnings:
                get_logger(__name__).warning("%s", warning)
            self._checked = True

    @property
    def arms(self) -> list[Arm]:
        """Every run with each of its seeds, in training order."""
        return expand_arms(self.config)

    def _announce(self, folder: ExperimentDir, journal: Journal) -> None:
        """Write the question, the claim and the arms into the journal, before the first step."""
        seal_files(task_files(self.config))
        id = experiment_id(folder.path)
        if id is not None:
            get_logger(__name__).info("resuming %s", folder.path)
            configs = {"found_config": hash_recorded_config(folder.path), "recorded_config": hash_value(folder.config)}
            more = self._register_extension(folder, id) if folder.extended else {}
            journal.append(Kind.RESUMED, experiment_id=id, changed=folder.changed, **configs, **more)
            folder.write_config()  # after the journal: a change that the journal does not announce is a flag
            return
        from .contamination import find_contamination
        from .question import state_question

        metadata, id = self.config.metadata, f"{folder.path.name}-{secrets.token_hex(4)}"
        config = json.dumps(self.config.model_dump(mode="json"), sort_keys=True)
        copies, near_matches = find_contamination(self.config)
        journal.append(
            Kind.STARTED,
            experiment_id=id,
            name=self.config.name,
            config_sha256=hashlib.sha256(config.encode()).hexdigest(),
            recorded_config=hash_recorded_config(folder.path),
            hypothesis=normalise_hypothesis(metadata),
            hypothesis_sha256=hypothesis_sha256(metadata),
            sdk_version=__version__,
            arms=_list_arms(first_arms(self.config)),
            **({"looks": self.config.planned_looks} if self.config.planned_looks else {}),
            **({"question": question.to_dict()} if (question := state_question(self.config)) else {}),
            parent_experiment_id=self.config.parent_experiment_id,
            tags=metadata.tags,
            imports=imported_by_name(),
            contamination=copies,
            near_matches=near_matches,
            **self._register_claim(folder, id),
        )

    def _register_claim(self, folder: ExperimentDir, id: str) -> dict[str, Any]:
        from .claims import register_claim

        registered = register_claim(self.config, folder.path, id)
        if same := registered.get("same_evidence"):
            get_logger(__name__).warning(
                "%s has the same arms, seeds, data and tasks as %s: this is the same evidence, not a new trial. "
                "Add seeds or arms to that one with: evsys run CONFIG --extend",
                self.config.name,
                same,
            )
        return registered

    def _register_extension(self, folder: ExperimentDir, id: str) -> dict[str, Any]:
        """The journal's fields for added seeds and arms, which are a further analysis of the same claim."""
        arms = self._find_arms(folder)
        return {"extended": True, "arms": _list_arms(arms), **self._register_claim(folder, id)}

    def _find_arms(self, folder: ExperimentDir) -> list[Arm]:
        """The arms under their recorded names; an arm that began as a single seed has no seed in its name."""
        listed = [part(arm) for event in ExperimentRecord(folder.path).events for arm in items(event.get("arms"))]
        recorded = {text(arm.get("arm")) for arm in listed}
        first = {(text(arm.get("run")), text(arm.get("arm_id"))): text(arm.get("arm")) for arm in reversed(listed)}
        names = {arm.name: first.get((arm.of_run, arm.id), arm.name) for arm in self.arms if arm.name not in recorded}
        return [
            replace(arm, run=arm.run.model_copy(update={"name": names.get(arm.name, arm.name)})) for arm in self.arms
        ]

    def _train(
        self,
        folder: ExperimentDir,
        journal: Journal,
        ledger: SpendLedger,
        interrupt: Interrupt,
        deadline: float | None,
    ) -> list[ArmResult]:
        from .arms.scheduler import ArmScheduler, overdue_s
        from .launcher import Launch

        allocation = allocation_for(self.config, self._find_arms(folder), folder.path)
        spec = self.config.launcher or LauncherSpec(kind="local")
        limit = partial(limit_user_code, f"launcher '{spec.kind}'", exit_code=2)
        with limit(limit_s=default_limit_s()):
            launcher: Launcher = self._launcher or get_launcher(spec.kind)(**spec.arguments)
        launch = Launch(self.config, folder.path.resolve(), self._max_concurrent(), self._extra_callbacks)
        with self._watch(folder.path):  # outermost: it shows what the launcher's processes print until they end
            try:
                # Inside `try`: a launcher that fails while it opens may already hold processes or a cluster.
                is_ours = type(launcher).__module__.startswith("evsys_sdk.")  # ours may wait for a cluster
                with limit(limit_s=None if is_ours else default_limit_s()):
                    slots = launcher.open(launch, len(allocation.decide([]).arms))
                scheduler = ArmScheduler(
                    self.config,
                    folder,
                    journal,
                    launcher,
                    allocation,
                    slots,
                    stop_reason=lambda: interrupt.reason or self._budget_stop(ledger),
                    hold_reason=lambda: find_deadline(self.config.budget, ledger),
                    limit=nullcontext if is_ours else partial(limit, limit_s=overdue_s(self.config)),
                )
                interrupt.stop = scheduler.interrupt
                with ledger.running(deadline):
                    arms = scheduler.run()
                self._n_asked_for = scheduler.n_requested
            finally:
                with limit(limit_s=default_limit_s()):
                    launcher.close()
        late = next(
            (arm.result.notes.stop_reason for arm in arms if is_deadline_stop(arm.result.notes.stop_reason)), None
        )
        if late is None and len(arms) < self._n_asked_for:
            late = find_deadline(self.config.budget, ledger)
        if (reason := self._budget_stop(ledger) or late) is not None:
            journal.append(Kind.BUDGET_STOP, reason=reason, spend=ledger.total().to_dict())
        return arms

    def _budget_stop(self, ledger: SpendLedger) -> str | None:
        reached = find_exhausted(self.config.budget, ledger.total()) if self.config.budget else None
        return reached and f"{STOP_PREFIX}{reached}"

    def _max_concurrent(self) -> int | None:
        """The config's limit, or one arm at a time if neither it nor a launcher of the config sets a limit."""
        return self.config.max_concurrent_arms or (None if self.config.launcher else 1)

    def _status(self, arms: Sequence[ArmResult], ledger: SpendLedger, interrupt: Interrupt) -> ExperimentStatus:
        if interrupt.is_requested:
            return "interrupted"
        late = any(is_deadline_stop(arm.result.notes.stop_reason) for arm in arms)
        if all(arm.is_scored for arm in arms) and len(arms) >= self._n_asked_for and not late:
            return "completed"  # even if the last step used up the budget
        stopped = any(is_budget_stop(arm.result.notes.stop_reason) for arm in arms)
        if stopped or self._budget_stop(ledger) is not None or find_deadline(self.config.budget, ledger) is not None:
            return "budget"
        # A stop on a dashboard reaches the arm, not this process.
        remote_stop = any((arm.result.notes.stop_reason or "").startswith(STOPPED_ON_DASHBOARD) for arm in arms)
        return "interrupted" if remote_stop else "failed"

    def _audit(self, record: ExperimentRecord, journal: Journal) -> AuditReport:
        """Audit the record before the conclusion, and write its flags into the journal."""
        from .audit.audit import audit_experiment

        report = audit_experiment(record.folder, before_conclusion=True, record=record)
        for check in report.flags:
            get_logger(__name__).warning("audit: %s: %s", check.name, check.evidence[0])
        if report.flags:
            journal.append(Kind.AUDITED, flags=[check.name for check in report.flags], invalid=report.invalid)
        return report

    def _conclude(self, folder: ExperimentDir, journal: Journal) -> dict[str, Any] | None:
        """Write the conclusion. A failure is logged and does not fail the experiment."""
        from .conclusion.write import find_standing_conclusion, write_conclusion

        record = ExperimentRecord(folder.path)
        try:
            if (standing := find_standing_conclusion(record)) is not None:
                return standing.to_dict()
            conclusion = write_conclusion(folder.path, self._audit(record, journal), record)
        except Exception as error:
            get_logger(__name__).error("no conclusion was written: %s. Try again with: evsys conclude", error)
            return None
        journal_conclusion(journal, folder.path, conclusion)
        return conclusion.to_dict()


def _list_arms(arms: Sequence[Arm]) -> list[dict[str, Any]]:
    return [{"arm": arm.name, "arm_id": arm.id, "run": arm.of_run, "seed": arm.seed} for arm in arms]


def journal_conclusion(journal: Journal, folder: Path, conclusion: Conclusion) -> None:
    """Record the hash of the written conclusion, so that a change is detected."""
    journal.append(
        Kind.CONCLUDED,
        verdict=conclusion.verdict,
        best_arm=conclusion.best_arm,
        best_score=conclusion.best_score,
        sha256=conclusion.sha256,
        page=hash_conclusion_page(folder),
    )


def run_experiment(config: ExperimentConfig | str | Path) -> list[RunResult]:
    """Run an experiment given as a config or as a YAML path, and return the result of each run."""
    experiment = Experiment(config) if isinstance(config, ExperimentConfig) else Experiment.from_yaml(config)
    return experiment.run().runs


def call_experiment_end(config: ExperimentConfig, folder: Path) -> bool:
    """Call `on_experiment_end` of the callbacks that have one; False if one tried to end the process."""
    stayed = True
    for spec in config.callbacks:
        try:
            kind = get_callback(spec.kind)
            if getattr(kind, "on_experiment_end", Callback.on_experiment_end) is not Callback.on_experiment_end:
                with limit_user_code(f"callback '{spec.kind}'", limit_s=default_limit_s(), exit_code=2):
                    kind(**spec.arguments).on_experiment_end(folder)
        except Exception as error:
            stayed = stayed and not isinstance(error, UserCodeError)
            get_logger(__name__).warning("callback '%s' failed: %s: %s", spec.kind, type(error).__name__, error)
    return stayed
