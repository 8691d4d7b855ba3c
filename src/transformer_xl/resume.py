"""Going on with a run: from which checkpoint, and which settings a command may change."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from transformer_xl.config import Config
from transformer_xl.data.tokenizer import tokenizer_from_json
from transformer_xl.errors import DamagedError, UserError, first_line
from transformer_xl.interop.native import CHECKPOINT_FORMAT, read_checkpoint
from transformer_xl.settings import plain
from transformer_xl.training.checkpoint import LAST, step_checkpoints

if TYPE_CHECKING:
    from transformer_xl.data.lanes import Dataset
    from transformer_xl.training.module import LanguageModule

ANY_RESUME = (
    *("resume", "plan.*"),
    *("data.path", "data.dir", "data.cache_dir", "data.download", "data.rebuild"),
    *("data.tokenizer", "data.vocabulary"),  # files may have moved; another vocabulary is refused by its hash
    *("data.lane_chunks", "compile"),
    *("model.attention", "model.recompute"),  # the same function, computed in another way
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
)
"""The network, its text, the order in which it is read, what an optimizer step is: a new run's."""


def refuse_changes(before: Mapping[str, Any], config: Config, *, of: object, is_branch: bool) -> None:
    """Refuse settings that differ from what a run had where this command may not change them.

    Args:
        before: the run's settings, as plain containers.
        config: what the command asks for.
        of: names the run.
        is_branch: whether a branch of the run is begun.

    Raises:
        UserError: the settings, with both values.
    """
    was, asked = _flat(before), _flat(plain(config))
    allowed = ("a resume", "a branch") if is_branch else ("a resume",)
    changed = [key for key in asked if key in was and asked[key] != was[key] and who_may_change(key) not in allowed]
    changed = [key for key in changed if key.endswith(".kind")] or changed
    if changed:
        differences = ", ".join(f"{key} is {asked[key]!r} and was {was[key]!r}" for key in changed[:3])
        advice = "no resume may change that: start a new run, with init_from=RUN_FOLDER from its weights if they fit"
        if all(who_may_change(key) == "a branch" for key in changed):
            advice = "only a branch of the run may change that: resume=RUN_FOLDER name=NEW_NAME"
        raise UserError(f"{of} is another run than this command's: {differences}; {advice}")


def who_may_change(key: str) -> str:
    """Return who may change a setting of a run: `a resume`, `a branch` or `nobody`.

    A class of settings has a key by its own name, or by its group's where no class names it.
    """
    classes = {"a resume": ANY_RESUME, "a branch": A_BRANCH, "nobody": NOBODY}
    for name in (key, f"{key.partition('.')[0]}.*"):
        for who, names in classes.items():
            if name in names:
                return who
    return "nobody"


def _flat(node: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    leaves: dict[str, Any] = {}
    for name, value in node.items():
        leaves |= _flat(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {f"{prefix}{name}": value}
    return leaves


class Found(NamedTuple):
    """A checkpoint to go on from: its path, what it holds, and a note for the user where it is not `last.ckpt`."""

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

    def refuse_other_weights(self, module: LanguageModule) -> None:
        """Refuse weights that are not those of the run's network, before Lightning loads them."""
        try:
            module.load_state_dict(self.state["state_dict"])
        except RuntimeError as error:
            raise UserError(f"{self.path} cannot be resumed: {first_line(error)}") from error


def newest_checkpoint(folder: Path) -> Found | None:
    """Read a run's `last.ckpt`, or where it is damaged or gone, the newest `step-N.ckpt` that is whole.

    Raises:
        UserError: none is whole, or one is of another version.
    """
    last = folder / "checkpoints" / LAST
    problems = [] if last.is_file() else [f"{last} is missing"]
    kept = list(step_checkpoints(last.parent).values())
    for path in ([] if problems else [last]) + kept:
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
        return Found(path, contents, f"{'; '.join(problems)}: going on from {path.name}" if problems else None)
    if last.is_file() or kept:
        raise UserError(f"no checkpoint of {folder} is whole, so that it cannot be resumed: {'; '.join(problems)}")
    return None
