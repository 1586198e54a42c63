"""What a request of several sequences asks for at its largest moment, against pools that are tried one by one."""

from collections.abc import Sequence as Seq
from itertools import product

import pytest

from kvtwin.sim import PolicySettings
from kvtwin.sim.plan import Limits
from kvtwin.sim.recorder import Recorder
from kvtwin.sim.requests import RequestTable
from kvtwin.sim.vllm_v0.caching import VllmV0PrefixCaching
from kvtwin.sim.vllm_v0.engine import GroupEngine
from kvtwin.sim.vllm_v0.policy import VllmV0

MODEL_LEN = 1000


def policy_of(
    num_blocks: int, size: int, policy_type: type[VllmV0] = VllmV0, seed: int = 0
) -> VllmV0:
    return policy_type(
        PolicySettings(
            num_slots=num_blocks * size,
            max_model_len=MODEL_LEN,
            block_size=size,
            seed=seed,
            preemption_mode="recompute",
        )
    )


def is_served(policy: VllmV0, prompt: int, outputs: Seq[int], is_beam: bool) -> bool:
    """Whether a request that has the pool to itself is never refused anything."""
    requests = RequestTable([0], [prompt], [outputs[0]], [outputs[0]], [MODEL_LEN])
    requests.accepted, requests.branch_outputs = [0], [tuple(outputs)]
    requests.beam_width = len(outputs) if is_beam else 1
    requests.prompts = [()] if policy.reuses_prefixes else []
    recorder = Recorder(policy.num_slots, 1000, snapshots=False)
    engine = GroupEngine(requests, policy, Limits(64, MODEL_LEN), recorder)
    now_ns = 0
    while requests.finished_ns[0] < 0:
        try:
            plan = engine.plan(now_ns)
        except AssertionError as error:
            if "INV-5" not in str(error):
                raise
            return False
        if plan is None or requests.num_preemptions[0]:
            return False
        now_ns += 1
        engine.commit(plan, [now_ns])
    return True


def smallest_pool(
    policy_type: type[VllmV0],
    size: int,
    prompt: int,
    outputs: Seq[int],
    is_beam: bool = False,
    seed: int = 0,
) -> int:
    """Slots of the first pool that is large enough."""
    num_blocks = 1
    while not is_served(policy_of(num_blocks, size, policy_type, seed), prompt, outputs, is_beam):
        num_blocks += 1
    return num_blocks * size


OUTPUTS = [
    *((output,) * num for output, num in product((1, 2, 3, 5, 8), (1, 2, 3))),
    *((1, 2), (2, 1, 1), (2, 3), (1, 9, 2), (5, 1, 6), (2, 2, 7), (3, 4, 4, 4)),
]


@pytest.mark.parametrize("policy_type", [VllmV0, VllmV0PrefixCaching])
def test_samples_need_what_the_smallest_pool_has(policy_type: type[VllmV0]) -> None:
    for size, prompt, outputs in product((1, 2, 3, 4), (1, 2, 3, 4, 5, 8), OUTPUTS):
        found = smallest_pool(policy_type, size, prompt, outputs)
        need = policy_of(1, size, policy_type).group_need(prompt, outputs)
        assert need == found, (size, prompt, outputs)


def test_three_samples_that_begin_a_block_need_the_prompts_and_one_each() -> None:
    """P 1, O 2, blocks of 4: the one step that writes finds a block of the prompt, and asks for three more."""
    assert policy_of(1, 4).group_need(1, (2, 2, 2)) == 16


def test_no_beams_need_more_and_some_as_much() -> None:
    """Which beams go on is not known at arrival: the need is that of beams of which none has taken another's place."""
    num_equal = num_less = 0
    for size, prompt, output, width in product((1, 2, 4), (1, 3, 4), (2, 3, 5), (2, 3)):
        need = policy_of(1, size).group_need(prompt, (output,) * width)
        for seed in range(4):
            found = smallest_pool(VllmV0, size, prompt, (output,) * width, True, seed)
            assert found <= need, (size, prompt, output, width, seed)
            num_equal += found == need
            num_less += found < need
    assert min(num_equal, num_less) > 10
