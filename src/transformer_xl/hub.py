"""The Hugging Face Hub through its own client: single files of a repository, or its cache where it cannot be reached.

`HF_ENDPOINT`, `HF_HOME`, `HF_HUB_CACHE`, `HF_HUB_OFFLINE` and `HF_TOKEN` are honoured as they are set now; the client
itself reads most of them once, when it is imported.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from transformer_xl.errors import UserError, first_line

TIMEOUT_S = 10.0


def load_client() -> Any:
    """Import `huggingface_hub`, which takes a while."""
    # else the client also asks for a list of programs that it may be run by, and reports it
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    import huggingface_hub
    import huggingface_hub.errors

    return huggingface_hub


def endpoint() -> str | None:
    """Return the address of another Hub, where `HF_ENDPOINT` names one."""
    return os.environ.get("HF_ENDPOINT") or None


def is_offline() -> bool:
    """Return whether `HF_HUB_OFFLINE` forbids to ask the Hub."""
    return os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE")


def refusal(client: Any, error: Exception) -> str | None:
    """Return what an answer of the Hub means; None where the error is no answer, or one about a single file."""
    errors = client.errors
    if isinstance(error, errors.GatedRepoError):
        return "it is gated: accept its terms there, and set HF_TOKEN"
    if isinstance(error, errors.RepositoryNotFoundError):
        return "there is no such repository, or it is private: if so, set HF_TOKEN"
    if isinstance(error, errors.RevisionNotFoundError):
        return "the repository has no such revision"
    return first_line(error) if isinstance(error, errors.HFValidationError) else None


class Repository:
    """A model repository at one revision.

    Args:
        name: `owner/name`.
        revision: a branch, tag or commit; None for `main`.
        probe: a file to ask for once, to learn whether the Hub answers: the client would ask for each file many times.
        subject: the beginning of a message about it; by default the name.
    """

    def __init__(self, name: str, revision: str | None, *, probe: str, subject: str | None = None) -> None:
        self._client = load_client()
        self._subject = subject or (name if revision is None else f"{name}@{revision}")
        self._where: dict[str, Any] = {"repo_id": name, "revision": revision, "endpoint": endpoint()}
        self._unreachable: str | None = None
        self._unreachable = "HF_HUB_OFFLINE is set" if is_offline() else self._why_unreachable(probe)

    def find(self, filename: str) -> Path | None:
        """Return the place of a file in the cache, fetched if need be; None where there is none.

        Raises:
            UserError: the Hub refuses to say.
        """
        home = os.environ.get("HF_HOME")
        errors = self._client.errors
        try:
            found = self._client.hf_hub_download(
                filename=filename,
                cache_dir=os.environ.get("HF_HUB_CACHE") or (os.path.join(home, "hub") if home else None),
                local_files_only=self._unreachable is not None,
                etag_timeout=TIMEOUT_S,
                **self._where,
            )
        except errors.LocalEntryNotFoundError as error:
            if self._unreachable is None:
                raise self.mistake(f"the Hub stopped answering ({first_line(error.__cause__ or error)})") from error
            return None
        except errors.EntryNotFoundError:
            return None
        except Exception as error:  # whatever the client's own HTTP library raises
            if isinstance(error, OSError) and error.filename is not None:
                raise
            raise self.mistake(refusal(self._client, error) or first_line(error)) from error
        return Path(found)

    def mistake(self, reason: str) -> UserError:
        """Return the error to raise where the name leads to nothing usable."""
        where = f" at {self._where['endpoint']} (HF_ENDPOINT)" if self._where["endpoint"] else ""
        if self._unreachable is not None:
            reason = f"{self._unreachable}, and its cache does not hold it ({reason})"
        return UserError(f"{self._subject} is no path here, and cannot be loaded from the Hub{where}: {reason}")

    def _why_unreachable(self, probe: str) -> str | None:
        try:
            url = self._client.hf_hub_url(filename=probe, **self._where)
            self._client.get_hf_file_metadata(url, timeout=TIMEOUT_S, token=self._client.get_token())
        except self._client.errors.EntryNotFoundError:
            return None
        except Exception as error:  # whatever the client's own HTTP library raises
            if reason := refusal(self._client, error):
                raise self.mistake(reason) from error
            return f"the Hub cannot be reached ({first_line(error)})"
        return None
