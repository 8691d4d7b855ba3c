from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from transformer_xl.training import throughput
from transformer_xl.training.throughput import measured_peak_flops

CPU = torch.device("cpu")


class Product:
    """Stands for the matrix product.

    Attributes:
        flops: what it is timed at next; one more each time.
        at_length: how often it was timed at length.
    """

    def __init__(self) -> None:
        self.flops = 100.0
        self.at_length = 0

    def __call__(self, device: torch.device, dtype: torch.dtype, *, seconds: float) -> float:
        self.at_length += seconds > 0
        self.flops += 1
        return self.flops - 1


@pytest.fixture
def product(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Product:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    product = Product()
    monkeypatch.setattr(throughput, "_timed_product", product)
    return product


def kept_files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def test_all_starts_of_a_machine_have_one_peak_for_each_precision(product: Product, tmp_path: Path) -> None:
    peaks = [measured_peak_flops(CPU, dtype) for dtype in (torch.float32, torch.bfloat16) * 2]
    assert peaks == [100.0, 101.0] * 2
    assert product.at_length == 2
    first, second = map(json.loads, (path.read_text() for path in kept_files(tmp_path)))
    assert {first["dtype"], second["dtype"]} == {"torch.float32", "torch.bfloat16"}


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b"3", b"\xff", b'{"flops": 1e9}', b"[" * 100_000])
def test_a_damaged_file_is_timed_and_written_again(product: Product, tmp_path: Path, content: bytes) -> None:
    measured_peak_flops(CPU, torch.float32)
    (path,) = kept_files(tmp_path)
    path.write_bytes(content)
    assert [measured_peak_flops(CPU, torch.float32) for _ in range(2)] == [101.0, 101.0]
    assert product.at_length == 2


@pytest.mark.parametrize("flops", [0.0, -1.0, float("nan"), float("inf"), "1e9", None, True])
def test_no_peak_but_a_number_above_zero_is_believed(product: Product, tmp_path: Path, flops: object) -> None:
    measured_peak_flops(CPU, torch.float32)
    (path,) = kept_files(tmp_path)
    path.write_text(json.dumps({**json.loads(path.read_text()), "flops": flops}))
    assert measured_peak_flops(CPU, torch.float32) == 101.0


def test_another_number_of_threads_is_another_machine(product: Product, monkeypatch: pytest.MonkeyPatch) -> None:
    measured_peak_flops(CPU, torch.float32)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 77)
    assert measured_peak_flops(CPU, torch.float32) == 101.0


def test_a_folder_that_cannot_be_written_only_costs_time(product: Product, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/dev/null/cache")
    assert [measured_peak_flops(CPU, torch.float32) for _ in range(2)] == [100.0, 101.0]


def test_without_the_variable_it_is_kept_below_the_users_home(
    product: Product, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.setenv("HOME", str(tmp_path))
    measured_peak_flops(CPU, torch.float32)
    (path,) = kept_files(tmp_path)
    assert path.parent == tmp_path / ".cache" / "transformer-xl-lightning"


def test_a_peak_that_was_disturbed_is_replaced_once_it_is_clearly_exceeded(product: Product) -> None:
    peaks = []
    for product.flops in (100.0, 109.0, 111.0, 50.0):
        peaks.append(measured_peak_flops(CPU, torch.float32))
    assert peaks == [100.0, 100.0, 111.0, 111.0]


def test_of_two_processes_that_time_at_once_both_give_the_first_ones_peak(
    product: Product, monkeypatch: pytest.MonkeyPatch
) -> None:
    def slow(device: torch.device, dtype: torch.dtype, *, seconds: float) -> float:
        monkeypatch.setattr(throughput, "_timed_product", product)
        assert measured_peak_flops(device, dtype) == 100.0
        return 103.0

    monkeypatch.setattr(throughput, "_timed_product", slow)
    assert measured_peak_flops(CPU, torch.float32) == 100.0


def test_timing_a_product_leaves_the_runs_randomness_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(throughput, "_MATRIX", {"cpu": 8})
    before = torch.get_rng_state()
    assert throughput._timed_product(CPU, torch.float32, seconds=0.0) > 0
    assert torch.equal(torch.get_rng_state(), before)
