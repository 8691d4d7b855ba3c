"""What `evaluate.py` is made of: readings, processes, tables, pictures, pages."""
