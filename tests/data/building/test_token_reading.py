import io
import itertools
import json
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from transformer_xl.data.building import token_reading
from transformer_xl.data.building.token_reading import TokenChunk, read_tokens
from transformer_xl.data.sources.files import Origin, describe
from transformer_xl.errors import UserError

FORMS: dict[str, Any] = {".npy": "npy", ".bin": "raw", ".jsonl": "json_ids", ".txt": "ids"}
BIG = (1 << 63) - 1


def count_tokens(source: Origin) -> int:
    return sum(len(chunk.ids) for chunk in read(source))


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_reading, "CHUNK_IDS", 3)
    monkeypatch.setattr(token_reading, "CHUNK_BYTES", 5)


def origin(path: Path, *, dtype: str | None = None) -> Origin:
    return Origin(file=describe(path, name=path.name), format=FORMS[path.suffix], dtype=dtype)


def written(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


def read(source: Origin, *, vocab_size: int = 1000, documents: Any = "record") -> list[TokenChunk]:
    return list(read_tokens(source, vocab_size=vocab_size, documents=documents))


def flat(chunks: list[TokenChunk]) -> list[int]:
    return [token for chunk in chunks for token in chunk.ids.tolist()]


def cut(chunks: list[TokenChunk]) -> list[list[int]]:
    """The documents that chunks tell apart."""
    documents: list[list[int]] = []
    for chunk in chunks:
        edges = [0, *chunk.starts.tolist(), len(chunk.ids)]
        if edges[1] > 0:
            documents[-1] += chunk.ids[: edges[1]].tolist()
        documents += [chunk.ids[start:stop].tolist() for start, stop in itertools.pairwise(edges[1:])]
    return documents


@pytest.mark.parametrize("dtype", ["|u1", "|i1", "<u2", ">u2", "<i4", ">i4", "<u8", ">i8"])
@pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0)])
def test_an_array_of_any_integers_and_byte_order(
    tmp_path: Path, small_chunks: None, dtype: str, version: tuple[int, int]
) -> None:
    buffer = io.BytesIO()
    np.lib.format.write_array(buffer, np.array([5, 0, 7, 127, 1, 2, 3], dtype), version=version)
    source = origin(written(tmp_path / "a.npy", buffer.getvalue()))
    chunks = read(source)
    assert [chunk.ids.tolist() for chunk in chunks] == [[5, 0, 7], [127, 1, 2], [3]]
    assert all(chunk.ids.dtype == np.int64 for chunk in chunks)
    assert count_tokens(source) == 7


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "uint32", "int32", "int64"])
def test_raw_numbers_are_little_endian(tmp_path: Path, small_chunks: None, dtype: str) -> None:
    data = b"".join(number.to_bytes(np.dtype(dtype).itemsize, "little") for number in (5, 200, 0, 7))
    source = origin(written(tmp_path / "a.bin", data), dtype=dtype)
    assert flat(read(source)) == [5, 200, 0, 7]
    assert count_tokens(source) == 4


def test_numbers_between_blanks(tmp_path: Path, small_chunks: None) -> None:
    source = origin(written(tmp_path / "a.txt", b"\xef\xbb\xbf 5 123\t45\r\n\n007\x0b8\x0c999"))
    assert flat(read(source)) == [5, 123, 45, 7, 8, 999]
    assert count_tokens(source) == 6


def test_a_list_a_line_is_a_document(tmp_path: Path, small_chunks: None) -> None:
    source = origin(written(tmp_path / "a.jsonl", b"\xef\xbb\xbf[5, 123,45]\r\n\n \t\n[ 1 ]\n[]\n[2,3,4,5,6,7 , 8]"))
    assert cut(read(source)) == [[5, 123, 45], [1], [2, 3, 4, 5, 6, 7, 8]]
    assert cut(read(source, documents="file")) == [[5, 123, 45, 1, 2, 3, 4, 5, 6, 7, 8]]
    assert all(not len(chunk.starts) for chunk in read(source, documents="none"))
    assert count_tokens(source) == 11


@pytest.mark.parametrize("documents", ["file", "record"])
@pytest.mark.parametrize("name", ["a.npy", "a.bin", "a.txt"])
def test_another_file_is_one_document(tmp_path: Path, small_chunks: None, name: str, documents: str) -> None:
    ids = np.arange(7, dtype=np.uint8)
    (tmp_path / "a.txt").write_text(" ".join(map(str, ids)))
    np.save(tmp_path / "a.npy", ids)
    ids.tofile(tmp_path / "a.bin")
    chunks = read(origin(tmp_path / name, dtype="uint8"), documents=documents)
    assert len(chunks) > 1
    assert cut(chunks) == [ids.tolist()]


@pytest.mark.parametrize("name", ["a.npy", "a.bin", "a.txt", "a.jsonl"])
def test_no_ids_are_no_chunk_and_no_document(tmp_path: Path, name: str) -> None:
    np.save(tmp_path / "a.npy", np.zeros(0, np.uint8))
    for empty in ("a.bin", "a.txt", "a.jsonl"):
        (tmp_path / empty).write_bytes(b"" if empty == "a.bin" else b" \n")
    assert read(origin(tmp_path / name, dtype="uint8")) == []
    assert count_tokens(origin(tmp_path / name, dtype="uint8")) == 0


@given(
    documents=st.lists(st.lists(st.integers(0, 999), min_size=1)),
    blank=st.sampled_from([" ", "\n", "\r\n", "   "]),
    size=st.integers(1, 50),
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_all_forms_give_the_ids_wherever_chunks_end(
    tmp_path: Path, documents: list[list[int]], blank: str, size: int
) -> None:
    ids = np.array([token for document in documents for token in document], np.uint16)
    np.save(tmp_path / "a.npy", ids)
    ids.tofile(tmp_path / "a.bin")
    (tmp_path / "a.txt").write_bytes(blank.join(map(str, ids)).encode())
    (tmp_path / "a.jsonl").write_bytes(b"".join(json.dumps(document).encode() + b"\n" for document in documents))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(token_reading, "CHUNK_IDS", size)
        patch.setattr(token_reading, "CHUNK_BYTES", size)
        assert all(flat(read(origin(tmp_path / f"a{form}", dtype="uint16"))) == ids.tolist() for form in FORMS)
        assert cut(read(origin(tmp_path / "a.jsonl"))) == documents


@pytest.mark.parametrize(("token", "said"), [(1000, "1000"), (-1, "-1"), (BIG, str(BIG))])
@pytest.mark.parametrize("name", ["a.npy", "a.bin", "a.txt", "a.jsonl"])
def test_an_id_outside_the_vocabulary_is_named_with_its_place(
    tmp_path: Path, small_chunks: None, name: str, token: int, said: str
) -> None:
    ids = np.array([1, 2, 3, 999, token, 5])
    np.save(tmp_path / "a.npy", ids)
    ids.tofile(tmp_path / "a.bin")
    (tmp_path / "a.txt").write_text(" ".join(map(str, ids)))
    (tmp_path / "a.jsonl").write_text(f"[1, 2, 3]\n[999, {token}, 5]")
    line = " on line 2" if name == "a.jsonl" else ""
    with pytest.raises(UserError) as error:
        read(origin(tmp_path / name, dtype="int64"))
    assert str(error.value) == (
        f"{str(tmp_path / name)!r} holds id {said} as token 4 (counted from 0){line}, and ids must be at least 0 and "
        "below 1000, the size that data.vocab_size or data.vocabulary says"
    )


def test_a_number_above_all_signed_ones_is_not_taken_for_a_negative_one(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.array([1, 2**64 - 1], np.uint64))
    with pytest.raises(UserError, match="holds id 18446744073709551615 as token 1 "):
        read(origin(tmp_path / "a.npy"))


@pytest.mark.parametrize(
    "word",
    [
        "1.0",
        "1e2",
        "true",
        "null",
        "NaN",
        "x",
        '"3"',
        "+1",
        "0x1",
        "1_0",
        "\u0661",
        "1\u00a02",
        "\0",
        "--1",
        "9" * 5000,
    ],
)
@pytest.mark.parametrize("name", ["a.txt", "a.jsonl"])
def test_what_is_no_integer_is_named_with_its_place(tmp_path: Path, name: str, word: str) -> None:
    text = f"3 4\n5 {word} 6" if name == "a.txt" else f"[3, 4]\n[5, {word}, 6]"
    (tmp_path / name).write_text(text, encoding="utf-8")
    place = "as token 3 (counted from 0)" + (" on line 2" if name == "a.jsonl" else "")
    with pytest.raises(UserError) as error:
        read(origin(tmp_path / name))
    assert place in str(error.value)
    assert str(error.value).startswith(f"{str(tmp_path / name)!r} holds ")
    assert len(str(error.value)) < 400


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("[[1, 2], [3]]", r"holds '\[1' as token 1 .* on line 2"),
        ("[1, [2]]", r"holds '\[2\]' as token 2 .* on line 2"),
        ("[1,,2]", r"holds '' as token 2 .* on line 2"),
        ("[1,2,]", r"holds '' as token 3 .* on line 2"),
        ("[,]", r"holds '' as token 1 .* on line 2"),
        ("[1 2]", r"holds '1 2' as token 1 .* on line 2"),
        ("[1],[2]", r"holds '1\]' as token 1 .* on line 2"),
        ("[1]]", r"holds '1\]' as token 1 .* on line 2"),
        ("[1, 2", "does not end with ] on line 2"),
        ("[", "does not end with ] on line 2"),
        ("]", "begins with ']' on line 2"),
        ("7", "begins with '7' on line 2"),
        ('{"ids": [1, 2]}', """begins with '{"ids": .* on line 2, and each line must be a list of integers"""),
    ],
)
@pytest.mark.parametrize("chunk_bytes", [1, 4, 1000])
def test_a_line_that_is_no_list_of_integers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str, said: str, chunk_bytes: int
) -> None:
    monkeypatch.setattr(token_reading, "CHUNK_BYTES", chunk_bytes)
    path = written(tmp_path / "a.jsonl", f"[0]\n{line}\n[4]\n".encode())
    # How much of the line is quoted depends on how much of it was read.
    with pytest.raises(UserError, match=said if chunk_bytes == 1000 else " on line 2"):
        read(origin(path))


@pytest.mark.parametrize("name", ["a.txt", "a.jsonl"])
def test_what_has_no_end_is_not_collected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(token_reading, "CHUNK_BYTES", 1000)
    path = written(tmp_path / name, b"[1," * (name == "a.jsonl") + b"0" * 100_000)
    with pytest.raises(UserError, match=r"holds '0{80}\.\.\.'"):
        read(origin(path))


@pytest.mark.parametrize(
    "array",
    [
        np.array([1.0, 2.0]),
        np.array([True, False]),
        np.array([[1, 2], [3, 4]]),
        np.array(3),
        np.array(["1", "2"]),
        np.array([1, "x", None], object),
        np.array([(1, 2)], [("a", "u1"), ("b", "u1")]),
    ],
    ids=["float", "bool", "rows", "scalar", "text", "pickle", "fields"],
)
def test_an_array_of_something_else_is_refused(tmp_path: Path, array: np.ndarray) -> None:
    np.save(tmp_path / "a.npy", array, allow_pickle=True)
    with pytest.raises(UserError, match=r"a\.npy' holds an array described as .*, and must hold integers in one dimen"):
        read(origin(tmp_path / "a.npy"))
    with pytest.raises(UserError, match="must hold integers"):
        count_tokens(origin(tmp_path / "a.npy"))


def test_an_array_that_is_cut_short(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.arange(5))
    whole = (tmp_path / "a.npy").read_bytes()
    (tmp_path / "a.npy").write_bytes(whole[:-1])
    with pytest.raises(UserError, match=r"cut short: it has 167 bytes, and must have 168"):
        count_tokens(origin(tmp_path / "a.npy"))
    source = origin(written(tmp_path / "a.npy", whole))
    (tmp_path / "a.npy").write_bytes(whole[:-1])
    with pytest.raises(UserError, match=r"a\.npy' became shorter while it was read"):
        read(source)


@pytest.mark.parametrize("data", [b"", b"PK\x03\x04", b"\x93NUMPY", b"\x93NUMPY\x02\x00\xff\xff\xff\xff", b"1 2 3"])
def test_what_is_no_array_at_all(tmp_path: Path, data: bytes) -> None:
    with pytest.raises(UserError, match=r"a\.npy' (is no \.npy file|holds an array described as '')"):
        read(origin(written(tmp_path / "a.npy", data)))


def test_a_file_that_went_away(tmp_path: Path) -> None:
    source = origin(written(tmp_path / "a.txt", b"1"))
    source.file.path.unlink()
    for use in (read, count_tokens):
        with pytest.raises(UserError, match=r"data\.path names '.*a\.txt', which cannot be read: No such file"):
            use(source)  # type: ignore[operator]


@pytest.mark.parametrize("name", ["a.npy", "a.bin", "a.txt", "a.jsonl"])
def test_memory_does_not_grow_with_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(token_reading, "CHUNK_IDS", 1000)
    monkeypatch.setattr(token_reading, "CHUNK_BYTES", 4000)

    def peak(ids: np.ndarray) -> int:
        np.save(tmp_path / "a.npy", ids)
        ids.tofile(tmp_path / "a.bin")
        (tmp_path / "a.txt").write_text(" ".join(map(str, ids)))
        (tmp_path / "a.jsonl").write_text(json.dumps(ids.tolist()))  # one line
        source = origin(tmp_path / name, dtype="uint16")
        tracemalloc.start()
        for _ in read_tokens(source, vocab_size=65_536, documents="record"):
            pass
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return most

    ids = np.random.default_rng(1).integers(0, 65_536, 80_000).astype(np.uint16)
    peak(ids[:1000])
    assert peak(ids) < 1.1 * peak(ids[:20_000])
