"""Texts of any kind of data: lines of files, languages and scripts, words and subwords."""
