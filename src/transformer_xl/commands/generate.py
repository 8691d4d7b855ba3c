"""`generate.py`: let a language model go on with texts, and print what follows them."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import groupby, product
from pathlib import Path
from typing import TYPE_CHECKING

from transformer_xl.commands import cli
from transformer_xl.commands.call import Call
from transformer_xl.errors import UserError
from transformer_xl.inference_config import GenerateConfig

if TYPE_CHECKING:
    from transformer_xl.data.tokenizer import Tokenizer
    from transformer_xl.inference.generate import Session

_ESCAPES = {"n": "\n", "t": "\t", "\\": "\\"}
_ENDINGS = {"n_tokens": "sampling.n_tokens", "stop": "sampling.stop", "document": "the end of a document"}


def main() -> None:
    """Run the command line and exit with its status."""
    cli.main(lambda: cli.run("generate", generate))


def generate(call: Call) -> None:
    """Continue each prompt, or chat."""
    config = call.settings(GenerateConfig)
    given = _read_prompts(config)
    # torch takes seconds, which `--help` need not wait for
    from transformer_xl.commands.models import find_model
    from transformer_xl.data.characters import SymbolTokenizer
    from transformer_xl.inference.generate import Session, supports_unequal

    found = find_model(config.run, checkpoint=config.checkpoint)
    loaded = found.load(device=config.device, precision=config.precision)
    model, sampling = loaded.model, config.sampling
    vocabulary: Tokenizer = model.vocabulary or SymbolTokenizer(model.vocab_size)
    tokenizer = SymbolTokenizer(model.vocab_size) if config.format == "tokens" else vocabulary
    context = found.context(model, config.memory, segment_len=sampling.segment_len, group="eval")
    params = sampling.model_copy(update={"stop": _unescaped(sampling.stop)})
    begin = partial(Session, model, context, params, seed=config.seed, tokenizer=tokenizer)
    encode = partial(_encoded, tokenizer, vocabulary)
    prompts = [encode(where, text) for where, text in given.items() if text or not config.interactive]
    shown = [_shown(text, config) if config.echo else "" for text in given.values()]
    _note(f"{found.name}: {loaded.described}")
    with loaded.autocast():  # once for all tokens: it keeps the weights that it rounds
        if config.interactive:
            _say(shown[0])
            _chat(begin(), prompts, encode)
        elif len(prompts) * sampling.samples == 1 and config.format != "jsonl":
            _say(shown[0])
            _print_one(begin(), prompts[0])
        else:
            _print_several(begin, prompts, config, shown=shown, unequal=supports_unequal(model, context))


def _unescaped(stop: list[str] | str) -> list[str]:
    r"""Return the texts that end generation, with line ends and tabs for `\n` and `\t` in them."""
    given = [stop] if isinstance(stop, str) else stop
    return [re.sub(r"\\([nt\\])", lambda match: _ESCAPES[match[1]], text) for text in given]


def _read_prompts(config: GenerateConfig) -> dict[str, str]:
    """Return all prompts by where they come from; without any, one that is empty."""
    if config.prompt_file is None:
        return {"prompt": config.prompt or ""}
    name = "standard input" if config.prompt_file == "-" else config.prompt_file
    try:
        path = os.path.expanduser(config.prompt_file)
        contents = sys.stdin.buffer.read() if config.prompt_file == "-" else Path(path).read_bytes()
    except OSError as error:
        raise UserError(f"prompt_file={name} cannot be read: {error.strerror}") from error
    text = _decoded(contents)  # without the line end with which programs close a text
    if config.prompt_unit == "file":
        return {name: text}
    lines = enumerate(text.split("\n"), start=1)
    return {f"line {number} of {name}": line.removesuffix("\r") for number, line in lines}


def _decoded(line: bytes) -> str:
    """Return a text without its last line end, as arguments of a command line are decoded."""
    return line.removesuffix(b"\n").removesuffix(b"\r").decode("utf-8", errors="surrogateescape")


def _encoded(tokenizer: Tokenizer, vocabulary: Tokenizer, where: str, text: str) -> list[int]:
    """Return a prompt's tokens; of an empty one those that a text begins after."""
    from transformer_xl.inference.generate import first_tokens

    try:
        tokens: list[int] = tokenizer.encode(text).tolist()
    except UserError as error:
        raise UserError(f"{where}: {error}; leave it out, or take a model that knows it") from error
    return tokens or first_tokens(vocabulary)


def _shown(text: str, config: GenerateConfig) -> str:
    return "".join(f"{number} " for number in text.split()) if config.format == "tokens" else text


def _print_one(session: Session, prompt: list[int]) -> None:
    start = time.perf_counter()
    _print_all(session, prompt)
    (text,) = session.texts
    speed = len(text.tokens) / (time.perf_counter() - start)
    _note(f"{len(text.tokens):,} tokens, {speed:,.1f} per second, ended by {_ENDINGS[text.ended or 'n_tokens']}")


def _print_all(session: Session, prompt: list[int], stops: Sequence[object] = ()) -> None:
    """Print what follows a prompt, until it ends or something is in `stops`, and a line end where it has none."""
    last = ""
    for (piece,) in session.continued([prompt]):
        _say(piece)
        last = piece or last
        if stops:
            break
    if not last.endswith("\n"):
        _say("\n")


def _print_several(
    begin: Callable[..., Session], prompts: list[list[int]], config: GenerateConfig, *, shown: list[str], unequal: bool
) -> None:
    """Print each text when it is complete, behind what is shown of its prompt."""
    samples, start, count = config.sampling.samples, time.perf_counter(), 0
    tasks = list(product(range(len(prompts)), range(samples)))
    for batch in _batches(tasks, prompts, size=config.sampling.batch_size, unequal=unequal):
        session = begin(samples=[sample for _, sample in batch])
        pieces = list(session.continued([prompts[prompt] for prompt, _ in batch]))
        for (prompt, sample), text, *written in zip(batch, session.texts, *pieces, strict=True):
            whole, count = shown[prompt] + "".join(written), count + len(text.tokens)
            if config.format == "jsonl":
                made = {"prompt": prompt + 1, "sample": sample + 1, "text": whole}
                made |= {"tokens": len(text.tokens), "ended": text.ended}
                _say(json.dumps(made, ensure_ascii=False) + "\n")
            elif config.format == "tokens":
                _say(whole + "\n")
            else:
                numbers = [f"prompt {prompt + 1}"] if len(prompts) > 1 else []
                numbers += [f"sample {sample + 1}"] if samples > 1 else []
                end = "" if whole.endswith("\n") else "\n"
                _say(f"--- {', '.join(numbers)} ---\n{whole}{end}")
    _note(f"{count:,} tokens, {count / (time.perf_counter() - start):,.1f} per second, prompts included")


def _batches(
    tasks: list[tuple[int, int]], prompts: list[list[int]], *, size: int, unequal: bool
) -> Iterator[list[tuple[int, int]]]:
    """Cut tasks (prompt, sample) into those that are made together, in order."""
    for _, group in groupby(tasks, lambda task: 0 if unequal else len(prompts[task[0]])):
        together = list(group)
        yield from (together[start : start + size] for start in range(0, len(together), size))


# ---- a chat


def _chat(session: Session, prompts: list[list[int]], encode: Callable[[str, str], list[int]]) -> None:
    """Let a person and the model write one text in turn, each line of the person's below what the model wrote."""
    _note("an empty line goes on; Ctrl-C stops an answer, and at the prompt ends the chat")
    for prompt in prompts:
        _answer(session, prompt)
    for line in iter(_ask, None):
        try:
            tokens = _line_tokens(line, session, encode)
        except UserError as mistake:
            _note(f"error: {mistake}")
        else:
            _answer(session, tokens)


def _answer(session: Session, tokens: list[int]) -> None:
    """Print what follows tokens; Ctrl-C ends it, between two tokens, so that none is left half read."""
    stops: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, frame: stops.append(number))
    try:
        _print_all(session, tokens, stops)
    finally:
        signal.signal(signal.SIGINT, before)
    if stops:
        _note("(stopped)")


def _line_tokens(line: str, session: Session, encode: Callable[[str, str], list[int]]) -> list[int]:
    """Return the tokens that put a line behind the session's text."""
    (before,), tokenizer = session.tokens, session.tokenizer
    assert tokenizer is not None
    if not line and before:  # the end of a document is read only where the model is told to go on behind it
        return [session.end] if session.texts[0].ended == "document" and session.end is not None else []
    blank = "\n" if tokenizer.has_newlines else " "
    is_new_line = not before or tokenizer.decode(before[-1:]).endswith(blank)
    return encode("the line", line if is_new_line else blank + line)


def _ask() -> str | None:
    """Read a line without its end; None where there is none, or the person wants to leave."""
    if sys.stdin.isatty():
        print(">>> ", end="", file=sys.stderr, flush=True)
    try:
        line = sys.stdin.buffer.readline()
    except KeyboardInterrupt:
        return None
    return _decoded(line) if line else None


def _say(text: str) -> None:
    print(text, end="", flush=True)


def _note(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
