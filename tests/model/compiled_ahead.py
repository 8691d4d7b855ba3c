"""Compile the fused kernels for GPUs that are not there: `python -m tests.model.compiled_ahead`, `src` on PYTHONPATH.

Prints for each GPU, kernel and kind of heads what ptxas says that it needs: registers of a thread, bytes that these
spill, and bytes of shared memory of a program.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from transformer_xl.model.kernels import fused

CUOBJDUMP = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
BITS = {"bf16": 16, "fp16": 16, "fp32": 32}
POINTERS = {"SEEN": "*i32", "SEED": "*i64", "SUM": "*fp32", "MEAN": "*fp32", "U": "*fp32"}
CASES = [
    # heads of 41 numbers, as published, are filled up to 48
    *({"dtype": "bf16", "width": width, "drops": drops} for width in (32, 48, 64, 128) for drops in (False, True)),
    {"dtype": "bf16", "width": 64, "drops": False, "relative": False},
    {"dtype": "bf16", "width": 256, "drops": True},
    {"dtype": "fp16", "width": 64, "drops": True},
    *({"dtype": "fp32", "width": width, "drops": True} for width in (48, 64, 128, 256)),
    {"dtype": "fp32", "width": 64, "drops": True, "precision": "tf32"},
]


def compiled(
    kernel: Any, capability: int, *, dtype: str, width: int, drops: bool, relative: bool = True, precision: str = "ieee"
) -> dict[str, Any]:
    """Compile a kernel, and return what it needs."""
    padded = max(16, 1 << (width - 1).bit_length())
    blocks = fused.blocks_of(kernel.__name__, bits=BITS[dtype], width=padded)
    constants = {
        **{"WIDTH": width, "VALUE_WIDTH": width, "Z": padded, "BT": blocks.queries, "BS": blocks.keys},
        **{"RELATIVE": relative, "DROPS": drops, "PRECISION": precision},
    }
    signature, aligned = {}, {}
    for place, name in enumerate(kernel.arg_names):
        if name in constants:
            signature[name] = "constexpr"
            continue
        is_stride = name.startswith(("k_", "v_")) and width % 16 == 0
        if name.isupper() or is_stride:
            aligned[place,] = [["tt.divisibility", 16]]
        signature[name] = POINTERS.get(name, f"*{dtype}") if name.isupper() else "i32"
        if name in ("scale", "grow"):
            signature[name] = "fp32"
    source = ASTSource(fn=kernel, signature=signature, constexprs=constants, attrs=aligned)
    options = {"num_warps": blocks.warps, "num_stages": blocks.stages}
    binary = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(binary.asm["cubin"])
        file.flush()
        command = [str(CUOBJDUMP), "--dump-resource-usage", file.name]
        usage = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    registers, stack, local = (int(re.search(rf"{name}:(\d+)", usage)[1]) for name in ("REG", "STACK", "LOCAL"))
    return {
        **{"gpu": f"sm_{capability}", "kernel": kernel.__name__, "dtype": dtype, "width": width, "drops": drops},
        **{"relative": relative, "precision": precision, "blocks": "x".join(map(str, blocks))},
        **{"registers": registers, "spilled": stack + local, "shared": binary.metadata.shared},
    }


def rows(cases: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for case in cases:
        for capability in (80, 90):
            for kernel in (fused._forward, fused._to_queries, fused._to_keys):
                yield compiled(kernel, capability, **case)


if __name__ == "__main__":
    chosen = [CASES[int(number)] for number in sys.argv[1:]] or CASES
    for row in rows(chosen):
        print(json.dumps(row), flush=True)
