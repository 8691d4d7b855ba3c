"""Compressed files: whole, in several parts, damaged."""

import gzip
import lzma
import os
from pathlib import Path

import pytest

from tests.data.building.written import PACKERS, Content, extracted, write
from transformer_xl.data.building import unpacking
from transformer_xl.errors import UserError

TEXT = "".join(f"line {number} \u4e2d\u6587\r\n" for number in range(3000)).encode()
SUFFIXES = ("gzip", "zstd", "xz")


@pytest.mark.parametrize("raw", [True, False])
@pytest.mark.parametrize("compression", SUFFIXES)
def test_compressed_text(compression: str, raw: bool, tmp_path: Path) -> None:
    path = write(tmp_path / "a", PACKERS[compression](TEXT))
    assert extracted(path, of={"compression": compression}, raw=raw) == Content(TEXT, None, 0, 0)


@pytest.mark.parametrize("size", [1, 7, 1 << 20])
@pytest.mark.parametrize("compression", SUFFIXES)
def test_files_of_several_members_or_frames(
    compression: str, size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unpacking, "CHUNK_BYTES", size)
    pack = PACKERS[compression]
    data = pack(b"one\n") + pack(b"") + pack(b"two\n" * 20) + pack(b"three")
    path = write(tmp_path / "a", data)
    assert extracted(path, of={"compression": compression}).data == b"one\n" + b"two\n" * 20 + b"three"


@pytest.mark.parametrize("compression", SUFFIXES)
def test_an_empty_text_that_is_compressed(compression: str, tmp_path: Path) -> None:
    path = write(tmp_path / "a", PACKERS[compression](b""))
    assert extracted(path, of={"compression": compression}) == Content(b"", None, 0, 0)


@pytest.mark.parametrize("compression", ["gzip", "xz"])
def test_zeros_behind_the_end_are_padding(compression: str, tmp_path: Path) -> None:
    pack = PACKERS[compression]
    path = write(tmp_path / "a", pack(b"one") + bytes(8) + pack(b"two") + bytes(1024))
    assert extracted(path, of={"compression": compression}).data == b"onetwo"


@pytest.mark.parametrize("raw", [True, False])
@pytest.mark.parametrize("compression", SUFFIXES)
@pytest.mark.parametrize("kept", [0, 1, 10, -1, "half", "second"])
def test_a_file_that_is_cut_off_is_refused(compression: str, kept: int | str, raw: bool, tmp_path: Path) -> None:
    packed = PACKERS[compression](TEXT)
    data = {"half": packed[: len(packed) // 2], "second": packed + packed[: len(packed) // 2]}.get(str(kept))
    path = write(tmp_path / "a", packed[:kept] if data is None and isinstance(kept, int) else data or b"")
    with pytest.raises(UserError, match=rf"a' (cannot be read as|is empty, and no) {compression}") as refused:
        extracted(path, of={"compression": compression}, raw=raw)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("compression", SUFFIXES)
def test_a_file_that_is_damaged_is_refused(compression: str, tmp_path: Path) -> None:
    # pyarrow writes frames of zstd without a checksum, so that only what cannot be unpacked is found there.
    packed = bytearray(PACKERS[compression](os.urandom(2000) if compression != "zstd" else TEXT))
    packed[len(packed) // 2 if compression != "zstd" else 0] ^= 0x40
    for data in (bytes(packed), PACKERS[compression](TEXT) + b"garbage", TEXT):
        path = write(tmp_path / "a", data)
        with pytest.raises(UserError, match=rf"a' cannot be read as {compression}; it is damaged or cut off: ."):
            extracted(path, of={"compression": compression}, raw=True)


def test_an_xz_that_asks_for_too_much_memory_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unpacking, "_XZ_MEMORY_BYTES", 1 << 20)
    path = write(tmp_path / "a", lzma.compress(TEXT, preset=9))
    with pytest.raises(UserError, match="Memory usage limit"):
        extracted(path, of={"compression": "xz"})


def test_what_unpacks_to_more_than_it_may_is_refused_early(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unpacking, "CHUNK_BYTES", 1000)
    path = write(tmp_path / "bomb", gzip.compress(bytes(10_000_000)))
    of = {"compression": "gzip", "unpacked_limit": 5000}
    with pytest.raises(UserError, match=r"bomb' holds more than 5,000 bytes"):
        extracted(path, of=of, raw=True)
    assert (tmp_path / "bomb.extracted").stat().st_size <= 5000
    assert len(extracted(path, of=of | {"unpacked_limit": 10_000_000}, raw=True).data) == 10_000_000


def test_a_file_that_is_gone_is_named(tmp_path: Path) -> None:
    from tests.data.building.written import origin_of
    from transformer_xl.data.building.extraction import extract

    path = write(tmp_path / "a.gz", gzip.compress(TEXT))
    origin = origin_of(path, compression="gzip")
    path.unlink()
    with pytest.raises(UserError, match=r"a\.gz' cannot be read: No such file"):
        extract(origin, encoding="utf-8", errors="strict", raw=True, ends_records=False, target=tmp_path / "b")
