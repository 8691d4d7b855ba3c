"""Tokenizers that other programs trained: a `tokenizer.json` here, or on the Hub."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

from transformer_xl.data.vocabularies.base import EOD
from transformer_xl.data.vocabularies.subwords import SubwordVocabulary
from transformer_xl.errors import UserError
from transformer_xl.hub import Repository

FILE = "tokenizer.json"
ENDS_OF_DOCUMENTS = (
    "<|endoftext|>",
    "<|end_of_text|>",
    "</s>",
    "<eos>",
    EOD,
    "<|eos|>",
    "<\uff5cend\u2581of\u2581sentence\uff5c>",
    "<|im_end|>",
)
"""Special tokens that stand behind a text where a tokenizer has them, the first of them before the others."""
_LARGEST_BYTES = 256 << 20  # ten times the largest that is in use
_ON_THE_HUB = re.compile(r"([\w.-]+/[\w.-]+)(?:@([\w./-]+))?")


def load_tokenizer(name: str) -> SubwordVocabulary:
    """Load a tokenizer of another program; one of its special tokens ends a document, if it has such a one.

    Args:
        name: a `tokenizer.json`, a folder that holds one, or `owner/name` or `owner/name@revision` on the Hub.

    Raises:
        UserError: there is none of that name, or it cannot be fetched, or is damaged.
    """
    path = _find(name)
    try:
        if path.stat().st_size > _LARGEST_BYTES:
            raise UserError(f"it has more than {_LARGEST_BYTES >> 20} MB")
        contents = json.loads(path.read_bytes())
        if not isinstance(contents, dict):
            raise UserError("it must be a JSON object")
        return SubwordVocabulary(contents, end_of_document=None).with_special(ENDS_OF_DOCUMENTS)
    except OSError as error:
        raise UserError(f"data.tokenizer is {name!r}, and {str(path)!r} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise UserError(
            f"data.tokenizer is {name!r}, and {str(path)!r} is no {FILE} as the library tokenizers writes it: {error}"
        ) from error


def _find(name: str) -> Path:
    path = Path(os.path.expanduser(name))
    if path.is_dir():
        if not (path / FILE).exists():
            raise UserError(f"data.tokenizer is {name!r}, and that folder holds no {FILE}")
        return path / FILE
    named = _ON_THE_HUB.fullmatch(name)
    if path.exists() or named is None or name.endswith(".json"):
        return path
    repository = Repository(named[1], named[2], probe=FILE, subject=f"data.tokenizer is {name!r}, which")
    found = repository.find(FILE)
    if found is None:
        raise repository.mistake(f"it has no {FILE}")
    return found
