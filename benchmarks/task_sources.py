"""Time to score one sample of a task source, next to the library's own way.

.venvs/verifiers/bin/python benchmarks/task_sources.py verifiers       # also runs `vf-eval`, which needs uv
.venvs/ecosystem/bin/python benchmarks/task_sources.py reasoning_gym
.venvs/ecosystem/bin/python benchmarks/task_sources.py inspect         # importing a log of 10,000 samples
"""

from __future__ import annotations

import asyncio
import json
import os
import resource
import subprocess
import sys
import tempfile
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from evsys_sdk.data.rows import parse_rows
from evsys_sdk.data.task_source import build_task_source
from evsys_sdk.data.types import TargetFormat
from evsys_sdk.eval.verifier import VerifierInput, build_verifier

PATHS = {
    "verifiers": "verifiers:examples/26_verifiers/colors.py",
    "reasoning_gym": "reasoning_gym:leg_counting?size=200",
}


def time_scoring(path: str) -> None:
    rows = [json.loads(json.dumps(row)) for row in build_task_source(path).make_rows()][:200]
    tasks = list(parse_rows(rows, TargetFormat.HARBOR_TASK))

    async def score_all() -> None:
        for task in tasks:
            said = [{"role": "user", "content": task.instruction}, {"role": "assistant", "content": "green"}]
            await build_verifier(task.verifier)(VerifierInput(task.instruction, "green", said, task=task))

    asyncio.run(score_all())
    begin = time.process_time()
    asyncio.run(score_all())
    print(f"{path}: {(time.process_time() - begin) / len(tasks) * 1000:.2f} ms CPU a sample, over {len(tasks)}")


class StandIn(BaseHTTPRequestHandler):
    """A chat server that streams one fixed answer."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        choice = {"index": 0, "delta": {"role": "assistant", "content": "green"}, "finish_reason": "stop"}
        usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
        piece = {"id": "x", "object": "chat.completion.chunk", "created": 0, "model": "m", "choices": [choice]}
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        self.wfile.write(b"data: " + json.dumps(piece | {"usage": usage}).encode() + b"\n\ndata: [DONE]\n\n")

    def log_message(self, *_: object) -> None:
        pass


def time_vf_eval() -> None:
    """The library's own runner, 16 rollouts."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), StandIn)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    command = [
        sys.executable, "-c", "from verifiers.v1.cli.eval.main import main; main()", "colors", "--no-push",
        "-m", "m", "-n", "16", "-r", "1", "--client.api-key-var", "K",
        "--client.base-url", f"http://127.0.0.1:{server.server_port}/v1",
        "--env.agent.harness.id", "null", "--env.agent.runtime.type", "subprocess",
    ]  # fmt: skip
    environment = os.environ | {"K": "k", "PYTHONPATH": str(Path("examples/26_verifiers").resolve())}
    begin, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, cwd=folder)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    server.shutdown()
    print(f"vf-eval: exit {done.returncode}, {time.perf_counter() - begin:.1f} s wall, {cpu / 16:.2f} s CPU a rollout")
    print(done.stdout[-600:], done.stderr[-600:])


# A process of its own, because Inspect leaves streams open. A log of 100 samples that it wrote, repeated to 10,000.
WRITE_LOG = """
import sys
from inspect_ai import Task, eval
from inspect_ai.dataset import MemoryDataset, Sample
from inspect_ai.log import read_eval_log, write_eval_log
from inspect_ai.model import ModelAPI, ModelOutput, modelapi
from inspect_ai.scorer import match

@modelapi(name="adder")
class Adder(ModelAPI):
    async def generate(self, input, tools, tool_choice, config):
        return ModelOutput.from_content(self.model_name, str(2 * int(input[-1].text.partition("+")[0])))

samples = MemoryDataset([Sample(id=f"s{n}", input=f"{n}+{n}=", target=str(2 * n)) for n in range(100)])
[log] = eval(Task(name="sums", dataset=samples, scorer=match()), model="adder/x", display="none", log_dir=sys.argv[1])
log = read_eval_log(log.location)
log.samples = [one.model_copy(update={"id": f"{one.id}-{n}"}) for n in range(100) for one in log.samples]
log.eval.dataset.samples = len(log.samples)
write_eval_log(log, sys.argv[1] + "/large.eval")
"""
READ_LOG = """
import sys, time
from inspect_ai.log import read_eval_log

begin = time.process_time()
samples = read_eval_log(sys.argv[1]).samples
print(f"inspect_ai.read_eval_log: {len(samples):,} samples in {time.process_time() - begin:.2f} s CPU")
"""


def time_import() -> None:
    """Our reader of Inspect's logs, next to Inspect's own."""
    from evsys_sdk.eval.foreign_run import read_inspect_log

    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([sys.executable, "-c", WRITE_LOG, folder], check=True, capture_output=True)
        path = Path(folder, "large.eval")
        for _ in range(3):
            begin = time.process_time()
            run = read_inspect_log(path)
            run.to_result()
            print(f"evsys: {len(run.predictions):,} samples in {time.process_time() - begin:.2f} s CPU (aim: 2 s)")
        subprocess.run([sys.executable, "-c", READ_LOG, str(path)], check=True)


if __name__ == "__main__":
    if sys.argv[1] == "inspect":
        time_import()
        sys.exit()
    time_scoring(PATHS[sys.argv[1]])
    if sys.argv[1] == "verifiers":
        time_vf_eval()
