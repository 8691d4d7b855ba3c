"""Tokenizers as other programs make them, tiny."""

from __future__ import annotations

import json
import random
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from tokenizers.pre_tokenizers import ByteLevel, PreTokenizer

from transformer_xl.data.subwords import SubwordTokenizer
from transformer_xl.data.tokenizer import LearnSettings, Part

ATOMS = [
    *"aZ19 \n\r\t.,'!\"-\u00e9\u0301\u4ed6\u8bf4\u3002\uff0c\u3000\u00b2\u0663\U0001f600",
    *["'s", "it's", "12345", "\r\n", "  ", " the", "\n\n", " old", "hats"],
]
_DRAWN = random.Random(0)
TEXTS = ["".join(_DRAWN.choices(ATOMS, k=40)) for _ in range(200)]
"""So mixed that sub-words are learnt wherever the splitting lets two symbols meet."""
CL100K = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
QWEN = CL100K.replace("{1,3}", "")
O200K = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def by_regex(*patterns: str) -> PreTokenizer:
    splits = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in patterns]
    return pre_tokenizers.Sequence([*splits, ByteLevel(add_prefix_space=False, use_regex=False)])


SPLITTING = {
    "gpt2": ByteLevel(add_prefix_space=False),
    "cl100k": by_regex(CL100K),
    "qwen": by_regex(QWEN),
    "o200k": by_regex(O200K),
    "deepseek": by_regex(r"\p{N}{1,3}", "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+", CL100K),
    "starcoder": pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), ByteLevel(add_prefix_space=False)]
    ),
}


def byte_level(splitting: PreTokenizer, *, special: tuple[str, ...] = (), size: int = 700) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = splitting
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size, show_progress=False, initial_alphabet=ByteLevel.alphabet(), special_tokens=[]
    )
    tokenizer.train_from_iterator(TEXTS, trainer)
    tokenizer.add_special_tokens([AddedToken(name, special=True) for name in special])
    return tokenizer


def like_bert() -> Tokenizer:
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "the", "cat", "##s", "sat", ",", "."]
    tokenizer = Tokenizer(models.WordPiece({word: number for number, word in enumerate(words)}, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    tokenizer.add_special_tokens(words[:4])
    tokenizer.enable_truncation(3)
    tokenizer.enable_padding(length=8)
    return tokenizer


def like_llama_2() -> Tokenizer:
    """Words begin with a mark, the first one of a text too, and nothing is split before it is merged."""
    tokenizer = byte_level(pre_tokenizers.Metaspace(prepend_scheme="first", split=False), special=("<s>", "</s>"))
    tokenizer.decoder = decoders.Metaspace(prepend_scheme="first")
    return tokenizer


def contents(tokenizer: Tokenizer) -> dict[str, Any]:
    value = json.loads(tokenizer.to_str())
    assert isinstance(value, dict)
    return value


def byte_fallback() -> SubwordTokenizer:
    """As sentencepiece writes: a mark for blanks, and bytes for characters that are no piece."""
    pieces = [("<unk>", 0.0), *((f"<0x{byte:02X}>", -9.0) for byte in range(256))]
    pieces += [(piece, -2.0) for piece in ("\u2581", "\u2581the", "a", "b", "\u2581a", "\u2581\u4e16")]
    tokenizer = Tokenizer(models.Unigram(pieces, unk_id=0, byte_fallback=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace()])
    return SubwordTokenizer(contents(tokenizer), end_of_document=None)


def learnt(texts: list[str], *, size: int) -> SubwordTokenizer:
    return SubwordTokenizer.learn([Part(text.encode()) for text in texts], LearnSettings(bpe_size=size))
