"""Where a corpus's text comes from: which files, how they are written, and how they get here."""
