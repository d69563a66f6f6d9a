"""Files of records: whole lines only, repaired after a kill, and rewound so that a resume leaves no trace."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evsys_sdk.errors import DataError
from evsys_sdk.record.jsonl_file import JsonlFile, read_records


def write(path: Path, steps: range) -> None:
    file = JsonlFile(path)
    for step in steps:
        file.append({"step": step, "loss": 1 / step})
    file.close()


def test_a_rewound_and_repeated_file_is_byte_identical_to_an_undisturbed_one(tmp_path: Path) -> None:
    whole, resumed = tmp_path / "whole.jsonl", tmp_path / "resumed.jsonl"
    write(whole, range(1, 21))
    write(resumed, range(1, 15))
    with resumed.open("ab") as file:
        file.write(b'{"step": 15, "lo')  # killed in the middle of a line

    file = JsonlFile(resumed)
    file.rewind(next_step=11)
    for step in range(11, 21):
        file.append({"step": step, "loss": 1 / step})
    file.close()

    assert resumed.read_bytes() == whole.read_bytes()


@given(written=st.integers(0, 12), cut=st.integers(0, 40), kept=st.integers(0, 12))
def test_wherever_a_kill_cuts_the_file_a_resume_restores_it(
    tmp_path_factory: pytest.TempPathFactory, written: int, cut: int, kept: int
) -> None:
    folder = tmp_path_factory.mktemp("cut")
    write(folder / "whole.jsonl", range(1, 13))
    write(folder / "cut.jsonl", range(1, written + 1))
    data = (folder / "cut.jsonl").read_bytes()
    (folder / "cut.jsonl").write_bytes(data[: max(0, len(data) - cut)])
    survivors = [record["step"] for record in read_records(folder / "cut.jsonl")]
    kept = min(kept, len(survivors))

    file = JsonlFile(folder / "cut.jsonl")
    file.rewind(kept + 1)
    for step in range(kept + 1, 13):
        file.append({"step": step, "loss": 1 / step})
    file.close()

    assert (folder / "cut.jsonl").read_bytes() == (folder / "whole.jsonl").read_bytes()


def test_a_half_written_last_line_is_cut_off_on_opening(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    path.write_bytes(b'{"step": 1}\n{"step": 2, "x"')
    JsonlFile(path).close()
    assert path.read_bytes() == b'{"step": 1}\n'


def test_a_long_half_written_line_is_cut_off_across_blocks(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    path.write_bytes(b'{"step": 1}\n{"text": "' + b"x" * 200_000)
    JsonlFile(path).close()
    assert path.read_bytes() == b'{"step": 1}\n'


def test_a_last_line_that_lacks_only_its_end_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    path.write_bytes(b'{"step": 1}\n{"step": 2}')
    JsonlFile(path).close()
    assert path.read_bytes() == b'{"step": 1}\n{"step": 2}\n'


def test_a_file_without_any_complete_line_becomes_empty(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    path.write_bytes(b'{"st')
    JsonlFile(path).close()
    assert path.read_bytes() == b""


def test_another_process_sees_each_record_as_soon_as_it_is_written(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    file = JsonlFile(path)
    with path.open("rb") as reader:
        for step in range(1, 4):
            file.append({"step": step})
            assert json.loads(reader.readline()) == {"step": step}
    file.close()


def test_a_killed_writer_loses_no_record(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    code = (
        "import os, signal, sys; from pathlib import Path; from evsys_sdk.record.jsonl_file import JsonlFile\n"
        "file = JsonlFile(Path(sys.argv[1]))\n"
        "for step in range(1, 501): file.append({'step': step})\n"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(path)], check=False)
    assert done.returncode == -signal.SIGKILL
    assert [record["step"] for record in read_records(path)] == list(range(1, 501))


def test_rewinding_keeps_records_without_a_step_and_sets_damaged_lines_aside(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "m.jsonl"
    path.write_bytes(b'{"step": 1}\n{"note": "kept"}\nnot json\n{"step": 3}\n{"step": 2}\n')
    file = JsonlFile(path)
    with caplog.at_level("WARNING", logger="evsys_sdk"):
        file.rewind(3)
    file.append({"step": 3, "again": True})
    file.close()
    assert path.read_bytes() == b'{"step": 1}\n{"note": "kept"}\n{"step": 2}\n{"step": 3, "again": true}\n'
    assert (tmp_path / "m.jsonl.damaged").read_bytes() == b"not json\n"
    assert "damaged lines (3) were moved to m.jsonl.damaged" in caplog.text


def test_a_fork_of_the_writer_adds_nothing(tmp_path: Path) -> None:
    file = JsonlFile(tmp_path / "m.jsonl")
    file.append({"step": 1})
    code = "import os, sys; from pathlib import Path; from evsys_sdk.record.jsonl_file import JsonlFile\n"
    code += "file = JsonlFile(Path(sys.argv[1]))\nif os.fork() == 0:\n    try:\n        file.append({'step': 2})\n"
    code += "    except Exception as error:\n        os._exit(7 if 'fork' in str(error) else 8)\n    os._exit(9)\n"
    code += "sys.exit(os.waitstatus_to_exitcode(os.wait()[1]))"
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path / "m.jsonl")], check=False)
    assert done.returncode == 7
    assert [record["step"] for record in read_records(tmp_path / "m.jsonl")] == [1]
    file.close()


def test_rewinding_leaves_a_file_alone_that_has_nothing_to_drop(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    write(path, range(1, 4))
    inode = path.stat().st_ino
    file = JsonlFile(path)
    file.rewind(4)
    file.close()
    assert path.stat().st_ino == inode  # whoever follows the file continues following it


def test_a_reader_passes_over_an_unfinished_line(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    path.write_bytes(b'{"step": 1}\n{"st')
    assert list(read_records(path)) == [{"step": 1}]
    assert list(read_records(tmp_path / "absent.jsonl")) == []


def test_a_failed_write_leaves_no_half_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "m.jsonl"
    file = JsonlFile(path)
    file.append({"step": 1})
    real, calls = os.write, 0

    def full_disk(descriptor: int, data: memoryview) -> int:
        nonlocal calls
        calls += 1
        if calls > 1:
            raise OSError(28, "No space left on device")
        return real(descriptor, data[:5])

    monkeypatch.setattr(os, "write", full_disk)
    with pytest.raises(DataError, match=r"m\.jsonl: cannot be written: No space left on device\. Check"):
        file.append({"step": 2})
    monkeypatch.undo()
    file.append({"step": 3})
    file.close()
    assert path.read_bytes() == b'{"step": 1}\n{"step": 3}\n'


def test_what_is_not_json_is_written_as_the_closest_thing(tmp_path: Path) -> None:
    file = JsonlFile(tmp_path / "m.jsonl")
    file.append({"path": Path("a/b"), "set": {1}, "nan": float("nan"), "text": "half \ud800", 1: object})
    file.close()
    [record] = read_records(tmp_path / "m.jsonl")
    expected = {"path": "a/b", "set": [1], "nan": "NaN", "text": "half \\ud800", "1": "<class 'object'>"}
    assert record == expected


def test_appending_to_a_closed_file_is_an_error(tmp_path: Path) -> None:
    file = JsonlFile(tmp_path / "m.jsonl")
    file.close()
    file.close()
    with pytest.raises(DataError, match="is closed"):
        file.append({"step": 1})


def test_a_folder_that_cannot_be_made_is_reported_with_a_remedy(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(DataError, match=r"cannot be written.*Check the permissions"):
        JsonlFile(tmp_path / "file" / "m.jsonl")
