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
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
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
    put_in_place,
    remove,
    start_file,
    token_dtype,
    write_sidecar,
    writing_below,
)
from transformer_xl.data.encode import Encoder, Written, learning_parts
from transformer_xl.data.files import Source, Sources, describe, unpack_tar
from transformer_xl.data.flat import Flat, Range, split_documents
from transformer_xl.data.lanes import SPLITS
from transformer_xl.data.subwords import load_pretrained, local_path
from transformer_xl.data.text import Piece, TextReader, is_utf8
from transformer_xl.data.token_ids import read_ids
from transformer_xl.data.tokenizer import (
    LearnSettings,
    Tokenizer,
    load_vocabulary,
)
from transformer_xl.data.words import SentenceTokenizer
from transformer_xl.data_config import (
    CorpusConfig,
    DataConfig,
    PublishedConfig,
    StoredConfig,
    TextConfig,
    TokensConfig,
)
from transformer_xl.errors import UserError, first_line, locked
from transformer_xl.settings import plain

_ATTEMPTS = 5
_SAMPLE = 1 << 20
_LEFT_OUT_WORTH_SAYING = 0.1
_NOT_OF_THE_TOKENS = {*DataConfig.model_fields} - {"kind"} | {
    *("cache_dir", "rebuild", "reset_memory", "order", "path", "dir", "download", "tokenizer", "vocabulary"),
}
"""Settings on which the token files do not hang, or that stand in the key in another form."""


def _tokenizer_class(config: CorpusConfig) -> type[Tokenizer] | None:
    """Return the class that learns a corpus's vocabulary; None where another program has learnt it."""
    name = config.tokenizer
    if isinstance(config, PublishedConfig):
        name = PUBLISHED[config.kind].tokenizer_classes.get(name, name)
    if name not in registry.names("tokenizer"):
        return None
    cls: type[Tokenizer] = registry.lookup("tokenizer", name).factory  # type: ignore[assignment]
    return cls


def _learn_settings(config: CorpusConfig) -> LearnSettings:
    names = [one.name for one in fields(LearnSettings) if hasattr(config, one.name)]
    is_lower = isinstance(config, PublishedConfig) and PUBLISHED[config.kind].lower_case
    return LearnSettings(**{"lower_case": is_lower} | {name: getattr(config, name) for name in names})


def _listed_words(path: Path) -> Tokenizer:
    """Read the published vocabulary of the One Billion Words: the first word of every line, in the file's order."""
    try:
        with path.open(encoding="utf-8") as file:
            words = [line.split()[0] for line in file if line.strip()]
        return SentenceTokenizer(list(dict.fromkeys(words)))
    except (OSError, ValueError) as error:
        raise UserError(f"{str(path)!r} is not a list of words: {first_line(error)}") from error


@dataclass(frozen=True, kw_only=True)
class _Build:
    """One build of a corpus's token files in a folder of its own.

    Attributes:
        config: of the corpus.
        sources: its files, or its documents.
        given: the tokenizer to read it with; None: its own.
        extend: whether what the given one lacks is added to it.
        folder: gets the files.
        announce: gets a line now and then.
        notes: what was unusual.
    """

    config: StoredConfig
    sources: Sources
    given: Tokenizer | None
    extend: bool
    folder: Path
    announce: Callable[[str], None]
    notes: list[str] = field(default_factory=list)

    def run(self) -> tuple[Tokenizer, dict[str, Written]]:
        """Write all files but the sidecar, and return what the ids stand for and what is written."""
        config, work, cut = self.config, self.folder / "work", self.sources.cut
        are_documents = config.documents != "none"
        limit = getattr(config, "max_eval_tokens", None)
        known = self._known()
        self.notes.extend(self.sources.notes)
        flat, ranges = self._flat(known, work)
        if cut is not None:
            flat, ranges = split_documents(flat, cut, are_documents=are_documents, limit=limit, folder=work)
        if known is None and ranges[0].begin == ranges[0].end:
            raise UserError(f"{self.sources.setting}, which has no {'text' if flat.is_text else 'tokens'} for training")
        tokenizer = self._tokenizer(known, flat, ranges)
        tokenizer.save(self.folder / VOCABULARY)
        encoder = Encoder(
            flat=flat,
            tokenizer=tokenizer.for_split_text() if isinstance(config, PublishedConfig) else tokenizer,
            strips=getattr(config, "newline", "keep") == "drop" and tokenizer.strips_newlines,
            end=tokenizer.end_of_document if are_documents else None,
        )
        written = {}
        for split, part in zip(SPLITS, ranges, strict=True):
            # a share of the text is limited by its bytes, so that it is the same for every tokenizer
            most = None if split == "train" or (cut is not None and cut.by == "fraction") else limit
            found = encoder.write(part, split=split, folder=self.folder, limit=most, announce=self.announce)
            written[split] = found
            read = found.text_bytes + found.lost_bytes
            if most is not None and part.end - part.begin - read > _LEFT_OUT_WORTH_SAYING * read > 0:
                self.notes.append(
                    f"the {split} split ends at data.max_eval_tokens {most:,}, after {read:,} bytes of its text"
                )
            if not are_documents:
                (self.folder / start_file(split)).unlink()
                written[split] = written[split]._replace(documents=1)
        shutil.rmtree(work)
        if isinstance(config, PublishedConfig) and self.given is None:
            counts = {split: found.tokens for split, found in written.items()}
            self.notes.extend(deviations(config, counts | {"vocabulary": tokenizer.size}))
        return tokenizer, written

    def _known(self) -> Tokenizer | None:
        """Return what the ids stand for, where that hangs on no text; a broken file is found before long work."""
        config = self.config
        if isinstance(config, TokensConfig):
            if config.vocabulary is not None:
                return load_vocabulary(config.vocabulary)
            assert config.vocab_size is not None
            return SymbolTokenizer(config.vocab_size)
        assert isinstance(config, CorpusConfig)
        if self.given is None and _tokenizer_class(config) is None:
            return load_pretrained(config.tokenizer)
        return self.given

    def _flat(self, tokenizer: Tokenizer | None, work: Path) -> tuple[Flat, list[Range]]:
        """Write all documents, split by split, and return the ranges of the splits."""
        config, ranges = self.config, []
        read: Callable[[Source], Iterator[Piece]]
        if isinstance(config, TokensConfig):
            assert tokenizer is not None
            flat = Flat(work, token_dtype(tokenizer.size))
            read = partial(read_ids, vocab_size=tokenizer.size, documents=config.documents)
        else:
            assert isinstance(config, CorpusConfig)
            reader = _reader(config, tokenizer or _tokenizer_class(config))
            flat, read = Flat(work, None), reader.read
        texts = _unpacked(self.sources.splits, work)
        for split in SPLITS:
            begin = flat.size
            for source in texts.get(split, ()):
                flat.write(read(source), place=source.place)
            given = self.sources.documents.get(split, ())
            documents = (one.encode() if isinstance(one, str) else one for one in given)
            flat.write((Piece(one, begins=True) for one in documents), place=f"{split} of data={config.kind}")
            ranges.append(Range(begin, flat.size))
        if isinstance(config, CorpusConfig):
            self._note_text(config, reader, flat)
        return flat, ranges

    def _tokenizer(self, known: Tokenizer | None, flat: Flat, ranges: list[Range]) -> Tokenizer:
        """Return the tokenizer with the end of documents, where there are several."""
        config, tokenizer = self.config, known
        if isinstance(config, CorpusConfig) and (known is None or self.extend):
            tokenizer = self._learnt(config, known, flat, ranges)
        assert tokenizer is not None
        if config.end_of_document and config.documents != "none" and flat.count > 1:
            if self.given is None or self.extend:
                tokenizer = tokenizer.with_end_of_document()
            elif tokenizer.end_of_document is None:
                self.notes.append(
                    "the trained model's vocabulary has no id that ends a document: training from it with "
                    "init_vocabulary=extend adds one"
                )
        if known is not None and self.extend:
            self.notes.append(f"{tokenizer.size - known.size:,} symbols were added to the {known.size:,} of init_from")
        return tokenizer

    def _learnt(self, config: CorpusConfig, known: Tokenizer | None, flat: Flat, ranges: list[Range]) -> Tokenizer:
        cls = _tokenizer_class(config) if known is None else type(known)
        assert cls is not None
        settings = _learn_settings(config)
        counts_all = isinstance(config, PublishedConfig) and PUBLISHED[config.kind].counts_all
        chosen = ranges if counts_all or cls.learns_from_all else ranges[:1]
        strips = config.newline == "drop" and cls.strips_newlines
        parts = learning_parts(flat, chosen, cls, strips=strips)
        if known is not None:
            return known.extend(parts, settings)
        if self.sources.vocabulary is not None:
            return _listed_words(self.sources.vocabulary.path)
        if not isinstance(config, PublishedConfig):
            sample = flat.read(ranges[0].begin, min(ranges[0].begin + _SAMPLE, ranges[0].end)).tobytes()
            if reason := cls.unfit(sample.decode(errors="ignore")):
                raise UserError(f"data.tokenizer is {config.tokenizer!r}, and {self.sources.setting} {reason}")
        if cls.sample_bytes is not None:
            megabytes = min(ranges[0].end - ranges[0].begin, cls.sample_bytes) / 1e6
            self.announce(f"data: learning the {cls.kind} vocabulary from {megabytes:,.1f} MB of text")
        learnt = cls.learn(parts, settings)
        if cls.kind == "bpe" and settings.bpe_size is not None and learnt.size < settings.bpe_size:
            self.notes.append(
                f"the text gives {learnt.size:,} sub-words, fewer than the {settings.bpe_size:,} of data.bpe_size"
            )
        return learnt

    def _note_text(self, config: CorpusConfig, reader: TextReader, flat: Flat) -> None:
        if reader.replaced:
            self.notes.append(f"data.errors=replace put U+FFFD in {reader.replaced:,} places")
        if config.documents in ("blank_line", "marker") and flat.count <= sum(map(len, self.sources.splits.values())):
            what = "a blank line" if config.documents == "blank_line" else f"the line {config.document_marker!r}"
            self.notes.append(f"data.documents is {config.documents!r}, and no text has {what} between two documents")
        if isinstance(config, TextConfig) and b"\0" in flat.read(0, min(flat.size, _SAMPLE)).tobytes():
            self.notes.append(
                "NUL bytes, which text has not, are in the text: data.path may be a glob that leaves such files out, "
                "and data.encoding=utf-16 reads that kind of text"
            )


def _reader(config: CorpusConfig, tokenizer: Tokenizer | type[Tokenizer] | None) -> TextReader:
    reader = TextReader(documents=config.documents, marker=config.document_marker)
    if isinstance(config, TextConfig):
        reader.encoding, reader.errors = config.encoding, config.errors
    takes_bytes = tokenizer is not None and tokenizer.any_bytes
    reader.any_bytes = takes_bytes and is_utf8(reader.encoding) and reader.errors == "strict"
    return reader


def _unpacked(splits: Mapping[str, Sequence[Source]], folder: Path) -> Mapping[str, Sequence[Source]]:
    """Write the members of a tar into a folder, where the texts are such: it can be read once, from its beginning."""
    members = list(dict.fromkeys(source for some in splits.values() for source in some if source.member is not None))
    if not members or zipfile.is_zipfile(members[0].file.path):
        return splits
    files = dict(zip(members, unpack_tar(members, folder=folder), strict=True))
    return {split: [files[source] for source in some] for split, some in splits.items()}


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
    _check_vocabulary(config, vocabulary)
    sources = find_sources(config, announce=announce)
    settings = _key(config, sources, vocabulary, extend)
    name = hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:12]
    cache_dir = Path(os.path.expanduser(config.cache_dir)).absolute()
    folder = cache_dir / f"{config.kind}-{name}"
    must_build = config.rebuild
    for _ in range(_ATTEMPTS):
        # Other builders may replace the folder while it is opened; what they put there is as good.
        files = None if must_build else open_token_files(folder, settings=settings, listing=sources.listing())
        if files is not None:
            if config.order == "shuffled" and len(files.splits["train"].starts or ()) < 2:
                announce("data: data.order=shuffled has nothing to shuffle: the training split is one document")
            return Corpus(config=config, files=files, seed=seed)
        with writing_below(cache_dir):
            cache_dir.mkdir(parents=True, exist_ok=True)
            waiting = f"data: waiting for another process, which builds {folder}"
            with locked(cache_dir / f".lock-{folder.name}", announce, waiting):
                if must_build or open_token_files(folder, settings=settings, listing=sources.listing()) is None:
                    build = partial(_Build, config=config, sources=sources, given=vocabulary, extend=extend)
                    _publish(build, folder, settings=settings, sources=sources, announce=announce)
        must_build = False
    raise RuntimeError(f"the token files in {str(folder)!r} were replaced {_ATTEMPTS} times while they were opened")


def find_sources(config: StoredConfig, *, announce: Callable[[str], None]) -> Sources:
    """Find a corpus's files, or the documents that a corpus from outside gives; `announce` gets lines on downloads."""
    factory = registry.lookup("corpus", config.kind).factory
    if _is_shipped(factory):
        sources: Sources = factory(config, announce=announce)
        return sources
    found = factory(config)
    if "train" not in found or not {*found} <= {*SPLITS}:
        raise UserError(f"data={config.kind} gives {', '.join(found)}, and must give train, or also valid and test")
    return Sources(setting=f"data={config.kind}", location=Path(), files=(), splits={}, documents=found)


def _is_shipped(factory: Callable[..., Any]) -> bool:
    return factory.__module__.startswith("transformer_xl.")


def _check_vocabulary(config: StoredConfig, vocabulary: Tokenizer | None) -> None:
    if vocabulary is None or not isinstance(config, CorpusConfig):
        return
    if not vocabulary.is_text:
        raise UserError(
            f"data is {config.kind}, which is text, and the trained model's vocabulary has numbers without a meaning: "
            "it must come from a model of text"
        )
    if config.newline == "drop" and vocabulary.kind != "word" and not vocabulary.strips_newlines:
        raise UserError(
            f"data.newline is 'drop', and must be 'keep' for a vocabulary of kind {vocabulary.kind}: its lines end by "
            "a symbol"
        )


def _key(config: StoredConfig, sources: Sources, given: Tokenizer | None, extend: bool) -> dict[str, object]:
    """Return all that decides what the token files hold, besides the files that they are made of."""
    key = {name: value for name, value in plain(config).items() if name not in _NOT_OF_THE_TOKENS}
    key |= {"cache_format": FORMAT, "location": str(sources.location)}
    path = getattr(config, "path", None)
    if path is not None and not os.path.exists(os.path.expanduser(path)):
        key["pattern"] = path
    factories = [registry.lookup("corpus", config.kind).factory]
    if isinstance(config, CorpusConfig):
        cls = _tokenizer_class(config) if given is None else type(given)
        if cls is not None:
            key["tokenizer"] = cls.kind
            factories.append(cls)
        else:
            local = local_path(config.tokenizer)
            key["tokenizer"] = config.tokenizer if local is None else file_sha256(local)
    if isinstance(config, TokensConfig) and config.vocabulary is not None:
        key["vocabulary"] = file_sha256(Path(os.path.expanduser(config.vocabulary)))
    if given is not None:
        key |= {"vocabulary": given.hash(), "extend": extend}
    modules = sorted({factory.__module__ for factory in factories if not _is_shipped(factory)})
    files = [getattr(sys.modules[module], "__file__", None) for module in modules]
    return key | ({"plugins": [file and file_sha256(Path(file)) for file in files]} if modules else {})


def _publish(
    build: Callable[..., _Build],
    folder: Path,
    *,
    settings: dict[str, object],
    sources: Sources,
    announce: Callable[[str], None],
) -> None:
    """Build into a folder beside `folder`, and rename it into place; what dead builders of it left is removed."""
    size = sum(file.size for file in sources.files)
    files = "1 file" if len(sources.files) == 1 else f"{len(sources.files):,} files"
    what = f"{files} ({size / 1e6:,.1f} MB) of {sources.location}" if sources.files else f"what {sources.setting} gives"
    began = time.monotonic()
    announce(f"data: turning {what} into token files, once")
    for left in folder.parent.glob(f".building-{folder.name}-*"):
        remove(left)
    temporary = folder.with_name(f".building-{folder.name}-{uuid4().hex}")
    temporary.mkdir()
    try:
        try:
            tokenizer, written = (built := build(folder=temporary, announce=announce)).run()
        except UserError:
            _require_unchanged(sources)  # or else what changed is the reason
            raise
        splits = {split: found._asdict() for split, found in written.items()}
        write_sidecar(
            temporary,
            settings=settings,
            listing=sources.listing(),
            sources=_described(sources),
            tokenizer=tokenizer,
            splits=splits,
        )
        put_in_place(temporary, folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    for line in built.notes:
        announce(f"data: {line}")
    counts = ", ".join(f"{split} {found.tokens:,}" for split, found in written.items())
    unknown = ", ".join(
        f"{split} {found.unknown:,} ({100 * found.unknown / found.tokens:.1f} %)"
        for split, found in written.items()
        if found.unknown
    )
    symbol = "" if tokenizer.unknown is None else f", now {tokenizer.symbol(tokenizer.unknown)}"
    lost, kept = (sum(getattr(found, name) for found in written.values()) for name in ("lost_bytes", "text_bytes"))
    announce(
        f"data: {sum(found.tokens for found in written.values()):,} tokens ({counts}) in "
        f"{time.monotonic() - began:.1f} s, kept in {folder}"
        + (f"; outside the vocabulary{symbol}: {unknown}" if unknown else "")
        + (
            f"; {100 * lost / (lost + kept):.2g} % of the text's bytes do not come back from the {tokenizer.kind} "
            "tokenizer, and bits per byte leave them out"
            if lost
            else ""
        )
    )


def _described(sources: Sources) -> list[dict[str, Any]]:
    found = [file._asdict() | {"path": file.name, "sha256": file_sha256(file.path)} for file in sources.files]
    _require_unchanged(sources)
    return [{name: entry[name] for name in ("path", "size", "mtime_ns", "sha256")} for entry in found]


def _require_unchanged(sources: Sources) -> None:
    for file in sources.files:
        try:
            now = describe(file.path, name=file.name)
        except OSError as error:
            raise UserError(f"{sources.setting}, where {file.name!r} cannot be read: {error.strerror}") from error
        if now != file:
            raise UserError(
                f"{sources.setting}, where {file.name!r} changed while it was read; start again once it is at rest"
            )
