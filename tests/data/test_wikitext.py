"""Raw text split as WikiText is, against ids and texts of an independent implementation."""

import json
import re
from pathlib import Path

import pytest
import sacremoses
from hypothesis import given
from hypothesis import strategies as st

from transformer_xl.data import words
from transformer_xl.data.tokenizer import LearnSettings, Part
from transformer_xl.data.words import WikitextTokenizer, moses_split

REFERENCE = json.loads((Path(__file__).parent / "wikitext_reference.json").read_text(encoding="ascii"))
CASES = REFERENCE["cases"]
VOCABULARY = WikitextTokenizer(REFERENCE["symbols"])
ATOMS = [
    *"abAZ19.,;:!?'\"()[]{}<>-`$#&*+/\\^_|~@=%\t\x01\u00a0\u00ab\u00b0\u00b2\u00b4\u00ba\u00bb\u00df\u00e9\u03a3",
    *"\u200b\u2013\u2014\u2018\u2019\u201a\u201c\u201d\u201e\u2026\u3002\u6771\u0301\U0001f600",
    *["Mr.", "No.", "e.g.", "p.m", "5.", "...", "''", "don't", "1,000", "3.5", "well-known", "n\u00ba", "DOTMULTI"],
    *["<unk>", "<UNK>", "<eos>", "<formula>", "THISISPROTECTED000"],
]
LINES = st.lists(st.tuples(st.sampled_from(ATOMS), st.sampled_from(["", "", " ", "  "])), max_size=25).map(
    lambda pairs: "".join(atom + blanks for atom, blanks in pairs)
)


class Plain:
    """The library's rules on whole lines, called as the reference implementation calls them."""

    normalizer = sacremoses.MosesPunctNormalizer("en")
    tokenizer = sacremoses.MosesTokenizer("en")

    def split(self, line: str) -> list[str]:
        parts = re.split("(<eos>|<unk>|<formula>)", line)
        return [word for part in parts for word in ([part] if part in words._SPECIAL else self.split_part(part))]

    def split_part(self, part: str) -> list[str]:
        found = self.tokenizer.tokenize(
            self.normalizer.normalize(part.strip()),
            aggressive_dash_splits=True,
            escape=False,
            protected_patterns=words._SPECIAL,
        )
        return [piece for word in found for piece in re.sub(r"(?<=\d)[,.](?=\d)", r" @\g<0>@ ", word).split()]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["text"][:30])
def test_ids_and_text_are_those_of_the_reference(case: dict[str, object]) -> None:
    assert VOCABULARY.encode(str(case["text"])).tolist() == case["ids"]
    assert VOCABULARY.decode(case["ids"]) == case["decoded"]


def test_lines_end_with_eos_and_come_back_as_lines() -> None:
    plain = [case for case in CASES if 0 not in case["ids"]]
    for line_end in ("\n", "\r\n", "\r"):
        ids = VOCABULARY.encode("".join(case["text"] + line_end for case in plain))
        assert ids.tolist() == [number for case in plain for number in [*case["ids"], 0]]
    assert VOCABULARY.decode(ids) == "".join(case["decoded"] + "\n" for case in plain)


@pytest.mark.parametrize(
    "text",
    [
        "It cost 23,000.50 in 1914-18; don't ask (really).\n",
        'He said: "No." And then...\n\n= A heading =\n',
        "The well-known Mr. Smith isn't here",
    ],
)
def test_decoding_is_the_inverse_of_encoding(text: str) -> None:
    vocabulary = WikitextTokenizer(list(dict.fromkeys(["<eos>", "<unk>", *moses_split(text)])))
    assert vocabulary.decode(vocabulary.encode(text)) == text


@given(LINES)
def test_a_line_in_segments_is_the_line_as_a_whole(line: str) -> None:
    assert moses_split(line) == Plain().split(line)


@pytest.mark.parametrize(
    "line",
    [
        'B". +c 3.5". x\'/y ,5/,6 7,/8 "," x ",x',
        "a ' b ' c 'd' e' 'f x' y' '/' ''g'' h`i `j` k",
        "( a ) . b ( .c ) ;d (e) ,f ) :g [h] 5 % i 6% :j k :l m ;n",
        "A. (b) A. [b] A. -b A. 1 A. a. B. \u00dfa C. \u00c9a No. 1 No. a No. \u0661",
        "x<UNK>y a/<Eos>/b THISISPROTECTED000/<UNK> DOT/MULTI DOTMULTI.",
    ],
)
def test_borders_that_are_not_safe_are_kept_together(line: str) -> None:
    assert moses_split(line) == Plain().split(line)


def test_a_full_stop_depends_on_what_follows_and_what_is_remembered_changes_nothing() -> None:
    found = [moses_split(f"the end. {following}")[1:3] for following in ("a", "A", "1", "(")]
    assert found == [["end.", "a"], ["end", "."], ["end", "."], ["end", "."]]
    for case in [*CASES, *CASES]:
        assert moses_split(case["text"]) == Plain().split(case["text"])


def test_a_text_full_of_protected_words_is_split() -> None:
    assert set(moses_split("<UNK>" * 2000)) == {"<", "UNK", ">"}


def test_a_corpus_has_the_ids_of_the_vocabulary() -> None:
    text = "It's 1,000 dogs.\nIt's <unk> dogs, dogs.\n"
    tokenizer = WikitextTokenizer.learn([Part(text.encode())], LearnSettings())
    assert tokenizer.symbols == ("<eos>", "dogs", "It", "'s", ".", "1", "@,@", "000", "<unk>", ",")
    found = tokenizer.encode_part(Part(text.encode()))
    assert (len(found.ids), found.unknown, found.text_bytes) == (16, 0, len(text))
    assert found.ids.tolist() == tokenizer.encode(text).tolist()
    assert tokenizer.for_split_text().encode("1 @,@ 000 's").tolist() == [5, 6, 7, 3]
