"""Files of rows as people have them, by their ending, and the report of all rows that cannot be used."""

from __future__ import annotations

import gzip
import json
import sys
from collections.abc import Callable
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from evsys_sdk.config import DataConfig
from evsys_sdk.data import prepare_rows
from evsys_sdk.data.bad_rows import BadRows
from evsys_sdk.data.stores.in_memory import InMemoryDataStore
from evsys_sdk.data.stores.local import LocalDataStore
from evsys_sdk.errors import DataError, MissingExtraError

TWO = [{"text": "a", "team": "x"}, {"text": "b", "team": "y"}]
TO_CHAT = {"kind": "jsonl_to_chat", "params": {"user_template": "{text}", "assistant_template": "{team}"}}


@pytest.fixture
def read(tmp_path: Path) -> Callable[..., list[dict[str, Any]]]:
    def read(path: str = "rows.csv", content: bytes | None = None, **data: Any) -> list[dict[str, Any]]:
        if content is not None:
            (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / path).write_bytes(content)
        config = DataConfig.model_validate({"path": path, **data})
        return list(prepare_rows(config, store=LocalDataStore(root=str(tmp_path)), bad=data.get("bad")))

    return read


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("rows.csv", b"text,team\na,x\nb,y\n"),
        ("rows.csv", b"\xef\xbb\xbftext,team\r\na,x\r\n\r\nb,y"),
        ("rows.csv", b"text;team\na;x\nb;y\n"),
        ("rows.CSV", b"text\tteam\na\tx\nb\ty\n"),
        ("rows.csv", b'"text", team\n"a",x\n"b","y"\n'),
        ("rows.tsv", b"text\tteam\na\tx\nb\ty\n"),
        ("rows.csv.gz", gzip.compress(b"text,team\na,x\nb,y\n", mtime=0)),
        ("rows.json", json.dumps(TWO, indent=2).encode()),
        ("rows.json", json.dumps({"data": TWO}).encode()),
        ("rows.json", b"".join(json.dumps(row).encode() + b"\n" for row in TWO)),
        ("rows.jsonl", json.dumps(TWO).encode()),
        ("rows.jsonl", json.dumps(TWO, indent=1).encode()),
        ("rows.ndjson", b"".join(json.dumps(row).encode() + b"\n" for row in TWO)),
        ("rows", b"".join(json.dumps(row).encode() + b"\n" for row in TWO)),
    ],
)
def test_a_file_is_read_by_its_ending(read: Callable[..., Any], name: str, content: bytes) -> None:
    assert read(name, content) == TWO


def test_cells_are_text_and_an_empty_cell_is_null(read: Callable[..., Any]) -> None:
    rows = read(content=b'id,text,team\n007,"two\nlines, and ""quotes""",\n8,  ,x\n')
    assert rows == [
        {"id": "007", "text": 'two\nlines, and "quotes"', "team": None},
        {"id": "8", "text": None, "team": "x"},
    ]


def test_a_file_with_another_ending_is_read_as_source_kind_says(read: Callable[..., Any]) -> None:
    assert read("export.txt", b"text,team\na,x\nb,y\n", source_kind="csv") == TWO


def test_columns_are_renamed_in_one_line(read: Callable[..., Any]) -> None:
    content = b"text,team\na,x\n"
    assert read(content=content, columns={"text": "prompt", "team": "completion"}) == [
        {"prompt": "a", "completion": "x"}
    ]
    with pytest.raises(DataError, match=r"rows.csv: data.columns: the row has no field 'txt'; did you mean 'text'"):
        read(content=content, columns={"txt": "prompt"})


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (
            "text,team\nGrüße,x\n".encode("latin-1"),
            r"rows.csv:2: b'\\xfc' is not UTF-8; .*iconv -f CP1252 -t UTF-8 .*rows",
        ),
        ("text,team\na,x\n".encode("utf-16"), r"rows.csv: the file is UTF-16.*iconv -f UTF-16"),
        (b"text,text\na,x\n", r"two columns are named 'text'. Rename one"),
        (b"text,\na,x\n", r"column 2 has no name in the header"),
        (b'text,team\n"a,x\nb,y\n', r"row 1 \(line 3\): unexpected end of data. Close every quoted cell"),
        (b"text,team\n", r"rows.csv holds no rows"),
        (b"", r"rows.csv holds no rows"),
        (b"text,team\na,x,z\n", r"row 1 \(line 2\): 3 cells, but the header names 2 columns. Quote"),
    ],
)
def test_a_bad_table_says_how_to_correct_it(read: Callable[..., Any], content: bytes, says: str) -> None:
    with pytest.raises(DataError, match=says):
        read(content=content)


def test_all_bad_rows_are_in_one_report(read: Callable[..., Any]) -> None:
    lines = [f"text {n},{'' if n % 4 == 0 else 'x'}" for n in range(1, 41)]
    content = "\n".join(["text,team", *lines, "one,two,three", ""]).encode()
    with pytest.raises(DataError) as caught:
        read(content=content, transforms=[TO_CHAT])
    message = str(caught.value)
    assert "transform 'jsonl_to_chat': 10 of 41 rows have no `team`: rows 4, 8, 12, 16, 20 and 5 more" in message
    assert "row 41 (line 42): 3 cells" in message
    assert message.endswith("Correct them, or leave them out with `on_bad_row: skip`.")
    assert len(read(content=content, transforms=[TO_CHAT], on_bad_row="skip")) == 30


def test_lines_that_are_no_rows_and_messages_of_a_wrong_shape_are_left_out_and_counted(tmp_path: Path) -> None:
    good = {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}
    lines = [json.dumps(good), "not json", "[1]", json.dumps({"messages": [{"role": "boss"}]}), json.dumps(good)]
    (tmp_path / "rows.jsonl").write_text("\n".join(lines), encoding="utf-8")
    bad = BadRows(skip=True)
    data = DataConfig(path="rows.jsonl", on_bad_row="skip")
    assert list(prepare_rows(data, store=LocalDataStore(root=str(tmp_path)), bad=bad)) == [good, good]
    assert bad.count == 3
    assert "rows.jsonl:2: this is not JSON" in bad.report()
    assert "'messages[0].role' is 'boss'" in bad.report()


def test_rows_with_the_same_number_of_cells_are_reported_together(read: Callable[..., Any]) -> None:
    lines = [f"text {n},{'x,y' if n in (2, 5, 9) else 'x'}" for n in range(1, 11)]
    with pytest.raises(DataError, match=r"3 of 10 rows cannot be read: 3 cells, but .*: rows 2, 5, 9\. Correct them"):
        read(content="\n".join(["text,team", *lines]).encode(), transforms=[TO_CHAT])


def test_where_every_row_is_bad_none_is_left_to_skip_to(read: Callable[..., Any]) -> None:
    with pytest.raises(DataError, match=r"the row has no field 'team'.*The same holds for all 2 rows"):
        read(content=b"text,x\na,1\nb,2\n", transforms=[TO_CHAT], on_bad_row="skip")


def test_a_store_without_files_says_what_it_reads() -> None:
    with pytest.raises(DataError, match="data store 'in_memory' reads JSON and JSONL only"):
        list(prepare_rows(DataConfig(path="rows.csv"), store=InMemoryDataStore(files={"rows.csv": TWO})))


def test_parquet_and_arrow_become_plain_rows(read: Callable[..., Any], tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    row = {"n": 1, "when": date(2026, 1, 2), "price": Decimal("1.50"), "x": float("nan"), "tags": ["a"], "o": {"k": 1}}
    table = pyarrow.Table.from_pylist([row])
    __import__("pyarrow.parquet").parquet.write_table(table, tmp_path / "rows.parquet")
    with pyarrow.OSFile(str(tmp_path / "rows.arrow"), "wb") as file, pyarrow.ipc.new_file(file, table.schema) as out:
        out.write_table(table)
    plain = {"n": 1, "when": "2026-01-02", "price": "1.50", "x": None, "tags": ["a"], "o": {"k": 1}}
    assert read("rows.parquet") == read("rows.arrow") == [plain]
    with pytest.raises(DataError, match=r"rows.parquet: it cannot be read: .* Check that it is a parquet file"):
        read("rows.parquet", b"text")


def test_without_pyarrow_the_extra_is_named(read: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingExtraError, match=r"rows.parquet needs the extra 'parquet'. Install it with"):
        read("rows.parquet", b"PAR1")


def test_a_folder_is_read_by_split(read: Callable[..., Any], tmp_path: Path) -> None:
    for name, rows in (
        ("train-00000-of-00002", TWO[:1]),
        ("train-00001-of-00002", TWO[1:]),
        ("test-00000-of-00001", []),
    ):
        lines = "".join(json.dumps(row) + "\n" for row in rows or [{"text": "t"}])
        (tmp_path / "hub" / "data").mkdir(parents=True, exist_ok=True)
        (tmp_path / "hub" / "data" / f"{name}.jsonl").write_text(lines, encoding="utf-8")
    (tmp_path / "hub" / "dataset_info.json").write_text("{}", encoding="utf-8")
    assert read("hub") == TWO
    assert read("hub", hf_split="test") == [{"text": "t"}]
    assert read(path=None, source_kind="hf_dataset", hf_dataset=str(tmp_path / "hub")) == TWO
    with pytest.raises(DataError, match=r"there is no split 'dev'; it has test, train. Set data.hf_split"):
        read("hub", hf_split="dev")
    with pytest.raises(DataError, match=r"local files have whole splits only"):
        read(path=None, source_kind="hf_dataset", hf_dataset=str(tmp_path / "hub"), hf_split="train[:1]")


def test_a_saved_dataset_is_read_without_the_library_that_wrote_it(read: Callable[..., Any], tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    for split in ("train", "val"):
        folder = tmp_path / "saved" / split
        folder.mkdir(parents=True)
        table = pyarrow.Table.from_pylist(TWO if split == "train" else TWO[1:])
        path = str(folder / "data-00000-of-00001.arrow")
        with pyarrow.OSFile(path, "wb") as file, pyarrow.ipc.new_stream(file, table.schema) as out:
            out.write_table(table)
        state = {"_data_files": [{"filename": "data-00000-of-00001.arrow"}]}
        (folder / "state.json").write_text(json.dumps(state), encoding="utf-8")
        (folder / "dataset_info.json").write_text("{}", encoding="utf-8")
    assert read("saved/train") == TWO
    (tmp_path / "saved" / "dataset_dict.json").write_text('{"splits": ["train", "val"]}', encoding="utf-8")
    assert read("saved", hf_split="val") == TWO[1:]
    with pytest.raises(DataError, match=r"no split 'dev'; it has train, val"):
        read("saved", hf_split="dev")


def test_a_linked_data_folder_is_read(read: Callable[..., Any], tmp_path: Path) -> None:
    elsewhere = tmp_path.parent / f"{tmp_path.name}-elsewhere"
    elsewhere.mkdir()
    (elsewhere / "rows.csv").write_bytes(b"text,team\na,x\nb,y\n")
    (tmp_path / "data").symlink_to(elsewhere)
    assert read("data/rows.csv") == TWO
