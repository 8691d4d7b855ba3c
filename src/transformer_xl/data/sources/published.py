"""The paper's corpora: found in a folder in any of their usual forms, else fetched once."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from transformer_xl.data.locking import only_one
from transformer_xl.data.sources.downloading import fetch
from transformer_xl.data.sources.files import Sources, reading_setting
from transformer_xl.data.sources.forms import (
    LM1B_FOLDER,
    LM1B_HELD_OUT,
    LM1B_TRAINING,
    LM1B_VOCABULARY,
    Found,
    Missing,
    find_form,
)
from transformer_xl.data.sources.mirrors import MIRRORS
from transformer_xl.data_config import PublishedConfig
from transformer_xl.errors import UserError

_WANTED = {
    "wikitext103": "wikitext103's wiki.train.tokens, wiki.valid.tokens, wiki.test.tokens (or train.txt, valid.txt, "
    "test.txt), or wikitext-103-v1.zip, or the Hub's wikitext-103-v1/*.parquet",
    "wikitext2": "wikitext2's wiki.train.tokens, wiki.valid.tokens, wiki.test.tokens (or train.txt, valid.txt, "
    "test.txt), or wikitext-2-v1.zip, or the Hub's wikitext-2-v1/*.parquet",
    "enwik8": "the file enwik8 or enwik8.zip",
    "text8": "the file text8 or text8.zip, or the Hub's data/*.parquet",
    "ptb": "ptb's train.txt, valid.txt, test.txt or ptb.train.txt, ptb.valid.txt, ptb.test.txt, or "
    "simple-examples.tgz, or the Hub's penn_treebank/*/*.parquet",
    "lm1b": f"lm1b's {LM1B_TRAINING}/news.en-00001-of-00100 to -00099-of-00100 and {LM1B_HELD_OUT}, or "
    f"{LM1B_FOLDER}.tar.gz, or the Hub's plain_text/*/*.parquet (and {LM1B_VOCABULARY}, if the published vocabulary "
    "is to be used)",
}
"""What a folder must hold."""


def published_sources(config: PublishedConfig, *, announce: Callable[[str], None]) -> Sources:
    """Find a published corpus's files in `data.dir`, or fetch them once below `data.cache_dir`.

    Args:
        config: of the corpus.
        announce: gets a line for each step of a download.

    Raises:
        UserError: files are missing or empty, or cannot be read, or none of their sources can be reached; it says
            which file goes where.
    """
    if config.dir is None:
        return _downloaded(config, announce=announce)
    wanted = f"the folder that holds {_WANTED[config.kind]}"
    setting = f"data.dir is {config.dir!r}"
    if not config.dir:
        raise UserError(f"{setting}, and must name {wanted}")
    folder = Path(os.path.expanduser(config.dir))
    if not folder.is_dir():
        raise UserError(f"{setting}, which is no folder here, and must name {wanted}")
    with reading_setting(setting, wanted=wanted):
        form = find_form(config.kind, folder)
        if isinstance(form, Missing):
            raise UserError(f"{setting}, where {', '.join(form.names)} cannot be found, and must name {wanted}")
        _require_text(form, setting=setting, wanted=f"must name {wanted}")
        return _sources(form, setting=setting, folder=folder)


def _downloaded(config: PublishedConfig, *, announce: Callable[[str], None]) -> Sources:
    folder = Path(os.path.expanduser(config.cache_dir)) / "downloads" / config.kind
    setting = f"data.dir is not set, so that data={config.kind} is read from {str(folder)!r}"
    wanted = f"the folder that holds {_WANTED[config.kind]}"
    with reading_setting(setting, wanted=wanted):
        form = find_form(config.kind, folder)
    if isinstance(form, Missing):
        if not config.download:
            raise UserError(
                f"data.download is false and {setting}, where {', '.join(form.names)} cannot be found; "
                f"{_by_hand(config.kind, folder)}"
            )
        form = _fetched(config, folder, announce=announce)
    _require_text(form, setting=setting, wanted=f"must be {wanted}; delete what is empty to fetch it again")
    return _sources(form, setting=setting, folder=folder)


def _fetched(config: PublishedConfig, folder: Path, *, announce: Callable[[str], None]) -> Found:
    waiting = f"data: waiting for another process that fetches {config.kind} into {folder}"
    with _writing(config), only_one(folder / "lock", announce=announce, waiting=waiting):
        form = find_form(config.kind, folder)  # the other process may have fetched it
        if isinstance(form, Found):
            return form
        failures = fetch(config.kind, folder, announce=announce)
        form = find_form(config.kind, folder)
    if isinstance(form, Found):
        return form
    reason = failures[-1] if failures else f"what came lacks {', '.join(form.names)}"
    raise UserError(f"data={config.kind} cannot be fetched ({reason}); {_by_hand(config.kind, folder)}")


@contextmanager
def _writing(config: PublishedConfig) -> Iterator[None]:
    """Turn what the operating system says about the downloads' folder into a `UserError`."""
    try:
        yield
    except OSError as error:
        where = f" ({os.fsdecode(error.filename)!r})" if error.filename else ""
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        raise UserError(
            f"data.cache_dir is {config.cache_dir!r}, where data={config.kind} cannot be kept: "
            f"{error.strerror or error}{where}; it must name a folder {'with room' if full else 'that can be written'}"
        ) from error


def _by_hand(kind: str, folder: Path) -> str:
    mirrors = MIRRORS[kind]
    addresses = [source.address for source in (*mirrors.sources, *mirrors.also)]
    return (
        f"put its files into {os.path.abspath(folder)!r}, or into any folder named by data.dir\n\n"
        f"  files  {_WANTED[kind]}\n" + "\n".join(f"  from   {address}" for address in addresses)
    )


def _require_text(form: Found, *, setting: str, wanted: str) -> None:
    empty = [file.name for file in form.files if not file.size]
    if empty:
        raise UserError(f"{setting}, where {', '.join(empty)} is empty, and {wanted}")


def _sources(form: Found, *, setting: str, folder: Path) -> Sources:
    return Sources(
        setting=setting,
        location=folder.resolve(),
        files=form.files,
        splits=form.splits,
        whole=form.whole,
        cut=form.cut,
        notes=form.notes,
        vocabulary=form.vocabulary,
    )
