from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from transformer_xl.data.characters import ByteTokenizer
from transformer_xl.data.words import WordTokenizer
from transformer_xl.inference.text_writing import Growing, NumberWriter, StopFinder, TextWriter


def up_to_a_stop(text: str, stops: list[str]) -> str:
    """Look at longer and longer beginnings of the text."""
    for end in range(len(text) + 1):
        complete = [stop for stop in stops if text[:end].endswith(stop)]
        if complete:
            return text[: end - max(map(len, complete))]
    return text


@given(
    pieces=st.lists(st.text("ab\u4e16", max_size=4), max_size=12),
    stops=st.lists(st.text("ab\u4e16", min_size=1, max_size=4), max_size=3),
)
def test_however_a_text_is_cut_nothing_of_a_stop_string_nor_after_it_passes(
    pieces: list[str], stops: list[str]
) -> None:
    finder, passed = StopFinder(stops), ""
    for piece in pieces:
        passed += finder.feed(piece)
        if finder.stopped:
            break
    expected = up_to_a_stop("".join(pieces), stops)
    assert finder.stopped == any(stop in "".join(pieces) for stop in stops)
    assert passed + finder.rest() == expected


def test_only_what_could_begin_a_stop_string_waits() -> None:
    finder = StopFinder(["<end>", "\n\n"])
    assert [finder.feed(piece) for piece in ("one\n", "two <", "en", "t> \n")] == ["one", "\ntwo ", "", "<ent> "]
    assert finder.rest() == "\n"


def grown(
    vocabulary: ByteTokenizer | WordTokenizer, ids: list[int], *, stops: list[str], n_tokens: int = 99
) -> tuple[str, Growing]:
    growing = Growing(TextWriter(vocabulary, after=[], stops=stops), n_tokens=n_tokens, end=vocabulary.end_of_document)
    text = ""
    for number in ids:
        text += growing.take(number)
        if growing.ended is not None:
            break
    return text, growing


def test_a_text_ends_by_length_stop_or_document_and_gives_all_that_waits() -> None:
    vocabulary = ByteTokenizer(end_of_document=True)
    half = list("ab\u4e16".encode())[:-1]
    text, growing = grown(vocabulary, half, stops=["bc"], n_tokens=4)
    assert (text, growing.ended, growing.tokens) == ("ab\ufffd", "n_tokens", half)
    text, growing = grown(vocabulary, [*b"ab", 256, *b"c"], stops=["bc"])
    assert (text, growing.ended, growing.tokens) == ("ab", "document", [*b"ab"])
    text, growing = grown(vocabulary, [*b"abcd"], stops=["bc"])
    assert (text, growing.ended, growing.tokens) == ("a", "stop", [*b"abc"])
    text, growing = grown(vocabulary, [*b"abc"], stops=["bc"], n_tokens=3)
    assert (text, growing.ended) == ("a", "stop")


def test_a_stop_string_may_hold_the_blank_between_words() -> None:
    words = WordTokenizer(["<eos>", "<unk>", "the", "end"])
    text, growing = grown(words, [2, 2, 3, 2], stops=["the end"])
    assert (text, growing.ended) == ("the ", "stop")
    text, growing = grown(words, [2, 0, 0, 3], stops=["\n\n"])
    assert (text, growing.ended) == ("the", "stop")


def test_numbers_have_blanks_between_them() -> None:
    writer = NumberWriter()
    assert "".join(map(writer.feed, [3, 14, 0])) + writer.rest() == "3 14 0"
