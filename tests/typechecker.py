"""The runtime type checker that the import hook of conftest.py puts into every function of the package."""

from beartype import BeartypeConf, beartype

# The numeric tower lets an int stand where a float is annotated, as mypy does.
typechecked = beartype(conf=BeartypeConf(is_pep484_tower=True))
