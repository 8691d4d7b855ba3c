"""What is extracted, and what is left as it is."""

import gzip
import json
import subprocess
import sys
from pathlib import Path

import pyarrow
import pytest
from pyarrow import parquet

from tests.data.building.written import ODD_TEXTS, PACKERS, content, extracted, origin_of, write
from transformer_xl.data.building.extraction import Extracted, extract
from transformer_xl.errors import UserError


@pytest.mark.parametrize("raw", [True, False])
@pytest.mark.parametrize("encoding", ["utf-8", "UTF8", "u8", "utf_8"])
def test_plain_utf8_stays_where_it_is_unread(encoding: str, raw: bool, tmp_path: Path) -> None:
    path = write(tmp_path / "a.txt", b"text \xff\n")
    origin = origin_of(path)
    path.unlink()
    target = tmp_path / "b"
    found = extract(origin, encoding=encoding, errors="strict", raw=raw, ends_records=True, target=target)
    assert found == Extracted(path, 7, None, 0, 0)
    assert not target.exists()


@pytest.mark.parametrize("changes", [{"errors": "replace"}, {"errors": "skip_line"}, {"encoding": "latin-1"}])
def test_what_must_be_looked_at_is_written_anew(changes: dict[str, str], tmp_path: Path) -> None:
    path = write(tmp_path / "a.txt", b"some\r\ntext")
    settings = {"encoding": "utf-8", "errors": "strict"} | changes
    found = extract(origin_of(path), raw=True, ends_records=True, target=tmp_path / "b", **settings)  # type: ignore[arg-type]
    assert found == Extracted(tmp_path / "b", 10, None, 0, 0)
    assert content(found).data == b"some\r\ntext"


def test_raw_bytes_are_unpacked_and_nothing_else(tmp_path: Path) -> None:
    data = bytes(range(256)) * 10
    path = write(tmp_path / "a.gz", PACKERS["gzip"](data))
    assert extracted(path, of={"compression": "gzip"}, raw=True).data == data
    with pytest.raises(UserError, match=r"a\.gz' has the byte 0x80 at offset 128 "):
        extracted(path, of={"compression": "gzip"}, raw=False)
    # Another encoding's bytes are no symbols.
    assert (
        extracted(path, of={"compression": "gzip"}, raw=True, encoding="latin-1").data
        == data.decode("latin-1").encode()
    )


def test_a_line_of_five_megabytes(tmp_path: Path) -> None:
    text = "\u4e2d\u6587\U0001f600" * 500_000
    path = write(tmp_path / "a", text.encode("utf-16"))
    for errors in ("strict", "replace", "skip_line"):
        assert extracted(path, encoding="utf-16", errors=errors).data == text.encode()


def test_texts_with_everything_odd(tmp_path: Path) -> None:
    text = "".join(ODD_TEXTS)
    for name, pack in PACKERS.items():
        if name == "bzip2":
            continue
        path = write(tmp_path / name, pack(text.encode()))
        assert extracted(path, of={"compression": name}, ends_records=True).data == text.encode()


_MEASURED = """
import json, sys
from pathlib import Path
from transformer_xl.data.building.extraction import extract
from transformer_xl.data.sources.files import Origin, describe
for name in sys.argv[2:]:
    path, settings = Path(name), json.loads(sys.argv[1])
    errors = settings.pop("errors")
    origin = Origin(file=describe(path, name=path.name), **settings)
    extract(origin, encoding="utf-8", errors=errors, raw=False, ends_records=True, target=Path(name + ".out"))
    # Not getrusage, which counts the parent's memory too.
    print(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")))
"""


def write_large(path: Path, *, form: str, copies: int) -> None:
    text = "".join(f"line {number} \u4e2d\u6587\n" for number in range(50_000))
    texts = [text[start : start + 2000] for start in range(0, len(text), 2000)]
    if form == "parquet":
        table = pyarrow.table({"text": texts * copies})
        parquet.write_table(table, path, compression="none", use_dictionary=False)
    elif form == "jsonl":
        path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts) * copies)
    else:
        line = text if form == "lines" else text.replace("\n", " ")
        with gzip.open(path, "wb", compresslevel=1) as file:
            for _ in range(copies):
                file.write(line.encode())


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="Linux says there how much memory was used")
@pytest.mark.parametrize(
    ("form", "settings"),
    [
        ("lines", {"compression": "gzip", "errors": "skip_line"}),
        ("one line", {"compression": "gzip", "errors": "replace"}),
        ("jsonl", {"format": "jsonl", "field": "text", "errors": "strict"}),
        ("parquet", {"format": "parquet", "field": "text", "errors": "strict"}),
    ],
)
def test_memory_does_not_grow_with_the_text(form: str, settings: dict[str, str], tmp_path: Path) -> None:
    for copies in (12, 60):  # 10 MB, 52 MB
        write_large(tmp_path / str(copies), form=form, copies=copies)
    command = [sys.executable, "-c", _MEASURED, json.dumps(settings), str(tmp_path / "12"), str(tmp_path / "60")]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)
    small, large = map(int, done.stdout.split())
    assert (tmp_path / "60.out").stat().st_size > 45_000_000
    assert large - small < 12_000  # kilobytes, of 42 MB more text
