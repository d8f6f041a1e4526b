"""Export of trained models as packages for other engines, compared with the original."""
