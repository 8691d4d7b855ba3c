"""Files that hold a pickled module, as the published code's `model.pt`: what to say about them."""

from __future__ import annotations

import re
from pathlib import Path

EXPORT = """\
import os, sys, torch; sys.path += [".", "utils"]; os.environ["TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD"] = "1"
model = torch.load("model.pt", map_location="cpu"); attn = model.layers[0].dec_attn
kept = {k: getattr(model, k) for k in ("mem_len", "ext_len", "clamp_len", "same_length", "attn_type")}
kept.update(pre_lnorm=attn.pre_lnorm, dropout=model.drop.p, dropatt=attn.dropatt.p, cutoffs=model.crit.cutoffs[:-1])
torch.save(dict(kept, state_dict=model.state_dict()), "weights.pt")
"""
"""What a person runs where the published code can be imported: weights, and what weights do not tell."""

_CODE = re.compile(r"GLOBAL ([\w.]+)")


def holds_code(error: BaseException) -> bool:
    """Tell whether torch's restricted unpickler refused a class or function."""
    return _CODE.search(str(error)) is not None


def explain_unreadable(path: Path, error: BaseException) -> str:
    """Say why a file of `torch.save` was not read.

    Args:
        path: the file.
        error: what torch's restricted unpickler raised.
    """
    found = _CODE.search(str(error))
    if found is None:
        return f"{path} is damaged, or no checkpoint of plain tensors and containers"
    name = found[1]
    if name.rpartition(".")[2] != "MemTransformerLM":
        return f"{path} holds {name}, which is code, and this program runs no code from a file"
    lines = EXPORT.replace('"model.pt"', f'"{path.name}"')
    return (
        f"{path} holds a pickled {name}, which is code, and this program runs no code from a file; run these five "
        f"lines in the environment and folder of the code that wrote it, and load weights.pt:\n\n{lines}"
    )
