"""Names of what is logged, once."""

from __future__ import annotations

TRAIN_LOSS = "train/loss"
GRADIENT_NORM = "train/grad_norm"
CLIPPED_SHARE = "train/clipped_share"
LEARNING_RATE = "lr"
VALIDATION = "val"
TEST = "test"
SPLITS = {VALIDATION: "valid", TEST: "test"}
EVALUATION = "evaluation"
LOSS = "loss"
MEMORY_GAIN = "val/memory_gain"
TOKENS_PER_SECOND = "tokens_per_second"
MFU = "mfu"
PROCESS_MEMORY = "memory_process_peak_bytes"
DEVICE_MEMORY = "memory_device_peak_bytes"
SAMPLES = "samples"
STEP_AXIS = "trainer/global_step"
TOKEN_AXIS = "tokens"
