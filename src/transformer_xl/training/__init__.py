"""Lightning module, optimizers, schedules, callbacks, loggers."""
