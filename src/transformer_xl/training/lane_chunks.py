"""Going on with lanes in another number of chunks: Lightning counts batches, and a step has as many as chunks."""

from __future__ import annotations

from typing import Any


def count_in_chunks(checkpoint: dict[str, Any], *, lane_chunks: int) -> None:
    """Turn a checkpoint's counts of batches into those of a run with `lane_chunks`; it was written at a whole step.

    Args:
        checkpoint: as Lightning wrote it; changed in place.
        lane_chunks: chunks of this run.
    """
    before = checkpoint["config"]["data"]["lane_chunks"]
    if lane_chunks == before:
        return
    loop = checkpoint["loops"]["fit_loop"]
    counts = [*loop["epoch_loop.batch_progress"].values(), *loop["state_dict"]["combined_loader"]]
    for counter in counts:
        if isinstance(counter, dict):
            for name in {"ready", "started", "processed", "completed", "batches"} & counter.keys():
                counter[name] = counter[name] // before * lane_chunks
