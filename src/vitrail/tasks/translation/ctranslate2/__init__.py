"""Translators for CTranslate2."""
