"""YAML as plain data, read strictly: a key that is written twice is an error, as it is in TOML."""

from collections.abc import Hashable
from typing import Any

import yaml


def load(text: str) -> object:
    """Return what *text* holds.

    Raises:
        yaml.YAMLError: it is not YAML, or a key is there twice.
    """
    return yaml.load(text, _Loader)  # noqa: S506 -- it is a safe loader


class _Loader(yaml.SafeLoader):
    """Takes plain data only, and each key once."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:  # noqa: FBT001, FBT002 -- YAML's signature
        seen = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if key in seen:
                mark = key_node.start_mark
                raise yaml.constructor.ConstructorError(
                    problem=f"the key {key!r} is there twice", problem_mark=mark
                )
            seen.add(key)
        return super().construct_mapping(node, deep=deep)
