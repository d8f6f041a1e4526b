"""The task labelling: texts with one label each (many to one), or one for each word (many to many)."""
