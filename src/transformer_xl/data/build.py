"""Documents to token files: flat text, its splits, its tokenizer, and the ids in a folder put into place as a whole.

Text of any form is first written to one flat file of UTF-8 (ids: of numbers), with the places where documents begin in
a second one; splits and pieces of work are ranges of it.
"""

from __future__ import annotations

import errno
import hashlib
import json
import multiprocessing
import os
import shutil
import signal
import sys
import threading
import time
import zipfile
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from hashlib import file_digest
from itertools import chain
from multiprocessing.connection import wait
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple
from uuid import uuid4

import numpy as np
from numpy.typing import NDArray

from transformer_xl import registry
from transformer_xl.data.characters import SymbolTokenizer
from transformer_xl.data.corpora import PUBLISHED, Sources, deviations
from transformer_xl.data.corpus import (
    FORMAT,
    SIDECAR,
    SOURCES,
    SPLITS,
    START_DTYPE,
    VOCABULARY,
    Corpus,
    open_token_files,
    start_file,
    token_dtype,
    token_file,
)
from transformer_xl.data.flat import SEARCHED, WINDOW, Flat, Range, Window, split_documents, windows
from transformer_xl.data.subwords import load_pretrained, local_path
from transformer_xl.data.text import Piece, Source, TextReader, is_utf8, unpack_tar
from transformer_xl.data.token_ids import read_ids
from transformer_xl.data.tokenizer import (
    EncodeError,
    LearnSettings,
    Part,
    Tokenizer,
    character_border,
    load_vocabulary,
)
from transformer_xl.data.words import SentenceTokenizer
from transformer_xl.data_config import (
    CorpusConfig,
    CountedConfig,
    DataConfig,
    PublishedConfig,
    StoredConfig,
    TextConfig,
    TokensConfig,
)
from transformer_xl.errors import UserError, atomic_write, first_line, locked
from transformer_xl.settings import plain

_ATTEMPTS = 5
_JOB = 8 << 20
_FEWEST_JOBS = 4
"""Starting processes takes a second or two: less than so many jobs are done here."""
_LEARNING_WINDOW = 1 << 20
_SAMPLE = 1 << 20
_SECONDS_BETWEEN_LINES = 10.0
_LEFT_OUT_WORTH_SAYING = 0.1
_NOT_OF_THE_TOKENS = {*DataConfig.model_fields} - {"kind"} | {
    *("cache_dir", "rebuild", "reset_memory", "order", "path", "dir", "download", "tokenizer", "vocabulary"),
}
"""Settings on which the token files do not hang, or that stand in the key in another form."""


class Written(NamedTuple):
    """What a split's files hold.

    Attributes:
        tokens: ids.
        unknown: how many of them stand for something that the vocabulary lacks.
        text_bytes: of the text that decoding gives back; 0 where they are of no text.
        lost_bytes: of the text that decoding does not give back.
        documents: how many begin; 1 where the text is not divided.
    """

    tokens: int
    unknown: int
    text_bytes: int
    lost_bytes: int
    documents: int


class Encoded(NamedTuple):
    """Documents as ids, each with its end if it has one; `starts`: places in `ids` where documents begin."""

    ids: NDArray[Any]
    starts: NDArray[np.int64]
    unknown: int
    text_bytes: int
    lost_bytes: int


@dataclass(frozen=True, kw_only=True)
class Encoder:
    """Turns ranges of documents into ids.

    Attributes:
        flat: the documents.
        tokenizer: of text; of ids it says what they stand for.
        strips: whether line ends are taken out.
        end: the id behind each document; None: there is none.
    """

    flat: Flat
    tokenizer: Tokenizer
    strips: bool
    end: int | None

    def encode(self, part: Range) -> Iterator[Encoded]:
        """Yield the ids of a range, window by window; `UserError` naming the place of what cannot be said."""
        end = [] if self.end is None else [np.array([self.end])]
        for window in windows(self.flat, part, self.tokenizer.split_point):
            last = len(window.contents) - 1
            found = self._encoded(window) if self.flat.is_text else [(ids, 0, 0, 0) for ids in window.contents]
            ids = [[one[0], *end] if place < last or window.ends else [one[0]] for place, one in enumerate(found)]
            ends = np.cumsum([sum(map(len, some)) for some in ids])
            starts = np.append(0, ends[:-1])
            yield Encoded(
                np.concatenate(list(chain.from_iterable(ids))).astype(token_dtype(self.tokenizer.size)),
                starts if window.begins else starts[1:],
                *(sum(numbers) for numbers in zip(*(one[1:] for one in found), strict=True)),
            )

    def _encoded(self, window: Window) -> list[tuple[NDArray[Any], int, int, int]]:
        last = len(window.contents) - 1
        parts = [
            Part(_stripped(content, self.strips), place < last or window.ends)
            for place, content in enumerate(window.contents)
        ]
        try:
            found = self.tokenizer.encode_parts(parts)
        except EncodeError:
            at = window.begin
            for part, content in zip(parts, window.contents, strict=True):
                try:
                    self.tokenizer.encode_part(part)
                except EncodeError as error:
                    kept = [place for place, value in enumerate(content) if not (self.strips and value in b"\r\n")]
                    raise UserError(
                        f"{self.flat.place(at + kept[error.byte])} {error.problem}: training from its model with "
                        "init_vocabulary=extend adds it, data.newline=drop leaves line ends out"
                    ) from error
                at += len(content)
            raise
        return [(*one, len(part.data) - one.text_bytes) for one, part in zip(found, parts, strict=True)]

    def write(
        self, part: Range, *, split: str, folder: Path, limit: int | None, announce: Callable[[str], None]
    ) -> Written:
        """Write a split's ids, and the places where its documents begin, into new files.

        Args:
            part: of the documents.
            split: names the files.
            folder: gets them.
            limit: tokens at which the split ends; None: with its text.
            announce: gets a line now and then.

        Returns:
            What the files hold.
        """
        written = Written(0, 0, 0, 0, 0)
        telling = Telling(f"turning the {split} split into tokens", part.end - part.begin, announce)
        opening = np.array(self.tokenizer.opening, token_dtype(self.tokenizer.size))
        with (folder / token_file(split)).open("xb") as token_target, (folder / start_file(split)).open("xb") as starts:
            for found in self._all(part, spread=limit is None):
                telling.add(found.text_bytes + found.lost_bytes)
                if len(opening):  # before the first text
                    ids, places = np.concatenate([opening, found.ids]), found.starts + len(opening)
                    found = found._replace(ids=ids, starts=np.where(found.starts == 0, 0, places))
                    opening = opening[:0]
                if limit is not None and written.tokens + len(found.ids) > limit:
                    found = _first_ids(found, limit - written.tokens)
                token_target.write(found.ids.data)
                starts.write((found.starts + written.tokens).astype(START_DTYPE).data)
                more = (len(found.ids), *found[2:], len(found.starts))
                written = Written(*(sum(numbers) for numbers in zip(written, more, strict=True)))
                if written.tokens == limit:
                    break
            for file in (token_target, starts):
                file.flush()
                os.fsync(file.fileno())
        return written

    def _all(self, part: Range, *, spread: bool) -> Iterator[Encoded]:
        """Yield the ids of a range, from all cores where it is large."""
        jobs = list(_jobs(self.flat, part, self.tokenizer.split_point))
        workers = min(len(os.sched_getaffinity(0)), len(jobs))
        is_known = type(self.tokenizer).__module__ != "__main__"  # to other processes
        if not (spread and is_known) or self.tokenizer.uses_all_cores or workers < 2 or len(jobs) < _FEWEST_JOBS:
            yield from self.encode(part)
            return
        context = multiprocessing.get_context("forkserver")
        with ProcessPoolExecutor(workers, context, _prepare_worker, (self,)) as pool:
            try:
                waiting: deque[Future[Encoded]] = deque()
                for job in jobs:
                    with _without_main():
                        waiting.append(pool.submit(_encode_job, job))
                    if len(waiting) > 2 * workers:
                        yield waiting.popleft().result()
                while waiting:
                    yield waiting.popleft().result()
            except BrokenProcessPool as error:
                raise RuntimeError("a process that read text has ended; was memory short?") from error
            finally:
                pool.shutdown(cancel_futures=True)


@contextmanager
def _without_main() -> Iterator[None]:
    """Start processes that do not run the user's own main program again, which may have no guard against that."""
    main, sys.modules["__main__"] = sys.modules["__main__"], ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


_worker_encoder: Encoder


def _prepare_worker(encoder: Encoder) -> None:
    global _worker_encoder
    _worker_encoder = encoder
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that started this one
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    wait([parent.sentinel])
    os._exit(1)


def _encode_job(job: Range) -> Encoded:
    found = list(_worker_encoder.encode(job))
    before = np.append(0, np.cumsum([len(one.ids) for one in found])[:-1])
    return Encoded(
        np.concatenate([one.ids for one in found]),
        np.concatenate([one.starts + first for one, first in zip(found, before, strict=True)]),
        *(sum(numbers) for numbers in zip(*(one[2:] for one in found), strict=True)),
    )


def _jobs(flat: Flat, part: Range, split_point: Callable[[bytes], int]) -> Iterator[Range]:
    """Cut a range into pieces of work, between documents or where a document may be cut."""
    begin, stop = part.begin, part.begin + _JOB
    while stop + _JOB < part.end:
        border = flat.next_start(stop)
        if border - stop > SEARCHED:
            data = flat.read(stop - WINDOW, stop)
            cut = split_point(data.tobytes()) if flat.is_text else len(data)
            border = stop - len(data) + cut if cut else begin
        if begin < border < part.end:
            yield Range(begin, border)
            begin = border
        stop = max(stop, begin) + _JOB
    yield Range(begin, part.end)


def _first_ids(found: Encoded, count: int) -> Encoded:
    """Cut ids; their bytes and unknown ones are taken in proportion."""
    unknown, text, lost = (number * count // len(found.ids) for number in found[2:])
    return Encoded(found.ids[:count], found.starts[found.starts < count], unknown, text, lost)


def _stripped(content: bytes, strips: bool) -> bytes:
    return content.translate(None, b"\r\n") if strips else content


class Telling:
    """Announces every ten seconds how much of something is done."""

    def __init__(self, doing: str, total: int, announce: Callable[[str], None]) -> None:
        self._doing, self._total, self._announce = doing, total, announce
        self._done, self._said = 0, time.monotonic()

    def add(self, done: int) -> None:
        """Count what was done."""
        self._done += done
        if self._done < self._total and time.monotonic() - self._said > _SECONDS_BETWEEN_LINES:
            self._said = time.monotonic()
            self._announce(f"data: {self._doing}, {100 * self._done // self._total} %")


# --- tokenizers ---


def _learning_parts(flat: Flat, ranges: Iterable[Range], cls: type[Tokenizer], *, strips: bool) -> Iterator[Part]:
    """Yield the documents that a vocabulary is learnt from; of a large text windows that a fixed seed draws."""
    for part in ranges:
        total = part.end - part.begin
        if cls.sample_bytes is None or total <= cls.sample_bytes:
            for window in windows(flat, part, cls.learning_split_point):
                last = len(window.contents) - 1
                for place, content in enumerate(window.contents):
                    yield Part(_stripped(content, strips), place < last or window.ends)
            continue
        drawn = np.random.Generator(np.random.PCG64(0)).permutation(-(-total // _LEARNING_WINDOW))
        for number in np.sort(drawn[: cls.sample_bytes // _LEARNING_WINDOW]).tolist():
            begin = part.begin + number * _LEARNING_WINDOW
            some = Range(begin, min(begin + _LEARNING_WINDOW, part.end))
            for window in windows(flat, some, character_border):
                for content in window.contents:  # a window may begin or end inside a character
                    yield Part(_stripped(content.decode(errors="ignore").encode(), strips))


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
    if not isinstance(config, CountedConfig):
        is_lower = isinstance(config, PublishedConfig) and PUBLISHED[config.kind].lower_case
        return LearnSettings(newline=config.newline, lower_case=is_lower)
    return LearnSettings(
        newline=config.newline,
        lower_case=config.lower_case,
        min_count=config.min_count,
        max_size=config.max_size,
        bpe_size=config.bpe_size,
    )


def _listed_words(path: Path) -> Tokenizer:
    """Read the published vocabulary of the One Billion Words: the first word of every line, in the file's order."""
    try:
        with path.open(encoding="utf-8") as file:
            words = [line.split()[0] for line in file if line.strip()]
        return SentenceTokenizer(list(dict.fromkeys(words)))
    except (OSError, ValueError) as error:
        raise UserError(f"{str(path)!r} is not a list of words: {first_line(error)}") from error


# --- the build ---


@dataclass(frozen=True, kw_only=True)
class _Build:
    """One build of a corpus's token files in a folder of its own.

    Attributes:
        config: of the corpus.
        sources: its files, or documents by split, which a corpus from outside gives.
        given: the tokenizer to read it with; None: its own.
        extend: whether what the given one lacks is added to it.
        folder: gets the files.
        announce: gets a line now and then.
    """

    config: StoredConfig
    sources: Sources
    documents: Mapping[str, Iterable[str | bytes]] | None
    given: Tokenizer | None
    extend: bool
    folder: Path
    announce: Callable[[str], None]

    def run(self) -> tuple[Tokenizer, dict[str, Written], list[str]]:
        """Write all files but the sidecar, and return what the ids stand for, what is written, and notes."""
        config, work, cut = self.config, self.folder / "work", self.sources.cut
        are_documents = config.documents != "none"
        limit = getattr(config, "max_eval_tokens", None)
        known = self._known()
        flat, ranges, notes = self._flat(known, work)
        if cut is not None:
            flat, ranges = split_documents(flat, cut, are_documents=are_documents, limit=limit, folder=work)
        if known is None and ranges[0].begin == ranges[0].end:
            raise UserError(f"{self.sources.setting}, which has no {'text' if flat.is_text else 'tokens'} for training")
        tokenizer, more = self._tokenizer(known, flat, ranges)
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
                more.append(
                    f"the {split} split ends at data.max_eval_tokens {most:,}, after {read:,} bytes of its text"
                )
            if not are_documents:
                (self.folder / start_file(split)).unlink()
                written[split] = written[split]._replace(documents=1)
        shutil.rmtree(work)
        if isinstance(config, PublishedConfig) and self.given is None:
            counts = {split: found.tokens for split, found in written.items()}
            more += deviations(config, counts | {"vocabulary": tokenizer.size})
        return tokenizer, written, [*self.sources.notes, *notes, *more]

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

    def _flat(self, tokenizer: Tokenizer | None, work: Path) -> tuple[Flat, list[Range], list[str]]:
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
            if self.documents is not None:
                pieces = (
                    Piece(document.encode() if isinstance(document, str) else document, begins=True)
                    for document in self.documents.get(split, ())
                )
                flat.write(pieces, place=f"{split} of data={config.kind}")
            ranges.append(Range(begin, flat.size))
        notes: list[str] = []
        if isinstance(config, CorpusConfig):
            if reader.replaced:
                notes.append(f"data.errors=replace put U+FFFD in {reader.replaced:,} places")
            notes += _notes_on_text(config, self.sources, flat)
        return flat, ranges, notes

    def _tokenizer(self, known: Tokenizer | None, flat: Flat, ranges: list[Range]) -> tuple[Tokenizer, list[str]]:
        """Return the tokenizer with the end of documents, where there are several, and notes on it."""
        config, tokenizer = self.config, known
        notes: list[str] = []
        if isinstance(config, CorpusConfig) and (known is None or self.extend):
            tokenizer, notes = self._learnt(config, known, flat, ranges)
        assert tokenizer is not None
        if config.end_of_document and config.documents != "none" and flat.count > 1:
            if self.given is None or self.extend:
                tokenizer = tokenizer.with_end_of_document()
            elif tokenizer.end_of_document is None:
                notes.append(
                    "the trained model's vocabulary has no id that ends a document: training from it with "
                    "init_vocabulary=extend adds one"
                )
        if known is not None and self.extend:
            notes.append(f"{tokenizer.size - known.size:,} symbols were added to the {known.size:,} of init_from")
        return tokenizer, notes

    def _learnt(
        self, config: CorpusConfig, known: Tokenizer | None, flat: Flat, ranges: list[Range]
    ) -> tuple[Tokenizer, list[str]]:
        cls = _tokenizer_class(config) if known is None else type(known)
        assert cls is not None
        settings = _learn_settings(config)
        counts_all = isinstance(config, PublishedConfig) and PUBLISHED[config.kind].counts_all
        chosen = ranges if counts_all or cls.learns_from_all else ranges[:1]
        strips = config.newline == "drop" and cls.strips_newlines
        parts = _learning_parts(flat, chosen, cls, strips=strips)
        if known is not None:
            return known.extend(parts, settings), []
        if self.sources.vocabulary is not None:
            return _listed_words(self.sources.vocabulary.path), []
        if not isinstance(config, PublishedConfig):
            sample = flat.read(ranges[0].begin, min(ranges[0].begin + _SAMPLE, ranges[0].end)).tobytes()
            if reason := cls.unfit(sample.decode(errors="ignore")):
                raise UserError(f"data.tokenizer is {config.tokenizer!r}, and {self.sources.setting} {reason}")
        if cls.sample_bytes is not None:
            megabytes = min(ranges[0].end - ranges[0].begin, cls.sample_bytes) / 1e6
            self.announce(f"data: learning the {cls.kind} vocabulary from {megabytes:,.1f} MB of text")
        learnt = cls.learn(parts, settings)
        if cls.kind == "bpe" and settings.bpe_size is not None and learnt.size < settings.bpe_size:
            note = f"the text gives {learnt.size:,} sub-words, fewer than the {settings.bpe_size:,} of data.bpe_size"
            return learnt, [note]
        return learnt, []


def _reader(config: CorpusConfig, tokenizer: Tokenizer | type[Tokenizer] | None) -> TextReader:
    any_bytes = tokenizer is not None and tokenizer.any_bytes
    if not isinstance(config, TextConfig):
        return TextReader(documents=config.documents, marker=config.document_marker, any_bytes=any_bytes)
    return TextReader(
        documents=config.documents,
        marker=config.document_marker,
        encoding=config.encoding,
        errors=config.errors,
        any_bytes=any_bytes and is_utf8(config.encoding) and config.errors == "strict",
    )


def _unpacked(splits: Mapping[str, Sequence[Source]], folder: Path) -> Mapping[str, Sequence[Source]]:
    """Write the members of a tar into a folder, where the texts are such: it can be read once, from its beginning."""
    members = list(dict.fromkeys(source for some in splits.values() for source in some if source.member is not None))
    if not members or zipfile.is_zipfile(members[0].file.path):
        return splits
    files = dict(zip(members, unpack_tar(members, folder=folder), strict=True))
    return {split: [files[source] for source in some] for split, some in splits.items()}


def _notes_on_text(config: CorpusConfig, sources: Sources, flat: Flat) -> list[str]:
    notes = []
    files = sum(map(len, sources.splits.values()))
    if config.documents in ("blank_line", "marker") and flat.count <= files:
        what = "a blank line" if config.documents == "blank_line" else f"the line {config.document_marker!r}"
        notes.append(f"data.documents is {config.documents!r}, and no text has {what} between two documents")
    if isinstance(config, TextConfig) and b"\0" in flat.read(0, min(flat.size, _SAMPLE)).tobytes():
        notes.append(
            "NUL bytes, which text has not, are in the text: data.path may be a glob that leaves such files out, and "
            "data.encoding=utf-16 reads that kind of text"
        )
    return notes


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
    sources, documents = find_sources(config, announce=announce)
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
        with _writing_below(cache_dir):
            cache_dir.mkdir(parents=True, exist_ok=True)
            waiting = f"data: waiting for another process, which builds {folder}"
            with locked(cache_dir / f".lock-{folder.name}", announce, waiting):
                if must_build or open_token_files(folder, settings=settings, listing=sources.listing()) is None:
                    build = partial(
                        _Build, config=config, sources=sources, documents=documents, given=vocabulary, extend=extend
                    )
                    _publish(build, folder, settings=settings, sources=sources, announce=announce)
        must_build = False
    raise RuntimeError(f"the token files in {str(folder)!r} were replaced {_ATTEMPTS} times while they were opened")


def find_sources(
    config: StoredConfig, *, announce: Callable[[str], None]
) -> tuple[Sources, Mapping[str, Iterable[str | bytes]] | None]:
    """Find a corpus's files, or the documents that a corpus from outside gives by split; `UserError` where it lacks.

    Args:
        config: of the corpus.
        announce: gets a line for each step of a download.
    """
    factory = registry.lookup("corpus", config.kind).factory
    if _is_shipped(factory):
        return factory(config, announce=announce), None
    found = factory(config)
    splits = [split for split in found if split not in SPLITS]
    if splits or "train" not in found:
        raise UserError(
            f"data={config.kind} gives {', '.join(found)}, and must give train, and may give valid and test"
        )
    return Sources(setting=f"data={config.kind}", location=Path(), files=(), splits={}), found


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
            key["tokenizer"] = config.tokenizer if local is None else _sha256(local)
    if isinstance(config, TokensConfig) and config.vocabulary is not None:
        key["vocabulary"] = _sha256(Path(os.path.expanduser(config.vocabulary)))
    if given is not None:
        key |= {"vocabulary": given.hash(), "extend": extend}
    outside = {factory.__module__ for factory in factories if not _is_shipped(factory)}
    if outside:
        key["plugins"] = [_sha256(Path(str(sys.modules[module].__file__))) for module in sorted(outside)]
    return key


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
    began = time.monotonic()
    announce(f"data: turning {files} ({size / 1e6:,.1f} MB) of {sources.location} into token files, once")
    for left in folder.parent.glob(f".building-{folder.name}-*"):
        _remove(left)
    temporary = folder.with_name(f".building-{folder.name}-{uuid4().hex}")
    temporary.mkdir()
    try:
        try:
            tokenizer, written, notes = build(folder=temporary, announce=announce).run()
        except UserError:
            _require_unchanged(sources)  # or else what changed is the reason
            raise
        checksums = [_sha256(file.path) for file in sources.files]
        _require_unchanged(sources)
        _write_sidecar(temporary, settings, sources, checksums, tokenizer, written)
        _rename(temporary, folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    for line in notes:
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


def _write_sidecar(
    folder: Path,
    settings: dict[str, object],
    sources: Sources,
    checksums: Sequence[str],
    tokenizer: Tokenizer,
    written: Mapping[str, Written],
) -> None:
    # The lines that `sha256sum` prints: names belong to the corpus, since they place a file in its split.
    listed = hashlib.sha256()
    described = []
    for checksum, file in zip(checksums, sources.files, strict=True):
        listed.update(f"{checksum}  ".encode() + os.fsencode(file.name) + b"\n")
        described.append({"path": file.name, "size": file.size, "mtime_ns": file.mtime_ns, "sha256": checksum})
    with atomic_write(folder / SOURCES) as target:
        json.dump(described, target, indent=1)
    names = [VOCABULARY, SOURCES, *map(token_file, SPLITS), *map(start_file, SPLITS)]
    paths = [folder / name for name in names if (folder / name).exists()]
    sidecar = {
        "format": FORMAT,
        "settings": settings,
        "listing": sources.listing(),
        "dtype": token_dtype(tokenizer.size).name,
        "splits": {split: found._asdict() for split, found in written.items()},
        "vocabulary": {"kind": tokenizer.kind, "size": tokenizer.size, "hash": tokenizer.hash()},
        "fingerprint": {
            "files": len(sources.files),
            "bytes": sum(file.size for file in sources.files),
            "sha256": listed.hexdigest(),
        },
        "files": {path.name: {"size": path.stat().st_size, "sha256": _sha256(path)} for path in paths},
    }
    with atomic_write(folder / SIDECAR) as target:
        json.dump(sidecar, target, indent=1)


def _rename(temporary: Path, folder: Path) -> None:
    """Put a finished folder into its place; one that is there is replaced, whoever still has its files mapped."""
    while True:
        try:
            return os.rename(temporary, folder)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
                raise
        aside = folder.with_name(f".building-{folder.name}-{uuid4().hex}")
        with suppress(FileNotFoundError):
            os.rename(folder, aside)
            _remove(aside)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _sha256(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise UserError(f"{str(path)!r} cannot be read: {error.strerror}") from error


def _require_unchanged(sources: Sources) -> None:
    for file in sources.files:
        try:
            status = file.path.stat()
        except OSError as error:
            raise UserError(f"{sources.setting}, where {file.name!r} cannot be read: {error.strerror}") from error
        if (status.st_size, status.st_mtime_ns) != (file.size, file.mtime_ns):
            raise UserError(
                f"{sources.setting}, where {file.name!r} changed while it was read; start again once it is at rest"
            )


@contextmanager
def _writing_below(cache_dir: Path) -> Iterator[None]:
    """Turn what the operating system says about the place of token files into a `UserError`."""
    try:
        yield
    except OSError as error:
        is_full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO)
        is_there = error.filename is not None and Path(os.fsdecode(error.filename)).is_relative_to(cache_dir)
        if not (is_there or (is_full and error.filename is None)):
            raise  # it is about something else, such as the screen
        raise UserError(
            f"data.cache_dir is {str(cache_dir)!r}, and must be a folder that can be written: {error.strerror}"
        ) from error
