"""Folders of datasets in the layout of the Hub, through its own client."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

import pytest

from tests.data.sources.mirror_server import MirrorServer
from transformer_xl.data.sources.hub import download_folder
from transformer_xl.data.sources.mirrors import HubFolder
from transformer_xl.data.sources.transfers import Downloaded, SourceFailed

FILES = {
    "README.md": b"# text8",
    "data/test-00000-of-00001.parquet": b"PAR1 test",
    "data/train-00000-of-00002.parquet": b"PAR1 train 0" * 1000,
    "data/train-00001-of-00002.parquet": b"PAR1 train 1",
    "data/validation-00000-of-00001.parquet": b"PAR1 validation",
    "data/script.py": b"print()",
    "other/train-00000-of-00001.parquet": b"PAR1 other",
}
WANTED = sorted(name for name in FILES if name.startswith("data/") and name.endswith(".parquet"))
SOURCE = HubFolder(repository="afmck/text8", revision="refs/convert/parquet", folder="data")


@pytest.fixture
def dataset(hub: MirrorServer) -> MirrorServer:
    hub.datasets["afmck/text8"] = dict(FILES)
    return hub


def fetch(folder: Path, source: HubFolder = SOURCE) -> tuple[list[Downloaded], list[str]]:
    lines: list[str] = []
    return download_folder(source, folder, announce=lines.append), lines


def below(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def test_the_parquet_files_of_one_folder_and_nothing_else(dataset: MirrorServer, tmp_path: Path) -> None:
    found, lines = fetch(tmp_path)
    assert below(tmp_path) == WANTED
    assert all((tmp_path / name).read_bytes() == FILES[name] for name in WANTED)
    address = f"{dataset.address}/datasets/afmck/text8/tree/refs%2Fconvert%2Fparquet/data"
    assert lines == [f"data: fetching 4 files of {address} (12.0 kB)"]
    assert [file.name for file in found] == [WANTED[1], WANTED[2], WANTED[3], WANTED[0]], "training first, test last"
    resolved = f"{dataset.address}/datasets/afmck/text8/resolve/refs%2Fconvert%2Fparquet/{WANTED[0]}"
    assert found[-1] == (WANTED[0], resolved, 9, hashlib.sha256(FILES[WANTED[0]]).hexdigest())


def test_bytes_that_are_not_the_listed_ones_are_refused_and_deleted(dataset: MirrorServer, tmp_path: Path) -> None:
    dataset.sums[WANTED[2]] = "0" * 64
    with pytest.raises(SourceFailed, match=rf"{WANTED[2]} gave a file with the SHA-256 .* and not 0000"):
        fetch(tmp_path)
    assert below(tmp_path) == []


@pytest.mark.parametrize("split", ["train", "validation", "test"])
def test_a_split_that_lacks_is_named(split: str, dataset: MirrorServer, tmp_path: Path) -> None:
    dataset.datasets["afmck/text8"] = {name: body for name, body in FILES.items() if f"data/{split}" not in name}
    with pytest.raises(SourceFailed, match=rf"{dataset.address}.* has no parquet files of {split}$"):
        fetch(tmp_path)
    assert os.listdir(tmp_path) == []


def test_tables_in_a_folder_a_split(hub: MirrorServer, tmp_path: Path) -> None:
    hub.datasets["a/lm1b"] = {f"plain_text/{name}": b"PAR1" for name in ("train/0000.parquet", "test/0000.parquet")}
    fetch(tmp_path, HubFolder(repository="a/lm1b", revision="main", folder="plain_text", splits=("train", "test")))
    assert below(tmp_path) == ["plain_text/test/0000.parquet", "plain_text/train/0000.parquet"]


def test_paths_that_lead_elsewhere_are_not_followed(hub: MirrorServer, tmp_path: Path) -> None:
    hub.datasets["afmck/text8"] = {
        "data/../../train-00000-of-00001.parquet": b"PAR1",
        **{name: body for name, body in FILES.items() if "train" not in name},
    }
    with pytest.raises(SourceFailed, match="has no parquet files of train"):
        fetch(tmp_path / "folder")


def test_why_the_hub_refuses(dataset: MirrorServer, tmp_path: Path) -> None:
    for changes, reason in (
        ({"repository": "nobody/nothing"}, "there is no such repository, or it is private: if so, set HF_TOKEN"),
        ({"revision": "gone"}, "the repository has no such revision"),
    ):
        source = HubFolder(**{"repository": "afmck/text8", "revision": "main", "folder": "data", **changes})
        with pytest.raises(
            SourceFailed, match=rf"{dataset.address}/datasets/.* \(HF_ENDPOINT\) cannot be read: {reason}"
        ):
            fetch(tmp_path, source)
    assert os.listdir(tmp_path) == []


def test_a_hub_that_cannot_be_reached_is_named(dataset: MirrorServer, tmp_path: Path) -> None:
    dataset.stop()
    with pytest.raises(SourceFailed, match=rf"{dataset.address}.* \(HF_ENDPOINT\) cannot be read: .*refused"):
        fetch(tmp_path)


def test_a_hub_that_does_not_answer_is_asked_once(dataset: MirrorServer, tmp_path: Path) -> None:
    dataset.overloaded = True
    with pytest.raises(SourceFailed, match=rf"{dataset.address}.* \(HF_ENDPOINT\) cannot be read: .*503"):
        fetch(tmp_path)
    assert dataset.asked == ["HEAD /datasets/afmck/text8/resolve/refs/convert/parquet/README.md"]


def test_the_clients_own_bars_are_off_meanwhile(
    dataset: MirrorServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import huggingface_hub
    from huggingface_hub.utils import are_progress_bars_disabled

    fetched = huggingface_hub.hf_hub_download
    off: list[bool] = []

    def watched(**arguments: Any) -> str:
        off.append(are_progress_bars_disabled())
        return fetched(**arguments)

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", watched)
    before = are_progress_bars_disabled()
    fetch(tmp_path)
    assert off == [True] * 4
    assert are_progress_bars_disabled() == before


def test_offline_the_hub_is_not_asked(dataset: MirrorServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(SourceFailed, match="is not asked: HF_HUB_OFFLINE is set"):
        fetch(tmp_path)
    assert dataset.asked == []
