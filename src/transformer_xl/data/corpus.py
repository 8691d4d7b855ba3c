"""Text on disk as token ids: built once into a folder below `data.cache_dir`, memory-mapped from then on."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from transformer_xl.config import CorpusConfig, StdlibConfig, TextConfig
from transformer_xl.data.building.build import GivenVocabulary, build_corpus
from transformer_xl.data.building.cache import FORMAT, open_cache
from transformer_xl.data.building.reading import Reading, reading_for
from transformer_xl.data.lanes import CorpusLanes, Fingerprint, evaluation_lanes, training_lanes
from transformer_xl.data.sources.files import Sources
from transformer_xl.data.sources.finding import find_sources
from transformer_xl.data.tokenizer import ByteVocabulary, Vocabulary

_ATTEMPTS = 5


@dataclass(frozen=True, kw_only=True, eq=False)
class Corpus:
    """A text's splits as memory-mapped token ids.

    `unknown` counts the words of each split that became `<unk>` because the vocabulary lacks them.
    """

    name: str
    folder: Path
    vocabulary: Vocabulary
    splits: dict[str, NDArray[np.unsignedinteger[Any]]]
    unknown: dict[str, int]
    fingerprint: Fingerprint

    def counts(self) -> dict[str, int]:
        """Count the tokens of each split: train, valid, test."""
        return {split: len(tokens) for split, tokens in self.splits.items()}

    def lanes(self, split: str, *, batch_size: int, segment_len: int, evaluation: bool) -> CorpusLanes:
        """Lay a split out in lanes; `UserError` where it is too short."""
        tokens = self.splits[split]
        if evaluation:
            return evaluation_lanes(tokens, batch_size=batch_size, split=split)
        return training_lanes(tokens, batch_size=batch_size, segment_len=segment_len)


def open_corpus(
    config: CorpusConfig,
    *,
    announce: Callable[[str], None],
    vocabulary: Vocabulary | None = None,
    extend: bool = False,
) -> Corpus:
    """Open a corpus's token files, building them where there are none that fit the sources and settings.

    Args:
        config: which text, and how it is split where no vocabulary is given.
        announce: gets a line before and one after a build, and one for each thing that is unusual about the text.
        vocabulary: a trained model's, which then decides how text is split.
        extend: append to it the symbols of this text that it lacks: words of the training split, characters of all.

    Raises:
        UserError: the text or the cache's place is at fault, or the vocabulary is none for this text.
    """
    assert vocabulary is not None or not extend, "what is extended is given"
    reading = reading_for(config, vocabulary)
    sources = find_sources(config)
    given = None if vocabulary is None else GivenVocabulary(vocabulary=vocabulary, extend=extend)
    settings = _settings(config, sources, reading, given)
    key = hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:12]
    folder = Path(os.path.expanduser(config.cache_dir)).absolute() / f"{config.kind}-{key}"
    for _ in range(_ATTEMPTS):
        # Other builders may replace the folder while it is opened; what they put there is as good.
        cached = open_cache(folder, settings=settings, sources=sources)
        if cached is not None:
            return Corpus(
                name=config.kind,
                folder=folder,
                vocabulary=cached.vocabulary,
                splits=cached.splits,
                unknown=cached.unknown,
                fingerprint=cached.fingerprint,
            )
        build_corpus(folder, settings=settings, sources=sources, reading=reading, given=given, announce=announce)
    raise RuntimeError(f"the token files in {str(folder)!r} were replaced {_ATTEMPTS} times while they were opened")


def _settings(
    config: CorpusConfig, sources: Sources, reading: Reading, given: GivenVocabulary | None
) -> dict[str, object]:
    settings: dict[str, object] = {
        "format": FORMAT,
        "kind": config.kind,
        "location": str(sources.location),
        "tokenizer": reading.kind,
        "newline": config.newline,
    }
    if isinstance(config, StdlibConfig | TextConfig):
        settings |= {"valid_fraction": config.valid_fraction, "test_fraction": config.test_fraction}
    if given is not None and not isinstance(given.vocabulary, ByteVocabulary):  # there is but one of bytes
        settings |= {"vocabulary": given.vocabulary.hash(), "extend": given.extend}
    return settings
