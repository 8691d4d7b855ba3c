"""What a run goes on from, and what a resume may change."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from transformer_xl.config import Config
from transformer_xl.data.tokenizer import tokenizer_from_json
from transformer_xl.errors import DamagedError, UserError
from transformer_xl.interop.native import CHECKPOINT_FORMAT, read_checkpoint
from transformer_xl.run_folder import config_of, expanded
from transformer_xl.settings import parse, plain, replace
from transformer_xl.training.checkpoint import LAST, step_checkpoints

if TYPE_CHECKING:
    from transformer_xl.data.lanes import Dataset
    from transformer_xl.model.base import LanguageModel

ANY_RESUME = (
    "resume",
    *("data.path", "data.dir", "data.cache_dir", "data.download", "data.rebuild"),
    *("data.tokenizer", "data.vocabulary"),  # files may have moved; another vocabulary is refused by its hash
    *("data.lane_chunks", "compile"),
    "model.attention",  # the same function, computed in another way
    "scheduler.total_steps",  # stays as it is unless the command names it
    *("trainer.*", "callbacks.*", "logger.*"),
)
"""Settings that any resume may change: where and how fast a run goes, what is watched and kept."""
A_BRANCH = (
    "name",
    "optimizer.lr",
    "scheduler.*",
    *("model.dropout", "model.dropatt"),
    *("trainer.gradient_clip_val", "trainer.gradient_clip_algorithm"),
    *("trainer.limit_val_batches", "eval.*"),  # scores of different lengths have no best
)
"""What the next loss depends on, but not how what was learnt is to be read: only a branch may change it."""
NOBODY = (
    *("seed", "init_from", "init_vocabulary"),
    *("model.*", "recipe.*", "data.*", "optimizer.*", "scheduler.kind"),
    *("trainer.precision", "trainer.accumulate_grad_batches", "trainer.limit_train_batches"),
    *("trainer.overfit_batches", "trainer.fast_dev_run"),
)
"""The network, its text, the order in which it is read, what an optimizer step is: a new run's."""


def refuse_changes(before: Mapping[str, Any], config: Config, *, of: object, may_change: Collection[str]) -> None:
    """Refuse settings that differ from what a run had where this command may not change them.

    Args:
        before: the run's settings, as plain containers.
        config: what the command asks for.
        of: names the run.
        may_change: settings, and `group.*` for those of a group that no class names.

    Raises:
        UserError: the settings, with both values.
    """
    was, asked = _flat(before), _flat(plain(config))
    changed = [key for key in asked if key in was and asked[key] != was[key]]
    changed = [key for key in changed if not _is_among(key, may_change)]
    changed = [key for key in changed if key.endswith(".kind")] or changed
    if not changed:
        return
    differences = ", ".join(f"{key} is {asked[key]!r} and was {was[key]!r}" for key in changed[:3])
    more = f", and {len(changed) - 3} more settings differ" if len(changed) > 3 else ""
    if all(_is_among(key, A_BRANCH) for key in changed):
        advice = "only a branch of the run may change that: resume=RUN_FOLDER name=NEW_NAME"
    else:
        advice = "no resume may change that: start a new run, with init_from=RUN_FOLDER from its weights if they fit"
    raise UserError(f"{of} is another run than this command's: {differences}{more}; {advice}")


def _is_among(key: str, names: Collection[str]) -> bool:
    """Return whether a class of settings has a key: by its own name, or by its group's where no class names it."""
    named = {name for names_of_class in (ANY_RESUME, A_BRANCH, NOBODY) for name in names_of_class}
    return (key if key in named else f"{key.partition('.')[0]}.*") in names


def _flat(node: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    leaves: dict[str, Any] = {}
    for name, value in node.items():
        leaves |= _flat(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {f"{prefix}{name}": value}
    return leaves


def continued(folder: Path, asked: Config, given: Collection[str] | None) -> Config:
    """Return a run's own configuration, with what a command changes that a resume may change.

    Args:
        folder: of the run.
        asked: what the command composes.
        given: the keys and groups that it names itself; another difference that a resume could make is none. None: all.
    """
    saved = plain(config_of(folder))
    if (given is None or "logger" in given) and asked.logger.kind != saved["logger"]["kind"]:
        saved["logger"] = plain(asked.logger)  # another one has other settings
    if asked.trainer.precision == "auto":  # which the run has settled
        asked = replace(asked, trainer=replace(asked.trainer, precision=saved["trainer"]["precision"]))
    refuse_changes(saved, asked, of=folder, may_change=ANY_RESUME)
    for key, value in _flat(plain(asked)).items():
        if _is_among(key, ANY_RESUME) and (given is None or key in given):
            node: Any = saved
            *groups, name = key.split(".")
            for group in groups:
                node = node.setdefault(group, {})
            node[name] = value
    return expanded(parse(Config, saved))


class Found(NamedTuple):
    """A checkpoint to go on from.

    Attributes:
        path: of it.
        state: what it holds.
        note: for the user, where it is not `last.ckpt`.
    """

    path: Path
    state: dict[str, Any]
    note: str | None

    def refuse_other_data(self, corpus: Dataset) -> None:
        """Refuse to go on with another text or vocabulary; `UserError` says which."""
        was, now = self.state["data_checksum"], corpus.fingerprint.sha256
        if was != now:
            raise UserError(
                f"the text has changed since {self.path} was trained on it: its sha256 is {now[:16]} and was "
                f"{was[:16]}; start a new run"
            )
        if tokenizer_from_json(self.state["vocabulary"]).hash() != corpus.vocabulary.hash():
            raise UserError(f"data.tokenizer gives another vocabulary than that of {self.path}: start a new run")

    def refuse_other_weights(self, model: LanguageModel) -> None:
        """Refuse weights that are not those of the run's network, before Lightning loads them."""
        theirs = {name: tuple(tensor.shape) for name, tensor in self.state["state_dict"].items()}
        ours = {f"model.{name}": tuple(tensor.shape) for name, tensor in model.state_dict().items()}
        for name in [*ours, *theirs]:
            if theirs.get(name) != ours.get(name):
                raise UserError(
                    f"{self.path} cannot be resumed: its weight {name} is {theirs.get(name, 'missing')}, and the run's "
                    f"is {ours.get(name, 'missing')}"
                )


def newest_checkpoint(folder: Path) -> Found | None:
    """Read a run's `last.ckpt`, or where it is damaged or gone, the newest `step-N.ckpt` that is whole.

    Raises:
        UserError: none is whole, or one is of another version.
    """
    last = folder / "checkpoints" / LAST
    problems: list[str] = []
    for path in (last, *step_checkpoints(last.parent).values()):
        if not path.is_file():
            continue
        try:
            contents = read_checkpoint(path)
        except DamagedError as error:
            problems.append(str(error))
            continue
        if contents["format_version"] != CHECKPOINT_FORMAT:
            raise UserError(
                f"{path} has checkpoint format {contents['format_version']}, and this version goes on from "
                f"{CHECKPOINT_FORMAT} only: start a new run from its weights with init_from={folder}"
            )
        if path != last and not problems:
            problems.append(f"{last} is missing")
        return Found(path, contents, f"{'; '.join(problems)}: going on from {path.name}" if problems else None)
    if problems:
        raise UserError(f"no checkpoint of {folder} is whole, so that it cannot be resumed: {'; '.join(problems)}")
    return None
