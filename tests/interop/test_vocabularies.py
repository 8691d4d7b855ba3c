"""Tokenizer files of other programs, and what hides in them."""

from __future__ import annotations

import io
import json
import os
import pickle
import pickletools
import re
import sys
import zipfile
from collections import Counter, OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import tests.interop.published_code as code
from tests.interop.test_transformers_format import DATA
from transformer_xl.data.characters import CharTokenizer
from transformer_xl.data.words import WordTokenizer
from transformer_xl.errors import UserError
from transformer_xl.interop.load import load_model
from transformer_xl.interop.transformers_format import save_transformers
from transformer_xl.interop.vocabularies import FILES, make_vocabulary, read_pickle, read_vocabulary, write_vocabulary

WORDS = ["<eos>", "the", "<unk>", "cat", "@-@"]


def attributes(symbols: list[str], **changes: Any) -> dict[str, Any]:
    """What TransfoXLTokenizer's `__dict__` holds, without its own objects."""
    values = {
        "counter": Counter({"the": 3, "cat": 1}),
        "special": ["<eos>"],
        "lower_case": False,
        "delimiter": None,
        "idx2sym": symbols,
        "sym2idx": OrderedDict((symbol, number) for number, symbol in enumerate(symbols)),
        "never_split": {"<eos>"},
    }
    return {**values, **changes}


def write_torch(value: Any, path: Path) -> None:
    torch.save(value, path)


def write_old_torch(value: Any, path: Path) -> None:
    torch.save(value, path, _use_new_zipfile_serialization=False)


def write_pickle(value: Any, path: Path) -> None:
    path.write_bytes(pickle.dumps(value))


def write_oldest_pickle(value: Any, path: Path) -> None:
    path.write_bytes(pickle.dumps(value, protocol=0))


WRITERS = [write_torch, write_old_torch, write_pickle]
Writer = Callable[[Any, Path], None]


@pytest.mark.parametrize("name", ["vocab.pkl", "vocab.bin"])
@pytest.mark.parametrize("write", WRITERS)
def test_the_attributes_of_a_tokenizer_give_its_words(write: Writer, name: str, tmp_path: Path) -> None:
    write(attributes(WORDS), tmp_path / name)
    vocabulary = read_vocabulary(tmp_path, vocab_size=5)
    assert vocabulary is not None
    assert vocabulary.to_json() == {"format": 1, "kind": "wikitext", "symbols": WORDS}


def test_what_the_tokenizer_itself_pickled_is_read_without_its_code(tmp_path: Path) -> None:
    """Recorded: it holds objects of sacremoses, tokenizers and transformers beside the words."""
    content = (DATA / "shared" / "vocab.pkl").read_bytes()
    strings = {argument for _, argument, _ in pickletools.genops(content) if isinstance(argument, str)}
    assert {"sacremoses.tokenize", "transformers.tokenization_utils", "re"} <= strings
    before = set(sys.modules)
    vocabulary = load_model(DATA / "shared").vocabulary
    assert not {name.partition(".")[0] for name in set(sys.modules) - before} & {"sacremoses", "transformers"}
    assert vocabulary.kind == "wikitext"
    assert vocabulary.symbols[:10] == ("<eos>", "the", ",", ".", "of", "<unk>", "@-@", "@,@", "Gödel", "=")
    # the ids that TransfoXLTokenizer gave for it
    expected = [1, 11, 12, 13, 17, 7, 18, 6, 19, 6, 20, 5, 5, 15]
    assert vocabulary.encode("the cat sat on 23,000-year-old 's mat").tolist() == expected


JSON: dict[str, Any] = {
    "list": WORDS,
    "ids": {"cat": 3, "<eos>": 0, "<unk>": 2, "the": 1, "@-@": 4},
    "ours": {"format": 1, "kind": "wikitext", "symbols": WORDS},
}


@pytest.mark.parametrize("value", JSON.values(), ids=JSON)
def test_json_may_be_a_list_ids_or_our_own(value: Any, tmp_path: Path) -> None:
    (tmp_path / "vocab.json").write_text(json.dumps(value))
    vocabulary = read_vocabulary(tmp_path, vocab_size=5)
    assert vocabulary is not None
    assert vocabulary.to_json() == JSON["ours"]


def test_our_own_vocabulary_file_keeps_its_kind(tmp_path: Path) -> None:
    WordTokenizer(WORDS).save(tmp_path / "vocabulary.json")
    vocabulary = read_vocabulary(tmp_path, vocab_size=5)
    assert vocabulary is not None
    assert vocabulary.kind == "word"
    assert read_vocabulary(tmp_path.parent, vocab_size=5) is None


def test_the_first_file_in_order_is_taken(tmp_path: Path) -> None:
    for number, name in enumerate(reversed(FILES)):
        symbols = [*WORDS, *(f"more{count}" for count in range(number))]
        value = {"format": 1, "kind": "word", "symbols": symbols} if name == "vocabulary.json" else symbols
        if name.endswith(".json"):
            (tmp_path / name).write_text(json.dumps(value))
        else:
            write_pickle(attributes(symbols), tmp_path / name)
        assert read_vocabulary(tmp_path, vocab_size=5 + number) is not None


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ({"<eos>": 0, "<unk>": 2}, ["ids"]),
        ({"<eos>": 0, "<unk>": "1"}, ["ids"]),
        ({"<eos>": 0, "<unk>": 0}, ["ids"]),
        ({"<eos>": False, "<unk>": True}, ["ids"]),
        (["<eos>", 1], ["list of symbols"]),
        ("<eos>", ["list of symbols"]),
        (["<eos>", "<unk>", "a", "b", "a"], ["twice"]),
        (["<eos>", "<unk>", "a"], ["3 symbols", "the model has 5"]),
        ({"format": 99, "kind": "word", "symbols": WORDS}, ["99"]),
    ],
)
def test_a_vocabulary_that_cannot_be_is_refused_by_file(value: Any, words: list[str], tmp_path: Path) -> None:
    (tmp_path / "vocab.json").write_text(json.dumps(value))
    with pytest.raises(UserError, match=re.escape(str(tmp_path / "vocab.json"))) as caught:
        read_vocabulary(tmp_path, vocab_size=5)
    for word in words:
        assert word in str(caught.value)


def test_a_damaged_file_is_refused(tmp_path: Path) -> None:
    for name in ("vocab.bin", "vocab.pkl", "vocab.json"):
        for content in (b"", b"{", b"\x80\x04", b"\x80\x04}.", b"PK\x03\x04", b"(((", b"\x80\x04N."):
            (tmp_path / name).write_bytes(content)
            with pytest.raises(UserError, match=re.escape(str(tmp_path / name))):
                read_vocabulary(tmp_path, vocab_size=5)


Kind = tuple[list[str], dict[str, Any], bool, dict[str, Any] | None]
KINDS: dict[str, Kind] = {
    "moses": (WORDS, {}, True, {"kind": "wikitext", "symbols": WORDS}),
    "white space": (WORDS, {}, False, {"kind": "word", "symbols": WORDS}),
    "lower case": (WORDS, {"lower_case": True}, True, {"kind": "word", "symbols": WORDS, "lower_case": True}),
    "characters": (["a", "b", "_"], {"delimiter": ""}, True, {"kind": "char", "symbols": ["a", "b", "_"]}),
    "text8": (["_", "e", "t"], {"lower_case": True}, False, {"kind": "char", "symbols": [" ", "e", "t"]}),
    "enwik8": (["32", "101", "9"], {"lower_case": True}, False, {"kind": "ranked_byte", "values": [32, 101, 9]}),
    "lm1b": (["<S>", "a", "<UNK>"], {}, False, {"kind": "sentence", "symbols": ["<S>", "a", "<UNK>"]}),
}


@pytest.mark.parametrize(("symbols", "settings", "moses", "expected"), KINDS.values(), ids=KINDS)
def test_the_kind_follows_from_how_the_program_split_text(
    symbols: list[str], settings: dict[str, Any], moses: bool, expected: dict[str, Any]
) -> None:
    vocabulary = make_vocabulary(symbols, attributes(symbols, **settings), source=Path("vocab.pkl"), moses=moses)
    assert vocabulary is not None
    assert vocabulary.to_json() == {"format": 1, **expected}


@pytest.mark.parametrize(
    ("symbols", "settings"),
    [(["one", "two"], {}), (["<unk>", "<eos>"], {}), (WORDS, {"delimiter": "|"}), (["<eos>", "word"], {})],
)
def test_words_of_no_known_kind_leave_the_model_without_a_vocabulary_and_say_so(
    symbols: list[str], settings: dict[str, Any]
) -> None:
    with pytest.warns(UserWarning, match=r"vocab\.pkl.*no vocabulary"):
        assert make_vocabulary(symbols, settings, source=Path("vocab.pkl"), moses=True) is None


@pytest.mark.parametrize("kind", [WordTokenizer(WORDS), WordTokenizer(WORDS, lower_case=True), CharTokenizer(["a"])])
def test_a_vocabulary_goes_out_and_comes_back(kind: Any, tmp_path: Path) -> None:
    (tmp_path / "vocab.bin").write_bytes(b"of the model that was here before")
    eos = write_vocabulary(kind, tmp_path)
    back = read_vocabulary(tmp_path, vocab_size=kind.size)
    assert back is not None
    assert back.to_json() == kind.to_json()
    assert not (tmp_path / "vocab.bin").exists()
    assert (tmp_path / "vocab.pkl").exists() == (eos is not None) == (kind.kind == "word")


def test_words_go_out_as_plain_values_that_the_tokenizer_reads(tmp_path: Path) -> None:
    model = load_model(DATA / "shared")
    save_transformers(model, tmp_path)
    content = (tmp_path / "vocab.pkl").read_bytes()
    assert not {"GLOBAL", "STACK_GLOBAL", "REDUCE", "BUILD"} & {code.name for code, _, _ in pickletools.genops(content)}
    value = pickle.loads(content)
    assert value["idx2sym"] == list(model.vocabulary.symbols)
    assert [value["sym2idx"][symbol] for symbol in value["idx2sym"]] == list(range(24))
    assert value["unk_idx"] == 5
    assert json.loads((tmp_path / "config.json").read_text())["eos_token_id"] == 0
    model.vocabulary = None
    save_transformers(model, tmp_path)
    assert load_model(tmp_path).vocabulary is None


class Hostile:
    """Calls a function when it is unpickled by a careless reader."""

    def __init__(self, function: Callable[..., Any], *arguments: Any) -> None:
        self.call = (function, arguments)

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return self.call


def careless(path: Path) -> None:
    if zipfile.is_zipfile(path):
        torch.load(path, weights_only=False)
        return
    with path.open("rb") as file:
        value = pickle.load(file)
        if isinstance(value, int):
            pickle.load(file), pickle.load(file)
            torch.load(path, weights_only=False)


@pytest.mark.parametrize("write", [*WRITERS, write_oldest_pickle])
@pytest.mark.parametrize("name", ["vocab.pkl", "vocab.bin"])
@pytest.mark.parametrize("place", ["value", "attribute", "symbol"])
def test_code_hidden_in_a_vocabulary_is_refused_in_one_sentence_and_not_run(
    write: Writer, name: str, place: str, tmp_path: Path
) -> None:
    folder, marker = tmp_path / "model", tmp_path / "it ran"
    save_transformers(load_model(DATA / "shared"), folder)
    (folder / "vocab.json").unlink()
    (folder / "vocab.pkl").unlink()
    hostile = Hostile(os.mkdir, str(marker))
    value = {
        "value": hostile,
        "attribute": attributes(WORDS, moses_tokenizer=hostile),
        "symbol": attributes([*WORDS, hostile]),  # type: ignore[list-item]
    }[place]
    write(value, folder / name)
    careless(folder / name)
    assert marker.is_dir(), "the attack must work on a careless reader"
    marker.rmdir()
    with pytest.raises(UserError, match=re.escape(str(folder / name))) as caught:
        load_model(folder)
    assert not marker.exists()
    assert "\n" not in str(caught.value)
    assert f"{os.mkdir.__module__}.mkdir, which is code" in str(caught.value)


@pytest.mark.parametrize(
    "function",
    [
        (eval, "1"),
        (exec, "pass"),
        (__import__, "antigravity"),
        (getattr, attributes, "__globals__"),
        (re.compile, "a"),
        (torch.load, "x"),
        (bytearray, 1 << 62),
        (list, ("abc",)),
    ],
    ids=lambda function: getattr(function[0], "__name__", ""),
)
def test_no_name_but_containers_is_looked_up(function: tuple[Any, ...], tmp_path: Path) -> None:
    path = tmp_path / "vocab.pkl"
    write_pickle({"idx2sym": WORDS, "x": Hostile(*function)}, path)
    if function[0] is list:  # refused for being unneeded, not for being harmful
        assert "list" in str(refusal(path))
    else:
        refusal(path)
    assert "antigravity" not in sys.modules


def refusal(path: Path) -> UserError:
    with pytest.raises(UserError, match="runs no code") as caught:
        read_pickle(path)
    return caught.value


def test_the_objects_of_a_tokenizer_are_empty_and_call_nothing(tmp_path: Path) -> None:
    path, marker = tmp_path / "vocab.pkl", tmp_path / "it ran"
    with code.foreign_module("sacremoses.tokenize", "MosesTokenizer") as classes:
        cls = classes["MosesTokenizer"]
        cls.__reduce__ = lambda self: (cls, (1, 2), {"lang": "en"})  # type: ignore[method-assign, assignment]
        cls.__init__ = lambda self, *arguments: marker.mkdir(exist_ok=True)  # type: ignore[misc, method-assign]
        write_pickle({"idx2sym": WORDS, "moses": cls(1, 2)}, path)
        marker.rmdir()
        value = read_pickle(path)
        assert not marker.exists()
    assert value["idx2sym"] == WORDS
    assert not vars(value["moses"])


def test_a_pickle_cannot_change_a_class_that_others_use(tmp_path: Path) -> None:
    """BUILD on a class sets attributes of it: on no class that outlives the file."""
    from transformer_xl.interop import vocabularies as pickles

    for name in (b"csacremoses\nX\n", b"ccollections\nCounter\n", b"cbuiltins\nset\n"):
        stream = b"\x80\x02" + name + b"N}X\x04\x00\x00\x00evilK\x01s\x86b."
        (tmp_path / "vocab.pkl").write_bytes(stream)
        try:
            read_pickle(tmp_path / "vocab.pkl")
        except UserError:
            continue
    assert not any(hasattr(cls, "evil") for cls in (pickles._Inert, Counter, OrderedDict, dict, set, object))


def test_a_tensor_in_a_vocabulary_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "vocab.bin"
    torch.save({"idx2sym": torch.zeros(3)}, path)
    refusal(path)
    buffer = io.BytesIO()
    pickler = pickle.Pickler(buffer, protocol=2)
    pickler.persistent_id = lambda value: "id" if value == "x" else None  # type: ignore[method-assign]
    pickler.dump(["x"])
    path.write_bytes(buffer.getvalue())
    refusal(path)
