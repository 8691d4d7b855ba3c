"""Turn music in MIDI files into token ids, and sampled ids back into music. Needs MidiTok: pip install -e ".[midi]".

    python examples/midi.py encode MIDI_FOLDER music.jsonl music.json   # prints data.vocab_size
    python train.py data=tokens data.path=music.jsonl data.vocab_size=NUMBER
    python examples/midi.py decode RUN_FOLDER/samples/step-1250.txt sample.mid music.json

Each MIDI file becomes a line of the .jsonl file, which is one document: all its instruments in one sequence, with bars,
places in the bar, tempos, pitches, loudness and lengths as events (REMI). The third file says what the ids stand for.
"""

import argparse
import json
import re
from pathlib import Path

from miditok import REMI, TokenizerConfig


def encode(source: Path, target: Path, vocabulary: Path) -> None:
    """Write the ids of each MIDI file of a folder as a line, and the vocabulary."""
    tokenizer = REMI(TokenizerConfig(use_programs=True, use_tempos=True))
    with target.open("w") as file:
        for path in sorted(path for path in source.rglob("*") if path.suffix.lower() in (".mid", ".midi")):
            try:
                file.write(json.dumps(tokenizer(path).ids) + "\n")
            except Exception as error:  # collections hold many damaged files, and each fails in its own way
                print(f"left out {path}: {error}")
    tokenizer.save(vocabulary)
    if not target.stat().st_size:
        raise SystemExit(f"{source} holds no MIDI files that can be read")
    print(f"data.vocab_size={len(tokenizer)}")


def decode(source: Path, target: Path, vocabulary: Path) -> None:
    """Write the ids of a text, whatever stands between them, as one MIDI file."""
    tokenizer = REMI(params=vocabulary)
    ids = map(int, re.findall(r"\d+", source.read_text()))
    # An id above the vocabulary ends a document, and is no event.
    tokenizer([token for token in ids if token < len(tokenizer)]).dump_midi(target)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("direction", choices=("encode", "decode"))
    parser.add_argument("source", type=Path)
    parser.add_argument("target", type=Path)
    parser.add_argument("vocabulary", type=Path)
    args = parser.parse_args()
    if not args.source.exists() or (args.direction == "decode" and not args.vocabulary.exists()):
        parser.error(f"{args.source} or {args.vocabulary} does not exist")
    {"encode": encode, "decode": decode}[args.direction](args.source, args.target, args.vocabulary)
