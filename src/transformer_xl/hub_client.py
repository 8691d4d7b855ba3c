"""The Hub's own client: what its environment says now, and what its errors mean."""

from __future__ import annotations

import os
from typing import Any

from transformer_xl.errors import first_line


def load_client() -> Any:
    """Import `huggingface_hub`, which takes a while."""
    # else the client also asks for a list of programs that it may be run by, and reports it
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    import huggingface_hub
    import huggingface_hub.errors

    return huggingface_hub


# The client reads these variables once, when it is imported, and would not see what is set later.


def endpoint() -> str | None:
    """Give the address of another Hub, where `HF_ENDPOINT` names one."""
    return os.environ.get("HF_ENDPOINT") or None


def cache_folder() -> str | None:
    """Give the folder of the client's cache, where `HF_HUB_CACHE` or `HF_HOME` names one."""
    home = os.environ.get("HF_HOME")
    return os.environ.get("HF_HUB_CACHE") or (os.path.join(home, "hub") if home else None)


def is_offline() -> bool:
    """Say whether `HF_HUB_OFFLINE` forbids to ask the Hub."""
    return os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE")


def refusal(client: Any, error: Exception) -> str | None:
    """Say what an answer of the Hub means; None where the error is no answer, or one about a file."""
    errors = client.errors
    if isinstance(error, errors.GatedRepoError):
        return "it is gated: accept its terms there, and set HF_TOKEN"
    if isinstance(error, errors.RepositoryNotFoundError):
        return "there is no such repository, or it is private: if so, set HF_TOKEN"
    if isinstance(error, errors.RevisionNotFoundError):
        return "the repository has no such revision"
    return first_line(error) if isinstance(error, errors.HFValidationError) else None
