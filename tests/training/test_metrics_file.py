"""`metrics.jsonl` goes back to a checkpoint, whatever state a killed process left it in."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from transformer_xl.training.recorder import Recorder


def line(step: int, name: str = "train/loss") -> bytes:
    return json.dumps({"step": step, "tokens": 20 * step, "name": name, "value": 0.5}).encode() + b"\n"


def cut(path: Path, content: bytes, step: int) -> bytes:
    path.write_bytes(content)
    recorder = Recorder(
        folder=path.parent, every_n_steps=1, max_steps=1, flops_per_token=1.0, peak_flops=None, clip=None
    )
    recorder.cut(step, validated=True)
    return path.read_bytes()


@pytest.mark.parametrize(
    "damage",
    [
        line(3)[:-1],  # torn just before its end
        line(3)[:20],
        '{"step": 3, "name": "é'.encode()[:-1],  # torn within a character
        b"\x00" * 4096,  # what some file systems leave after a power cut
        b"[1, 2]\n",
        b'{"step": "3", "name": "train/loss"}\n',
        b'{"step": 3, "name": 3}\n',
        b"\n",
    ],
)
def test_damage_goes_and_every_whole_line_stays(tmp_path: Path, damage: bytes) -> None:
    good = line(1) + line(2) + line(2, "val/loss")
    assert cut(tmp_path / "metrics.jsonl", good + damage, 5) == good
    if damage.endswith(b"\n"):
        assert cut(tmp_path / "metrics.jsonl", line(1) + damage + line(2), 5) == line(1) + line(2)


def test_lines_later_than_the_checkpoint_go_and_so_does_the_final_test(tmp_path: Path) -> None:
    kept = line(1) + line(2) + line(2, "val/loss")
    later = line(3) + line(2, "test/loss") + line(2, "test/bpc") + line(10)
    assert cut(tmp_path / "metrics.jsonl", kept + later, 2) == kept
    assert [path.name for path in tmp_path.iterdir()] == ["metrics.jsonl"]
