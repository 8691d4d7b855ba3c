from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from transformer_xl.training import throughput
from transformer_xl.training.throughput import measured_peak_flops

CPU = torch.device("cpu")


@pytest.fixture
def timings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The results of the products that are timed: 100, 101, ..."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    done: list[float] = []

    def timed(device: torch.device, dtype: torch.dtype) -> float:
        done.append(100.0 + len(done))
        return done[-1]

    monkeypatch.setattr(throughput, "_timed_product", timed)
    return done


def kept_files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def test_the_peak_is_timed_once_for_each_precision(timings: list[float], tmp_path: Path) -> None:
    peaks = [measured_peak_flops(CPU, dtype) for dtype in (torch.float32, torch.bfloat16) * 2]
    assert peaks == [100.0, 101.0] * 2
    assert len(timings) == 2
    first, second = map(json.loads, (path.read_text() for path in kept_files(tmp_path)))
    assert {first["dtype"], second["dtype"]} == {"torch.float32", "torch.bfloat16"}


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b"3", b"\xff", b'{"flops": 1e9}', b"[" * 100_000])
def test_a_damaged_file_is_timed_and_written_again(timings: list[float], tmp_path: Path, content: bytes) -> None:
    measured_peak_flops(CPU, torch.float32)
    (path,) = kept_files(tmp_path)
    path.write_bytes(content)
    assert [measured_peak_flops(CPU, torch.float32) for _ in range(2)] == [101.0, 101.0]


@pytest.mark.parametrize("flops", [0.0, -1.0, float("nan"), float("inf"), "1e9", None, True])
def test_no_peak_but_a_number_above_zero_is_believed(timings: list[float], tmp_path: Path, flops: object) -> None:
    measured_peak_flops(CPU, torch.float32)
    (path,) = kept_files(tmp_path)
    path.write_text(json.dumps({**json.loads(path.read_text()), "flops": flops}))
    assert measured_peak_flops(CPU, torch.float32) == 101.0


def test_another_number_of_threads_is_another_machine(timings: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    measured_peak_flops(CPU, torch.float32)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 77)
    assert measured_peak_flops(CPU, torch.float32) == 101.0


def test_a_folder_that_cannot_be_written_only_costs_time(timings: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/dev/null/cache")
    assert [measured_peak_flops(CPU, torch.float32) for _ in range(2)] == [100.0, 101.0]


def test_without_the_variable_it_is_kept_below_the_users_home(
    timings: list[float], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.setenv("HOME", str(tmp_path))
    measured_peak_flops(CPU, torch.float32)
    (path,) = kept_files(tmp_path)
    assert path.parent == tmp_path / ".cache" / "transformer-xl-lightning"


def test_of_two_processes_that_time_at_once_both_give_the_first_ones_peak(
    timings: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    def slow(device: torch.device, dtype: torch.dtype) -> float:
        monkeypatch.setattr(throughput, "_timed_product", lambda device, dtype: 3.0)
        assert measured_peak_flops(device, dtype) == 3.0
        return 4.0

    monkeypatch.setattr(throughput, "_timed_product", slow)
    assert measured_peak_flops(CPU, torch.float32) == 3.0


def test_timing_a_product_leaves_the_runs_randomness_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(throughput, "_MATRIX", {"cpu": 8})
    monkeypatch.setattr(throughput, "_SECONDS", 0.0)
    before = torch.get_rng_state()
    assert throughput._timed_product(CPU, torch.float32) > 0
    assert torch.equal(torch.get_rng_state(), before)
