"""Tokenizers that other programs trained: a `tokenizer.json` here, or on the Hub."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

from transformer_xl import hub_client
from transformer_xl.data.vocabularies.base import EOD
from transformer_xl.data.vocabularies.subwords import SubwordVocabulary
from transformer_xl.errors import UserError, first_line

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
_TIMEOUT_S = 10.0


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
    return _Fetching(name, repository=named[1], revision=named[2]).fetch()


class _Fetching:
    """Fetches one file by the Hub's own client, or finds it in that client's cache where the Hub cannot be reached."""

    def __init__(self, name: str, *, repository: str, revision: str | None) -> None:
        self._hub = hub_client.load_client()
        self._name = name
        self._endpoint = hub_client.endpoint()
        self._where: dict[str, Any] = {
            "repo_id": repository,
            "revision": revision,
            "filename": FILE,
            "endpoint": self._endpoint,
        }

    def fetch(self) -> Path:
        """Give the file's place in the cache; `UserError` where it can neither be fetched nor found there."""
        unreachable = "HF_HUB_OFFLINE is set" if hub_client.is_offline() else self._why_unreachable()
        try:
            found = self._hub.hf_hub_download(
                cache_dir=hub_client.cache_folder(),
                local_files_only=unreachable is not None,
                etag_timeout=_TIMEOUT_S,
                **self._where,
            )
        except Exception as error:  # whatever the client's own HTTP library raises
            if isinstance(error, OSError) and error.filename is not None:
                raise
            if unreachable is not None:
                raise self._mistake(f"{unreachable}, and its cache does not hold {FILE}") from error
            raise self._mistake(self._refusal(error) or first_line(error.__cause__ or error)) from error
        return Path(found)

    def _why_unreachable(self) -> str | None:
        """Ask once whether the Hub answers: the client itself would ask many times."""
        try:
            url = self._hub.hf_hub_url(**self._where)
            self._hub.get_hf_file_metadata(url, timeout=_TIMEOUT_S, token=self._hub.get_token())
        except Exception as error:  # whatever the client's own HTTP library raises
            if refusal := self._refusal(error):
                raise self._mistake(refusal) from error
            return f"the Hub cannot be reached ({first_line(error)})"
        return None

    def _refusal(self, error: Exception) -> str | None:
        """Say what the Hub's answer means; None where it is no answer."""
        errors = self._hub.errors
        if isinstance(error, errors.EntryNotFoundError) and not isinstance(error, errors.LocalEntryNotFoundError):
            return f"it has no {FILE}"
        return hub_client.refusal(self._hub, error)

    def _mistake(self, reason: str) -> UserError:
        where = f" at {self._endpoint} (HF_ENDPOINT)" if self._endpoint else ""
        return UserError(
            f"data.tokenizer is {self._name!r}, which is no path here, and cannot be loaded from the Hub{where}: "
            f"{reason}"
        )
