"""The GPUs that can be emulated: the vendor's figures, and the share of them a server reaches.

Sources: NVIDIA's public data sheets of each product (dense bf16 tensor throughput without
sparsity, memory bandwidth), and the total memory that `nvidia-smi` shows for it, in GiB.

The two *fractions* and *link_gb_s* are assumptions of this model, not vendor figures: how much of
the peak large matrix products and long streaming reads reach while serving. They were set so that
an 8-billion-parameter bf16 model decodes alone at about 11 ms a token on A100-80G and 7 ms on
H100-80G, and prefills near 12,000 tokens/s on A100-80G.
"""

from dataclasses import dataclass

GIB = 1024**3


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """One GPU."""

    name: str
    bf16_tflops: float  # peak, dense
    memory_gib: float
    bandwidth_gb_s: float  # peak
    link_gb_s: float  # to the other GPUs, one way, as reached by an all-reduce
    compute_fraction: float  # of bf16_tflops
    bandwidth_fraction: float  # of bandwidth_gb_s

    @property
    def flops_per_s(self) -> float:
        """Floating-point operations per second that a server reaches."""
        return self.bf16_tflops * 1e12 * self.compute_fraction

    @property
    def bytes_per_s(self) -> float:
        """Bytes read per second that a server reaches."""
        return self.bandwidth_gb_s * 1e9 * self.bandwidth_fraction


HARDWARE: dict[str, Hardware] = {
    gpu.name: gpu
    for gpu in (
        Hardware(
            name="A100-80G",  # SXM4
            bf16_tflops=312.0,
            memory_gib=80.0,
            bandwidth_gb_s=2039.0,
            link_gb_s=200.0,
            compute_fraction=0.55,
            bandwidth_fraction=0.78,
        ),
        Hardware(
            name="A100-40G",  # SXM4
            bf16_tflops=312.0,
            memory_gib=40.0,
            bandwidth_gb_s=1555.0,
            link_gb_s=200.0,
            compute_fraction=0.55,
            bandwidth_fraction=0.78,
        ),
        Hardware(
            name="H100-80G",  # SXM5
            bf16_tflops=989.0,
            memory_gib=79.6,
            bandwidth_gb_s=3350.0,
            link_gb_s=320.0,
            compute_fraction=0.5,
            bandwidth_fraction=0.78,
        ),
        Hardware(
            name="H200-141G",  # SXM5
            bf16_tflops=989.0,
            memory_gib=140.4,
            bandwidth_gb_s=4800.0,
            link_gb_s=320.0,
            compute_fraction=0.5,
            bandwidth_fraction=0.78,
        ),
        Hardware(
            name="L40S",
            bf16_tflops=362.0,
            memory_gib=45.0,
            bandwidth_gb_s=864.0,
            link_gb_s=20.0,  # PCIe 4.0 x16
            compute_fraction=0.45,
            bandwidth_fraction=0.82,
        ),
        Hardware(
            name="L4",
            bf16_tflops=121.0,
            memory_gib=22.5,
            bandwidth_gb_s=300.0,
            link_gb_s=20.0,
            compute_fraction=0.45,
            bandwidth_fraction=0.85,
        ),
        Hardware(
            name="RTX4090",
            bf16_tflops=165.0,  # with fp32 accumulation
            memory_gib=24.0,
            bandwidth_gb_s=1008.0,
            link_gb_s=15.0,
            compute_fraction=0.7,
            bandwidth_fraction=0.85,
        ),
    )
}


def hardware_named(name: str) -> Hardware:
    """Return the GPU called *name*.

    Raises:
        ValueError: there is no such GPU in the table.
    """
    if name not in HARDWARE:
        raise ValueError(
            f"the emulated hardware must be one of {', '.join(HARDWARE)}, found {name!r}"
        )
    return HARDWARE[name]
