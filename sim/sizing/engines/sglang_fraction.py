"""How SGLang 0.5.23 chooses its step and its static memory fraction (`arg_groups/memory_hook.py`)."""

from typing import NamedTuple

from ..deployment import Deployment


class SizeClass(NamedTuple):
    """Defaults of GPUs with less than `below_mib` of memory."""

    below_mib: float
    chunked_prefill_size: int
    graph_max_batch: int  # largest captured decode batch on fewer than 4 ranks
    graph_max_batch_from_4_ranks: int


# handle_gpu_memory_settings
SIZE_CLASSES = (
    SizeClass(20 * 1024, 2048, 8, 8),
    SizeClass(35 * 1024, 4096, 48, 160),
    SizeClass(60 * 1024, 4096, 32, 160),
    SizeClass(90 * 1024, 8192, 256, 512),
    SizeClass(160 * 1024, 8192, 256, 512),
    SizeClass(float("inf"), 16384, 512, 512),
)
LEAST_RESERVED_MIB = 10 * 1024  # of GPUs with more than 60 GiB


def size_class(deployment: Deployment) -> SizeClass:
    """The defaults that go with the GPU's memory."""
    memory_mib = deployment.gpu.memory_bytes / 2**20
    return next(size for size in SIZE_CLASSES if memory_mib < size.below_mib)


def default_fraction(deployment: Deployment, chunked_prefill_size: int) -> float:
    """round((memory - reserve) / memory, 3), the reserve being that of activations and graphs.

    In MiB: 512 + 1.5 a token of a prefill chunk (of at least 2,048) + 1,024 / 8 a rank + 2 a request
    of the largest captured decode batch + prefill graphs: 8 each, or 1,536 for a latent cache, which
    are not captured over pipeline stages; at least 10 GiB above 60 GiB. In eager mode without
    graphs. Models that take images reserve more; that is not modelled.
    """
    memory_mib = deployment.gpu.memory_bytes / 2**20
    ranks = deployment.tensor_parallel_size * deployment.pipeline_parallel_size
    reserved = 512 + 1.5 * max(chunked_prefill_size, 2048) + ranks / 8 * 1024
    if not deployment.enforce_eager:
        reserved += 2 * _graph_max_batch(deployment)
        if deployment.pipeline_parallel_size == 1:
            latent = deployment.model.mla_latent_dim
            reserved += 1536 if latent else 8 * num_prefill_graphs(chunked_prefill_size)
    if memory_mib > 60 * 1024:
        reserved = max(reserved, LEAST_RESERVED_MIB)
    return round((memory_mib - reserved) / memory_mib, 3)


def num_prefill_graphs(chunked_prefill_size: int) -> int:
    """Token counts that prefill graphs are captured for (`cuda_graph_hook.py`:
    generate_prefill_cuda_graph_batch_sizes)."""
    steps = ((4, 33, 4), (48, 257, 16), (288, 513, 32), (576, 1025, 64), (1280, 4097, 256))
    sizes = [size for step in steps for size in range(*step)]
    sizes += range(4608, chunked_prefill_size + 1, 512)
    return sum(size <= chunked_prefill_size for size in sizes)


def _graph_max_batch(deployment: Deployment) -> int:
    """Never more than the requests that may run, if that is said."""
    size = size_class(deployment)
    many = deployment.tensor_parallel_size >= 4
    batch = size.graph_max_batch_from_4_ranks if many else size.graph_max_batch
    return min(batch, deployment.max_num_seqs or batch)
