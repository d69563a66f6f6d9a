"""What history says an experiment has cost is what its ledger says, however often it was killed and resumed."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from evsys_sdk.history.index import HistoryIndex
from evsys_sdk.history.query import select
from evsys_sdk.record.events import Journal, Kind
from evsys_sdk.record.layout import ExperimentFiles
from evsys_sdk.record.ledger import Spend, spend_line
from evsys_sdk.spend.ledger import SpendLedger

RECORDS = 1000
ARMS = ("a__seed1", "a__seed2", "b__seed1")


def write_record(folder: Path, dice: random.Random) -> None:
    """An experiment of several attempts; all but perhaps the last were killed, some in the middle of a line."""
    folder.mkdir(parents=True)
    files = ExperimentFiles(folder)
    runs = [{"name": run, "model": {"name": "tiny"}, "algorithm": {"kind": "sft"}} for run in ("a", "b")]
    files.config.write_text(json.dumps({"name": folder.name, "runs": runs, "n_repeats": 2}), encoding="utf-8")
    clock = 1_000_000.0
    with Journal.of(folder) as journal:
        arms = [{"arm": arm, "run": arm[0], "seed": int(arm[-1])} for arm in ARMS]
        journal.append(Kind.STARTED, experiment_id=f"{folder.name}-0", arms=arms)
        for attempt in range(dice.randint(1, 3)):
            if attempt:
                journal.append(Kind.RESUMED, experiment_id=f"{folder.name}-0")
            with files.spend.open("ab") as ledger:
                for _ in range(dice.randint(0, 12)):
                    clock += dice.uniform(0.0, 3.0)
                    ledger.write(some_spend(dice, clock))
                if dice.random() < 0.5:
                    ledger.write(some_spend(dice, clock)[: dice.randint(1, 60)])
            end_some_arms(journal, folder, dice)
        if dice.random() < 0.4:  # the others were killed
            journal.append(Kind.ENDED, status=dice.choice(["completed", "budget"]), spend=ledger_total(folder))


def some_spend(dice: random.Random, at: float) -> bytes:
    """A record; scorings have keys, of which there are few, so that many are repeated."""
    spend = Spend(dice.randint(0, 5000), dice.randint(0, 500), dice.choice([0.0, dice.uniform(0, 2)]), dice.random())
    key = f"/baseline/{dice.randint(0, 3)}" if dice.random() < 0.4 else None
    return spend_line(dice.choice(ARMS), at, spend, key=key, what="eval")


def end_some_arms(journal: Journal, folder: Path, dice: random.Random) -> None:
    for arm in ARMS:
        if dice.random() < 0.5:
            journal.append(Kind.ARM_STARTED, arm=arm)
            if dice.random() < 0.7:
                spend = SpendLedger(ExperimentFiles(folder).spend)
                journal.append(Kind.ARM_ENDED, arm=arm, status="completed", spend=spend.of(arm).to_dict())
                spend.close()


def ledger_total(folder: Path) -> dict[str, Any]:
    ledger = SpendLedger(ExperimentFiles(folder).spend)
    try:
        return ledger.total().to_dict()
    finally:
        ledger.close()


def test_history_and_ledger_agree_on_a_thousand_records_with_kills_and_repeats(tmp_path: Path) -> None:
    dice = random.Random(20)
    for number in range(RECORDS):
        write_record(tmp_path / f"e{number:04d}", dice)
    with HistoryIndex([tmp_path]) as index:
        listed = {view.path: view.spend for view in select(index)}
    assert len(listed) == RECORDS
    spent = 0
    for path, told in listed.items():
        known = ledger_total(Path(path))
        if not any(known.values()):
            continue
        spent += 1
        assert told["usd"] == pytest.approx(known["usd"], abs=1e-9), path
        assert (told["tokens_trained"], told["tokens_sampled"]) == (known["tokens_trained"], known["tokens_sampled"])
        assert told["wall_s"] == pytest.approx(known["wall_s"], abs=1e-3)
    assert spent > 0.9 * RECORDS
