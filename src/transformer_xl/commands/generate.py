"""`generate.py`: let a language model go on with texts, and print what follows them."""

from __future__ import annotations

import dataclasses
import io
import json
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from transformer_xl.commands import cli
from transformer_xl.inference_config import GenerateConfig

if TYPE_CHECKING:
    from transformer_xl.commands.generating.text_batches import Made, Maker
    from transformer_xl.commands.models import LoadedModel, NamedModel


def main() -> None:
    """Run the command line and exit with its status."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a text may hold what the terminal cannot show
    sys.exit(cli.run("generate", generate))


def generate(call: cli.Call) -> None:
    """Continue each prompt, or talk.

    Args:
        call: the command.
    """
    from transformer_xl.commands.closed_pipe import until_nobody_reads
    from transformer_xl.commands.generating import settings as generation_settings
    from transformer_xl.commands.generating.prompts import read_prompts

    config = call.settings(GenerateConfig)
    generation_settings.check(config)
    prompts = read_prompts(config)
    from transformer_xl.commands.generating.conversation import Conversation, converse  # torch takes seconds
    from transformer_xl.commands.models import find_model

    source = find_model(config.run, checkpoint=config.checkpoint)
    placed = source.load(device=config.device, precision=config.precision)
    maker = _maker(config, source, placed)
    tokens = [maker.codec.tokens_of(prompt) for prompt in prompts if prompt.text or not config.interactive]
    shown = [maker.codec.shown(prompt) if config.echo else "" for prompt in prompts]
    _introduce(source, placed)
    with until_nobody_reads(), placed.autocast():  # once for all tokens: it keeps the weights that it rounds
        if config.interactive:
            (prompt,) = prompts
            conversation = Conversation(maker.begin, maker.codec, prompt, n_tokens=maker.n_tokens, end=maker.end)
            converse(conversation, echo=config.echo)
        elif len(tokens) * config.sampling.samples == 1 and config.format != "jsonl":
            _print_one(maker, tokens[0], shown=shown[0])
        else:
            _print_several(maker, tokens, config, shown=shown)


def _maker(config: GenerateConfig, source: NamedModel, placed: LoadedModel) -> Maker:
    """Give what makes texts as the settings say.

    Raises:
        UserError: the model cannot follow them.
    """
    from transformer_xl.commands.generating import settings as generation_settings
    from transformer_xl.commands.generating.text_batches import Maker
    from transformer_xl.commands.generating.token_codecs import codec_of
    from transformer_xl.errors import UserError

    model = placed.model
    stops = generation_settings.stop_texts(config.sampling)
    ends = config.sampling.end_at_document and model.vocabulary is not None
    maker = Maker(
        model=model,
        codec=codec_of(model, run=source.path, output_format=config.format, stops=stops),
        drawing=generation_settings.drawing_rule(config.sampling),
        reading=generation_settings.reading_rule(config, source),
        seed=config.seed,
        n_tokens=config.sampling.n_tokens,
        end=model.vocabulary.end_of_document if ends else None,
    )
    probe = maker.begin()
    probe.add([[0]])
    try:
        with placed.autocast():
            probe.draw()  # only a model itself knows what it can follow
    except UserError:
        raise
    except ValueError as error:
        raise UserError(f"memory: {error}") from error
    return maker


def _introduce(source: NamedModel, placed: LoadedModel) -> None:
    from transformer_xl.commands.closed_pipe import note

    model = placed.model
    parameters = sum(parameter.numel() for parameter in model.parameters())
    device = next(model.parameters()).device
    note(f"{source.name}: {model.config.kind}, {parameters:,} parameters, {placed.precision} on {device}")


def _print_one(maker: Maker, prompt: list[int], *, shown: str) -> None:
    """Print one text as it is made, behind what is shown of its prompt."""
    from transformer_xl.commands.closed_pipe import note, say
    from transformer_xl.inference.continuation import continued

    growing = maker.growing(prompt)
    say(shown)
    last, draws = shown, 0
    start = begun = time.perf_counter()
    try:
        for piece in continued(maker.begin(), prompt, growing):
            begun = begun if draws else time.perf_counter()  # reading the prompt is over with the first draw
            draws += 1
            say(piece)
            last = piece or last
    except KeyboardInterrupt:
        say("\n")
        raise
    speed = f", {(draws - 1) / (time.perf_counter() - begun):,.1f} a second from then on" if draws > 1 else ""
    if not last.endswith("\n"):
        say("\n")
    counted = f"{len(growing.tokens):,} tokens, the first after {begun - start:.2f} s{speed}"
    note(f"{counted}, ended by {_ENDINGS[growing.ended or 'n_tokens']}")


_ENDINGS = {"n_tokens": "sampling.n_tokens", "stop": "sampling.stop", "document": "the end of a document"}


def _print_several(maker: Maker, prompts: list[list[int]], config: GenerateConfig, *, shown: Sequence[str]) -> None:
    """Print each text when it is complete, behind what is shown of its prompt."""
    from transformer_xl.commands.closed_pipe import note, say

    sampling, start, count = config.sampling, time.perf_counter(), 0
    for made in maker.texts(prompts, samples=sampling.samples, batch_size=sampling.batch_size):
        text = shown[made.prompt - 1] + made.text
        if config.format == "jsonl":
            say(json.dumps(dataclasses.asdict(made) | {"text": text}, ensure_ascii=False) + "\n")
        elif config.format == "tokens":
            say(text + "\n")
        else:
            end = "" if text.endswith("\n") else "\n"
            say(f"{_header(made, prompts=len(prompts), samples=sampling.samples)}\n{text}{end}")
        count += made.tokens
    note(f"{count:,} tokens, {count / (time.perf_counter() - start):,.1f} a second, the reading of prompts included")


def _header(made: Made, *, prompts: int, samples: int) -> str:
    numbers = [f"prompt {made.prompt}"] if prompts > 1 else []
    numbers += [f"sample {made.sample}"] if samples > 1 else []
    return f"--- {', '.join(numbers)} ---"
