"""Every figure in metrics.csv of the run folder: plugins=[examples/parts/csv_log.py] logger=csv logger.flush=50."""

from lightning.pytorch.loggers import CSVLogger

import transformer_xl as txl
from transformer_xl.config import LoggerConfig
from transformer_xl.settings import Count


class CsvConfig(LoggerConfig):
    """Steps between two writings."""

    flush: Count = 100


@txl.register("logger", "csv", config=CsvConfig)
def csv(settings, run):
    return CSVLogger(run.folder, name="", version="", flush_logs_every_n_steps=settings.flush)
