"""The emulated scheduler, step by step."""

from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from runners.emulated.deployment import deploy
from runners.emulated.policies import POLICIES
from runners.emulated.request import Request
from runners.emulated.scheduler import EngineModel, StepResult
from tests.emulated_load import settings


def engine(**wanted: object) -> EngineModel:
    return EngineModel(deploy(settings(**wanted)), seed=0)


def request(number: int, prompt: int, output: int, *, ignore_eos: bool = True) -> Request:
    start = 1000 * number
    return Request(
        id=number,
        prompt=tuple(range(start, start + prompt)),
        output_tokens=output,
        ignore_eos=ignore_eos,
    )


def drain(model: EngineModel, most: int = 20_000) -> list[StepResult]:
    """Step until there is nothing to do; time is the sum of the durations."""
    results, now_s = list[StepResult](), 0.0
    while model.has_work:
        assert len(results) < most
        results.append(model.step(now_s))
        now_s += results[-1].duration_s
    return results


def test_a_long_prompt_is_computed_chunk_by_chunk() -> None:
    """The last request of a batch is cut, and goes on first in the next step."""
    model = engine(chunked_prefill_size=100)
    for number, prompt in enumerate((60, 150, 30)):
        model.submit(request(number, prompt, 2), 0.0)

    steps = drain(model)

    assert [s.new_tokens for s in steps] == [100, 100, 40, 0]
    assert [[r.id for r in s.prefilled] for s in steps] == [[0], [], [1, 2], []]


def test_prefills_come_before_decodes() -> None:
    """A new prompt stops the streams of all others for a step."""
    model = engine()
    model.submit(request(0, 10, 5), 0.0)
    model.step(0.0)
    model.submit(request(1, 10, 5), 0.0)

    step = model.step(0.1)

    assert [r.id for r in step.prefilled] == [1]
    assert step.decoded == ()


def test_mixed_chunks_decode_while_they_prefill() -> None:
    """The chunk shrinks by the number of running requests."""
    model = engine(enable_mixed_chunk=True, chunked_prefill_size=64)
    model.submit(request(0, 10, 9), 0.0)
    model.step(0.0)
    model.submit(request(1, 100, 9), 0.0)

    step = model.step(0.1)

    assert step.new_tokens == 63
    assert [r.id for r in step.decoded] == [0]


def test_a_prefill_batch_keeps_the_token_budget() -> None:
    """With chunking off --max-prefill-tokens limits the batch, but never stops one prompt."""
    model = engine(chunked_prefill_size=-1, max_prefill_tokens=2048, mem_fraction_static=0.5)
    for number, prompt in enumerate((900, 900, 900, 5000)):
        model.submit(request(number, prompt, 2), 0.0)

    steps = drain(model)

    assert [s.new_tokens for s in steps if s.new_tokens] == [1800, 900, 5000]


def test_no_more_run_than_the_cap_allows() -> None:
    """Whatever waits."""
    model = engine(max_running_requests=3)
    for number in range(10):
        model.submit(request(number, 20, 4 + number), 0.0)
    most = 0
    while model.has_work:
        model.step(0.0)
        most = max(most, model.active)

    assert most == 3


def test_requests_that_ignore_eos_are_promised_all_their_output() -> None:
    """None is admitted that could be thrown out later, so conservativeness has no effect."""
    for conservativeness in (0.0, 1.0):
        model = engine(max_total_tokens=1000, schedule_conservativeness=conservativeness)
        for number in range(8):
            model.submit(request(number, 100, 300), 0.0)
        drain(model)

        assert model.totals.retracted == 0
        assert model.totals.generation_tokens == 8 * 300


def test_too_much_optimism_is_paid_with_retractions() -> None:
    """Requests that may end early are promised less; when they do not, some lose their place."""
    retracted = []
    for conservativeness in (0.1, 1.4):
        model = engine(max_total_tokens=1000, schedule_conservativeness=conservativeness)
        for number in range(8):
            output = 300 if number % 2 else 40
            model.submit(request(number, 100, output, ignore_eos=False), 0.0)
        drain(model)
        retracted.append(model.totals.retracted)
        assert model.totals.generation_tokens == 4 * 300 + 4 * 40

    assert retracted[0] > 0
    assert retracted[1] == 0


def test_a_shared_prefix_is_computed_once() -> None:
    """All but the last token of a prompt can come from the cache."""
    model = engine()
    prompt = tuple(range(100))
    for number in range(2):
        again = Request(id=number, prompt=prompt, output_tokens=3)
        model.submit(again, 0.0)
        drain(model)
        assert again.cached_tokens == (99 if number else 0)

    assert model.totals.cached_tokens == 99


def test_a_flush_empties_the_cache_of_an_idle_engine_only() -> None:
    """A busy engine refuses, as SGLang does with HTTP 400."""
    model = engine()
    model.submit(request(0, 50, 3), 0.0)
    assert not model.flush()
    drain(model)
    assert model.pool.cache.tokens > 0

    assert model.flush()
    assert model.pool.cache.tokens == 0


def test_an_output_that_can_never_fit_is_cut() -> None:
    """As SGLang does: the pool's size bounds prompt and output together."""
    model = engine(max_total_tokens=500)
    long = request(0, 400, 1000)
    model.submit(long, 0.0)
    drain(model)

    assert long.emitted == 98


REQUESTS = st.lists(
    st.tuples(
        st.integers(1, 120),
        st.integers(1, 60),
        st.booleans(),
        st.integers(0, 2),
        st.integers(0, 40),
    ),
    min_size=1,
    max_size=25,
)


@hypothesis_settings(max_examples=150, deadline=None)
@given(
    REQUESTS,
    st.sampled_from(sorted(POLICIES)),
    st.integers(1, 6),
    st.sampled_from([(1, 16), (1, -1), (8, 64), (16, 4096)]),
    st.booleans(),
    st.booleans(),
)
def test_whatever_is_asked_everything_ends_and_all_memory_is_free_again(
    asked: list[tuple[int, int, bool, int, int]],
    policy: str,
    cap: int,
    pages: tuple[int, int],
    mixed: bool,
    shares: bool,
) -> None:
    """Through cuts, retractions, evictions and aborts the books of the KV pool stay balanced."""
    model = engine(
        schedule_policy="fcfs" if policy == "shortest-prefill-first" and not shares else policy,
        max_running_requests=cap,
        page_size=pages[0],
        chunked_prefill_size=pages[1],
        enable_mixed_chunk=mixed,
        disable_radix_cache=not shares,
        max_total_tokens=320,
        schedule_conservativeness=0.2,
        mem_fraction_static=0.5,
    )
    requests = []
    for number, (prompt, output, ignore_eos, group, prefix) in enumerate(asked):
        tokens = tuple(range(group * 500, group * 500 + prefix))
        tokens += tuple(range(10_000 + number * 200, 10_000 + number * 200 + prompt))
        requests.append(
            Request(id=number, prompt=tokens, output_tokens=output, ignore_eos=ignore_eos)
        )
    gone = set()
    for turn, item in enumerate(requests):
        model.submit(item, float(turn))
        model.step(float(turn))
        if turn % 5 == 4:
            gone.add(requests[turn - 2])
            model.abort(requests[turn - 2])
        assert 0 <= model.pool.used <= model.pool.tokens + cap * pages[0]
    drain(model)

    assert all(r.emitted == r.output_tokens for r in requests if r not in gone)
    assert model.pool.used == model.pool.private == 0
    assert model.running.context_tokens == 0
    assert model.running.promised(1.0) == 0
    assert model.flush()
