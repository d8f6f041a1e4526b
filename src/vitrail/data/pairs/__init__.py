"""Sentences in two languages: formats, the doctor, and sources for translation."""
