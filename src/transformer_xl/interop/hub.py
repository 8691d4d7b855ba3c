"""Models by their name on the Hub: only configuration, weights and vocabulary are asked for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from transformer_xl import hub_client
from transformer_xl.errors import UserError, first_line
from transformer_xl.interop.transformers_format import WEIGHTS
from transformer_xl.interop.vocabularies import FILES as VOCABULARIES

_CONFIG = "config.json"
_TIMEOUT_S = 10.0


def fetch(name: str, revision: str | None = None) -> Path:
    """Fetch a model's files, or find them in the Hub's cache where the Hub cannot be reached.

    `HF_ENDPOINT`, `HF_HOME`, `HF_HUB_CACHE`, `HF_HUB_OFFLINE` and `HF_TOKEN` are honoured as they are set now.

    Args:
        name: `owner/name`.
        revision: a branch, tag or commit; None for `main`.

    Returns:
        The folder in the cache that holds the files.

    Raises:
        UserError: there is no such repository, revision or file, it is gated, or it can neither be reached nor found
            in the cache.
    """
    repository = _Repository(name, revision)
    config = repository.find(_CONFIG)
    if config is None:
        raise repository.mistake("it has no config.json")
    weights = next(filter(None, map(repository.find, WEIGHTS)), None)
    if weights is None:
        raise repository.mistake(f"it has neither {' nor '.join(WEIGHTS)}")
    vocabulary = next(filter(None, map(repository.find, VOCABULARIES)), None)
    if any(file is not None and file.parent != config.parent for file in (weights, vocabulary)):
        raise repository.mistake("it changed there while it was fetched, so load it again")
    return config.parent


class _Repository:
    """One repository at one revision, through the Hub's own client and cache."""

    def __init__(self, name: str, revision: str | None) -> None:
        self._hub = hub_client.load_client()
        self._title = name if revision is None else f"{name}@{revision}"
        self._endpoint = hub_client.endpoint()
        self._where: dict[str, Any] = {"repo_id": name, "revision": revision, "endpoint": self._endpoint}
        self._unreachable = "HF_HUB_OFFLINE is set" if hub_client.is_offline() else self._why_unreachable()
        """Why only the cache is asked; None where the Hub answers."""

    def find(self, filename: str) -> Path | None:
        """Give a file's place in the cache; None where the repository, or the cache if only that is asked, has none.

        Raises:
            UserError: the Hub refuses to say.
        """
        errors = self._hub.errors
        try:
            found = self._hub.hf_hub_download(
                filename=filename,
                cache_dir=hub_client.cache_folder(),
                local_files_only=self._unreachable is not None,
                etag_timeout=_TIMEOUT_S,
                **self._where,
            )
            return Path(found)
        except errors.LocalEntryNotFoundError as error:
            if self._unreachable is None:
                raise self.mistake(f"the Hub stopped answering ({_cause(error)})") from error
            return None
        except errors.EntryNotFoundError:
            return None
        except Exception as error:  # whatever the client's own HTTP library raises
            if isinstance(error, OSError) and error.filename is not None:
                raise
            raise self.mistake(hub_client.refusal(self._hub, error) or first_line(error)) from error

    def mistake(self, reason: str) -> UserError:
        """Give the sentence to raise for a name that leads to no model."""
        where = f" at {self._endpoint}" if self._endpoint else ""
        if self._unreachable is not None:
            reason = f"{self._unreachable}, and its cache does not hold the model ({reason})"
        return UserError(f"{self._title} is no path here, and cannot be loaded from the Hub{where}: {reason}")

    def _why_unreachable(self) -> str | None:
        """Ask once whether the Hub answers: the client itself would ask for each file many times."""
        self._unreachable = None
        try:
            url = self._hub.hf_hub_url(filename=_CONFIG, **self._where)
            self._hub.get_hf_file_metadata(url, timeout=_TIMEOUT_S, token=self._hub.get_token())
        except self._hub.errors.EntryNotFoundError:
            return None
        except Exception as error:  # whatever the client's own HTTP library raises
            if refusal := hub_client.refusal(self._hub, error):
                raise self.mistake(refusal) from error
            return f"the Hub cannot be reached ({first_line(error)})"
        return None


def _cause(error: BaseException) -> str:
    return first_line(error.__cause__ or error)
