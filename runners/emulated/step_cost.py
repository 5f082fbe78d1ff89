"""How long one forward pass takes: a roofline. Pure.

A step streams the weights once and multiplies them with every token of the batch, whichever takes
longer; on top come attention, the all-reduces between GPUs, and the host's work for the step.
"""

from dataclasses import dataclass
from typing import Self

from runners.emulated.hardware import Hardware
from runners.emulated.models import BYTES_PER_PARAMETER, Model


@dataclass(frozen=True, slots=True, kw_only=True)
class Constants:
    """What no data sheet states: assumptions of this model, to be calibrated against launches."""

    step_overhead_s: float = 0.8e-3  # scheduling, sampling, copying: once per step
    request_overhead_s: float = 8e-6  # the same, for each request of the batch
    layer_launch_s: float = 90e-6  # host time to launch one layer where no CUDA graph covers it
    all_reduce_s: float = 12e-6  # latency of one
    compute_scale: float = 1.0  # of the hardware's reached compute and bandwidth
    bandwidth_scale: float = 1.0
    knee: float = 4.0  # how sharply compute takes over from bandwidth; more is sharper


@dataclass(frozen=True, slots=True)
class StepCost:
    """Seconds per unit of work for one model on one kind of GPU."""

    token_s: float
    sampled_s: float
    weights_s: float
    attended_s: float
    context_s: float
    eager_s: float
    all_reduces_s: float
    all_reduce_token_s: float
    step_s: float
    request_s: float
    knee: float

    @classmethod
    def of(
        cls, model: Model, hardware: Hardware, tp: int = 1, constants: Constants | None = None
    ) -> Self:
        """Return the costs of *model* split over *tp* GPUs."""
        known = constants or Constants()
        flops = hardware.flops_per_s * known.compute_scale * tp
        reads = hardware.bytes_per_s * known.bandwidth_scale * tp
        streamed = (model.layer_parameters + model.head_parameters) * BYTES_PER_PARAMETER
        reduces = 2 * model.layers if tp > 1 else 0
        moved = reduces * model.hidden * BYTES_PER_PARAMETER * 2 * (tp - 1) / tp
        return cls(
            token_s=2 * model.layer_parameters / flops,
            sampled_s=2 * model.head_parameters / flops,
            weights_s=streamed / reads,
            attended_s=4 * model.layers * model.heads * model.head_dim / flops,
            context_s=model.kv_bytes_per_token / reads,
            eager_s=model.layers * known.layer_launch_s,
            all_reduces_s=reduces * known.all_reduce_s,
            all_reduce_token_s=moved / (hardware.link_gb_s * 1e9),
            step_s=known.step_overhead_s,
            request_s=known.request_overhead_s,
            knee=known.knee,
        )

    def seconds(
        self,
        *,
        new_tokens: int,
        attended: float,
        decode_requests: int,
        context_tokens: int,
        sampled: int,
        graph: bool,
    ) -> float:
        """Return how long a step takes, without noise.

        Args:
            new_tokens: prompt tokens that are computed.
            attended: sum over these tokens of the positions each one looks at.
            decode_requests: requests that decode one token.
            context_tokens: sum of the KV positions they read.
            sampled: requests that get a token, by decoding or at the end of their prompt.
            graph: a CUDA graph covers the step.
        """
        rows = new_tokens + decode_requests
        compute = self.token_s * rows + self.sampled_s * sampled
        gpu: float = (compute**self.knee + self.weights_s**self.knee) ** (1 / self.knee)
        gpu += self.attended_s * attended + self.context_s * context_tokens
        if not graph and gpu < self.eager_s:
            gpu = self.eager_s
        gpu += self.all_reduces_s + self.all_reduce_token_s * rows
        return gpu + self.step_s + self.request_s * (decode_requests + sampled)
