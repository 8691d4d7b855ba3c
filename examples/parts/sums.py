"""A corpus that is made up: plugins=[examples/parts/sums.py] data=sums data.digits=2 data.tokenizer=char."""

import random

import transformer_xl as txl
from transformer_xl.data_config import CountedConfig
from transformer_xl.settings import Count


class SumsConfig(CountedConfig):
    """Digits of the numbers that are added, and how many sums there are."""

    digits: Count = 2
    sums: Count = 10_000


@txl.register("corpus", "sums", config=SumsConfig)
def sums(settings):
    def documents(seed, count):
        numbers = random.Random(seed)
        for _ in range(count):
            first, second = (numbers.randrange(10**settings.digits) for _ in range(2))
            yield f"{first}+{second}={first + second}\n"

    few = max(1, settings.sums // 20)
    return {"train": documents(1, settings.sums), "valid": documents(2, few), "test": documents(3, few)}
