"""Documents to token files: flat text, its splits, its tokenizer, and the ids in a folder put into place as a whole.

Text of any form is first written to one flat file of UTF-8 (ids: of numbers), with the places where documents begin in
a second one; splits and pieces of work are ranges of it.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
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
    start_file,
    token_dtype,
    write_sidecar,
)
from transformer_xl.data.encode import Encoder, learning_parts
from transformer_xl.data.files import Source, Sources
from transformer_xl.data.flat import Flat, split_documents
from transformer_xl.data.lanes import SPLITS
from transformer_xl.data.subwords import load_pretrained, local_path
from transformer_xl.data.text import Piece, TextReader
from transformer_xl.data.token_ids import read_ids
from transformer_xl.data.tokenizer import LearnSettings, Tokenizer, load_vocabulary
from transformer_xl.data.words import SentenceTokenizer
from transformer_xl.data_config import CorpusConfig, DataConfig, PublishedConfig, StoredConfig, TokensConfig
from transformer_xl.errors import UserError, locked, naming_file
from transformer_xl.settings import plain

_ATTEMPTS = 5
_NOT_OF_THE_TOKENS = {*DataConfig.model_fields} - {"kind"} | {
    *("cache_dir", "rebuild", "reset_memory", "order", "path", "dir", "download"),
}
"""Settings on which the token files do not hang, or that stand in the key in another form."""

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
    sources = find_sources(config, announce=announce)
    settings = _key(config, sources, vocabulary, extend)
    name = hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:12]
    cache_dir = Path(os.path.expanduser(config.cache_dir)).absolute()
    folder = cache_dir / f"{config.kind}-{name}"
    ready = partial(open_token_files, folder, config, seed=seed, settings=settings, sources=sources.files)
    must_build = config.rebuild
    for _ in range(_ATTEMPTS):
        # other builders may replace the folder while it is opened; what they put there is as good
        corpus = None if must_build else ready()
        if corpus is not None:
            if config.order == "shuffled" and len(corpus.starts["train"]) < 2:
                announce("data: data.order=shuffled has nothing to shuffle: the training split is one document")
            return corpus
        try:
            cache_dir.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(
                f"data.cache_dir is {str(cache_dir)!r}, and must be a folder that can be written: {error.strerror}"
            ) from error
        waiting = f"data: waiting for another process, which builds {folder}"
        with naming_file(cache_dir), locked(cache_dir / f".lock-{folder.name}", announce, waiting):
            if must_build or ready() is None:
                build = partial(_build, config, sources, vocabulary, extend, announce=announce)
                _publish(build, folder, settings=settings, sources=sources, announce=announce)
        must_build = False
    raise RuntimeError(f"the token files in {str(folder)!r} were replaced {_ATTEMPTS} times while they were opened")


def find_sources(config: StoredConfig, *, announce: Announce) -> Sources:
    """Find a corpus's files, or the documents that a corpus from outside gives; `announce` gets lines on downloads."""
    entry = registry.lookup("corpus", config.kind)
    if entry not in registry.outside("corpus"):
        sources: Sources = entry.factory(config, announce=announce)
        return sources
    found = entry.factory(config)
    if "train" not in found or not {*found} <= {*SPLITS}:
        raise UserError(f"data={config.kind} gives {', '.join(found)}, and must give train, or also valid and test")
    return Sources(setting=f"data={config.kind}", location=Path(), splits={}, documents=found)


def _key(config: StoredConfig, sources: Sources, given: Tokenizer | None, extend: bool) -> dict[str, object]:
    """Return all that decides what the token files hold, besides the files that they are made of."""
    key = {name: value for name, value in plain(config).items() if name not in _NOT_OF_THE_TOKENS}
    key |= {"cache_format": FORMAT, "location": str(sources.location)}
    entries = [registry.lookup("corpus", config.kind)]
    if given is not None:
        key |= {"tokenizer": given.kind, "vocabulary": given.hash(), "extend": extend}
        entries += [registry.lookup("tokenizer", given.kind)]
    elif isinstance(config, CorpusConfig):
        entry, local = _tokenizer_entry(config), local_path(config.tokenizer)
        if entry is not None:
            key["tokenizer"] = entry.name
            entries.append(entry)
        elif local is not None:
            key["tokenizer"] = file_sha256(local)
    checksums = [checksum for checksum in map(registry.checksum, entries) if checksum]
    return key | ({"plugins": checksums} if checksums else {})


def _tokenizer_entry(config: CorpusConfig) -> registry.Entry | None:
    """Return the tokenizer that learns a corpus's vocabulary; None where another program has learnt it."""
    published = PUBLISHED.get(config.kind)
    name = published.tokenizer_classes.get(config.tokenizer, config.tokenizer) if published else config.tokenizer
    return registry.lookup("tokenizer", name) if name in registry.names("tokenizer") else None


# --- the build ---


def _publish(
    build: Callable[[Path], tuple[Tokenizer, dict[str, dict[str, int]]]],
    folder: Path,
    *,
    settings: Mapping[str, object],
    sources: Sources,
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
        tokenizer, splits = build(temporary)
        write_sidecar(temporary, settings=settings, sources=sources.files, tokenizer=tokenizer, splits=splits)
        # who has the files of a folder that is there still mapped keeps them
        aside = folder.with_name(f".building-{folder.name}-{uuid4().hex}")
        with suppress(FileNotFoundError):
            os.rename(folder, aside)
        os.rename(temporary, folder)
        shutil.rmtree(aside, ignore_errors=True)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    counts = ", ".join(f"{split} {found['tokens']:,}" for split, found in splits.items())
    total, seconds = sum(found["tokens"] for found in splits.values()), time.monotonic() - began
    announce(f"data: {total:,} tokens ({counts}) in {seconds:.1f} s, kept in {folder}")


def _build(
    config: StoredConfig, sources: Sources, given: Tokenizer | None, extend: bool, folder: Path, *, announce: Announce
) -> tuple[Tokenizer, dict[str, dict[str, int]]]:
    """Write all files but the sidecar, and return what the ids stand for and what is written of each split."""
    work, cut, is_published = folder / "work", sources.cut, isinstance(config, PublishedConfig)
    are_documents = config.documents != "none"
    limit = getattr(config, "max_eval_tokens", None)
    known = _known(config, given)
    for note in sources.notes:
        announce(f"data: {note}")
    flat, ranges = _flattened(config, sources, known, work, announce)
    if cut is not None:
        flat, ranges = split_documents(flat, cut, are_documents=are_documents, limit=limit, folder=work)
    if known is None and not ranges[0]:
        raise UserError(f"{sources.setting}, which has no text for training")
    tokenizer = known
    if isinstance(config, CorpusConfig) and (known is None or extend):
        tokenizer = _learnt(config, sources, known, flat, ranges, announce)
    assert tokenizer is not None
    ends = flat.count > 1 if given is None or extend else given.end_of_document is not None
    if config.end_of_document and are_documents and ends:
        tokenizer = tokenizer.with_end_of_document()
    tokenizer.save(folder / VOCABULARY)
    encoder = Encoder(
        flat=flat,
        tokenizer=tokenizer.for_split_text() if is_published else tokenizer,
        strips=getattr(config, "newline", "keep") == "drop" and tokenizer.strips_newlines,
        end=tokenizer.end_of_document if are_documents else None,
    )
    splits = {}
    for split, part in zip(SPLITS, ranges, strict=True):
        # a share of the text is limited by its bytes, so that it is the same for every tokenizer
        most = None if split == "train" or (cut is not None and cut.by == "fraction") else limit
        splits[split] = encoder.write(part, split=split, folder=folder, limit=most, announce=announce)
        if not are_documents:
            (folder / start_file(split)).unlink()
            splits[split]["documents"] = 1
    shutil.rmtree(work)
    for note in _notes(config, tokenizer, splits, given):
        announce(f"data: {note}")
    return tokenizer, splits


def _known(config: StoredConfig, given: Tokenizer | None) -> Tokenizer | None:
    """Return what the ids stand for, where that hangs on no text; a broken file is found before long work."""
    if isinstance(config, TokensConfig):
        return SymbolTokenizer(config.vocab_size) if config.vocab_size else load_vocabulary(str(config.vocabulary))
    assert isinstance(config, CorpusConfig)
    return load_pretrained(config.tokenizer) if given is None and _tokenizer_entry(config) is None else given


def _flattened(
    config: StoredConfig, sources: Sources, known: Tokenizer | None, work: Path, announce: Announce
) -> tuple[Flat, list[range]]:
    """Write all documents, split by split, and return the ranges of the splits."""
    read: Callable[[Source], Iterator[Piece]]
    reader = None
    if isinstance(config, TokensConfig):
        assert known is not None
        flat = Flat(work, token_dtype(known.size))
        read = partial(read_ids, dtype=config.dtype, vocab_size=known.size, documents=config.documents)
    else:
        assert isinstance(config, CorpusConfig)
        entry: Any = _tokenizer_entry(config)
        reader = TextReader(
            documents=config.documents,
            marker=config.document_marker,
            encoding=getattr(config, "encoding", "utf-8"),
            errors=getattr(config, "errors", "strict"),
            any_bytes=(known or entry.factory).any_bytes,
        )
        flat, read = Flat(work, None), reader.read
    ranges = []
    for split in SPLITS:
        begin = flat.size
        for source in sources.splits.get(split, ()):
            flat.write(read(source), place=source.place)
        given: Iterable[str | bytes] = sources.documents.get(split, ())
        pieces = (Piece(one.encode() if isinstance(one, str) else one, begins=True) for one in given)
        flat.write(pieces, place=f"{split} of data={config.kind}")
        ranges.append(range(begin, flat.size))
    if reader is not None and reader.replaced:
        announce(f"data: data.errors=replace put U+FFFD in {reader.replaced:,} places")
    return flat, ranges


def _learnt(
    config: CorpusConfig,
    sources: Sources,
    known: Tokenizer | None,
    flat: Flat,
    ranges: list[range],
    announce: Announce,
) -> Tokenizer:
    """Return the tokenizer of a text, or a known one with what it lacks of the text."""
    published, entry = PUBLISHED.get(config.kind), _tokenizer_entry(config)
    cls: Any = type(known) if known is not None or entry is None else entry.factory
    names = [one.name for one in fields(LearnSettings) if hasattr(config, one.name)]
    is_lower = {"lower_case": published is not None and published.lower_case}
    settings = LearnSettings(**is_lower | {name: getattr(config, name) for name in names})
    reads_all = cls.learns_from_all or (published is not None and published.counts_all)
    strips = config.newline == "drop" and cls.strips_newlines
    parts = learning_parts(flat, ranges if reads_all else ranges[:1], cls, strips=strips)
    if known is not None:
        extended = known.extend(parts, settings)
        announce(f"data: {extended.size - known.size:,} symbols were added to the {known.size:,} of init_from")
        return extended
    if sources.vocabulary is not None:
        # the published vocabulary of the One Billion Words: the first word of every line
        with sources.vocabulary.path.open(encoding="utf-8") as file:
            return SentenceTokenizer(list(dict.fromkeys(line.split()[0] for line in file if line.strip())))
    learnt: Tokenizer = cls.learn(parts, settings)
    return learnt


def _notes(
    config: StoredConfig, tokenizer: Tokenizer, splits: Mapping[str, Mapping[str, int]], given: Tokenizer | None
) -> Iterator[str]:
    """Yield what must be known of the scores of a corpus."""
    if isinstance(config, PublishedConfig) and given is None:
        counts = {split: found["tokens"] for split, found in splits.items()}
        yield from deviations(config, counts | {"vocabulary": tokenizer.size})
    lost, kept = (sum(found[name] for found in splits.values()) for name in ("lost_bytes", "text_bytes"))
    if lost:
        yield (
            f"{100 * lost / (lost + kept):.2g} % of the text's bytes do not come back from the {tokenizer.kind} "
            "tokenizer, and bits per byte leave them out"
        )
