"""Text or ids on disk as token files: built once into a folder below `data.cache_dir`, memory-mapped from then on."""

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

from transformer_xl.data.building.build import GivenVocabulary, build_corpus
from transformer_xl.data.building.cache import FORMAT, CachedCorpus, file_sha256, open_cache
from transformer_xl.data.building.publishing import writing_below
from transformer_xl.data.building.reading import Reading, foreign_tokenizer, reading_for
from transformer_xl.data.lanes import CorpusLanes, Fingerprint, Sequential, Shuffled, evaluation_lanes, training_lanes
from transformer_xl.data.locking import only_one
from transformer_xl.data.sources.files import Sources
from transformer_xl.data.sources.finding import find_sources
from transformer_xl.data.sources.token_files import token_sources
from transformer_xl.data.tokenizer import Tokenizer
from transformer_xl.data_config import CorpusConfig, DataConfig, StoredConfig, TextConfig, TokensConfig
from transformer_xl.settings import plain

_ATTEMPTS = 5
_NOT_OF_THE_TOKENS = set(DataConfig.model_fields) - {"kind"} | {
    *("cache_dir", "rebuild", "reset_memory", "order", "path", "dir", "download", "tokenizer", "vocabulary"),
}
"""Settings on which the token files do not hang, or that stand in the key in another form."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Corpus:
    """A corpus's splits as memory-mapped token ids.

    Attributes:
        config: what was asked for.
        cached: its files.
        seed: of the order of documents.
    """

    config: StoredConfig
    cached: CachedCorpus
    seed: int

    @property
    def name(self) -> str:
        """The choice of `data=`."""
        return self.config.kind

    @property
    def folder(self) -> Path:
        """Where the token files are."""
        return self.cached.folder

    @property
    def vocabulary(self) -> Tokenizer:
        """The symbols of all splits."""
        return self.cached.vocabulary

    @property
    def fingerprint(self) -> Fingerprint:
        """What the corpus was made of."""
        return self.cached.fingerprint

    @property
    def splits(self) -> dict[str, NDArray[np.unsignedinteger[Any]]]:
        """The ids of each split: train, valid, test."""
        return {name: split.tokens for name, split in self.cached.splits.items()}

    @property
    def unknown(self) -> dict[str, int]:
        """Count the words or characters of each split that became `<unk>` because the vocabulary lacks them."""
        return {name: split.unknown for name, split in self.cached.splits.items()}

    @property
    def text_bytes(self) -> dict[str, int]:
        """Count the bytes of each split's text in UTF-8; nothing where ids are of no text."""
        if isinstance(self.config, TokensConfig):
            return {}
        return {name: split.text_bytes for name, split in self.cached.splits.items()}

    @property
    def read_as(self) -> dict[str, str]:
        """Say what must stand beside every score, because it changes what is predicted."""
        config = self.config
        if not isinstance(config, CorpusConfig) or config.kind == "text8":  # text8 has no line ends
            return {}
        # for enwik8 both are in use; elsewhere only what is unusual is said
        return {"newline": config.newline} if config.kind == "enwik8" or config.newline == "drop" else {}

    def counts(self) -> dict[str, int]:
        """Count the tokens of each split: train, valid, test."""
        return {name: len(split.tokens) for name, split in self.cached.splits.items()}

    def lanes(self, split: str, *, batch_size: int, segment_len: int, evaluation: bool) -> CorpusLanes:
        """Lay a split out in lanes; `UserError` where it is too short."""
        found = self.cached.splits[split]
        if self.config.order == "shuffled" and split == "train" and not evaluation:
            assert found.starts is not None
            order: Sequential | Shuffled = Shuffled(tokens=found.tokens, starts=found.starts, seed=self.seed)
        else:
            order = Sequential(tokens=found.tokens, starts=found.starts)
        resets = self.config.reset_memory == "document"
        if evaluation:
            return evaluation_lanes(order, batch_size=batch_size, split=split, resets=resets)
        return training_lanes(order, batch_size=batch_size, segment_len=segment_len, resets=resets)


def open_corpus(
    config: StoredConfig,
    *,
    announce: Callable[[str], None],
    seed: int,
    vocabulary: Tokenizer | None = None,
    extend: bool = False,
) -> Corpus:
    """Open a corpus's token files, building them where there are none that fit the sources and settings.

    Args:
        config: which text or ids, and how text is split where no vocabulary is given.
        announce: gets a line before and one after a build, and one for each thing that is unusual about the text.
        seed: of `order=shuffled`.
        vocabulary: a trained model's, which then decides how text is split.
        extend: append to it the symbols of this text that it lacks: words of the training split, characters of all.

    Raises:
        UserError: the text or the cache's place is at fault, or the vocabulary is none for this text.
    """
    assert vocabulary is not None or not extend, "what is extended is given"
    reading: Reading | None = None
    if isinstance(config, CorpusConfig):
        reading = reading_for(config, vocabulary)
        sources = find_sources(config, announce=announce)
    else:
        assert isinstance(config, TokensConfig)
        sources = token_sources(config)
    given = None if vocabulary is None else GivenVocabulary(vocabulary=vocabulary, extend=extend)
    settings = _settings(config, sources, reading, given)
    key = hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:12]
    cache_dir = Path(os.path.expanduser(config.cache_dir)).absolute()
    folder = cache_dir / f"{config.kind}-{key}"
    must_build = config.rebuild
    for _ in range(_ATTEMPTS):
        # Other builders may replace the folder while it is opened; what they put there is as good.
        cached = None if must_build else open_cache(folder, settings=settings, sources=sources)
        if cached is not None:
            starts = cached.splits["train"].starts
            if config.order == "shuffled" and (starts is None or len(starts) < 2):
                announce("data: data.order=shuffled has nothing to shuffle: the training split is one document")
            return Corpus(config=config, cached=cached, seed=seed)
        waiting = f"data: waiting for another process, which builds {folder}"
        with writing_below(cache_dir), only_one(cache_dir / f".lock-{folder.name}", announce=announce, waiting=waiting):
            if must_build or open_cache(folder, settings=settings, sources=sources) is None:
                build_corpus(
                    folder,
                    config=config,
                    settings=settings,
                    sources=sources,
                    reading=reading,
                    given=given,
                    announce=announce,
                )
        must_build = False
    raise RuntimeError(f"the token files in {str(folder)!r} were replaced {_ATTEMPTS} times while they were opened")


def _settings(
    config: StoredConfig, sources: Sources, reading: Reading | None, given: GivenVocabulary | None
) -> dict[str, object]:
    """Give all that decides what the token files hold, besides the files that they are made of."""
    settings: dict[str, object] = {
        name: value for name, value in plain(config).items() if name not in _NOT_OF_THE_TOKENS
    }
    settings |= {"cache_format": FORMAT, "location": str(sources.location)}
    if isinstance(config, TextConfig | TokensConfig) and not os.path.exists(os.path.expanduser(str(config.path))):
        settings["pattern"] = config.path
    if reading is not None:
        settings["tokenizer"] = reading.kind
    if isinstance(config, CorpusConfig) and given is None:
        foreign = foreign_tokenizer(config)
        if foreign is not None:
            settings["tokenizer"] = foreign if isinstance(foreign, str) else file_sha256(foreign)
    if isinstance(config, TokensConfig) and config.vocabulary is not None:
        settings["vocabulary"] = file_sha256(Path(os.path.expanduser(config.vocabulary)))
    if given is not None:
        settings |= {"vocabulary": given.vocabulary.hash(), "extend": given.extend}
    return settings
