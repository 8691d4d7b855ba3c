"""Documents to token files: flat text, its splits, its tokenizer, and the ids in a folder put into place as a whole.

Text of any form is first written to one flat file of UTF-8 (ids: of numbers), with the places where documents begin in
a second one; splits and pieces of work are ranges of it.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

from transformer_xl import registry
from transformer_xl.data.characters import SymbolTokenizer
from transformer_xl.data.corpora import PUBLISHED, deviations
from transformer_xl.data.corpus import (
    FORMAT,
    VOCABULARY,
    Corpus,
    file_sha256,
    open_token_files,
    token_dtype,
    write_sidecar,
)
from transformer_xl.data.documents import Encoder, Flat, learning_parts, split_documents
from transformer_xl.data.files import Source, Sources, locked
from transformer_xl.data.lanes import SPLITS
from transformer_xl.data.subwords import load_pretrained, local_path
from transformer_xl.data.text import read_text
from transformer_xl.data.token_ids import read_ids
from transformer_xl.data.tokenizer import LearnSettings, Part, Tokenizer, load_vocabulary
from transformer_xl.data.words import SentenceTokenizer
from transformer_xl.data_config import CorpusConfig, DataConfig, PublishedConfig, StoredConfig, TokensConfig
from transformer_xl.errors import UserError, naming_file
from transformer_xl.settings import plain, replace

_NOT_OF_THE_TOKENS = {*DataConfig.model_fields} - {"kind"} | {
    *("cache_dir", "rebuild", "reset_memory", "order", "path", "dir", "download")
}
"""Settings on which the token files do not depend, or that stand in the key in another form."""

Announce = Callable[[str], None]


def open_corpus(
    config: StoredConfig, *, announce: Announce, seed: int, vocabulary: Tokenizer | None = None, extend: bool = False
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
    sources, settings, folder = _place(config, vocabulary, extend, announce=announce)
    cache_dir = folder.parent
    ready = partial(open_token_files, folder, config, seed=seed, settings=settings, sources=sources.files)
    corpus = None if config.rebuild else ready()
    if corpus is None:
        try:
            cache_dir.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(
                f"data.cache_dir is {str(cache_dir)!r}, and must be a folder that can be written: {error.strerror}"
            ) from error
        waiting = f"data: waiting for another process, which builds {folder}"
        with naming_file(cache_dir), locked(cache_dir / f".lock-{folder.name}", announce, waiting):
            corpus = None if config.rebuild else ready()
            if corpus is None:
                _publish(config, sources, vocabulary, extend, folder=folder, settings=settings, announce=announce)
                corpus = ready()
        if corpus is None:  # on a file system without locks
            raise RuntimeError(f"the token files in {str(folder)!r} were replaced while they were opened")
    if config.order == "shuffled" and len(corpus.starts["train"]) < 2:
        announce("data: data.order=shuffled has nothing to shuffle: the training split is one document")
    return corpus


def ready_corpus(config: StoredConfig, *, seed: int) -> Corpus | None:
    """Open a corpus's token files as `open_corpus` does; None where they are not ready: nothing is built or fetched."""
    if isinstance(config, PublishedConfig):
        config = replace(config, download=False)
    try:
        sources, settings, folder = _place(config, None, False, announce=lambda line: None)
    except UserError:
        if isinstance(config, PublishedConfig):  # its text was not fetched yet
            return None
        raise
    return open_token_files(folder, config, seed=seed, settings=settings, sources=sources.files)


def _place(
    config: StoredConfig, vocabulary: Tokenizer | None, extend: bool, *, announce: Announce
) -> tuple[Sources, dict[str, object], Path]:
    """Return what a corpus is built from, all that decides what its token files hold, and their folder."""
    entry = registry.lookup("corpus", config.kind)
    if entry in registry.outside("corpus"):
        setting = f"data={config.kind}"
        sources = Sources(setting=setting, location=Path(), splits={}, documents=entry.factory(config))
    else:
        sources = entry.factory(config, announce=announce)
    settings = _key(config, sources, vocabulary, extend)
    name = hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:12]
    return sources, settings, Path(os.path.expanduser(config.cache_dir)).absolute() / f"{config.kind}-{name}"


def _key(config: StoredConfig, sources: Sources, given: Tokenizer | None, extend: bool) -> dict[str, object]:
    """Return all that decides what the token files hold, besides the files that they are made of."""
    key = {name: value for name, value in plain(config).items() if name not in _NOT_OF_THE_TOKENS}
    key |= {"cache_format": FORMAT, "location": str(sources.location)}
    entries = [registry.lookup("corpus", config.kind)]
    if given is not None:
        key |= {"tokenizer": given.kind, "vocabulary": given.hash(), "extend": extend}
        entries += [registry.lookup("tokenizer", given.kind)]
    elif isinstance(config, CorpusConfig):
        cls, local = _tokenizer_class(config), local_path(config.tokenizer)
        key["tokenizer"] = cls.kind if cls else file_sha256(local) if local else config.tokenizer
        entries += [registry.lookup("tokenizer", cls.kind)] if cls else []
    outside = [*registry.outside("corpus"), *registry.outside("tokenizer")]
    modules = [sys.modules.get(entry.factory.__module__) for entry in entries if entry in outside]
    checksums = [file_sha256(Path(module.__file__)) for module in modules if module and module.__file__]
    return key | ({"plugins": checksums} if checksums else {})


def _tokenizer_class(config: CorpusConfig) -> Any:
    """Return the class of tokenizer that learns a corpus's vocabulary; None where another program has learnt it."""
    published = PUBLISHED.get(config.kind)
    name = published.tokenizer_classes.get(config.tokenizer, config.tokenizer) if published else config.tokenizer
    return registry.lookup("tokenizer", name).factory if name in registry.names("tokenizer") else None


def _publish(
    config: StoredConfig,
    sources: Sources,
    given: Tokenizer | None,
    extend: bool,
    *,
    folder: Path,
    settings: Mapping[str, object],
    announce: Announce,
) -> None:
    """Build into a folder beside `folder`, and rename it into place; what dead builders of it left is removed."""
    began = time.monotonic()
    size, count = sum(file.size for file in sources.files), len(sources.files)
    files = f"{count:,} file{'' if count == 1 else 's'} ({size / 1e6:,.1f} MB) of {sources.location}"
    announce(f"data: turning {files if count else f'what {sources.setting} gives'} into token files, once")
    for left in folder.parent.glob(f".building-{folder.name}-*"):
        shutil.rmtree(left, ignore_errors=True)
    temporary = folder.with_name(f".building-{folder.name}-{uuid4().hex}")
    temporary.mkdir()
    try:
        tokenizer, splits = _build(config, sources, given, extend, temporary, announce=announce)
        write_sidecar(temporary, settings=settings, sources=sources.files, tokenizer=tokenizer, splits=splits)
        for file in sources.files:
            now = file.path.stat()
            if (now.st_size, now.st_mtime_ns) != (file.size, file.mtime_ns):
                raise UserError(f"{file.place} changed while it was read: start again once it is at rest")
        # who has the files of a folder that is there still mapped keeps them
        aside = folder.with_name(f".building-{folder.name}-{uuid4().hex}")
        with suppress(FileNotFoundError):
            os.rename(folder, aside)
        os.rename(temporary, folder)
        shutil.rmtree(aside, ignore_errors=True)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    counts = {split: found["tokens"] for split, found in splits.items()}
    notes = [*sources.notes]
    if isinstance(config, PublishedConfig) and given is None:
        notes += deviations(config, counts | {"vocabulary": tokenizer.size})
    lost, kept = (sum(found[name] for found in splits.values()) for name in ("lost_bytes", "text_bytes"))
    if lost:
        notes.append(
            f"{100 * lost / (lost + kept):.2g} % of the text's bytes do not come back from the {tokenizer.kind} "
            "tokenizer, and bits per byte leave them out"
        )
    for note in notes:
        announce(f"data: {note}")
    shown = ", ".join(f"{split} {tokens:,}" for split, tokens in counts.items())
    seconds = time.monotonic() - began
    announce(f"data: {sum(counts.values()):,} tokens ({shown}) in {seconds:.1f} s, kept in {folder}")


def _build(
    config: StoredConfig, sources: Sources, given: Tokenizer | None, extend: bool, folder: Path, *, announce: Announce
) -> tuple[Tokenizer, dict[str, dict[str, int]]]:
    """Write all files but the sidecar, and return what the ids stand for and what is written of each split."""
    work, cut, published = folder / "work", sources.cut, PUBLISHED.get(config.kind)
    are_documents, limit = config.documents != "none", getattr(config, "max_eval_tokens", None)
    known = _known(config, given)
    flat, ranges = _flattened(config, sources, known, work)
    if cut is not None:
        flat, ranges = split_documents(flat, cut, are_documents=are_documents, limit=limit, folder=work)
    if known is None and not ranges[0]:
        raise UserError(f"{sources.setting}, which has no text for training")
    learns = isinstance(config, CorpusConfig) and (known is None or extend)
    tokenizer: Any = _learnt(config, sources, known, flat, ranges) if learns else known
    if learns and known is not None:
        announce(f"data: {tokenizer.size - known.size:,} symbols were added to the {known.size:,} of init_from")
    ends = flat.count > 1 if given is None or extend else given.end_of_document is not None
    if config.end_of_document and are_documents and ends:
        tokenizer = tokenizer.with_end_of_document()
    tokenizer.save(folder / VOCABULARY)
    encoder = Encoder(
        flat=flat,
        tokenizer=tokenizer.for_split_text() if published else tokenizer,
        strips=_strips(config, tokenizer),
        end=tokenizer.end_of_document if are_documents else None,
    )
    splits = {}
    for split, part in zip(SPLITS, ranges, strict=True):
        # a share of the text is limited by its bytes, so that it is the same for every tokenizer
        most = None if split == "train" or (cut is not None and cut.by == "fraction") else limit
        splits[split] = encoder.write(part, split=split, folder=folder, limit=most, announce=announce)
        if not are_documents:
            (folder / f"{split}.documents.bin").unlink()
    shutil.rmtree(work)
    return tokenizer, splits


def _known(config: Any, given: Tokenizer | None) -> Tokenizer | None:
    """Return what the ids stand for, where that depends on no text; a broken file is found before long work."""
    if isinstance(config, TokensConfig):
        return SymbolTokenizer(config.vocab_size) if config.vocab_size else load_vocabulary(str(config.vocabulary))
    if given is not None and config.newline == "drop" and given.kind != "word" and not given.strips_newlines:
        raise UserError(f"data.newline is 'drop', and must be 'keep' for a vocabulary of kind {given.kind}")
    return load_pretrained(config.tokenizer) if given is None and _tokenizer_class(config) is None else given


def _strips(config: StoredConfig, tokenizer: Tokenizer | type[Tokenizer]) -> bool:
    return getattr(config, "newline", "keep") == "drop" and tokenizer.strips_newlines


def _flattened(config: Any, sources: Sources, known: Tokenizer | None, work: Path) -> tuple[Flat, list[range]]:
    """Write all documents, split by split, and return the ranges of the splits."""
    read: Callable[[Source], Iterator[Part]]
    if isinstance(config, TokensConfig):
        assert known is not None
        flat = Flat(work, token_dtype(known.size))
        read = partial(read_ids, dtype=config.dtype, vocab_size=known.size, documents=config.documents)
    else:
        flat, any_bytes = Flat(work, None), (known or _tokenizer_class(config)).any_bytes
        how = {name: getattr(config, name) for name in ("encoding", "errors") if hasattr(config, name)}
        marker = config.document_marker
        read = partial(read_text, documents=config.documents, marker=marker, any_bytes=any_bytes, **how)
    ranges = []
    for split in SPLITS:
        begin = flat.size
        for source in sources.splits.get(split, ()):
            flat.write(read(source), place=source.place)
        given = (one.encode() if isinstance(one, str) else one for one in sources.documents.get(split, ()))
        flat.write(map(Part, given), place=f"{split} of data={config.kind}")
        ranges.append(range(begin, flat.size))
    return flat, ranges


def _learnt(config: Any, sources: Sources, known: Tokenizer | None, flat: Flat, ranges: list[range]) -> Tokenizer:
    """Return the tokenizer of a text, or a known one with what it lacks of the text."""
    published, cls = PUBLISHED.get(config.kind), type(known) if known else _tokenizer_class(config)
    if known is None and sources.vocabulary is not None:
        # the published vocabulary of the One Billion Words: the first word of every line
        with sources.vocabulary.path.open(encoding="utf-8") as file:
            return SentenceTokenizer(list(dict.fromkeys(line.split()[0] for line in file if line.strip())))
    is_lower = {"lower_case": published is not None and published.lower_case}
    names = [one.name for one in fields(LearnSettings) if hasattr(config, one.name)]
    settings = LearnSettings(**is_lower | {name: getattr(config, name) for name in names})
    reads_all = cls.learns_from_all or (published is not None and published.counts_all)
    parts = learning_parts(flat, ranges if reads_all else ranges[:1], cls, strips=_strips(config, cls))
    learnt: Tokenizer = cls.learn(parts, settings) if known is None else known.extend(parts, settings)
    return learnt
