from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from transformer_xl.data.building import pieces
from transformer_xl.data.building.counting import build_vocabulary
from transformer_xl.data.building.encoding import token_dtype, write_tokens
from transformer_xl.data.building.pieces import read_text, read_words
from transformer_xl.data.building.reading import Reading
from transformer_xl.data.sources.files import Piece
from transformer_xl.data.tokenizer import EOS, CharVocabulary, Vocabulary, WordVocabulary
from transformer_xl.errors import UserError

ODD = "one two\r\n\r\nthree\rfour\n\n\u2028five\u00e9 \U0001f600\U0001f600\x1cend\x00\ufeff " + "long" * 30 + "\r"


def piece(path: Path, data: bytes, *, start: int = 0) -> Piece:
    path.write_bytes(data)
    return Piece(path, start, len(data))


def published_words(path: Path) -> list[str]:
    with path.open(encoding="utf-8") as file:
        return [word for line in file for word in [*line.strip().split(), EOS]]


@pytest.fixture(params=[1, 2, 3, 5, 7, 1 << 20])
def chunk_bytes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(pieces, "CHUNK_BYTES", request.param)
    return int(request.param)


@pytest.mark.parametrize(
    "text", ["", "\n", "\r", "a", "a\r", "a\r\n", "a\r\n\nb c", " \t ", ODD, ODD + "x", "\r\n" * 9]
)
def test_chunks_change_no_character_and_no_word(text: str, chunk_bytes: int, tmp_path: Path) -> None:
    source = piece(tmp_path / "a", text.encode())
    assert "".join(read_text(source)) == text
    assert [word for words in read_words(source) for word in words] == published_words(source.path)


@given(text=st.text("ab \t\r\n\x0b\x0c\x1c\x85\u2028\u00e9\U0001f600"), chunk_bytes=st.integers(1, 9))
def test_words_are_those_of_the_published_code(
    text: str, chunk_bytes: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    source = piece(tmp_path_factory.mktemp("words") / "a", text.encode())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pieces, "CHUNK_BYTES", chunk_bytes)
        assert [word for words in read_words(source) for word in words] == published_words(source.path)


@pytest.mark.parametrize("tokenizer", ["byte", "char", "word"])
def test_chunks_change_no_token(tokenizer: str, chunk_bytes: int, tmp_path: Path) -> None:
    source = piece(tmp_path / "a", ODD.encode())
    vocabulary = build_vocabulary(Reading(kind=tokenizer), {"train": [source], "valid": [], "test": []})
    written = write_tokens(Reading(kind=vocabulary.kind), vocabulary, [source, source], tmp_path / "ids")
    ids = np.fromfile(tmp_path / "ids", token_dtype(vocabulary.size))
    once = vocabulary.encode(ODD)  # ends in a line end, so that `encode` too closes its last line
    np.testing.assert_array_equal(ids, np.concatenate([once, once]))
    assert written == (len(ids), 0)


def test_blank_lines_are_eos(tmp_path: Path) -> None:
    source = piece(tmp_path / "a", b" \n = Title = \n \n\nlast")
    words = [word for words in read_words(source) for word in words]
    assert words == [EOS, "=", "Title", "=", EOS, EOS, EOS, "last", EOS]


def test_words_are_ordered_by_frequency_then_first_occurrence(tmp_path: Path) -> None:
    train = piece(tmp_path / "train", b"z b b c\nc c <unk> a <unk> a\nB\n")
    valid = piece(tmp_path / "valid", b"new new new c b\nnew <unk>\n")
    splits = {"train": [train], "valid": [valid], "test": []}
    vocabulary = build_vocabulary(Reading(kind="word"), splits)
    assert isinstance(vocabulary, WordVocabulary)
    assert vocabulary.symbols == (EOS, "c", "b", "<unk>", "a", "z", "B")
    written = write_tokens(Reading(kind=vocabulary.kind), vocabulary, [valid], tmp_path / "ids")
    assert written == (9, 4)
    assert np.fromfile(tmp_path / "ids", np.uint8).tolist() == [3, 3, 3, 1, 2, 0, 3, 3, 0]


def test_unk_stands_last_where_training_has_none(tmp_path: Path) -> None:
    train = piece(tmp_path / "train", b"a b a\n<eos>\n")
    vocabulary = build_vocabulary(Reading(kind="word"), {"train": [train], "valid": [], "test": []})
    assert isinstance(vocabulary, WordVocabulary)
    assert vocabulary.symbols == (EOS, "a", "b", "<unk>")


def test_characters_are_counted_over_all_splits(tmp_path: Path) -> None:
    splits = {
        "train": [piece(tmp_path / "train", b"bba")],
        "valid": [piece(tmp_path / "valid", "\U0001f600\u00e9c".encode())],
        "test": [piece(tmp_path / "test", "\u00e9\u00e9\n".encode())],
    }
    vocabulary = build_vocabulary(Reading(kind="char"), splits)
    assert isinstance(vocabulary, CharVocabulary)
    assert vocabulary.symbols == ("\u00e9", "b", "\n", "a", "c", "\U0001f600")


@pytest.mark.parametrize("tokenizer", ["char", "word"])
@pytest.mark.parametrize(
    ("data", "place"),
    [
        (b"abc\xffdef", 3),
        (b"\xf0\x9f\x98\x80\xf0\x9f", 4),
        (b"abcdefgh\xe4\xb8x", 8),
        (b"\x80", 0),
        (b"a\xed\xa0\x80", 1),
    ],
)
def test_what_is_not_utf8_is_named_with_its_byte(
    tokenizer: str, data: bytes, place: int, chunk_bytes: int, tmp_path: Path
) -> None:
    source = piece(tmp_path / "odd name", data)
    with pytest.raises(UserError, match=rf"odd name' is not UTF-8 at byte {place}, .*data\.tokenizer=byte"):
        build_vocabulary(Reading(kind=tokenizer), {"train": [source], "valid": [], "test": []})


def test_a_byte_is_counted_from_the_files_start(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="at byte 6,"):
        list(read_text(piece(tmp_path / "a", b"abcdef\xff", start=4)))


@pytest.mark.parametrize("data", [b"", b"\x00\xff\xfe\x00", bytes(range(256)) * 3])
def test_bytes_take_anything(data: bytes, chunk_bytes: int, tmp_path: Path) -> None:
    vocabulary = build_vocabulary(Reading(kind="byte"), {})
    assert write_tokens(Reading(kind=vocabulary.kind), vocabulary, [piece(tmp_path / "a", data)], tmp_path / "ids") == (
        len(data),
        0,
    )
    assert (tmp_path / "ids").read_bytes() == data


@pytest.mark.parametrize(
    ("size", "dtype"), [(1, "uint8"), (256, "uint8"), (257, "uint16"), (65536, "uint16"), (65537, "uint32")]
)
def test_the_smallest_type_that_holds_the_vocabulary(size: int, dtype: str) -> None:
    assert token_dtype(size).name == dtype
    assert np.array(size - 1, token_dtype(size)) == size - 1


def test_many_words_need_a_wider_type(tmp_path: Path) -> None:
    source = piece(tmp_path / "a", " ".join(map(str, range(300))).encode())
    vocabulary: Vocabulary = build_vocabulary(Reading(kind="word"), {"train": [source]})
    write_tokens(Reading(kind=vocabulary.kind), vocabulary, [source], tmp_path / "ids")
    assert np.fromfile(tmp_path / "ids", "<u2").tolist() == [*range(1, 301), 0]


def test_a_source_that_went_away_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"gone' cannot be read: No such file"):
        list(read_text(Piece(tmp_path / "gone", 0, 5)))
    short = piece(tmp_path / "short", b"abc")
    with pytest.raises(UserError, match=r"short' became shorter"):
        list(read_text(short._replace(stop=5)))
