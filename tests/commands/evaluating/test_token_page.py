"""The page of a text coloured by what each token cost: whole, escaped, and the text itself."""

from __future__ import annotations

import random
from html.parser import HTMLParser
from pathlib import Path

import pytest
import torch

from transformer_xl.commands.evaluating.token_page import TokenPage
from transformer_xl.commands.evaluating.token_texts import TokenTexts
from transformer_xl.data.batch import Batch
from transformer_xl.data.tokenizer import (
    ByteVocabulary,
    CharVocabulary,
    SentenceVocabulary,
    SymbolVocabulary,
    Vocabulary,
    WordVocabulary,
    train_bpe,
)

NASTY = (
    "a<b>&\"' </span><script>alert(1)</script>\ttab\nend\r\x00\x1b[31m\u202eabc\u2066 \U0001f600 \u0e01\u0e33 é\n\n x"
)
VISIBLE = NASTY.translate(
    {13: "\u240d", 0: "\u2400", 27: "\u241b", 0x202E: "\u27e8202E\u27e9", 0x2066: "\u27e82066\u27e9"}
)


class Page(HTMLParser):
    """Reads a page as a browser does, as far as this needs it."""

    def __init__(self, path: Path) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.spans: list[tuple[str, str, str]] = []
        self.text = ""
        self._open: list[str] = []
        self.feed(path.read_text(encoding="utf-8"))
        assert not self._open, "every tag that begins ends"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}
        if tag != "meta":
            self._open.append(tag)
        if "main" in self._open and tag == "span":
            values = dict(attrs)
            self.spans.append((values["class"] or "", values["title"] or "", ""))

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self._open and self._open[-1] == "span" and "main" in self._open:
            css, tip, text = self.spans[-1]
            self.spans[-1] = css, tip, text + data
            self.text += data


def page_of(vocabulary: Vocabulary, ids: list[int], path: Path, *, max_tokens: int = 10_000) -> Page:
    with TokenPage(
        path, vocabulary, title="<run> & more", notes=["segment 5 / memory 7"], max_tokens=max_tokens
    ) as page:
        page.add(ids[0], None)
        for place, number in enumerate(ids[1:]):
            if not page.is_full:
                page.add(number, (0.01, 0.3, 2.5, 30.0)[place % 4])
    return Page(path)


def test_a_text_can_hold_anything_and_stays_text(tmp_path: Path) -> None:
    page = page_of(ByteVocabulary(), ByteVocabulary().encode(NASTY).tolist(), tmp_path / "page.html")
    assert page.text == VISIBLE
    assert page.tags == {"html", "head", "meta", "title", "style", "body", "h1", "p", "main", "span", "i"}
    assert page.attributes == {"charset", "name", "content", "http-equiv", "class", "title", "dir"}
    assert not list(tmp_path.glob("*.tmp"))


def test_colours_and_tips_tell_the_cost(tmp_path: Path) -> None:
    page = page_of(ByteVocabulary(), list(b"abcde"), tmp_path / "page.html")
    classes = [css for css, _, _ in page.spans]
    assert classes == ["u", "n0", "n2", "n5", "n9"]
    assert page.spans[0][1] == "a  (id 97): not predicted"
    assert page.spans[3][1].startswith("d  (id 100): 2.500 nats, 1 in 12.2")
    raw = (tmp_path / "page.html").read_text()
    assert "4 tokens, 8.2025 nats each" in raw
    assert raw.count("n9 {") == 1


def test_bytes_of_a_character_are_one_piece_with_their_sum_and_strays_are_shown(tmp_path: Path) -> None:
    ids = [*"a€".encode(), 0xE2, 0x82, *b"b", 0xFF]
    page = page_of(ByteVocabulary(), ids, tmp_path / "page.html")
    assert [text for _, _, text in page.spans] == ["a", "€", "b'\\xe2'", "b'\\x82'", "b", "b'\\xff'"]
    assert page.spans[1][0] == "n5"
    assert "together 2.810 nats" in page.spans[1][1]
    assert page.spans[2][0].endswith(" mark")


def test_only_so_many_tokens_are_shown_and_windows_count_once(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    resets_BT = torch.zeros(2, 3, dtype=torch.bool)
    with TokenPage(path, ByteVocabulary(), title="t", notes=[], max_tokens=5) as page:
        for step, (text, uncounted) in enumerate([(b"abcd", 0), (b"cdef", 1), (b"efgh", 1)], start=1):
            row = torch.tensor(list(text))
            targets_BT = torch.stack([row[1:], row[1:]])
            targets_BT[:, :uncounted] = -100
            batch = Batch(
                torch.stack([row[:-1], row[:-1]]), targets_BT, resets_BT, counted=3, step=step, micro=0, chunk=0
            )
            page.take(batch, torch.ones(2, 3))
        assert page.is_full
    assert Page(path).text == "abcdef"


def test_what_fails_leaves_no_page(tmp_path: Path) -> None:
    with (
        pytest.raises(ZeroDivisionError),
        TokenPage(tmp_path / "page.html", ByteVocabulary(), title="t", notes=[], max_tokens=5),
    ):
        raise ZeroDivisionError
    assert not list(tmp_path.iterdir())


def bpe() -> Vocabulary:
    return train_bpe(["the cat and the hat, naïve café 北京 " * 20], size=300)


WORDS = ["<eos>", "<unk>", "the", "cat", "sat", ",", "<b>"]


@pytest.mark.parametrize(
    ("vocabulary", "text"),
    [
        (ByteVocabulary(), "naïve\n北京 😀!"),
        (CharVocabulary([*"abc \n", "\ufffd"]), "ab\n\n c\ufffdc"),
        (WordVocabulary(WORDS), "the cat\n\nsat , <b>\nthe dog"),
        (SentenceVocabulary(["<S>", "<UNK>", "the", "cat"]), "the cat\nthe\ndog cat"),
        (SymbolVocabulary(200), "1 23 3 199 1"),
        (bpe, "the naïve café\n 北京 hat 😀 unseen"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Vocabulary) else None,
)
def test_pieces_make_up_what_the_vocabulary_writes(vocabulary: Vocabulary, text: str) -> None:
    vocabulary = vocabulary if isinstance(vocabulary, Vocabulary) else vocabulary()
    ids = vocabulary.encode(text).tolist()
    texts: TokenTexts[int] = TokenTexts(vocabulary)
    pieces = [piece for place, number in enumerate(ids) for piece in texts.add(number, place)]
    pieces += texts.finish()
    assert "".join(piece.text for piece in pieces) == vocabulary.decode(ids)
    assert all(piece.is_text for piece in pieces)
    assert [token for piece in pieces for token in piece.tokens] == [
        (number, place) for place, number in enumerate(ids)
    ]


def test_no_token_is_lost_whatever_the_bytes(tmp_path: Path) -> None:
    ids = random.Random(0).choices(range(256), k=2000)
    texts: TokenTexts[None] = TokenTexts(ByteVocabulary())
    pieces = [piece for number in ids for piece in texts.add(number, None)] + list(texts.finish())
    assert [number for piece in pieces for number, _ in piece.tokens] == ids
    assert all(len(piece.tokens) <= 4 and piece.text for piece in pieces)
