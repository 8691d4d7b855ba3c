"""A loss that rises and stays is named once an episode."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.conftest import Outcome
from transformer_xl.training.divergence import Divergence

Run = Callable[..., Outcome]


def named(divergence: Divergence, losses: list[float | None], *, first: int = 1) -> list[int]:
    """The steps at which a sentence is given."""
    return [step for step, loss in enumerate(losses, start=first) if divergence.note(step, loss) is not None]


def test_a_loss_far_above_its_best_for_so_many_steps_is_named_once_an_episode() -> None:
    divergence = Divergence(nats=2.0, steps=3)
    assert named(divergence, [5.0, 3.0, 5.0, 5.1, 5.1, 5.0, 5.1, 5.1, 5.1, 5.1, 5.1]) == [9]
    assert named(divergence, [4.0, 6.0, 6.0, 6.0]) == [4]
    assert divergence.note(1, 2.0) is None  # a new best, from which the next is far sooner
    assert named(divergence, [4.1, 4.1, 4.1]) == [3]


def test_steps_without_a_loss_are_passed_over() -> None:
    assert named(Divergence(nats=2.0, steps=3), [1.0, 9.0, None, 9.0, None, 9.0]) == [6]


def test_the_sentence_names_loss_step_best_and_limits() -> None:
    divergence = Divergence(nats=1.5, steps=1)
    divergence.note(1, 1.0)
    sentence = divergence.note(7, 4.25)
    assert sentence is not None
    assert all(words in sentence for words in ("4.250 at step 7", "1.5 nats", "best, 1.000", "1 steps"))


def test_an_episode_goes_on_across_a_resume() -> None:
    first, second = Divergence(nats=2.0, steps=3), Divergence(nats=2.0, steps=3)
    assert named(first, [1.0, 9.0, 9.0]) == []
    second.load_state_dict(first.state_dict())
    assert named(second, [9.0, 9.0, 9.0]) == [1]


@pytest.mark.parametrize("bar", ["false", "true"])
def test_a_run_names_it_on_the_screen(tiny_run: Run, capsys: pytest.CaptureFixture[str], bar: str) -> None:
    """A learning rate that grows until the loss does."""
    settings = ["optimizer=sgd", "scheduler=constant", "scheduler.warmup_steps=100", "optimizer.lr=100"]
    settings += ["trainer.val_check_interval=6", "trainer.max_steps=5"]
    limits = ["callbacks.divergence.nats=0.01", "callbacks.divergence.steps=2", "trainer.gradient_clip_val=null"]
    outcome = tiny_run(*settings, *limits, f"trainer.enable_progress_bar={bar}")
    assert outcome.status == 0
    losses = list(outcome.values("train/loss").values())
    notes = [line for line in capsys.readouterr().out.splitlines() if "nats above its best" in line]
    assert len(notes) == len(named(Divergence(nats=0.01, steps=2), losses)) > 0
    assert notes[0].startswith("note     the training loss is ")
