"""What a resume may change: every setting of a run stands in exactly one class."""

from __future__ import annotations

from enum import Enum


class Change(Enum):
    """Who may change a setting of a run that has begun."""

    RESUME = "any resume"
    BRANCH = "a branch"
    NOBODY = "nobody"


RULES: dict[Change, tuple[str, ...]] = {
    # where and how fast it runs, what is watched and kept: the next loss is what it would have been
    Change.RESUME: (
        "resume",
        *("data.path", "data.dir", "data.cache_dir", "data.download", "data.rebuild"),
        *("data.tokenizer", "data.vocabulary"),  # files may have moved; another vocabulary is refused by its hash
        *("data.lane_chunks", "compile"),
        "model.attention",  # the same function, computed in another way
        "scheduler.total_steps",  # stays as it is unless the command names it
        "trainer.*",
        "callbacks.*",
        "logger.*",
    ),
    # what the next loss depends on, but not how what was learnt is to be read
    Change.BRANCH: (
        "name",
        "optimizer.lr",
        "scheduler.*",
        *("model.dropout", "model.dropatt"),
        *("trainer.gradient_clip_val", "trainer.gradient_clip_algorithm"),
        *("trainer.limit_val_batches", "eval.*"),  # scores of different lengths have no best
    ),
    # the network, its text, the order in which it is read, what an optimizer step is
    Change.NOBODY: (
        *("seed", "init_from", "init_vocabulary"),
        *("model.*", "recipe.*", "data.*", "optimizer.*", "scheduler.kind"),
        *("trainer.precision", "trainer.accumulate_grad_batches"),
        *("trainer.limit_train_batches", "trainer.overfit_batches"),
        "trainer.fast_dev_run",
    ),
}
"""Names of settings, and `group.*` for the settings of a group that no class names."""

_CLASS_OF = {name: change for change, names in RULES.items() for name in names}
assert len(_CLASS_OF) == sum(map(len, RULES.values()))


def who_may_change(key: str) -> Change:
    """Give the class of a setting by its dotted name: its own, or its group's.

    Raises:
        KeyError: it stands in none.
    """
    return _CLASS_OF[key if key in _CLASS_OF else f"{key.partition('.')[0]}.*"]


def refusal(key: str, *, is_branch: bool) -> str | None:
    """Say who may change a setting, if this command may not; None if it may."""
    change = who_may_change(key)
    if change is Change.RESUME or (change is Change.BRANCH and is_branch):
        return None
    if change is Change.BRANCH:
        return "which only a branch of the run may change: resume=RUN_FOLDER name=NEW_NAME"
    return "which no resume may change: start a new run, with init_from=RUN_FOLDER from this one's weights if they fit"
