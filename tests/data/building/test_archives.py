"""Members of zip and tar archives, honest and hostile."""

import io
import stat
import tarfile
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.data.building.written import PACKERS, Content, content, extracted, origin_of, write
from transformer_xl.data.building import archives, extraction, unpacking
from transformer_xl.data.building.extraction import Extracted, extract_many
from transformer_xl.errors import UserError

TEXT = "".join(f"line {number} \u4e2d\u6587\r\n" for number in range(2000)).encode()


def zip_of(members: Mapping[str, bytes], *, method: int = zipfile.ZIP_DEFLATED) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", method) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return file.getvalue()


def tar_of(members: Mapping[str, bytes], *, format: int = tarfile.PAX_FORMAT) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=format) as archive:
        for name, data in members.items():
            header = tarfile.TarInfo(name)
            header.size = len(data)
            archive.addfile(header, io.BytesIO(data))
    return file.getvalue()


def archive(kind: str, members: Mapping[str, bytes]) -> bytes:
    if kind == "zip":
        return zip_of(members)
    if kind == "stored":
        return zip_of(members, method=zipfile.ZIP_STORED)
    packed = tar_of(members)
    return PACKERS[kind](packed) if kind != "tar" else packed


KINDS = ("zip", "stored", "tar", "gzip", "bzip2", "xz", "zstd")


@pytest.mark.parametrize("size", [100, 1 << 20])
@pytest.mark.parametrize("kind", KINDS)
def test_a_member_of_each_kind_of_archive(
    kind: str, size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unpacking, "CHUNK_BYTES", size)
    path = write(tmp_path / "a", archive(kind, {"x/before": b"1" * 5000, "x/it": TEXT, "x/after": b"2"}))
    for raw in (True, False):
        assert extracted(path, of={"member": "x/it"}, raw=raw) == Content(TEXT, None, 0, 0)
    of = {"member": "x/it", "unpacked_limit": len(TEXT)}
    assert extracted(path, of=of).data == TEXT


@pytest.mark.parametrize("kind", ["zip", "gzip"])
def test_members_are_decoded_and_may_hold_records(kind: str, tmp_path: Path) -> None:
    members = {"novel": "\u4e2d\u6587\n".encode("gb18030"), "lines": b'{"text": "a"}\n{"text": "b"}\n'}
    path = write(tmp_path / "a", archive(kind, members))
    assert extracted(path, of={"member": "novel"}, encoding="gb18030").data == "\u4e2d\u6587\n".encode()
    of = {"member": "lines", "format": "jsonl", "field": "text"}
    assert extracted(path, of=of, ends_records=True) == Content(b"a\nb\n", [b"a\n", b"b\n"], 0, 0)
    with pytest.raises(UserError, match=r"'novel' in .*a' has the byte 0xd6 at offset 0 "):
        extracted(path, of={"member": "novel"})


def test_a_tar_whose_names_begin_with_a_dot(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tgz", PACKERS["gzip"](tar_of({"./x/it": TEXT})))
    assert extracted(path, of={"member": "x/it"}).data == TEXT


def test_many_members_take_one_pass(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    passes: list[Path] = []
    read = extraction.read_members

    def counted(path: Path, limits: Mapping[str, int | None]) -> Iterator[object]:
        passes.append(path)
        return read(path, limits)

    monkeypatch.setattr(extraction, "read_members", counted)
    members = {f"part-{number}": f"{number}\n".encode() * 50 for number in range(20)}
    first = write(tmp_path / "a.tgz", PACKERS["gzip"](tar_of(members)))
    second = write(tmp_path / "b.zip", zip_of(members))
    plain = write(tmp_path / "c.txt", b"plain\n")
    order = ["part-7", "part-3", "part-19", "part-7"]
    origins = [origin_of(path, member=name) for name in order for path in (first, second)]
    origins.insert(3, origin_of(plain))
    targets = [tmp_path / f"out-{number}" for number in range(len(origins))]
    results = extract_many(origins, encoding="utf-8", errors="strict", raw=False, ends_records=False, targets=targets)
    assert results.pop(3) == Extracted(plain, 6, None, 0, 0)
    assert [content(result).data for result in results] == [members[name] for name in order for _ in range(2)]
    assert passes == [first, second]
    # What comes twice is one file.
    assert results[6:] == results[:2]
    assert sorted(path.name for path in tmp_path.glob("out-*")) == [f"out-{number}" for number in (0, 1, 2, 4, 5, 6)]


@pytest.mark.parametrize("name", ["/etc/passwd", "../up", "x/../../up", "..", "\\\\host\\x", "C:\\x", "x\\..\\..\\up"])
@pytest.mark.parametrize("kind", ["zip", "tar", "gzip"])
@pytest.mark.parametrize("hostile_first", [True, False])
def test_an_archive_with_a_name_that_leads_out_is_refused(
    hostile_first: bool, kind: str, name: str, tmp_path: Path
) -> None:
    members = {name: b"evil", "it": TEXT} if hostile_first else {"it": TEXT, name: b"evil"}
    path = write(tmp_path / "a", archive(kind, members))
    with pytest.raises(UserError, match="leads out of its folder") as refused:
        extracted(path, of={"member": "it"})
    assert repr(str(path)) in str(refused.value)
    assert repr(name) in str(refused.value)


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.DIRTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE])
def test_a_tar_member_that_is_no_file_is_refused_if_it_is_wanted(kind: bytes, tmp_path: Path) -> None:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as tar:
        link = tarfile.TarInfo("it")
        link.type, link.linkname = kind, "/etc/passwd"
        tar.addfile(link)
        other = tarfile.TarInfo("other")
        other.size = 4
        tar.addfile(other, io.BytesIO(b"text"))
    path = write(tmp_path / "a.tar", file.getvalue())
    with pytest.raises(UserError, match=r"'it' in .*a\.tar' is no regular file"):
        extracted(path, of={"member": "it"})
    assert extracted(path, of={"member": "other"}).data == b"text"


def test_a_zip_member_that_is_a_link_is_refused(tmp_path: Path) -> None:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        link = zipfile.ZipInfo("it")
        link.external_attr = (stat.S_IFLNK | 0o777) << 16
        archive.writestr(link, "/etc/passwd")
    path = write(tmp_path / "a.zip", file.getvalue())
    with pytest.raises(UserError, match=r"'it' in .*a\.zip' is no regular file"):
        extracted(path, of={"member": "it"})


def test_an_encrypted_member_is_refused(tmp_path: Path) -> None:
    data = bytearray(zip_of({"it": TEXT}))
    data[6] |= 1  # flags of the member's own header
    data[data.index(b"PK\x01\x02") + 8] |= 1  # and of the directory's
    with pytest.raises(UserError, match=r"'it' in .*a\.zip' is encrypted"):
        extracted(write(tmp_path / "a.zip", bytes(data)), of={"member": "it"})


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_methods_whose_output_cannot_be_bounded_are_refused(method: int, tmp_path: Path) -> None:
    path = write(tmp_path / "a.zip", zip_of({"it": TEXT}, method=method))
    with pytest.raises(UserError, match=rf"'it' in .* is packed with method {method}"):
        extracted(path, of={"member": "it"})


@pytest.mark.parametrize("kind", KINDS)
def test_a_bomb_is_stopped(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unpacking, "CHUNK_BYTES", 1000)
    path = write(tmp_path / "a", archive(kind, {"it": bytes(1_000_000)}))
    with pytest.raises(UserError, match=r"'it' in .*a' holds more than 5,000 bytes"):
        extracted(path, of={"member": "it", "unpacked_limit": 5000}, raw=True)
    assert (tmp_path / "a.extracted").stat().st_size <= 5000


def test_a_zip_that_lies_about_its_size_is_refused(tmp_path: Path) -> None:
    data = bytearray(zip_of({"it": bytes(1_000_000)}))
    directory = data.index(b"PK\x01\x02")
    data[directory + 24 : directory + 28] = (100).to_bytes(4, "little")
    with pytest.raises(UserError, match=r"'it' in .* is damaged: Bad CRC"):
        extracted(write(tmp_path / "a.zip", bytes(data)), of={"member": "it"}, raw=True)


def test_a_flipped_bit_in_a_zip_is_found(tmp_path: Path) -> None:
    data = bytearray(zip_of({"it": TEXT}, method=zipfile.ZIP_STORED))
    data[1000] ^= 1
    with pytest.raises(UserError, match=r"'it' in .*a\.zip' is damaged: Bad CRC"):
        extracted(write(tmp_path / "a.zip", bytes(data)), of={"member": "it"}, raw=True)


def test_a_flipped_bit_in_a_packed_tar_is_found_behind_the_last_member(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (unpacking, archives):
        monkeypatch.setattr(module, "CHUNK_BYTES", 512)
    packed = bytearray(PACKERS["gzip"](tar_of({"it": TEXT})))
    packed[-6] ^= 1  # of the checksum
    with pytest.raises(UserError, match=r"a\.tgz' cannot be read as gzip; it is damaged.*CRC"):
        extracted(write(tmp_path / "a.tgz", bytes(packed)), of={"member": "it"}, raw=True)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("share", [0.0, 0.01, 0.5, 0.8])
def test_an_archive_that_is_cut_off_is_refused(kind: str, share: float, tmp_path: Path) -> None:
    whole = archive(kind, {"other": b"x" * 10, "it": TEXT})
    path = write(tmp_path / "a", whole[: int(share * len(whole))])
    with pytest.raises(UserError, match=r"a'.*(damaged|cut off|empty)") as refused:
        extracted(path, of={"member": "it"}, raw=True)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("data", [b"no archive at all\n" * 100, b"PK and no zip\n" * 100, bytes(2000)])
def test_what_is_no_archive_is_refused(data: bytes, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"a'.*(damaged|cut off)"):
        extracted(write(tmp_path / "a", data), of={"member": "it"})


@pytest.mark.parametrize("kind", ["zip", "tar", "gzip"])
def test_a_member_that_is_not_there_is_named(kind: str, tmp_path: Path) -> None:
    path = write(tmp_path / "a", archive(kind, {"other": TEXT}))
    with pytest.raises(UserError, match=r"a' does not hold it, which it should"):
        extracted(path, of={"member": "it"})


def test_a_member_that_is_there_twice_is_refused(tmp_path: Path) -> None:
    both = tar_of({"it": b"one", "x": b""})[: 3 * 512] + tar_of({"it": b"two"})
    with pytest.raises(UserError, match="holds 'it' twice"):
        extracted(write(tmp_path / "a.tar", both), of={"member": "it"})


def test_a_header_that_would_fill_memory_is_refused(tmp_path: Path) -> None:
    tar = tar_of({"n" * (2 << 20): b"x", "it": TEXT}, format=tarfile.GNU_FORMAT)
    with pytest.raises(UserError, match=r"header of 2,097,153 bytes"):
        extracted(write(tmp_path / "a.tar", tar), of={"member": "it"})
    long = tar_of({"n" * 5000: b"x", "it": TEXT})
    assert extracted(write(tmp_path / "b.tar", long), of={"member": "it"}).data == TEXT
