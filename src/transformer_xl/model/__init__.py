"""Recurrent language models in pure PyTorch."""
