"""The settings an engine really runs with, which are not always those it was asked for."""

from collections.abc import Mapping
from typing import Any

from search_spaces import Candidate, Value

# our name: SGLang's, in /server_info
NAMES = {
    "schedule_policy": "schedule_policy",
    "token_budget": "chunked_prefill_size",
    "mem_fraction_static": "mem_fraction_static",
    "schedule_conservativeness": "schedule_conservativeness",
    "page_size": "page_size",
    "max_prefill_tokens": "max_prefill_tokens",
    "max_total_tokens": "max_total_num_tokens",
    "disable_radix_cache": "disable_radix_cache",
    "kv_cache_dtype": "kv_cache_dtype",
}


def effective_configuration(info: Mapping[str, Any], candidate: Candidate) -> dict[str, Value]:
    """Return what /server_info says of our knobs and of every flag *candidate* sets."""
    flags = {name: name[2:].replace("-", "_") for name in candidate if name.startswith("--")}
    found = {ours: info.get(theirs) for ours, theirs in {**NAMES, **flags}.items()}
    found["max_running_requests"] = _running_requests(info)
    return {name: value for name, value in found.items() if isinstance(value, Value)}


def differences(
    candidate: Candidate, effective: Mapping[str, Value]
) -> dict[str, dict[str, Value | None]]:
    """Return the knobs that came out otherwise than asked, with both values."""
    return {
        name: {"requested": value, "effective": effective.get(name)}
        for name, value in candidate.items
        if effective.get(name) != value
    }


def _running_requests(info: Mapping[str, Any]) -> int | None:
    # The plain field echoes the request; what the KV pool allows is a state of each rank.
    states = info.get("internal_states") or [{}]
    most: int | None = states[0].get("effective_max_running_requests_per_dp")
    return most
