import pytest

from transformer_xl.data.sources.names import split_of_name


@pytest.mark.parametrize(
    ("name", "split"),
    [
        ("train", "train"),
        ("train.txt", "train"),
        ("TRAIN.npy", "train"),
        ("training-00001-of-00100", "train"),
        ("train2.txt", "train"),
        ("valid.txt", "valid"),
        ("validation_a.jsonl", "valid"),
        ("val.bin", "valid"),
        ("Dev-1.txt", "valid"),
        ("test.txt.gz", "test"),
        ("train/a.txt", "train"),
        ("train/b/c.txt", "train"),
        ("train-00/test.txt", "train"),
        ("en/test.txt", "test"),
        ("en/train/a.txt", None),
        ("trains.txt", None),
        ("trainer.txt", None),
        ("testament.txt", None),
        ("values.txt", None),
        ("devotion.txt", None),
        ("validity.txt", None),
        ("a.train.txt", None),
        ("my-test.txt", None),
        ("a.txt", None),
    ],
)
def test_the_split_that_a_name_says(name: str, split: str | None) -> None:
    assert split_of_name(name) == split
