"""What the engine makes of its settings: every automatic value and limit resolved."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from runners.emulated import memory
from runners.emulated.death import REFUSED_SETTING, EngineDeathError
from runners.emulated.hardware import Hardware, hardware_named
from runners.emulated.memory import MemoryPlan
from runners.emulated.models import Model, model_named
from runners.emulated.policies import CACHE_AWARE, POLICIES
from runners.emulated.settings import Settings

MOST_RUNNING, LEAST_RUNNING = 4096, 2048  # bounds of the automatic --max-running-requests


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """An engine that started: what it really runs with."""

    settings: Settings  # as asked, with the automatic values filled in
    model: Model
    hardware: Hardware
    memory: MemoryPlan
    policy: str  # the one that acts: the cache-aware ones need the radix cache
    max_running_requests: int
    graph_requests: int  # the largest decode batch that a CUDA graph covers
    context_length: int
    warnings: tuple[str, ...] = ()

    @property
    def longest_request(self) -> int:
        """Most tokens, prompt and output, that one request may hold."""
        spare = self.settings.page_size
        return min(self.context_length - 1, self.memory.kv_pool_tokens - spare)

    @property
    def longest_prompt(self) -> int:
        """Most prompt tokens that are accepted."""
        return self.longest_request - 5

    @property
    def served_name(self) -> str:
        """The model's name in answers."""
        return self.settings.served_model_name or self.settings.model_path


def deploy(settings: Settings) -> Deployment:
    """Resolve *settings* in the order SGLang does, and start the engine as far as memory goes.

    Raises:
        ValueError: model or hardware are not in the tables.
        EngineDeathError: SGLang would not have started with this.
    """
    model = model_named(settings.model_path)
    hardware = hardware_named(settings.emulated_hardware)
    _refuse(settings, model)
    settings, graphs = _resolve(settings, hardware)
    plan = memory.divide(
        model,
        hardware,
        fraction=settings.mem_fraction_static or 0.0,
        tp=settings.tp_size,
        page_size=settings.page_size,
        graph_requests=graphs,
        max_total_tokens=settings.max_total_tokens,
    )
    _refuse_policy(settings)
    context = settings.context_length or model.max_context
    running, warnings = _running(settings, plan.kv_pool_tokens, context)
    return Deployment(
        settings=settings,
        model=model,
        hardware=hardware,
        memory=plan,
        policy=_acting_policy(settings),
        max_running_requests=running,
        graph_requests=graphs,
        context_length=context,
        warnings=(*_pool_warnings(settings, plan, context), *warnings),
    )


_CHECKS: tuple[tuple[Callable[[Settings, Model], bool], str], ...] = (
    (lambda s, _: s.page_size > 0, "AssertionError: page_size must be positive"),
    (
        lambda s, _: (
            (s.chunked_prefill_size or 0) <= 0 or (s.chunked_prefill_size or 0) % s.page_size == 0
        ),
        "AssertionError: chunked_prefill_size must be divisible by page_size",
    ),
    (
        lambda s, _: s.schedule_conservativeness >= 0,
        "AssertionError: schedule_conservativeness must be non-negative",
    ),
    (
        lambda s, m: (s.context_length or 0) <= m.max_context,
        "ValueError: User-specified context_length is greater than the derived context_length",
    ),
    (
        lambda s, m: s.tp_size > 0 and m.heads % s.tp_size == 0,
        "AssertionError: the model's attention heads must be divisible by tp_size",
    ),
    (
        lambda s, _: s.emulated_speed > 0,
        "ValueError: --emulated-speed must be above 0",
    ),
)


def _refuse(settings: Settings, model: Model) -> None:
    for holds, says in _CHECKS:
        if not holds(settings, model):
            raise EngineDeathError(says, REFUSED_SETTING)


def _refuse_policy(settings: Settings) -> None:
    policy = settings.schedule_policy
    if policy not in POLICIES:
        raise EngineDeathError(f"ValueError: Unknown schedule_policy: {policy=}")
    if policy == "shortest-prefill-first" and settings.disable_radix_cache:
        raise EngineDeathError(
            "ValueError: shortest-prefill-first needs the radix cache, "
            "which --disable-radix-cache turns off"
        )


def _resolve(settings: Settings, hardware: Hardware) -> tuple[Settings, int]:
    chunk = settings.chunked_prefill_size
    if chunk is None:
        chunk = memory.auto_chunked_prefill_size(hardware)
    graphs = memory.auto_graph_requests(hardware, settings.tp_size)
    if settings.max_running_requests is not None:
        graphs = min(graphs, max(settings.max_running_requests, 1))
    fraction = settings.mem_fraction_static
    if fraction is None:
        fraction = memory.auto_mem_fraction(
            hardware,
            chunk=chunk,
            max_prefill_tokens=settings.max_prefill_tokens,
            tp=settings.tp_size,
            graph_requests=graphs,
        )
    resolved = replace(settings, chunked_prefill_size=chunk, mem_fraction_static=fraction)
    return resolved, graphs


def _running(settings: Settings, pool: int, context: int) -> tuple[int, tuple[str, ...]]:
    """Return the cap on running requests, and what SGLang says when it lowers it."""
    most = max(pool // 2, 1)
    asked = settings.max_running_requests
    if asked is None:
        auto = max(min(int(pool / context * 512), MOST_RUNNING), LEAST_RUNNING)
        return min(auto, most), ()
    wanted = max(asked, 1)
    if wanted <= most:
        return wanted, ()
    return most, (
        f"max_running_requests was reduced from the requested {wanted} to {most} "
        "(per dp worker) due to the available KV cache capacity.",
    )


def _acting_policy(settings: Settings) -> str:
    blind = settings.disable_radix_cache and settings.schedule_policy in CACHE_AWARE
    return "fcfs" if blind else settings.schedule_policy


def _pool_warnings(settings: Settings, plan: MemoryPlan, context: int) -> tuple[str, ...]:
    said = []
    if (settings.max_total_tokens or 0) > plan.profiled_tokens:
        said.append(
            f"max_total_tokens={settings.max_total_tokens} is larger than the profiled value "
            f"{plan.profiled_tokens}. Use the profiled value instead."
        )
    if plan.kv_pool_tokens < context:
        said.append(
            f"KV pool holds {plan.kv_pool_tokens} tokens, fewer than --context-length {context}."
        )
    return tuple(said)
