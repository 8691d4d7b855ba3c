"""Numbers that were wrong, or of something else than they said ("What people ran into", 5 to 9, 15, 16, 20)."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import re
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
from tokenizers import decoders, models, trainers

from tests.oracles.runs_support import Result, call, copy_run, made_up_text, summary_of, tiny, values_of, without

SLOW = pytest.mark.slow


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def prepare(path: str, *settings: str, cache: str = "corpora") -> tuple[Result, Path]:
    """Build token files of a text; return how that went, and their folder."""
    result = call("data", "prepare", "data=text", f"data.path={path}", f"data.cache_dir={cache}", *settings)
    folders = sorted(Path(cache).glob("text-*"), key=lambda folder: folder.stat().st_mtime_ns)
    return result, folders[-1] if folders else Path(cache)


def corpus_of(folder: Path) -> dict[str, Any]:
    corpus: dict[str, Any] = json.loads((folder / "corpus.json").read_text())
    return corpus


def words_of(folder: Path, split: str) -> list[str]:
    """Decode a split of token files, and give its words."""
    vocabulary = json.loads((folder / "vocabulary.json").read_text())
    ids = np.fromfile(folder / f"{split}.bin", corpus_of(folder)["dtype"])
    if vocabulary["kind"] == "byte":
        return ids.astype(np.uint8).tobytes().decode(errors="replace").split()
    symbols = ["\n" if symbol == "<eos>" else symbol for symbol in vocabulary["symbols"]]
    return ("" if vocabulary["kind"] == "char" else " ").join(symbols[number] for number in ids).split()


def ends_in_one_line(result: Result, *words: str) -> None:
    assert result.status == 2, result.printed
    assert "Traceback" not in result.printed
    assert result.err.strip().splitlines()[-1].startswith("error"), result.err
    assert all(word in result.err for word in words), result.err


def is_refused_or_said(result: Result, *words: str) -> None:
    """Either it ends in one line, or goes well; the words stand in a line in both."""
    if result.status == 2:
        ends_in_one_line(result, *words)
    else:
        assert result.status == 0, result.printed
        lines = result.printed.splitlines()
        assert any(all(word in line for word in words) for line in lines), result.printed


# --- 5: the border of the default split depends on the tokenizer ---


@pytest.mark.parametrize("tokenizer", ["char", "word", pytest.param("wikitext", marks=SLOW)])
@pytest.mark.parametrize("documents", ["record", pytest.param("blank_line", marks=SLOW)])
def test_5_every_tokenizer_splits_a_text_at_the_same_places(tokenizer: str, documents: str) -> None:
    text = made_up_text(60_000).replace("water", "wäßer").replace("the", "thé")
    Path("text.txt").write_text(re.sub(r"((?:.*\n){5})", r"\1\n", text) if documents == "blank_line" else text)
    settings = ["data.max_eval_tokens=500", f"data.documents={documents}", "data.end_of_document=false"]
    folders = {}
    for name in ("byte", tokenizer):
        result, folders[name] = prepare("text.txt", f"data.tokenizer={name}", *settings, cache=name)
        assert result.status == 0, result.printed
    one, other = (
        {split: [word.strip(".") for word in words_of(folder, split)] for split in ("train", "valid", "test")}
        for folder in folders.values()
    )
    for split in ("valid", "test"):
        assert [w for w in one[split] if w][:40] == [w for w in other[split] if w][:40], split
    assert [w for w in one["train"] if w][-40:] == [w for w in other["train"] if w][-40:]


# --- 6, 15: bits per byte ---


def bits_per_byte(result: Result, run: Path) -> float | None:
    """Return what the last evaluation of a run says; None: it gives no figure."""
    assert result.status == 0, result.printed
    (row,) = json.loads((run / "evaluation.json").read_text())["evaluations"][-1]["results"]
    figure: float | None = row.get("bpb")
    return figure


@pytest.fixture(scope="module")
def of_words(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give the folder of a run with a vocabulary of words."""
    folder = tmp_path_factory.mktemp("words")
    (folder / "text.txt").write_text(made_up_text(30_000))
    settings = without(tiny(folder / "text.txt", folder), "data.tokenizer")
    result = call("train", *settings, "data.tokenizer=word", f"hydra.run.dir={folder / 'run'}")
    assert result.status == 0, result.printed
    return folder / "run"


def wider(text: str) -> str:
    return text.replace(" ", "    ")


def indented(text: str) -> str:
    return "".join(f"\t  {line}" for line in text.splitlines(keepends=True))


@pytest.mark.parametrize("layout", [wider, pytest.param(indented, marks=SLOW)])
def test_6_blanks_that_a_tokenizer_throws_away_do_not_flatter_an_evaluation(
    of_words: Path, layout: Callable[[str], str]
) -> None:
    """The tokens are the same."""
    text = made_up_text(30_000)
    figures = []
    for name, content in (("plain", text), ("laid_out", layout(text))):
        Path(f"{name}.txt").write_text(content)
        settings = ["data=text", f"data.path={name}.txt", "data.cache_dir=corpora", "eval.max_tokens=200"]
        figures.append(bits_per_byte(call("evaluate", f"run={of_words}", *settings), of_words))
    assert figures[1] is None or (figures[0] is not None and figures[1] >= figures[0] * 0.999)


def test_6_blanks_that_a_tokenizer_throws_away_do_not_flatter_a_score(of_words: Path) -> None:
    text = made_up_text(300)
    Path("lines.txt").write_text(text.splitlines()[0] + "\n" + wider(text.splitlines()[0]) + "\n")
    result = call("score", f"run={of_words}", "texts=lines.txt", "format=jsonl")
    assert result.status == 0, result.printed
    plain, laid_out = (json.loads(line).get("bits_per_byte") for line in result.out.splitlines())
    assert laid_out is None or (plain is not None and laid_out >= plain * 0.999)


def test_6_bits_per_byte_of_bytes_are_the_loss(trained: Path) -> None:
    """The figure that all others compare with: one token is one byte."""
    metrics = summary_of(trained)["metrics"]["valid"]
    assert metrics["bpc"] == pytest.approx(metrics["loss"] / np.log(2), rel=1e-9)


CHINESE = "記憶體的長度決定了模型能看多遠"


@pytest.fixture(scope="module")
def of_ascii(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give the folder of a run whose sub-words know ASCII alone, and have no unknown token."""
    folder = tmp_path_factory.mktemp("ascii")
    text = made_up_text(30_000)
    bpe = tokenizers.Tokenizer(models.BPE())
    bpe.decoder = decoders.Fuse()
    alphabet = [chr(code) for code in (10, *range(32, 127))]
    bpe.train_from_iterator(text.splitlines(), trainers.BpeTrainer(vocab_size=150, initial_alphabet=alphabet))
    bpe.save(str(folder / "tokenizer.json"))
    (folder / "text.txt").write_text(text)
    settings = without(tiny(folder / "text.txt", folder), "data.tokenizer")
    given = f"data.tokenizer={folder / 'tokenizer.json'}"
    result = call("train", *settings, given, f"hydra.run.dir={folder / 'run'}")
    assert result.status == 0, result.printed
    return folder / "run"


def test_15_text_that_a_tokenizer_drops_does_not_flatter_a_score(of_ascii: Path) -> None:
    Path("lines.txt").write_text(f"one line of words\none line of words{CHINESE}\n")
    result = call("score", f"run={of_ascii}", "texts=lines.txt", "format=jsonl")
    if result.status == 2:
        ends_in_one_line(result, "lines.txt")
        return
    assert result.status == 0, result.printed
    english, mixed = (json.loads(line).get("bits_per_byte") for line in result.out.splitlines())
    assert mixed is None or mixed >= english * 0.999


def test_15_text_that_a_tokenizer_drops_does_not_flatter_an_evaluation(of_ascii: Path) -> None:
    """After the first 64 kB, where nothing was looked at."""
    text = made_up_text(70_000)
    figures: list[float | None] = []
    for name, content in (("plain", text), ("mixed", text + 700 * f"{CHINESE}\n")):
        folder = Path(name)
        folder.mkdir()
        for split in ("train", "valid"):
            (folder / f"{split}.txt").write_text(text)
        (folder / "test.txt").write_text(content)
        settings = ["data=text", f"data.path={name}", "data.cache_dir=corpora", "split=test", "eval.batch_size=100"]
        result = call("evaluate", f"run={of_ascii}", *settings)
        if name == "mixed":
            if result.status == 2:
                ends_in_one_line(result, "test.txt")
                return
            assert re.search(r"\d ?%", result.printed), "the share that is lost is said"
        figures.append(bits_per_byte(result, of_ascii))
    plain, mixed = figures
    assert plain is not None
    assert mixed is None or mixed >= plain * 0.98


@pytest.mark.parametrize("command", ["prepare", "inspect"])
def test_15_what_a_tokenizer_drops_is_said_or_refused(of_ascii: Path, command: str) -> None:
    Path("text.txt").write_text(made_up_text(70_000) + 700 * f"{CHINESE}\n" + made_up_text(70_000))
    given = f"data.tokenizer={of_ascii.parent / 'tokenizer.json'}"
    is_refused_or_said(
        call("data", command, "data=text", "data.path=text.txt", given, "data.cache_dir=c"), "%", "tokenizer"
    )


# --- 7: nan where nothing was predicted ---


def assert_nothing_was_predicted(result: Result, folder: Path, name: str) -> None:
    assert result.status == 0, result.printed
    assert not re.search(r"\bnan\b", result.printed), result.printed
    assert "no predictions" in result.printed
    assert "NaN" not in (folder / "summary.json").read_text()
    assert "NaN" not in (folder / "metrics.jsonl").read_text()
    summary = summary_of(folder)
    assert summary["metrics"].get(name, {}).get("loss") is None


@pytest.mark.parametrize(
    ("limit", "name"),
    [("trainer.limit_val_batches=1", "valid"), pytest.param("trainer.limit_test_batches=1", "test", marks=SLOW)],
)
def test_7_a_validation_or_test_in_which_nothing_is_predicted(base: list[str], limit: str, name: str) -> None:
    """The first segment of recall has no copies yet."""
    kept = ("data", "data.path", "data.cache_dir", "data.tokenizer", "data.segment_len", limit.partition("=")[0])
    settings = [*without(base, *kept), "data=recall", "data.segment_len=16", limit, "hydra.run.dir=run"]
    result = call("train", *settings, "trainer.max_steps=2")
    assert_nothing_was_predicted(result, Path("run"), name)
    if name == "valid":
        assert set(values_of(Path("run"), "val/loss").values()) <= {None}


# --- 8: settings that are accepted without effect ---


def test_8_a_recipes_setting_that_the_data_does_not_use(base: list[str]) -> None:
    kept = ("data", "data.path", "data.cache_dir", "data.tokenizer", "data.segment_len")
    settings = [*without(base, *kept), "data=recall", "recipe.segment_len=24", "hydra.run.dir=run"]
    is_refused_or_said(call("train", *settings), "recipe.segment_len")


@pytest.mark.parametrize("setting", ["hydra.sweeper=basic", "hydra.launcher=joblib"])
def test_8_a_group_of_hydras_given_as_a_setting(base: list[str], setting: str) -> None:
    ends_in_one_line(call("train", *base, setting, "hydra.run.dir=run"), setting.partition("=")[0])
    assert not Path("run").exists()


@pytest.mark.parametrize("name", ["a/b", "../b"])
def test_8_a_name_with_a_slash(base: list[str], name: str) -> None:
    is_refused_or_said(call("train", *base, f"name={name}"), name)
    assert not Path("b").exists()


@pytest.mark.parametrize(
    ("setting", "value"),
    [("scheduler.warmup_steps", "50"), ("scheduler.total_steps", "3"), ("scheduler.warmup_steps", "6")],
)
def test_8_a_schedule_that_does_not_fit_the_run(base: list[str], setting: str, value: str) -> None:
    settings = [*without(base, setting), f"{setting}={value}", "hydra.run.dir=run"]
    is_refused_or_said(call("train", *settings), setting)


def test_8_weights_of_another_run_with_the_presets_learning_rate(base: list[str], trained: Path) -> None:
    settings = [*without(base, "optimizer.lr"), f"init_from={trained}", "hydra.run.dir=run"]
    is_refused_or_said(call("train", *settings), "optimizer.lr")


def test_8_a_learning_rate_that_was_chosen_is_not_talked_about(base: list[str], trained: Path) -> None:
    result = call("train", *base, f"init_from={trained}", "hydra.run.dir=run")
    assert result.status == 0, result.printed
    assert "optimizer.lr" not in result.printed


# --- 9: nulls in Parquet and JSON lines ---


def write_records(path: Path, texts: list[str | None]) -> None:
    import pyarrow as pa
    from pyarrow import parquet

    if path.suffix == ".parquet":
        parquet.write_table(pa.table({"text": pa.array(texts, pa.string())}), path)
    else:
        path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))


def test_9_nulls_are_answered_alike_and_said_with_counts() -> None:
    lines: list[str | None] = list(made_up_text(20_000).splitlines())
    for place in (5, 50, 51):
        lines[place] = None
    results, tokens = [], []
    for name in ("text.jsonl", "text.parquet"):
        write_records(Path(name), lines)
        result, folder = prepare(name, cache=name.replace(".", "-"))
        results.append(result)
        if result.status == 0:
            tokens.append([split["tokens"] for split in corpus_of(folder)["splits"].values()])
    assert results[0].status == results[1].status
    for result, name in zip(results, ("text.jsonl", "text.parquet"), strict=True):
        is_refused_or_said(result, "null")
        assert re.search(r"\b(3|6|51|52)\b", result.printed), "counts, or the record"
        assert result.status == 0 or name in result.err
    assert len(tokens) == 0 or tokens[0] == tokens[1]


# --- 16: links to folders, packed corpora ---


def folder_with_a_link() -> int:
    """Make a corpus of which a part lies behind a link; return the bytes of all of it."""
    text = made_up_text(20_000)
    Path("corpus").mkdir()
    Path("elsewhere/deeper").mkdir(parents=True)
    Path("corpus/a.txt").write_text(text)
    Path("elsewhere/deeper/b.txt").write_text(text)
    Path("corpus/2023").symlink_to(Path("elsewhere").absolute())
    return 2 * len(text)


@pytest.mark.parametrize("loop", [False, True])
def test_16_a_link_to_a_folder_is_followed_once_or_said(loop: bool) -> None:
    size = folder_with_a_link()
    if loop:
        Path("elsewhere/loop").symlink_to(Path("corpus").absolute())
        Path("corpus/again").symlink_to(Path("elsewhere").absolute())
    result, folder = prepare("corpus", "data.end_of_document=false", "data.tokenizer=byte")
    if result.status == 0 and sum(split["tokens"] for split in corpus_of(folder)["splits"].values()) == size:
        return
    is_refused_or_said(result, "2023")


def packed(name: str, text: bytes) -> bytes:
    target = io.BytesIO()
    if name.endswith(".tar.gz"):
        with tarfile.open(fileobj=target, mode="w:gz") as tar:
            info = tarfile.TarInfo("text.txt")
            info.size = len(text)
            tar.addfile(info, io.BytesIO(text))
    elif name.endswith(".zip"):
        with zipfile.ZipFile(target, "w") as archive:
            archive.writestr("text.txt", text)
    else:
        target.write(bz2.compress(text) if name.endswith(".bz2") else gzip.compress(text))
    return target.getvalue()


@pytest.mark.parametrize(
    "name",
    [
        "text.tar.gz",
        "text.zip",
        "text.txt.bz2",
        "text.txt.gz",
    ],
)
def test_16_a_packed_corpus_is_read_as_its_name_says_or_refused(name: str) -> None:
    text = made_up_text(30_000).encode()
    Path(name).write_bytes(packed(name, text))
    result, folder = prepare(name, "data.tokenizer=byte", "data.end_of_document=false")
    if result.status == 2:
        ends_in_one_line(result, name)
        return
    assert result.status == 0, result.printed
    assert sum(split["tokens"] for split in corpus_of(folder)["splits"].values()) == len(text)


# --- 20: a whole other file ---


def test_20_a_file_named_for_evaluation_is_read_whole(trained: Path) -> None:
    run = copy_run(trained, Path("run"))
    Path("test.txt").write_text(made_up_text(6000, seed=5))
    settings = ["data=text", "data.path=test.txt", "data.cache_dir=corpora", "eval.batch_size=8"]
    result = call("evaluate", f"run={run}", *settings)
    assert result.status == 0, result.printed
    (row,) = json.loads((run / "evaluation.json").read_text())["evaluations"][-1]["results"]
    assert 5990 <= row["tokens"] <= 6000
    assert re.search(r"\b(5,?99\d|6,?000)\b", result.out), result.out


def test_20_a_folder_with_a_test_file_is_read_as_its_test_split(trained: Path) -> None:
    run = copy_run(trained, Path("run"))
    Path("corpus").mkdir()
    for split, size in (("train", 9000), ("valid", 3000), ("test", 4000)):
        Path("corpus", f"{split}.txt").write_text(made_up_text(size, seed=size))
    settings = ["data=text", "data.path=corpus", "data.cache_dir=corpora", "eval.batch_size=8"]
    result = call("evaluate", f"run={run}", *settings)
    assert result.status == 0, result.printed
    (row,) = json.loads((run / "evaluation.json").read_text())["evaluations"][-1]["results"]
    assert 3990 <= row["tokens"] <= 4001
