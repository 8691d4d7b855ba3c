"""Evaluation and sampling outside of training."""
