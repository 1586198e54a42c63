"""What is to be sized: a model on GPUs, with an engine's settings."""

from dataclasses import dataclass

from ..catalog import GpuMemory
from ..layers import LayerMemory
from ..model import KV_DTYPE_BYTES, ModelSpec
from .terms import Source


@dataclass(frozen=True)
class Given:
    """Bytes on one rank that need no estimate, and where they are from."""

    num_bytes: int
    source: Source
    detail: str


@dataclass(frozen=True)
class Deployment:
    """Everything that a sizing depends on. Bytes are those of one rank.

    None: not said, so the engine's own default or an estimate (see its accounting, which also says
    what `memory_utilization` is a share of). `max_num_batched_tokens` is the prefill chunk in
    SGLang. `num_gpu_blocks_override` goes before `kv_cache_memory_bytes`, and that before the
    utilization. `enable_prefix_caching` matters to recurrent states only.
    """

    model: ModelSpec
    gpu: GpuMemory
    max_model_len: int
    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    data_parallel_size: int = 1
    memory_utilization: float | None = None
    block_size: int | None = None
    kv_cache_dtype: str = "auto"
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    enforce_eager: bool = False
    enable_prefix_caching: bool = True
    num_gpu_blocks_override: int | None = None
    kv_cache_memory_bytes: int | None = None
    weights: Given | None = None
    activations: Given | None = None
    cuda_graphs: Given | None = None
    other: Given | None = None
    # Who says how much memory the GPU has, its share, and how much the KV pool.
    gpu_memory_source: Source = "catalogue"
    memory_utilization_source: Source = "given"
    kv_cache_memory_source: tuple[Source, str] = ("given", "--kv-cache-memory-bytes")

    @property
    def stages(self) -> tuple[range, ...]:
        """Layers (half-open) of each pipeline stage.

        Equal shares; what is left over goes one each to the stages before the last, from behind
        (vLLM `distributed/utils.py`: `get_pp_indices`).
        """
        num_layers, num_stages = self.model.num_layers, self.pipeline_parallel_size
        counts = [num_layers // num_stages] * num_stages
        for i in range(2, num_layers % num_stages + 2):
            counts[-i] += 1
        starts = [sum(counts[:stage]) for stage in range(num_stages)]
        return tuple(
            range(start, start + count) for start, count in zip(starts, counts, strict=True)
        )

    @property
    def utilization_source(self) -> Source:
        """Who says which share of the memory counts."""
        return "formula" if self.memory_utilization is None else self.memory_utilization_source

    @property
    def num_gpus(self) -> int:
        """GPUs of all replicas."""
        replica = self.tensor_parallel_size * self.pipeline_parallel_size
        return replica * self.data_parallel_size

    @property
    def kv_element_bytes(self) -> int:
        """Bytes of one element of K or V."""
        return KV_DTYPE_BYTES[self.kv_cache_dtype]

    def stage_layers(self, stage: int) -> tuple[LayerMemory, ...]:
        """What the layers of pipeline stage `stage` keep, in order."""
        layers = self.stages[stage]
        return self.model.layers[layers.start : layers.stop]
