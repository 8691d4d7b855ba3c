"""Nothing divides anything: the processes still meet at every step, validation and end, with the numbers of one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import run_training, tiny_overrides
from tests.training.test_processes import assert_same_run

SEGMENTS_OF_AN_EPOCH = 12
"""Of 56 tokens a lane: eleven of five tokens and a last one of a single token."""


@pytest.fixture(scope="session")
def prime_text(text_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Splits of a prime number of tokens each."""
    folder = tmp_path_factory.mktemp("prime")
    text = text_file.read_text()
    for split, tokens in (("train", 397), ("valid", 101), ("test", 53)):
        (folder / f"{split}.txt").write_bytes(text.encode()[:tokens])
    return folder


@pytest.mark.parametrize(
    "processes", [pytest.param(2, marks=pytest.mark.slow), pytest.param(3, marks=pytest.mark.slow)]
)
@pytest.mark.parametrize(
    "overrides",
    [
        ["trainer.accumulate_grad_batches=1", "trainer.max_steps=30"],
        ["trainer.accumulate_grad_batches=5", "trainer.max_steps=8"],
        ["trainer.accumulate_grad_batches=5", "trainer.max_steps=8", "data.lane_chunks=2"],
        ["trainer.max_steps=-1", "trainer.max_epochs=2", "trainer.val_check_interval=0.4", "data.lane_chunks=2"],
    ],
    ids=["plain", "accumulated", "chunks", "epochs"],
)
def test_uneven_lanes_never_wait_for_each_other(
    prime_text: Path, tmp_path: Path, processes: int, overrides: list[str]
) -> None:
    def run(devices: int) -> list[str]:
        return [
            *tiny_overrides(prime_text, tmp_path),
            "data.tokenizer=byte",
            "data.end_of_document=false",
            "data.batch_size=7",
            "eval.batch_size=3",
            "eval.segment_len=4",
            "trainer.precision=64-true",
            "trainer.limit_val_batches=null",
            "trainer.limit_test_batches=null",
            "trainer.num_sanity_val_steps=2",
            *overrides,
            f"trainer.devices={devices}",
            f"hydra.run.dir={tmp_path / str(devices)}",
        ]

    one, several = run_training(run(1), tmp_path), run_training(run(processes), tmp_path)
    assert one.status == several.status == 0, one.stderr + several.stderr
    assert one.checkpoint()["loops"]["fit_loop"]["state_dict"]["combined_loader"][0]["batches"] > SEGMENTS_OF_AN_EPOCH
    assert_same_run(one, several)
