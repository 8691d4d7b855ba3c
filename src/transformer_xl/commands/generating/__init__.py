"""What `generate.py` is made of: settings, prompts, batches of texts, conversations."""
