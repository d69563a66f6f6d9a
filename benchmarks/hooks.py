"""What the hooks of the plugin cost an agent at each call. Aim: 100 ms.

python benchmarks/hooks.py
"""

import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from measure import machine

from evsys_sdk.scaffold.project import init_project

AIM_MS, TIMES = 100.0, 20
HOOK = Path(__file__).parents[1] / "hooks" / "evsys_hook.py"
CALLS: dict[str, tuple[str, dict[str, object]]] = {
    "guard, a harmless edit": ("guard", {"tool_input": {"file_path": "src/metrics.py"}}),
    "guard, a reminder": ("guard", {"tool_input": {"file_path": "data/benchmark/tickets_test/tasks.jsonl"}}),
    "check, a file that is no config": ("check", {"tool_input": {"file_path": "src/metrics.py"}}),
    "context": ("context", {}),
}


def main() -> None:
    print(machine())
    with tempfile.TemporaryDirectory() as folder:
        root = init_project("shop", into=Path(folder) / "shop").root
        for name, (what, event) in CALLS.items():
            walls, used = zip(*(call(what, event, root) for _ in range(TIMES)), strict=True)
            fastest, cpu = min(walls), statistics.median(used)
            print(f"{name}: {fastest:.0f} ms at best, {cpu:.0f} ms of CPU (aim: {AIM_MS:g} ms)")


def call(what: str, event: dict[str, object], root: Path) -> tuple[float, float]:
    """Milliseconds of one call: on the wall, and of CPU."""
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    text = json.dumps({"cwd": str(root), **event})
    subprocess.run(
        ["python3", str(HOOK), what], cwd=root, input=text, text=True, capture_output=True, env=environment, check=True
    )
    wall, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    return 1e3 * wall, 1e3 * (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)


if __name__ == "__main__":
    main()
