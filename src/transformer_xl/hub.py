"""The Hugging Face Hub through its own client, which reads `HF_ENDPOINT`, `HF_HOME`, `HF_TOKEN` and others."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

from transformer_xl.errors import UserError, first_line

NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*(@[^@\s]+)?", re.ASCII)
"""`owner/name` or `owner/name@revision`."""


def fetch(name: str, files: Sequence[str], *, kind: str = "model") -> Path:
    """Return a folder with those files of a repository that it has, fetched or from the client's cache.

    Args:
        name: `owner/name` or `owner/name@revision`.
        files: names, or globs.
        kind: `model` or `dataset`.

    Raises:
        UserError: there is no such repository or revision, or neither the Hub nor the cache has it.
    """
    # set before the import, or the client reports to the Hub which program uses it
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    from huggingface_hub import snapshot_download

    repository, _, revision = name.partition("@")
    try:
        return Path(
            snapshot_download(repository, repo_type=kind, revision=revision or None, allow_patterns=list(files))
        )
    except Exception as error:  # whatever the client's own HTTP library raises
        raise UserError(f"{name} is not a path, and cannot be read from the Hub: {first_line(error)}") from error
