"""What a person reads before the first step: what the run is, and what is not as they might think."""

from __future__ import annotations

from collections.abc import Mapping

from lightning.pytorch import Trainer

from transformer_xl.data.lanes import Dataset, beside_scores, split_evenly
from transformer_xl.devices import other_devices
from transformer_xl.model.base import LanguageModel
from transformer_xl.run import Run
from transformer_xl.run_folder import shown
from transformer_xl.run_length import RunLength
from transformer_xl.training.checkpoint import validation_is_due
from transformer_xl.training.module import LanguageModule

_OF_RECIPE = {
    "segment_len": "data.segment_len",
    "batch_size": "data.batch_size",
    "lr": "optimizer.lr",
    "warmup_steps": "scheduler.warmup_steps",
    "max_steps": "trainer.max_steps",
    "val_every_n_steps": "trainer.val_check_interval",
    "gradient_clip_val": "trainer.gradient_clip_val",
}
"""A recipe's settings, and those that usually refer to them."""


def print_opening(run: Run, corpus: Dataset, module: LanguageModule, trainer: Trainer, length: RunLength) -> None:
    """Describe the run: model, data, lengths, device, where its results go, and where it goes on."""
    config, model = run.config, module.model
    parameters = sum(parameter.numel() for parameter in model.parameters())
    embedding = sum(parameter.numel() for name, parameter in model.named_parameters() if "embedding" in name)
    counts = corpus.counts()
    chosen = run.identity.choices.get("model", config.model.kind)
    run.say(f"model    {chosen}, {parameters:,} parameters, {embedding:,} of them embedding")
    tokens = ", ".join(f"{split} {count:,}" for split, count in counts.items())
    run.say(
        f"data     {corpus.name}{beside_scores(corpus)}, {corpus.vocabulary.kind} vocabulary of "
        f"{corpus.vocabulary.size:,}: tokens {tokens}"
    )
    source = corpus.fingerprint
    if source.files:
        files = "1 file" if source.files == 1 else f"{source.files:,} files"
        run.say(f"source   {files}, {source.bytes:,} bytes, sha256 {source.sha256[:16]}")
    unknown = {split: count / counts[split] for split, count in corpus.unknown.items() if count}
    if unknown:
        shares = ", ".join(f"{split} {share:.1%}" for split, share in unknown.items())
        run.say(f"unknown  outside the vocabulary: {shares}")
    for line in _training_lines(run, model, length) if length.max_steps > 0 else [_scoring_line(run)]:
        run.say(line)
    lanes = config.data.batch_size if length.max_steps > 0 else config.eval.batch_size
    shares_of_lanes = [len(share) for share in split_evenly(lanes, trainer.world_size)]
    few, many = min(shares_of_lanes), max(shares_of_lanes)
    run.say(
        f"device   {trainer.world_size} x {trainer.strategy.root_device.type}, precision {trainer.precision}, "
        f"{few if few == many else f'{few}-{many}'} lanes per device"
    )
    for note in _notes(run, counts, length):
        run.say(f"note     {note}")
    run.say(f"folder   {shown(run.folder)}")
    run.say(f"monitor  {run.monitor}")
    _print_resumed(run, module, length)


def _training_lines(run: Run, model: LanguageModel, length: RunLength) -> list[str]:
    config = run.config
    lanes, data = config.data.batch_size, config.data
    held = lanes * model.memory_size(config.model.mem_len) * 4 / 1e6
    memory = f"memory {config.model.mem_len}"
    if not model.attends:
        memory = "state carried on" if config.model.mem_len else "state forgotten after each segment"
    validation = "none" if length.validate_every is None else f"every {length.validate_every} steps and at the end"
    varied = f", lengths with sd {data.segment_len_sd:g}" if data.segment_len_sd else ""
    varied += f", {data.half_segments:.0%} of them half as long" if data.half_segments else ""
    varied += ", loss on their second halves" if data.loss == "half" else ""
    warmup = f" after {config.scheduler.warmup_steps:,} steps of warm-up" if config.scheduler.warmup_steps else ""
    return [
        f"batch    {lanes} lanes x {data.segment_len} tokens (B x T){varied}, {memory}: "
        f"{held:,.1f} MB of hidden states",
        f"learn    {config.optimizer.kind}, lr {config.optimizer.lr:g}{warmup}, then {config.scheduler.kind}",
        f"run      {length.max_steps:,} steps, {length.tokens:,} tokens, {length.epochs:.2f} epochs; validation "
        f"{validation}",
    ]


def _scoring_line(run: Run) -> str:
    lengths = run.config.eval
    return (
        f"score    nothing is trained: {lengths.batch_size} lanes x {lengths.segment_len} tokens, memory "
        f"{lengths.mem_len}"
    )


def _notes(run: Run, counts: Mapping[str, int], length: RunLength) -> list[str]:
    """Return what is not as a person might think."""
    config, steps = run.config, length.max_steps
    notes = [f"the {split} split is empty, and is not scored" for split, count in counts.items() if not count]
    start, warmup = config.callbacks.weight_average.start_step, config.scheduler.warmup_steps
    total = getattr(config.scheduler, "total_steps", steps)
    if start is not None and start > steps:
        notes.append(
            f"callbacks.weight_average.start_step is {start}, after the last step, {steps}: nothing is averaged"
        )
    for name, key in _OF_RECIPE.items():
        group, _, setting = key.partition(".")
        if run.given is not None and run.names(f"recipe.{name}") and not run.names(key):
            asked, used = getattr(config.recipe, name), getattr(getattr(config, group), setting)
            if asked != used:
                notes.append(f"recipe.{name} is {asked}, and has no effect here: {key} is {used}")
    if 0 < steps <= warmup:
        notes.append(f"scheduler.warmup_steps is {warmup}, and the run has {steps} steps: it never ends its warm-up")
    if run.step < steps and total < steps:
        notes.append(
            f"the learning rate is {getattr(config.scheduler, 'min_lr', 0.0):.4g} from step {total:,} on, where the "
            f"schedule ends: scheduler.total_steps={steps} lets it end with the run"
        )
    if run.initial_weights is not None and steps > 0 and not run.names("optimizer.lr"):
        notes.append(
            f"optimizer.lr is {config.optimizer.lr:g}, the recipe's for weights that are drawn: trained ones usually "
            "want a smaller one"
        )
    others = other_devices(config.trainer.accelerator, config.trainer.devices)
    return [*notes, *([others] if others is not None else [])]


def _print_resumed(run: Run, module: LanguageModule, length: RunLength) -> None:
    """Say where the run goes on, and at which learning rate."""
    if run.found is None:
        return
    state = run.found.state
    step, config = run.step, run.config
    line = f"resumed  at step {step:,} of {length.max_steps:,}"
    if run.parent is not None:
        line += f" as a branch of {shown(run.parent)}"
    if validation_is_due(state):
        line += ", whose validation comes first"
    if step < length.max_steps:
        module.schedule.load_state_dict(state["schedule"])
        line += f"; the next learning rate is {config.optimizer.lr * module.schedule(step + 1):.4g}"
    run.say(line)
    if state["train_memory"] is None:
        run.say(
            "note     the checkpoint holds no memory (callbacks.checkpoint.save_memory=false): every lane starts with "
            "an empty one"
        )
    if step >= length.max_steps and run.parent is not None:
        run.say("note     no step is left to train: a larger trainer.max_steps gives the branch some")


def finished_line(run: Run, max_steps: int) -> str:
    """Say that nothing is left to do, and how the run is made longer."""
    return (
        f"{shown(run.folder)} is finished: it is at step {run.step}, and trainer.max_steps is {max_steps}; a larger "
        "one goes on, with scheduler.total_steps where a cosine shall end there too"
    )
