"""Vocabularies: the symbols of a text, numbered."""
