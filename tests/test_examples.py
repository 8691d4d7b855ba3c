import json
import re
import runpy
import subprocess
import sys
import wave
from pathlib import Path

import numpy as np
import pytest
import torch

import transformer_xl as txl
from tests.model.kinds import model_of
from transformer_xl.data.characters import CharTokenizer

EXAMPLES = Path(__file__).parents[1] / "examples"


def run(name: str, *arguments: object) -> str:
    command = [sys.executable, str(EXAMPLES / name), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def write_wav(path: Path, *channels: np.ndarray, rate: int) -> None:
    """Write samples in [-1, 1] as 16 bits each."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with wave.open(str(path), "wb") as file:
        file.setparams((len(channels), 2, rate, 0, "NONE", ""))
        file.writeframes(np.rint(np.stack(channels, axis=1) * 32767).astype("<i2").tobytes())


def test_a_folder_of_sound_becomes_ids_and_ids_become_sound(tmp_path: Path) -> None:
    sound = 0.8 * np.sin(2 * np.pi * 440 * np.arange(2000) / 8000)
    write_wav(tmp_path / "in/a.wav", sound, rate=8000)
    write_wav(tmp_path / "in/b/c.wav", sound, sound, rate=16_000)
    run("audio.py", "encode", tmp_path / "in", tmp_path / "ids")
    ids = np.load(tmp_path / "ids/a.npy")
    assert (ids.dtype, ids.shape, np.load(tmp_path / "ids/b/c.npy").shape) == (np.uint8, (2000,), (1000,))
    # what is sampled is text, and the end of a document, 256, stands for no sound
    (tmp_path / "step-1.txt").write_text(" ".join(map(str, [*ids[:1000], 256, *ids[1000:]])))
    run("audio.py", "decode", tmp_path / "step-1.txt", tmp_path / "a.wav")
    with wave.open(str(tmp_path / "a.wav")) as file:
        assert (file.getnchannels(), file.getsampwidth(), file.getframerate()) == (1, 2, 8000)
        heard = np.frombuffer(file.readframes(file.getnframes()), "<i2") / 32767
    # half a step of the companded value, 1/255, seen through the inverse of the companding, and of 16 bits
    bound = (np.abs(sound) + 1 / 255) * (256 ** (1 / 255) - 1) + 2 / 32767
    assert (np.abs(heard - sound) <= bound).all()


@pytest.mark.slow
def test_music_becomes_ids_and_ids_become_music(tmp_path: Path) -> None:
    pytest.importorskip("miditok")
    symusic = pytest.importorskip("symusic")
    notes = [(beat, 60 + 7 * beat % 12) for beat in range(8)]
    for name, program in (("a.mid", 0), ("b/c.MIDI", 40)):
        score, track = symusic.Score(480), symusic.Track(program=program)
        for beat, pitch in notes:
            track.notes.append(symusic.Note(time=beat * 480, duration=240, pitch=pitch, velocity=79))
        score.tracks.append(track)
        (tmp_path / "in" / name).parent.mkdir(parents=True, exist_ok=True)
        score.dump_midi(tmp_path / "in" / name)
    (tmp_path / "in/damaged.mid").write_bytes(b"MThd, and no more")
    said = run("midi.py", "encode", tmp_path / "in", tmp_path / "music.jsonl", tmp_path / "music.json")
    assert "left out" in said
    assert "damaged.mid" in said
    size = int(said.rpartition("data.vocab_size=")[2])
    documents = [json.loads(line) for line in (tmp_path / "music.jsonl").read_text().splitlines()]
    assert len(documents) == 2
    assert all(0 <= token < size for document in documents for token in document)
    # What is sampled is text, and the end of a document is no event.
    (tmp_path / "step-1.txt").write_text(" ".join(map(str, [*documents[1], size])))
    run("midi.py", "decode", tmp_path / "step-1.txt", tmp_path / "sample.mid", tmp_path / "music.json")
    heard = symusic.Score(tmp_path / "sample.mid")
    (track,) = heard.tracks
    assert track.program == 40
    beat = heard.ticks_per_quarter
    assert [(note.time / beat, note.pitch, note.duration / beat) for note in track.notes] == [
        (time, pitch, 0.5) for time, pitch in notes
    ]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two models of one vocabulary, and a text that it can say."""
    folder = tmp_path_factory.mktemp("models")
    letters = CharTokenizer([*"\nabcdefghijklmnopqrstuvwxyz .,!\u00e9"])
    for kind in ("transformer_xl", "vaswani"):
        torch.manual_seed(1)
        model = model_of(kind).float()
        model.vocabulary = letters
        txl.save_model(model, folder / kind)
    (folder / "text.txt").write_text("once upon a time, d\u00e9j\u00e0 vu!\n".replace("\u00e0", "a") * 8)
    return folder


def call(name: str, *arguments: object, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run an example in this process."""
    monkeypatch.setattr(sys, "argv", [name, *map(str, arguments)])
    runpy.run_path(str(EXAMPLES / name), run_name="__main__")


def test_relative_effective_context_length(
    models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = [models / "transformer_xl", models / "vaswani"]
    asked = ["--lengths", 1, 4, 8, "--tokens", 20]
    call("relative_context.py", models / "text.txt", *runs, *asked, monkeypatch=monkeypatch)
    out = capsys.readouterr().out
    assert "20 predictions" in out
    assert out.count("%") == 2 * 3 * 2  # models, shares, steps


def test_gains_of_context_whose_answer_is_known() -> None:
    example = runpy.run_path(str(EXAMPLES / "relative_context.py"))
    losses = np.array([[[3.0, 1.0], [2.0, 1.0], [2.0, 0.5], [2.0, 0.495]]])  # of one model: contexts, tokens
    found = example["gains"](losses, 1.0)[0]
    assert found == pytest.approx([1 - np.exp(-0.5), 1 - np.exp(-0.25), 1 - np.exp(-0.0025)])
    assert example["effective_length"](found, [1, 2, 4, 8], 0.01) == "4"
    assert example["effective_length"](found, [1, 2, 4, 8], 0.001) == ">= 8"


@pytest.mark.parametrize(("options", "far"), [([], [11, 21]), (["--same-length"], [6, 12])], ids=["segments", "same"])
def test_reach(
    options: list[str],
    far: list[int],
    models: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    asked = ["--segment-len", 5, "--mem-len", 7, *options]
    call("reach.py", models / "transformer_xl", *asked, monkeypatch=monkeypatch)
    lines = capsys.readouterr().out.splitlines()
    assert lines == [f"layer {layer}: {tokens} tokens back" for layer, tokens in enumerate(far, start=1)]


def test_page_of_token_costs(models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text, page = tmp_path / "text.txt", tmp_path / "page.html"
    text.write_text("once, \u00e9!\n")
    call("token_page.py", models / "transformer_xl", text, page, "--segment-len", 4, monkeypatch=monkeypatch)
    main = page.read_text().partition("<main")[2]
    assert re.sub(r"<[^>]*>", "", main.partition(">")[2]).strip() == "once, \u00e9!\u21b5"
    assert main.count("<span") == 9
    assert main.count("not predicted") == 1
    assert main.count(" nats") == 8
