"""Turn speech or music into token ids, eight bits of mu-law a sample, and sampled ids back into sound.

python examples/audio.py encode WAV_FILE_OR_FOLDER sound --rate 8000   # writes a .npy file for each: a document
python train.py data=tokens data.path=sound data.vocab_size=256 callbacks.sample.n_tokens=16000
python examples/audio.py decode RUN_FOLDER/samples/step-1250.txt sample.wav --rate 8000
"""

import argparse
import re
import wave
from pathlib import Path

import numpy as np

MU = 255  # ITU-T G.711 as a formula: F(x) = sign(x) ln(1 + MU |x|) / ln(1 + MU)


def read_wav(path: Path, rate: int) -> np.ndarray:
    """Read PCM of 8, 16, 24 or 32 bits as one channel of samples in [-1, 1], `rate` of them a second."""
    with wave.open(str(path)) as file:
        channels, width, own_rate, frames = file.getparams()[:4]
        octets = np.frombuffer(file.readframes(frames), np.uint8).reshape(-1, width)
    highest = np.zeros((len(octets), 4), np.uint8)  # of 32 bits, the lowest first
    highest[:, 4 - width :] = octets if width > 1 else octets ^ 128  # samples of 8 bits alone are unsigned
    samples = (highest.view("<i4") / 2**31).reshape(-1, channels).mean(axis=1)
    return np.interp(np.arange(len(samples) * rate // own_rate) * own_rate / rate, np.arange(len(samples)), samples)


def encode(samples: np.ndarray) -> np.ndarray:
    """Turn samples in [-1, 1] into ids from 0 to 255."""
    companded = np.sign(samples) * np.log1p(MU * np.abs(samples)) / np.log1p(MU)
    return np.rint((companded + 1) / 2 * MU).astype(np.uint8)


def decode(ids: np.ndarray) -> np.ndarray:
    """Turn ids from 0 to 255 into samples in [-1, 1]."""
    return np.sign(ids - MU / 2) * np.expm1(np.abs(ids / MU * 2 - 1) * np.log1p(MU)) / MU


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("direction", choices=("encode", "decode"))
    parser.add_argument("source", type=Path)
    parser.add_argument("target", type=Path)
    parser.add_argument("--rate", type=int, default=8000, help="samples a second; reached without a filter")
    direction, source, target, rate = vars(parser.parse_args()).values()
    if not source.exists():
        parser.error(f"{source} does not exist")
    if direction == "encode":
        for path in [source] if source.is_file() else sorted(source.rglob("*.wav")):
            written = target / path.relative_to(source.parent if path == source else source).with_suffix(".npy")
            written.parent.mkdir(parents=True, exist_ok=True)
            np.save(written, ids := encode(read_wav(path, rate)))
            print(f"{written}: {len(ids):,} ids, {len(ids) / rate:.1f} s")
    else:
        ids = np.array(np.load(source) if source.suffix == ".npy" else re.findall(r"\d+", source.read_text()), int)
        with wave.open(str(target), "wb") as file:
            file.setparams((1, 2, rate, 0, "NONE", ""))  # an id above 255 ends a document, and is no sound
            file.writeframes(np.rint(decode(ids[ids <= MU]) * 32767).astype("<i2").tobytes())
