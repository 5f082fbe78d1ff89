"""The base of every table of a study file."""

from pydantic import BaseModel, ConfigDict


class Table(BaseModel):
    """A table of the study file: frozen, and an unknown key is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)
