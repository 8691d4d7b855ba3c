"""From text in files to files of token ids."""
