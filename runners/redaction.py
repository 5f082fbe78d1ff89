"""Which variables hold secrets, going by their names, and how they are shown."""

from collections.abc import Mapping

SECRET_WORDS = ("KEY", "TOKEN", "SECRET", "PASSWORD", "PASSWD", "CREDENTIAL")
REDACTED = "(redacted)"


def is_secret(name: str) -> bool:
    """Say whether the variable called *name* sounds like one that holds a secret."""
    return any(word in name.upper() for word in SECRET_WORDS)


def redacted(variables: Mapping[str, str]) -> dict[str, str]:
    """Return *variables* with the values of secrets hidden."""
    return {name: REDACTED if is_secret(name) else value for name, value in variables.items()}
