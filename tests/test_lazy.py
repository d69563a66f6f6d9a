"""What is imported only when it is needed, and still found."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

VALIDATE = """\
import sys
from pydantic import BaseModel
from evsys_sdk.config.base import Strict

class Settings(Strict):
    size: int = 1

assert Settings.model_validate({"size": 3}).size == 3
"""
PLUGIN = """\
class Plugin:
    def new_schema_validator(self, schema, schema_type, *more):
        print("asked about", schema_type.__name__)
        return None, None, None

plugin = Plugin()
"""


def run_python(code: str, *folders: Path) -> str:
    path = os.pathsep.join([*map(str, folders), *filter(None, [os.environ.get("PYTHONPATH")])])
    env = {**os.environ, "PYTHONPATH": path}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_models_are_built_without_a_search_through_all_packages() -> None:
    run_python(f"{VALIDATE}\nassert 'importlib.metadata' not in sys.modules")


def test_a_plugin_for_pydantic_is_found_where_one_is_installed(tmp_path: Path) -> None:
    (tmp_path / "evsys_test_plugin.py").write_text(PLUGIN, encoding="utf-8")
    info = tmp_path / "evsys_test_plugin-1.0.dist-info"
    info.mkdir()
    about = "Metadata-Version: 2.1\nName: evsys-test-plugin\nVersion: 1.0\n"
    (info / "METADATA").write_text(about, encoding="utf-8")
    (info / "entry_points.txt").write_text("[pydantic]\nseen = evsys_test_plugin:plugin\n", encoding="utf-8")
    assert "asked about Settings" in run_python(VALIDATE, tmp_path)


def test_other_requests_to_pydantic_get_its_own_answer() -> None:
    run_python(
        f"{VALIDATE}\nfrom pydantic.plugin._loader import PYDANTIC_ENTRY_POINT_GROUP as group\n"
        "assert group == 'pydantic'"
    )
