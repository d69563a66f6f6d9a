"""The client writes everything down first, sends it exactly once, and never gets in the way of training."""

from __future__ import annotations

import itertools
import json
import logging
import os
import stat
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from evsys_sdk import DashboardClient, DashboardClientError, EvsysAuthError, ExperimentRun
from evsys_sdk.cli.main import main
from evsys_sdk.dashboard.client import sender
from evsys_sdk.dashboard.client.mirror import streams
from evsys_sdk.errors import ConfigError, DataError

from ..loop.scenario import write_system
from .conftest import report_to
from .stand_in import KEY, StandIn

NOBODY = "http://127.0.0.1:9"


def mirrored(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for path in streams(folder) for line in path.read_bytes().splitlines()]


def test_everything_a_client_reports_arrives_once_and_in_order(at_stand_in: StandIn, tmp_path: Path) -> None:
    with DashboardClient() as client:
        experiment = client.create_experiment("routing", hypothesis="rank 8 is enough", tags=["a"])
        run = client.create_run(experiment, name="rank8", recipe_kind="sft", run_config={"lora_rank": 8})
        for step in range(1, 301):
            client.log_step_metric(run, step, {"loss": 1 / step}, lr=0.1)
        client.log_eval_run(run, metrics={"pass@1": 0.5}, benchmark_id="b1", name="bench", step=300)
        client.log_predictions(run, [{"task_id": "t", "reward": 1.0}], name="bench", step=300)
        client.record_benchmark("bench", benchmark_id="b1")
        client.update_experiment(experiment, best_score=0.5, conclusion="it is")
        assert client.flush()
    assert at_stand_in.records() == mirrored(tmp_path / ".evsys" / "dashboard")
    assert [record["line"]["step"] for record in at_stand_in.records("step")] == list(range(1, 301))
    assert at_stand_in.records("experiment")[-1]["set"] == {"best_score": 0.5, "conclusion_text": "it is"}
    assert [record["kind"] for record in at_stand_in.records()][:3] == ["stream", "experiment", "run"]


def test_the_documented_wrapper_reports_a_run_from_start_to_end(at_stand_in: StandIn) -> None:
    client = DashboardClient()
    with ExperimentRun(client, experiment_name="sft_v9", recipe_kind="sft", run_config={"lr": 1e-5}) as run:
        run.log_step(1, loss=0.5)
        run.log_eval(metrics={"pass_at_1": 0.83}, benchmark_id="b")
        with run.benchmark("bench", tasks=3) as scored:
            scored.log(pass_at_1=0.9)
        run.set_best_score(0.83)
        run.set_conclusion("rank-8 LoRA wins")
        run.update_generation(total_steps=1)
        assert run.generation_id == run.run_id
    client.close()
    assert at_stand_in.records("run")[-1]["set"]["status"] == "completed"
    assert at_stand_in.records("experiment")[-1]["set"]["status"] == "completed"
    assert [record["line"]["metrics"] for record in at_stand_in.records("score")] == [
        {"pass_at_1": 0.83},
        {"pass_at_1": 0.9},
    ]


def test_a_run_that_raises_is_reported_as_failed_and_still_raises(at_stand_in: StandIn) -> None:
    client = DashboardClient()
    with (
        pytest.raises(ZeroDivisionError),
        ExperimentRun(client, experiment_name="e", recipe_kind="sft", run_config={}) as run,
    ):
        run.log_step(1, loss=1 / 0)
    client.close()
    fields = at_stand_in.records("run")[-1]["set"]
    assert (fields["status"], fields["error"]) == ("failed", "ZeroDivisionError: division by zero")


def test_a_run_that_was_not_entered_says_how(at_stand_in: StandIn) -> None:
    with pytest.raises(DataError, match="with ExperimentRun"):
        ExperimentRun(DashboardClient(), experiment_name="e").log_step(1, loss=1.0)


@pytest.mark.parametrize("missing", ["EVSYS_API_KEY", "EVSYS_PROJECT_ID"])
def test_missing_credentials_are_an_error_that_names_them(
    at_stand_in: StandIn, monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    monkeypatch.delenv(missing)
    with pytest.raises(EvsysAuthError, match=missing):
        DashboardClient()


@pytest.mark.parametrize("value", ["1", "true", "YES"])
def test_offline_needs_no_key_and_sends_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("EVSYS_OFFLINE", value)
    before = threading.active_count()
    with DashboardClient() as client:
        client.create_experiment("e")
        assert threading.active_count() == before
    assert [record["kind"] for record in mirrored(tmp_path / ".evsys" / "dashboard")] == ["stream", "experiment"]


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("EVSYS_OFFLINE", "perhaps", "EVSYS_OFFLINE is 'perhaps'"),
        ("EVSYS_API_URL", "ftp://there", "not an address"),
        ("EVSYS_API_URL", "http://user:pw@there", "more than an address"),
        ("EVSYS_API_URL", "http://there:99999", "not an address"),
    ],
)
def test_a_setting_that_makes_no_sense_is_refused(
    at_stand_in: StandIn, monkeypatch: pytest.MonkeyPatch, name: str, value: str, told: str
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match=told):
        DashboardClient()


def test_the_mirror_is_in_the_configured_folder_and_private(
    at_stand_in: StandIn, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("EVSYS_LOG_DIR", str(tmp_path / "elsewhere"))
    with DashboardClient() as client:
        client.create_experiment("e")
    [path] = streams(tmp_path / "elsewhere" / "dashboard")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_nothing_is_opened_or_started_before_something_is_reported(at_stand_in: StandIn, tmp_path: Path) -> None:
    before = threading.active_count()
    DashboardClient().close()
    assert threading.active_count() == before
    assert not (tmp_path / ".evsys").exists()
    assert at_stand_in.seen == []


def test_the_key_is_in_no_address_no_record_and_no_message(
    at_stand_in: StandIn, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    client = DashboardClient()
    client.create_experiment("e", config={"api_key": KEY, "note": f"use {KEY}"})
    at_stand_in.answer_with = 400
    with pytest.raises(DashboardClientError) as refused:
        client.update_experiment("e", status="failed")
    with pytest.raises(DashboardClientError):
        client.close()
    assert KEY not in str(refused.value) + repr(client.connection) + caplog.text
    assert all(KEY not in path for _, path, _ in at_stand_in.seen)
    for path in (tmp_path / ".evsys").rglob("*"):
        assert not path.is_file() or KEY not in path.read_text("utf-8")


def test_a_refusal_is_an_error_at_the_call_itself(at_stand_in: StandIn) -> None:
    client = DashboardClient(api_key="evk_wrong")
    with pytest.raises(DashboardClientError, match="401") as refused:
        client.create_experiment("e")
    assert refused.value.status == 401
    with pytest.raises(DashboardClientError):
        client.close()


def test_a_refusal_of_a_step_is_reported_at_a_later_call(at_stand_in: StandIn) -> None:
    client = DashboardClient()
    run = client.create_run(client.create_experiment("e"))
    at_stand_in.answer_with = 403
    client.log_step_metric(run, 1, {"loss": 1.0})
    with pytest.raises(DashboardClientError, match="403"):
        client.flush()
    with pytest.raises(DashboardClientError, match="403"):
        client.log_step_metric(run, 2, {"loss": 1.0})
    with pytest.raises(DashboardClientError):
        client.close()


def test_a_single_record_that_the_server_quarantines_is_reported_and_the_rest_arrives(at_stand_in: StandIn) -> None:
    client = DashboardClient()
    experiment = client.create_experiment("e")
    at_stand_in.reject = "anchor"
    with pytest.raises(DashboardClientError, match="quarantined 1 records: record 2: not wanted"):
        client.anchor("abc", experiment_id=experiment)
    client.update_experiment(experiment, status="completed")
    assert client.close()
    assert at_stand_in.records("experiment")[-1]["set"] == {"status": "completed"}


@pytest.mark.parametrize("status", [500, 503, 429, 408])
def test_an_answer_that_says_later_is_tried_again(at_stand_in: StandIn, status: int, tmp_path: Path) -> None:
    at_stand_in.answer_with = status
    client = DashboardClient()
    client.create_experiment("e")
    assert not client.flush(0.0)
    at_stand_in.answer_with = None
    assert client.flush(30)
    client.close()
    assert at_stand_in.records() == mirrored(tmp_path / ".evsys" / "dashboard")


def test_answers_that_get_lost_make_no_second_record(at_stand_in: StandIn, tmp_path: Path) -> None:
    client = DashboardClient()
    run = client.create_run(client.create_experiment("e"))
    for burst in range(5):
        at_stand_in.lose_answers = 1
        for step in range(20):
            client.log_step_metric(run, burst * 20 + step, {"loss": 0.0})
        assert client.flush(30)
    client.close()
    assert at_stand_in.records() == mirrored(tmp_path / ".evsys" / "dashboard")


def test_an_unreachable_server_costs_one_warning_and_no_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    report_to(monkeypatch, NOBODY, tmp_path)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            with DashboardClient() as client:
                run = client.create_run(client.create_experiment("e"))
                for step in range(100):
                    client.log_step_metric(run, step, {"loss": 0.0})
                assert not client.flush(0.0)
    mirrored_records = mirrored(tmp_path / ".evsys" / "dashboard")
    assert sum(record["kind"] == "step" for record in mirrored_records) == 300
    assert caplog.text.count("cannot be reached") == 1
    assert "evsys sync" in caplog.text


def test_a_server_that_never_answers_is_waited_for_half_a_second_in_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sender keeps a budget of patience; time itself is faked, because tests measure none."""
    from evsys_sdk.dashboard.client import sender as module

    report_to(monkeypatch, NOBODY, tmp_path)
    blocked = threading.Event()
    monkeypatch.setattr(module.StreamUpload, "post", lambda *_: blocked.wait())
    waits: list[float] = []
    now = [0.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    wait = threading.Condition.wait

    def count(self: threading.Condition, timeout: float | None = None) -> bool:
        if threading.current_thread() is threading.main_thread() and timeout is not None:
            waits.append(timeout)
            now[0] += timeout
            return False
        return wait(self, timeout)

    monkeypatch.setattr(threading.Condition, "wait", count)
    client = DashboardClient()
    run = client.create_run(client.create_experiment("e"))
    for step in range(50):
        client.log_step_metric(run, step, {"loss": 0.0})
    client.update_run(run, status="completed")
    client.close()
    blocked.set()
    assert sum(waits) == pytest.approx(module.PATIENCE_S)


def test_numbers_that_json_does_not_know_survive(at_stand_in: StandIn) -> None:
    with DashboardClient() as client:
        run = client.create_run(client.create_experiment("e"))
        client.log_step_metric(run, 1, {"loss": float("nan"), "a": float("-inf"), "b": 2})
    assert at_stand_in.records("step")[0]["line"] == {
        "step": 1,
        "loss": None,
        "a": None,
        "b": 2,
        "_nonfinite": {"loss": "NaN", "a": "-Infinity"},
    }


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (lambda client: client.create_experiment(" "), "name is ' '"),
        (lambda client: client.update_experiment("e", statsu="x"), "Did you mean 'status'"),
        (lambda client: client.update_experiment("e", best_score="high"), "It should be a number"),
        (lambda client: client.update_run("r", seed=1.5), "It should be a whole number"),
        (lambda client: client.update_experiment("../e", status="x"), "Ids are"),
        (lambda client: client.create_run("a/b"), "Ids are"),
        (lambda client: client.log_predictions("r", [{"text": "x" * 5_000_000}]), "at most"),
        (lambda client: client.add_note("e", ""), "Give it some text"),
    ],
)
def test_what_no_server_would_take_is_refused_before_it_is_written(
    at_stand_in: StandIn, tmp_path: Path, call: Any, told: str
) -> None:
    with DashboardClient() as client, pytest.raises(DataError, match=told):
        call(client)
    assert not (tmp_path / ".evsys").exists()


def test_many_threads_lose_nothing(at_stand_in: StandIn, tmp_path: Path) -> None:
    client = DashboardClient()
    run = client.create_run(client.create_experiment("e"))

    def log(first: int) -> None:
        for step in range(first, first + 100):
            client.log_step_metric(run, step, {"loss": 0.0})

    threads = [threading.Thread(target=log, args=(100 * number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert client.close()
    assert sorted(record["line"]["step"] for record in at_stand_in.records("step")) == list(range(800))
    assert at_stand_in.records() == mirrored(tmp_path / ".evsys" / "dashboard")


def test_requests_reach_their_handler(at_stand_in: StandIn) -> None:
    event = threading.Event()
    requests: list[str] = []

    def take(request: Any) -> None:
        requests.append(request["id"])
        at_stand_in.requests = []
        client.answer_request(request["id"], "taken")
        event.set()

    at_stand_in.requests = [{"id": "q1", "kind": "stop"}]
    client = DashboardClient(on_request=take)
    client.create_experiment("e")
    assert event.wait(60)
    assert client.close()
    assert requests == ["q1"]
    assert at_stand_in.records("answer")[0]["state"] == "taken"


def test_a_forked_child_reports_by_its_own_stream(at_stand_in: StandIn, tmp_path: Path) -> None:
    program = """
import os, sys, warnings
warnings.simplefilter("ignore", DeprecationWarning)  # forking with threads is what is tested
from evsys_sdk import DashboardClient
client = DashboardClient()
run = client.create_run(client.create_experiment("e"))
client.log_step_metric(run, 1, loss=1.0)
child = os.fork()
client.log_step_metric(run, 2 if child else 3, loss=1.0)
assert client.flush(30)
client.close()
if child:
    assert os.waitpid(child, 0)[1] == 0
else:
    os._exit(0)
"""
    subprocess.run([sys.executable, "-c", program], check=True, env=os.environ.copy(), timeout=60)
    assert sorted(record["line"]["step"] for record in at_stand_in.records("step")) == [1, 2, 3]
    assert len(list(streams(tmp_path / ".evsys" / "dashboard"))) == 2


def test_the_package_is_imported_without_the_client_and_the_client_without_a_server() -> None:
    program = (
        "import sys, evsys_sdk\n"
        "assert not [name for name in sys.modules if 'dashboard' in name]\n"
        "from evsys_sdk import DashboardClient\n"
        "heavy = {'fastapi', 'sqlalchemy', 'alembic', 'msgspec', 'uvicorn', 'numpy', 'httpx', 'pydantic'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_many_records_are_sent_although_no_one_waits_and_more_could_be_gathered(
    at_stand_in: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sender, "_GATHER_S", 3600.0)
    monkeypatch.setattr(sender, "IDLE_S", 3600.0)
    with DashboardClient() as client:
        run = client.create_run(client.create_experiment("long"), name="r")
        before = len(at_stand_in.records())
        for step in range(sender._GATHER_RECORDS - 1):
            client.log_step_metric(run, step, loss=1.0)
        assert len(at_stand_in.records()) == before
        client.log_step_metric(run, sender._GATHER_RECORDS, loss=1.0)
        while not at_stand_in.records("step"):
            pass
    assert len(at_stand_in.records("step")) == sender._GATHER_RECORDS


def test_threads_that_report_at_once_lose_nothing(at_stand_in: StandIn) -> None:
    with DashboardClient() as client:
        run = client.create_run(client.create_experiment("busy"), name="r")

        def report(first: int) -> None:
            for step in range(first, first + 400):
                client.log_step_metric(run, step, loss=1.0)

        threads = [threading.Thread(target=report, args=(at * 400,)) for at in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert client.flush(60)
    assert sorted(record["line"]["step"] for record in at_stand_in.records("step")) == list(range(2400))


def test_a_loop_reports_how_it_stands_and_only_what_is_new(at_stand_in: StandIn, tmp_path: Path) -> None:
    write_system(tmp_path)
    assert main(["loop", "system.yaml"]) == 0
    [*_, last] = at_stand_in.records("loop")
    assert (last["system"], last["page"]["system"], last["page"]["rounds"]) == ("support", "support", [])
    pages = [record["page"] for record in at_stand_in.records("loop")]
    assert all(page != following for page, following in itertools.pairwise(pages))


def test_a_loop_that_names_no_dashboard_reports_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("EVSYS_API_KEY", raising=False)
    write_system(tmp_path)
    assert main(["loop", "system.yaml"]) == 0
    assert not (tmp_path / ".evsys" / "dashboard").exists()
