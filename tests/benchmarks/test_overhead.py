from __future__ import annotations

from pathlib import Path

import pytest

from tests.benchmarks import overhead
from tests.conftest import tiny_overrides


@pytest.mark.parametrize(("precision", "clip"), [("32-true", 0.01), ("bf16-mixed", 100.0)])
def test_the_programs_step_is_a_bare_loops_to_the_bit(
    text_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, precision: str, clip: float
) -> None:
    """Whether or not gradients are clipped: the benchmark itself refuses losses that differ."""
    monkeypatch.setattr(overhead, "WINDOW", 4)
    changes = [f"trainer.precision={precision}", f"trainer.gradient_clip_val={clip}"]
    settings = [*tiny_overrides(text_file, tmp_path), *changes]
    (window,) = overhead.measure(settings, windows=1, folder=tmp_path)
    assert window.run.wall > window.apart.wall >= 0
    assert window.bare > 0
