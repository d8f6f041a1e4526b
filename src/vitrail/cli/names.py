"""Lists of names between commas, as options are given."""

from __future__ import annotations

from vitrail.core.errors import ConfigError


def split_names(text: str) -> list[str]:
    """Return the names between commas."""
    return [name.strip() for name in text.split(",") if name.strip()]


def parse_languages(text: str | None) -> dict[str, list[str]]:
    """Return the setting that ``--languages en,de`` stands for.

    Raises:
        ConfigError: there are not two of them.
    """
    if text is None:
        return {}
    names = split_names(text if "," in text else text.replace("-", ","))
    if len(names) != 2:
        raise ConfigError(
            f"--languages was given {text!r}",
            expected="two codes with a comma between them, the source first",
            remedy="Write them as in --languages en,de",
        )
    return {"data.languages": names}


def parse_seeds(text: str) -> int | list[int]:
    """Return how many seeds ``--seeds 3`` asks for, or which ones ``--seeds 1,5,9`` does.

    Raises:
        ConfigError: it is neither.
    """
    try:
        return [int(name) for name in split_names(text)] if "," in text else int(text)
    except ValueError:
        raise ConfigError(
            f"--seeds was given {text!r}",
            expected="a number of seeds such as 3, or seeds with commas between them such as 1,5,9",
            remedy="Write them without spaces",
        ) from None
