"""Memory that is neither weights nor KV, estimated from shapes. Nothing here is calibrated."""

import math
from fractions import Fraction

from ..model import ModelSpec
from .deployment import Deployment, Given
from .terms import Term, sum_bytes

# What CUDA reports is less than what the driver does: on the 24 NVIDIA GPUs of the catalogue by 0.23
# (V100-16GB) to 0.90 GiB (B300), in the median 0.50. For a GPU whose own figure is not known.
DRIVER_BYTES = 2**30 // 2
# What CUDA context, communication buffers and the like take outside the tensors. vLLM's start-up
# logs show 0.13 to 0.35 GiB on a GPU alone (0.24 to 0.26 in 0.19 on an H100), and where ranks talk to
# each other 2.06 to 2.21 (0.19, two and four ranks), 0.55 to 2.15 before: an assumption.
NON_TORCH_BYTES = 35 * 2**30 // 100
NON_TORCH_BYTES_OF_RANKS = 21 * 2**30 // 10
ACTIVATION_ELEMENT_BYTES = 2  # bf16
# Logits with their copies, sorted and summed, while a step's tokens are sampled, and a fixed part:
# fitted to the peaks that vLLM 0.19 printed on H100s with 1,024 sequences for Llama-3.1-8B,
# Qwen2.5-7B, gemma-2, gpt-oss-20b and Mistral-Small (within 0.03 GiB; llm-d-incubation/
# llm-d-planner accuracy/results). Up to 0.16 it was 38 to 41 B; by the source of 0.32 it may be less.
SAMPLING_BYTES_PER_LOGIT = Fraction(72, 5)
SAMPLING_FIXED_BYTES = 12 * 2**30 // 100
# The median of eleven start-up logs of vLLM 0.19 to 0.28 that state "Estimated CUDA graph memory":
# 0.17, 0.22, 0.36, 0.36, 0.37, 0.61, 0.64, 0.78, 1.10, 1.21 and 1.97 GiB. It depends on the model, on
# how many batch sizes are captured and on the attention backend: an assumption.
CUDA_GRAPH_BYTES = 61 * 2**30 // 100


def activation_bytes_per_token(model: ModelSpec, tensor_parallel_size: int) -> int:
    """Bytes of activations alive on one rank for each token of a step, where a layer is widest.

    3 x hidden_size (residual, normed input, attention output) + 3 x ffn_size x active experts /
    ranks (gate, up and their product) elements of 16 bits. An assumption, not calibrated: for
    Llama-3.1-8B it gives 110,592 B, where the peaks that vLLM printed for 20,000 and 29,000 tokens
    lie 109,800 B a token apart.
    """
    ffn_elements = 3 * model.ffn_size * model.num_active_experts
    elements = 3 * model.hidden_size + math.ceil(ffn_elements / tensor_parallel_size)
    return elements * ACTIVATION_ELEMENT_BYTES


def activation_peak_bytes(
    model: ModelSpec,
    tensor_parallel_size: int,
    *,
    num_batched_tokens: int,
    num_sampled_sequences: int,
) -> int:
    """Estimated peak of activations on one rank. Uncalibrated.

    The larger of the layers over a full step's tokens and of sampling for every sequence: the two
    are not alive together.
    """
    layers = num_batched_tokens * activation_bytes_per_token(model, tensor_parallel_size)
    if not num_sampled_sequences:
        return layers
    logits = num_sampled_sequences * model.vocab_size
    return max(layers, math.ceil(logits * SAMPLING_BYTES_PER_LOGIT) + SAMPLING_FIXED_BYTES)


def weights_term(deployment: Deployment, stage: int) -> Term:
    """What the weights take off a rank of pipeline stage `stage`."""
    if deployment.weights is not None:
        return _taken_off("weights", deployment.weights)
    model, ranks = deployment.model, deployment.tensor_parallel_size
    num_bytes = model.weight_bytes_per_rank(ranks, deployment.stages[stage])
    precision = f" ({model.precision})" if model.precision else ""
    whole = (
        f"of {model.weight_bytes / 1e9:.2f} GB{precision}; {model.source}. {model.note}".rstrip()
    )
    shared = f"a rank's part {whole}" if num_bytes < model.weight_bytes else f"all {whole}"
    return Term("weights", -num_bytes, "formula", shared)


def activations_term(
    deployment: Deployment, stage: int, *, num_batched_tokens: int, num_sampled_sequences: int
) -> Term:
    """What the peak of the activations takes off; only the last pipeline stage samples."""
    if deployment.activations is not None:
        return _taken_off("activations", deployment.activations)
    last = stage == deployment.pipeline_parallel_size - 1
    peak = activation_peak_bytes(
        deployment.model,
        deployment.tensor_parallel_size,
        num_batched_tokens=num_batched_tokens,
        num_sampled_sequences=num_sampled_sequences if last else 0,
    )
    return Term("activations", -peak, "estimate", "UNCALIBRATED: estimated from shapes")


def cuda_graphs_term(deployment: Deployment) -> Term:
    """What CUDA graphs take off; nothing in eager mode."""
    if deployment.cuda_graphs is not None:
        return _taken_off("cuda_graphs", deployment.cuda_graphs)
    if deployment.enforce_eager:
        return Term("cuda_graphs", 0, "formula", "none in eager mode")
    return Term(
        "cuda_graphs",
        -CUDA_GRAPH_BYTES,
        "estimate",
        "assumed: 0.61 GiB, the median of eleven start-up logs that state 0.17 to 1.97",
    )


def non_torch_term(deployment: Deployment) -> Term:
    """What is outside the tensors: CUDA context, communication buffers, libraries."""
    if deployment.other is not None:
        return _taken_off("non_torch", deployment.other)
    if deployment.tensor_parallel_size * deployment.pipeline_parallel_size == 1:
        return Term("non_torch", -NON_TORCH_BYTES, "estimate", "assumed: 0.35 GiB")
    detail = "assumed: 2.1 GiB where ranks talk to each other"
    return Term("non_torch", -NON_TORCH_BYTES_OF_RANKS, "estimate", detail)


def gpu_memory_terms(deployment: Deployment) -> tuple[Term, ...]:
    """The memory that CUDA gives out: all that the driver reports, less what it keeps.

    A total that the user gives or that a log states is CUDA's already.
    """
    gpu, source = deployment.gpu, deployment.gpu_memory_source
    total = Term("gpu_memory", gpu.memory_bytes, source, gpu.source)
    if source != "catalogue":
        return (total,)
    if gpu.cuda_memory_bytes is None:
        detail = "assumed: 0.5 GiB, the median of 24 GPUs that CUDA reports 0.23 to 0.90 less of"
        return total, Term("driver", -DRIVER_BYTES, "estimate", detail)
    kept = gpu.cuda_memory_bytes - gpu.memory_bytes
    return total, Term("driver", kept, source, gpu.cuda_memory_source)


def profiled_terms(
    deployment: Deployment,
    stage: int,
    *,
    utilization: float,
    flag: str,
    num_batched_tokens: int,
    num_sampled_sequences: int,
) -> tuple[Term, ...]:
    """ceil(CUDA's total x utilization), less weights, activations, CUDA graphs and the rest.

    vLLM 0.32 `v1/worker/utils.py: request_memory` and `gpu_worker.py: determine_available_memory`;
    its total is that of `torch.cuda.mem_get_info` (`utils/mem_utils.py`: MemorySnapshot).
    """
    memory = gpu_memory_terms(deployment)
    total = sum_bytes(memory)
    requested = math.ceil(total * utilization)
    said = deployment.utilization_source
    return (
        *memory,
        Term("held_back", requested - total, said, f"{flag} {utilization:g}"),
        weights_term(deployment, stage),
        activations_term(
            deployment,
            stage,
            num_batched_tokens=num_batched_tokens,
            num_sampled_sequences=num_sampled_sequences,
        ),
        cuda_graphs_term(deployment),
        non_torch_term(deployment),
    )


def _taken_off(name: str, given: Given) -> Term:
    return Term(name, -given.num_bytes, given.source, given.detail)
