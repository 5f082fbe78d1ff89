"""Which variables hold secrets, going by their names and values, and how they are shown."""

import re
from collections.abc import Mapping

# At the end of one of the words of a name: HF_TOKEN and APIKEY are secrets, while
# TOKENIZERS_PARALLELISM and SGLANG_CLIP_MAX_NEW_TOKENS_ESTIMATION are settings.
SECRET_WORD = re.compile(
    r"(KEY|TOKEN|SECRET|PASSWORD|PASSWD|PASSPHRASE|CREDENTIAL|KEYS|SECRETS|PASSWORDS|CREDENTIALS)$"
)
PASSWORD_IN_URL = re.compile(r"(?<=://)[^/@\s]+:[^/@\s]*(?=@)")
REDACTED = "(redacted)"


def is_secret(name: str) -> bool:
    """Say whether the variable called *name* sounds like one that holds a secret."""
    return any(SECRET_WORD.search(word) for word in re.split(r"[^A-Z0-9]+", name.upper()))


def redacted(variables: Mapping[str, str]) -> dict[str, str]:
    """Return *variables* with the values of secrets hidden, and passwords inside addresses."""
    return {
        name: REDACTED
        if is_secret(name) or _are_tokens(name, value)
        else PASSWORD_IN_URL.sub(REDACTED, value)
        for name, value in variables.items()
    }


def _are_tokens(name: str, value: str) -> bool:
    """Say whether *value* is a list of tokens, not a number of them."""
    return "TOKENS" in name.upper() and not value.replace(".", "", 1).isdecimal()
