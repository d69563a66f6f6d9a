"""The official `openai` package uses the server unmodified; EVSYS_OPENAI_PYTHON names one or more Pythons that have it.

EVSYS_OPENAI_PYTHON=/envs/openai2/bin/python:/envs/openai3/bin/python
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from .serving import ServerProcess

pytestmark = pytest.mark.tinker
PYTHONS = [one for one in os.environ.get("EVSYS_OPENAI_PYTHON", "").split(":") if one]


@pytest.mark.skipif(not PYTHONS, reason="needs EVSYS_OPENAI_PYTHON, a Python that has the openai package")
def test_the_official_client_sees_what_it_expects(server: ServerProcess) -> None:
    for python in PYTHONS:
        command = [python, str(Path(__file__).with_name("openai_child.py")), server.url]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
        assert done.returncode == 0, done.stderr[-3000:]
        parsed = json.loads(done.stdout)
        assert parsed["models"] == ["tiny"]
        assert (parsed["choices"], parsed["older"]) == (2, 5)
        assert parsed["streamed"] == parsed["helper"] == parsed["greedy"]
        assert parsed["stream_usage"] == 12
        assert parsed["response"] == parsed["streamed_response"] == parsed["greedy"]
        assert parsed["response_events"] == ["response.created", "response.incomplete"]
        assert set(parsed["cities"]) <= {"Rome", "Oslo"}
        assert parsed["forced"] == "Report"
        assert parsed["errors"]["model"] == ["NotFoundError", "model_not_found", "model"]
        assert parsed["errors"]["value"] == ["BadRequestError", "invalid_value", "temperature"]
