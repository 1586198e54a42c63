"""Durations on a GPU: launches recorded once as a CUDA graph and replayed between two events."""

from collections.abc import Callable
from statistics import median

import torch

NUM_SAMPLES = 7
SAMPLE_NS = 20_000_000  # replays per sample are as many as take about this long


def time_on_gpu(run: Callable[[], object]) -> int:
    """Median duration of one `run`, in ns. It must do nothing but launch, always the same."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        run()  # compiles, and allocates what is kept
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    num_replays = max(1, SAMPLE_NS // max(1, _replays_ns(graph, 3) // 3))
    samples = [_replays_ns(graph, num_replays) / num_replays for _ in range(NUM_SAMPLES)]
    return round(median(samples))


def _replays_ns(graph: torch.cuda.CUDAGraph, num_replays: int) -> int:
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(num_replays):
        graph.replay()
    end.record()
    end.synchronize()
    return round(start.elapsed_time(end) * 1e6)


def run_untimed(run: Callable[[], object]) -> None:
    """What stands for a timer without a GPU: it runs, and says nothing about how long."""
    run()
