"""Half bytes as symbols: plugins=[examples/parts/nibbles.py] data.tokenizer=nibbles."""

import numpy as np

import transformer_xl as txl
from transformer_xl.data.tokenizer import FORMAT, Tokenizer


@txl.register("tokenizer", "nibbles")
class Nibbles(Tokenizer):
    """16 symbols, two of them a byte; scores are bits per byte, whatever the text."""

    kind = "nibbles"
    unit = "bpb"
    any_bytes = True
    size = 16

    @classmethod
    def learn(cls, parts, settings):
        return cls()

    @classmethod
    def from_json(cls, data):
        return cls()

    def to_json(self):
        return {"format": FORMAT, "kind": self.kind}

    def encode(self, text):
        data = np.frombuffer(text.encode("utf-8", errors="surrogateescape"), np.uint8)
        return np.stack([data >> 4, data & 15], axis=1).reshape(-1).astype(np.int64)

    def decode_bytes(self, ids):
        ids = np.asarray(ids, np.uint8)
        high, low = ids[: len(ids) // 2 * 2].reshape(-1, 2).T
        return (high << 4 | low).tobytes()

    def decode(self, ids):
        return self.decode_bytes(ids).decode(errors="replace")
