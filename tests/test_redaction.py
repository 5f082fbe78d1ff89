"""Secrets stay out of everything that is written."""

import pytest

from runners.redaction import is_secret, redacted


@pytest.mark.parametrize(
    "name",
    [
        "HF_TOKEN",
        "OPENAI_API_KEY",
        "MYAPIKEY",
        "aws_secret_access_key",
        "PGPASSWORD",
        "DB_SECRET_1",
    ],
)
def test_a_name_that_sounds_secret_hides_its_value(name: str) -> None:
    """The usual names of keys, tokens and passwords are known by any of their words."""
    assert redacted({name: "s3cret"}) == {name: "(redacted)"}


@pytest.mark.parametrize(
    "name", ["TOKENIZERS_PARALLELISM", "SGLANG_CLIP_MAX_NEW_TOKENS_ESTIMATION", "KEYBOARD", "PATH"]
)
def test_a_setting_is_no_secret_because_it_counts_tokens(name: str) -> None:
    """Variables that move performance may be set in a study file, and are recorded."""
    assert not is_secret(name)


def test_a_password_inside_an_address_is_hidden() -> None:
    """A proxy's or a database's address is shown without who logs in there."""
    shown = redacted({"https_proxy": "http://me:s3cret@proxy:3128/", "HOME": "/home/me"})

    assert shown == {"https_proxy": "http://(redacted)@proxy:3128/", "HOME": "/home/me"}
