"""A deployment with other settings: what was stated for the old ones is scaled to the new."""

from dataclasses import replace
from typing import Any

from .accounting import Accounting
from .deployment import Deployment, Given
from .estimates import activations_term, non_torch_term, weights_term


def changed(before: Deployment, accounting: Accounting, **settings: Any) -> Deployment:
    """`before` with `settings`.

    Weights and activations that were given or measured for `before` change in the ratio of their
    estimates, and what is outside of torch by the difference of its; all of them unless `settings`
    gives them anew.
    """
    after = replace(before, **settings)
    scaled: dict[str, Any] = {
        "weights": _in_ratio(before.weights, _weights(before), _weights(after)),
        "activations": _in_ratio(
            before.activations, _activations(before, accounting), _activations(after, accounting)
        ),
        "other": _shifted(before.other, _non_torch(before), _non_torch(after)),
    }
    if after.enforce_eager != before.enforce_eager:
        scaled["cuda_graphs"] = None
    return replace(after, **{name: given for name, given in scaled.items() if name not in settings})


def _in_ratio(given: Given | None, before: int, after: int) -> Given | None:
    if given is None or before == after or not before:
        return given
    return _estimate(given, round(given.num_bytes * after / before))


def _shifted(given: Given | None, before: int, after: int) -> Given | None:
    if given is None or before == after:
        return given
    return _estimate(given, max(0, given.num_bytes + after - before))


def _estimate(given: Given, num_bytes: int) -> Given:
    return Given(num_bytes, "estimate", f"{given.detail}; changed as the estimate changes")


def _weights(deployment: Deployment) -> int:
    return -weights_term(replace(deployment, weights=None), stage=0).num_bytes


def _activations(deployment: Deployment, accounting: Accounting) -> int:
    term = activations_term(
        replace(deployment, activations=None),
        stage=deployment.pipeline_parallel_size - 1,
        num_batched_tokens=accounting.max_num_batched_tokens(deployment),
        num_sampled_sequences=accounting.max_num_seqs(deployment),
    )
    return -term.num_bytes


def _non_torch(deployment: Deployment) -> int:
    return -non_torch_term(replace(deployment, other=None)).num_bytes
