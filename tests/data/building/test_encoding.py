"""Text to symbols and files of ids, in chunks of any size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from transformer_xl.data.building import counting, encoding, text, writing
from transformer_xl.data.building.counting import Counting
from transformer_xl.data.building.encoding import Tokens, encoded
from transformer_xl.data.building.reading import Reading
from transformer_xl.data.building.text import Stretch
from transformer_xl.data.building.writing import Encoder, Written, token_dtype, write_tokens
from transformer_xl.data.tokenizer import EOS, CharVocabulary, SymbolVocabulary, Vocabulary, WordVocabulary
from transformer_xl.errors import UserError

ODD = "one two\r\n\r\nthree\rfour\n\n\u2028five\u00e9 \U0001f600\U0001f600\x1cend\x00\ufeff " + "long" * 30 + "\r"


def stretch_of(path: Path, *documents: bytes) -> Stretch:
    path.write_bytes(b"".join(documents))
    edges = np.cumsum([0, *map(len, documents)])
    rows = np.stack([edges[:-1], edges[1:]], axis=1)
    return Stretch(path=path, rows=rows[rows[:, 0] < rows[:, 1]], source=path)


def counted(folder: Path, reading: Reading, splits: Mapping[str, Sequence[Stretch]]) -> Vocabulary:
    return Counting(reading=reading, folder=folder, announce=print).build_vocabulary(splits)


def write(
    folder: Path,
    reading: Reading,
    vocabulary: Vocabulary,
    stretches: Sequence[Stretch],
    *,
    max_tokens: int | None = None,
) -> tuple[Written, list[int], list[int] | None]:
    """Write a split's files, read them back, and remove them."""
    vocabulary.save(folder / "vocabulary")
    tokens, starts = folder / "train.bin", folder / "train.documents.bin"
    writing._vocabulary.cache_clear()
    encoder = Encoder(reading=reading, vocabulary=folder / "vocabulary", announce=print)
    written = encoder.write(stretches, tokens=tokens, starts=starts, max_tokens=max_tokens)
    ids = np.fromfile(tokens, token_dtype(vocabulary.size)).tolist()
    tokens.unlink()
    if not starts.exists():
        return written, ids, None
    begins = np.fromfile(starts, "<i8").tolist()
    starts.unlink()
    return written, ids, begins


def words_of(stretch: Stretch, vocabulary: WordVocabulary) -> list[str]:
    chunks = encoded(Reading(kind="word"), vocabulary, [stretch])
    return [word for chunk in chunks for word in vocabulary.words(chunk.ids)]


def published_words(path: Path) -> list[str]:
    with path.open(encoding="utf-8") as file:
        return [word for line in file for word in [*line.strip().split(), EOS]]


@pytest.fixture(params=[1, 2, 3, 5, 7, 1 << 20])
def chunk_bytes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(text, "CHUNK_BYTES", request.param)
    return int(request.param)


@given(
    content=st.text("ab \t\r\n\x0b\x0c\x1c\x85\u2028\u00e9\U0001f600"),
    chunk_bytes=st.integers(1, 9),
)
@settings(deadline=None)
def test_words_are_those_of_the_published_code(
    content: str, chunk_bytes: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("words")
    stretch = stretch_of(folder / "a", content.encode())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(text, "CHUNK_BYTES", chunk_bytes)
        vocabulary = counted(folder, Reading(kind="word"), {"train": [stretch]})
        assert isinstance(vocabulary, WordVocabulary)
        assert words_of(stretch, vocabulary) == published_words(stretch.path)


@pytest.mark.parametrize("content", ["\n", "\r", "a", "a\r", "a\r\n", "a\r\n\nb c", " \t ", ODD, ODD + "x", "\r\n" * 9])
@pytest.mark.parametrize("tokenizer", ["byte", "char", "word", "bpe"])
def test_chunks_change_no_token(tokenizer: str, content: str, chunk_bytes: int, tmp_path: Path) -> None:
    reading = Reading(kind=tokenizer, bpe_size=270)
    stretch = stretch_of(tmp_path / "a", content.encode())
    vocabulary = counted(tmp_path, reading, {"train": [stretch], "valid": [], "test": []})
    written, ids, _ = write(tmp_path, reading, vocabulary, [stretch, stretch])
    is_closed = tokenizer != "word" or content.endswith(("\n", "\r"))
    once = vocabulary.encode(content if is_closed else content + "\n").tolist()
    assert ids == once * 2
    assert written == (len(ids), 0, 2 * len(content.encode()), 1)


def test_blank_lines_are_eos(tmp_path: Path) -> None:
    stretch = stretch_of(tmp_path / "a", b" \n = Title = \n \n\nlast")
    vocabulary = WordVocabulary([EOS, "=", "Title", "last", "<unk>"])
    assert words_of(stretch, vocabulary) == [EOS, "=", "Title", "=", EOS, EOS, EOS, "last", EOS]


def test_words_are_ordered_by_frequency_then_first_occurrence(tmp_path: Path) -> None:
    train = stretch_of(tmp_path / "train", b"z b b c\nc c <unk> a <unk> a\nB\n")
    valid = stretch_of(tmp_path / "valid", b"new new new c b\nnew <unk>\n")
    vocabulary = counted(tmp_path, Reading(kind="word"), {"train": [train], "valid": [valid], "test": []})
    assert isinstance(vocabulary, WordVocabulary)
    assert vocabulary.symbols == (EOS, "c", "b", "<unk>", "a", "z", "B")
    written, ids, _ = write(tmp_path, Reading(kind="word"), vocabulary, [valid])
    assert (written.tokens, written.unknown) == (9, 4)
    assert ids == [3, 3, 3, 1, 2, 0, 3, 3, 0]


def test_unk_stands_last_where_training_has_none(tmp_path: Path) -> None:
    train = stretch_of(tmp_path / "train", b"a b a\n<eos>\n")
    vocabulary = counted(tmp_path, Reading(kind="word"), {"train": [train], "valid": [], "test": []})
    assert isinstance(vocabulary, WordVocabulary)
    assert vocabulary.symbols == (EOS, "a", "b", "<unk>")


def test_rare_words_and_those_too_many_become_unk(tmp_path: Path) -> None:
    train = stretch_of(tmp_path / "train", b"a a a b b c c d\n")
    for reading, symbols, ids in (
        (Reading(kind="word", min_count=2), (EOS, "<unk>", "a", "b", "c"), [2, 2, 2, 3, 3, 4, 4, 1, 0]),
        (Reading(kind="word", max_size=2), (EOS, "<unk>", "a", "b"), [2, 2, 2, 3, 3, 1, 1, 1, 0]),
    ):
        vocabulary = counted(tmp_path, reading, {"train": [train]})
        assert isinstance(vocabulary, WordVocabulary)
        assert vocabulary.symbols == symbols
        written, found, _ = write(tmp_path, reading, vocabulary, [train])
        assert (found, written.unknown) == (ids, ids.count(1))


def test_words_and_characters_in_lower_case(tmp_path: Path) -> None:
    train = stretch_of(tmp_path / "train", "A a \u00c9\n".encode())
    for kind in ("word", "char"):
        reading = Reading(kind=kind, lower_case=True)
        vocabulary = counted(tmp_path, reading, {"train": [train]})
        _, ids, _ = write(tmp_path, reading, vocabulary, [train])
        assert vocabulary.decode(ids) == "a a \u00e9\n"
        assert vocabulary.encode("A A \u00c9\n").tolist() == ids


def test_lines_of_words_may_end_without_a_symbol(tmp_path: Path) -> None:
    train = stretch_of(tmp_path / "train", b"a b\nc\n")
    reading = Reading(kind="word", drop_newlines=True)
    vocabulary = counted(tmp_path, reading, {"train": [train]})
    _, ids, _ = write(tmp_path, reading, vocabulary, [train])
    assert vocabulary.decode(ids) == "a b c"


def test_characters_are_counted_over_all_splits(tmp_path: Path) -> None:
    splits = {
        "train": [stretch_of(tmp_path / "train", b"bba")],
        "valid": [stretch_of(tmp_path / "valid", "\U0001f600\u00e9c".encode())],
        "test": [stretch_of(tmp_path / "test", "\u00e9\u00e9\n".encode())],
    }
    vocabulary = counted(tmp_path, Reading(kind="char"), splits)
    assert isinstance(vocabulary, CharVocabulary)
    assert vocabulary.symbols == ("\u00e9", "b", "\n", "a", "c", "\U0001f600")


def test_rare_characters_become_unk(tmp_path: Path) -> None:
    train = stretch_of(tmp_path / "train", b"aaabbc")
    reading = Reading(kind="char", max_size=1)
    vocabulary = counted(tmp_path, reading, {"train": [train]})
    written, ids, _ = write(tmp_path, reading, vocabulary, [train])
    assert vocabulary.decode(ids) == "aaa<unk><unk><unk>"
    assert written.unknown == 3


@pytest.mark.parametrize("tokenizer", ["char", "word"])
@pytest.mark.parametrize(
    ("data", "place", "line"),
    [
        (b"abc\xffdef", 3, 1),
        (b"\xf0\x9f\x98\x80\xf0\x9f", 4, 1),
        (b"abc\n\nfgh\xe4\xb8x", 8, 3),
        (b"\x80", 0, 1),
        (b"a\xed\xa0\x80", 1, 1),
    ],
)
def test_what_is_not_utf8_is_named_with_its_byte_and_line(
    tokenizer: str, data: bytes, place: int, line: int, chunk_bytes: int, tmp_path: Path
) -> None:
    stretch = stretch_of(tmp_path / "odd name", data)
    message = rf"odd name' at byte {place}, .*in line {line}, .*{data[place]:#04x}.*data\.errors.*data\.tokenizer=byte"
    with pytest.raises(UserError, match=message):
        counted(tmp_path, Reading(kind=tokenizer), {"train": [stretch], "valid": [], "test": []})


@pytest.mark.parametrize("data", [b"\x00\xff\xfe\x00", bytes(range(256)) * 3])
def test_bytes_take_anything(data: bytes, chunk_bytes: int, tmp_path: Path) -> None:
    reading = Reading(kind="byte")
    vocabulary = counted(tmp_path, reading, {})
    written, ids, _ = write(tmp_path, reading, vocabulary, [stretch_of(tmp_path / "a", data)])
    assert bytes(ids) == data
    assert written == (len(data), 0, len(data), 1)


@pytest.mark.parametrize(
    ("size", "dtype"), [(1, "uint8"), (256, "uint8"), (257, "uint16"), (65536, "uint16"), (65537, "uint32")]
)
def test_the_smallest_type_that_holds_the_vocabulary(size: int, dtype: str) -> None:
    assert token_dtype(size).name == dtype
    assert np.array(size - 1, token_dtype(size)) == size - 1


def test_many_words_need_a_wider_type(tmp_path: Path) -> None:
    stretch = stretch_of(tmp_path / "a", " ".join(map(str, range(300))).encode())
    vocabulary = counted(tmp_path, Reading(kind="word"), {"train": [stretch]})
    _, ids, _ = write(tmp_path, Reading(kind="word"), vocabulary, [stretch])
    assert ids == [*range(1, 301), 0]


DOCUMENTS = ["a b\nc", "b\n\n", "\u00e9\u00e9 a a a a a a a\n", "\n", "c b a"]


@pytest.mark.parametrize("kind", ["byte", "char", "word", "bpe"])
@pytest.mark.parametrize("drop_newlines", [False, True])
@pytest.mark.parametrize("job_bytes", [8, 1 << 20])
def test_documents_end_with_their_symbol_and_their_beginnings_are_known(
    kind: str,
    drop_newlines: bool,
    job_bytes: int,
    chunk_bytes: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(writing, "JOB_BYTES", job_bytes)
    monkeypatch.setattr(counting, "JOB_BYTES", job_bytes)
    monkeypatch.setattr("transformer_xl.data.building.parallel._cores", lambda: 1)
    if kind == "bpe" and drop_newlines:
        return
    reading = Reading(kind=kind, drop_newlines=drop_newlines, bpe_size=270, are_documents=True)
    stretches = [
        stretch_of(tmp_path / "a", *(document.encode() for document in DOCUMENTS[:2])),
        stretch_of(tmp_path / "b", *(document.encode() for document in DOCUMENTS[2:])),
    ]
    vocabulary = counted(tmp_path, reading, {"train": stretches}).with_end_of_document()
    end = vocabulary.end_of_document
    expected: list[int] = []
    begins = []
    for document in DOCUMENTS:
        begins.append(len(expected))
        if kind == "word":
            document += "" if document.endswith("\n") else "\n"
        elif drop_newlines:
            document = document.replace("\n", "")
        assert end is not None
        expected += [*vocabulary.encode(document).tolist(), end]
    written, ids, found = write(tmp_path, reading, vocabulary, stretches)
    assert ids == expected
    assert found == begins
    assert written.documents == len(DOCUMENTS)
    plain = "".join(DOCUMENTS)
    dropped = drop_newlines and kind in ("byte", "char")
    assert written.text_bytes == len((plain.replace("\n", "") if dropped else plain).encode())


def test_over_several_processes_the_tokens_are_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("transformer_xl.data.building.parallel._cores", lambda: 2)
    stretches = [stretch_of(tmp_path / str(number), *([b"x y\n" * 5, b"z w\nx\n"] * 3)) for number in range(4)]
    reading = Reading(kind="word", are_documents=True)
    results = []
    for job_bytes in (30, 1 << 20):
        monkeypatch.setattr(writing, "JOB_BYTES", job_bytes)
        monkeypatch.setattr(counting, "JOB_BYTES", job_bytes)
        vocabulary = counted(tmp_path, reading, {"train": stretches}).with_end_of_document()
        results.append((vocabulary.to_json(), write(tmp_path, reading, vocabulary, stretches)))
    assert results[0] == results[1]


def test_a_split_ends_where_it_shall(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoding, "_EVAL_CHUNK_BYTES", 12)
    reading = Reading(kind="word")
    stretch = stretch_of(tmp_path / "a", b"aa bb cc\n" * 20)
    vocabulary = counted(tmp_path, reading, {"train": [stretch]})
    for limit in (2, 5, 7, 30, 79, 80, 1000):
        written, ids, _ = write(tmp_path, reading, vocabulary, [stretch], max_tokens=limit)
        assert min(limit // 2, 80) <= written.tokens == len(ids) <= min(limit, 80)
        assert written.text_bytes == written.tokens * 9 // 4
        assert written.tokens % 4 == 0 or limit < 8, "whole lines"


def test_ids_are_cut_only_where_nothing_would_be_left(tmp_path: Path) -> None:
    def chunk(count: int) -> Tokens:
        return Tokens(
            ids=np.arange(count) % 9, starts=np.zeros(1, np.int64), begins=True, unknown=0, ends=True, text_bytes=90
        )

    for number, (limit, kept) in enumerate(((10, 9), (12, 9), (18, 18), (4, 4))):
        written = write_tokens(
            iter([chunk(9), chunk(9), chunk(9)]),
            vocabulary=SymbolVocabulary(9),
            tokens=tmp_path / f"{number}",
            starts=tmp_path / f"{number}s",
            are_documents=False,
            max_tokens=limit,
        )
        assert (written.tokens, written.text_bytes) == (kept, kept * 10)


def test_a_source_that_went_away_is_named(tmp_path: Path) -> None:
    gone = stretch_of(tmp_path / "gone", b"abc")
    gone.path.unlink()
    with pytest.raises(UserError, match=r"gone' cannot be read: No such file"):
        counted(tmp_path, Reading(kind="char"), {"train": [gone]})
