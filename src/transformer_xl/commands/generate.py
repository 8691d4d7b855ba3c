"""`generate.py`: let a language model go on with texts, and print what follows them."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from transformer_xl.commands import cli
from transformer_xl.commands.call import Call
from transformer_xl.commands.closed_pipe import is_terminal, note, say, standard_input, until_nobody_reads
from transformer_xl.errors import UserError
from transformer_xl.inference_config import GenerateConfig

if TYPE_CHECKING:
    from transformer_xl.commands.models import LoadedModel, NamedModel
    from transformer_xl.data.tokenizer import Tokenizer
    from transformer_xl.inference.generate import Generator, Made

_SEGMENT_LEN = 128
"""Of a model that comes from no run."""
_ESCAPES = {"n": "\n", "t": "\t", "\\": "\\"}
_ENDINGS = {"n_tokens": "sampling.n_tokens", "stop": "sampling.stop", "document": "the end of a document"}
_KEPT = 1024
"""Last tokens of a chat that are kept: what is written may depend on the line that it stands in."""


def main() -> None:
    """Run the command line and exit with its status."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a text may hold what the terminal cannot show
    sys.exit(cli.run("generate", generate))


def generate(call: Call) -> None:
    """Continue each prompt, or chat.

    Args:
        call: the command.
    """
    config = call.settings(GenerateConfig)
    prompts = _read_prompts(config)
    from transformer_xl.commands.models import find_model  # torch takes seconds, which `--help` need not wait for

    model = find_model(config.run, checkpoint=config.checkpoint)
    loaded = model.load(device=config.device, precision=config.precision)
    generator = _generator(config, model, loaded)
    is_chat = config.interactive
    tokens = [_encoded(prompt, generator) for prompt in prompts if prompt.text or not is_chat]
    shown = [_shown(prompt, config) if config.echo else "" for prompt in prompts]
    note(f"{model.name}: {loaded.described}")
    with until_nobody_reads(), loaded.autocast():  # once for all tokens: it keeps the weights that it rounds
        if is_chat:
            _chat(generator, tokens[0] if tokens else [], shown=shown[0])
        elif len(tokens) * config.sampling.samples == 1 and config.format != "jsonl":
            _print_one(generator, tokens[0], shown=shown[0])
        else:
            _print_several(generator, tokens, config, shown=shown)


def _stops(config: GenerateConfig) -> list[str]:
    r"""Return the texts that end generation, with line ends and tabs for `\n` and `\t` in them."""
    given = [config.sampling.stop] if isinstance(config.sampling.stop, str) else config.sampling.stop
    return [re.sub(r"\\([nt\\])", lambda match: _ESCAPES[match[1]], text) for text in given]


@dataclass(frozen=True, kw_only=True)
class Prompt:
    """A prompt as the user gives it.

    Attributes:
        where: it comes from, for messages.
        text: of the command line or a terminal; bytes of a file; empty: a text is to be begun.
    """

    where: str
    text: str | bytes


def _read_prompts(config: GenerateConfig) -> list[Prompt]:
    """Read all prompts; without any, one that is empty."""
    if config.prompt_file is None:
        return [Prompt(where="prompt", text=config.prompt or "")]
    if config.prompt_file == "-":
        contents, name = standard_input().read(), "standard input"
    else:
        name = config.prompt_file
        try:
            contents = Path(os.path.expanduser(config.prompt_file)).read_bytes()
        except OSError as error:
            raise UserError(f"prompt_file={name} cannot be read: {error.strerror}") from error
    if config.prompt_unit == "file":
        return [Prompt(where=name, text=_without_line_end(contents))]
    if not contents:
        raise UserError(f"prompt_file is {config.prompt_file}, and holds no line")
    lines = contents.removesuffix(b"\n").split(b"\n")
    return [
        Prompt(where=f"line {number} of {name}", text=line.removesuffix(b"\r"))
        for number, line in enumerate(lines, start=1)
    ]


def _without_line_end(contents: bytes) -> bytes:
    """Leave out the line end with which programs close a text, so that its last line can be gone on with."""
    return contents[:-1].removesuffix(b"\r") if contents.endswith(b"\n") else contents


def _generator(config: GenerateConfig, model: NamedModel, loaded: LoadedModel) -> Generator:
    """Return what makes texts as the settings say.

    Raises:
        UserError: the model cannot follow them.
    """
    from transformer_xl.data.characters import SymbolTokenizer
    from transformer_xl.inference.generate import Generator

    language_model, sampling = loaded.model, config.sampling
    vocabulary: Tokenizer | None = language_model.vocabulary
    as_ids = config.format == "tokens"
    if vocabulary is None and not as_ids:
        raise UserError(f"run={model.path} has no vocabulary, and cannot read or write text: give format=tokens")
    own = _SEGMENT_LEN if model.config is None else model.config.eval.segment_len
    segment_len = own if sampling.segment_len == "own" else sampling.segment_len
    generator = Generator(
        model=language_model,
        context=language_model.own_context(segment_len=segment_len).resolved(**dict(config.memory)),
        params=sampling,
        seed=config.seed,
        n_tokens=sampling.n_tokens,
        tokenizer=SymbolTokenizer(language_model.vocab_size) if as_ids else vocabulary,
        stops=_stops(config),
        end=vocabulary.end_of_document if vocabulary is not None and sampling.end_at_document else None,
        writes_alone=as_ids,
    )
    probe = generator.lanes()
    probe.append([[0]])
    try:
        with loaded.autocast():
            probe.sample()  # only a model itself knows what it can follow
    except UserError:
        raise
    except ValueError as error:
        raise UserError(f"memory: {error}") from error
    return generator


def _encoded(prompt: Prompt, generator: Generator) -> list[int]:
    """Return a prompt's tokens; of an empty one those that a text begins after."""
    from transformer_xl.data.tokenizer import EncodeError
    from transformer_xl.inference.generate import first_tokens

    tokenizer, vocabulary = generator.tokenizer, generator.model.vocabulary
    assert tokenizer is not None
    try:
        text = prompt.text if isinstance(prompt.text, str) else tokenizer.text_of_bytes(prompt.text)
        tokens: list[int] = tokenizer.encode(text).tolist()
    except EncodeError as error:
        raise UserError(f"{prompt.where} {error.problem}: leave it out, or take a model that knows it") from error
    except UserError as error:
        raise UserError(f"{prompt.where}: {error}") from error
    if not tokens and vocabulary is None:
        raise UserError("prompt is null or empty, and the model has no vocabulary to begin a text: give ids")
    return tokens or first_tokens(vocabulary)


def _shown(prompt: Prompt, config: GenerateConfig) -> str:
    """Return a prompt as it stands before what follows it."""
    text = prompt.text if isinstance(prompt.text, str) else prompt.text.decode("utf-8", errors="replace")
    return "".join(f"{number} " for number in text.split()) if config.format == "tokens" else text


def _print_one(generator: Generator, prompt: list[int], *, shown: str) -> None:
    """Print one text as it is made, behind what is shown of its prompt."""
    from transformer_xl.inference.generate import continued

    continuation = generator.continuation(prompt)
    say(shown)
    last, count = shown, 0
    start = begun = time.perf_counter()
    try:
        for piece in continued(generator.lanes(), prompt, continuation):
            begun = begun if count else time.perf_counter()  # reading the prompt is over with the first token
            count += 1
            say(piece)
            last = piece or last
    except KeyboardInterrupt:
        say("\n")
        raise
    speed = f", {(count - 1) / (time.perf_counter() - begun):,.1f} per second from then on" if count > 1 else ""
    if not last.endswith("\n"):
        say("\n")
    counted = f"{len(continuation.tokens):,} tokens, the first after {begun - start:.2f} s{speed}"
    note(f"{counted}, ended by {_ENDINGS[continuation.ended or 'n_tokens']}")


def _print_several(
    generator: Generator, prompts: Sequence[list[int]], config: GenerateConfig, *, shown: Sequence[str]
) -> None:
    """Print each text when it is complete, behind what is shown of its prompt."""
    sampling, start, count = config.sampling, time.perf_counter(), 0
    for made in generator.texts(prompts, samples=sampling.samples, batch_size=sampling.batch_size):
        text = shown[made.prompt - 1] + made.text
        if config.format == "jsonl":
            say(json.dumps(made._asdict() | {"text": text}, ensure_ascii=False) + "\n")
        elif config.format == "tokens":
            say(text + "\n")
        else:
            end = "" if text.endswith("\n") else "\n"
            say(f"{_header(made, prompts=len(prompts), samples=sampling.samples)}\n{text}{end}")
        count += made.tokens
    note(f"{count:,} tokens, {count / (time.perf_counter() - start):,.1f} per second, prompts included")


def _header(made: Made, *, prompts: int, samples: int) -> str:
    numbers = [f"prompt {made.prompt}"] if prompts > 1 else []
    numbers += [f"sample {made.sample}"] if samples > 1 else []
    return f"--- {', '.join(numbers)} ---"


def _chat(generator: Generator, prompt: list[int], *, shown: str) -> None:
    """Let a person and the model write one text in turn, each line of the person's below what the model wrote."""
    from transformer_xl.inference.generate import continued

    lanes, recent, has_ended = generator.lanes(), list[int](), False
    note("an empty line goes on; Ctrl-C stops an answer, and at the prompt ends the chat")
    say(shown)
    line = "" if prompt else _ask()
    while line is not None:
        try:
            tokens = prompt or _line_tokens(line, generator, recent, has_ended=has_ended)
        except UserError as mistake:
            note(f"error: {mistake}")
            line = _ask()
            continue
        prompt, last = [], ""
        continuation = generator.continuation([*recent, *tokens])
        with _interruptible() as interrupted:
            for piece in continued(lanes, tokens, continuation):
                say(piece)
                last = piece or last
                if interrupted():
                    break
            is_stopped = interrupted()
        has_ended = continuation.ended == "document"
        recent = [*recent, *tokens, *continuation.tokens][-_KEPT:]
        if not last.endswith("\n"):
            say("\n")
        if is_stopped:
            note("(stopped)")
        line = _ask()


def _line_tokens(line: str, generator: Generator, recent: Sequence[int], *, has_ended: bool) -> list[int]:
    """Return the tokens that put a line behind a text, of which the last tokens are given."""
    if not recent:
        return _encoded(Prompt(where="the line", text=line), generator)
    if not line:
        # the end of a document is read only where the model is told to go on behind it
        return [generator.end] if has_ended and generator.end is not None else []
    tokenizer = generator.tokenizer
    assert tokenizer is not None
    if not tokenizer.is_text:
        return _encoded(Prompt(where="the line", text=line), generator)
    opening = tokenizer.encode("").tolist()
    if opening:  # it stands between lines too
        tokens = _encoded(Prompt(where="the line", text=line), generator)
        return tokens[len(opening) :] if opening == [recent[-1]] else tokens
    between = next((blank for blank in ("\n", " ") if _can_write(tokenizer, blank)), "")
    if between and not tokenizer.decode([recent[-1]]).endswith(between):
        line = between + line
    return _encoded(Prompt(where="the line", text=line), generator)


def _can_write(tokenizer: Tokenizer, text: str) -> bool:
    try:
        return tokenizer.decode(tokenizer.encode(text)) == text
    except UserError:
        return False


def _ask() -> str | None:
    """Read a line without its end; None where there is none, or the person wants to leave."""
    is_typed = is_terminal(sys.stdin)
    try:
        if is_typed and is_terminal(sys.stdout):
            with suppress(ModuleNotFoundError):
                import readline  # noqa: F401 - with it a line can be edited, and those before found by the arrow keys
            return input(">>> ")
        if is_typed:
            print(">>> ", end="", file=sys.stderr, flush=True)
        line = standard_input().readline()
    except (EOFError, KeyboardInterrupt):
        note("")
        return None
    return _without_line_end(line).decode("utf-8", errors="surrogateescape") if line else None


@contextmanager
def _interruptible() -> Iterator[Callable[[], bool]]:
    """Let the first Ctrl-C in here be a wish, which the value tells of, so that no token is left half read."""
    wishes: list[int] = []

    def wish(number: int, frame: FrameType | None) -> None:
        if wishes:
            raise KeyboardInterrupt
        wishes.append(number)

    before = signal.signal(signal.SIGINT, wish)
    try:
        yield lambda: bool(wishes)
    finally:
        signal.signal(signal.SIGINT, before)
