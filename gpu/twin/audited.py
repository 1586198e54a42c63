"""The audit as one who looks at every step of an execution."""

import numpy as np

from kvtwin.sim import Assembly

from ..audit import Audit, AuditSetting, LayerGroup
from .content import ContentShape
from .executor import DeviceExecutor, ExecutedStep
from .follower import DecisionFollower
from .layers import executed_layers
from .tables import table_key


class AuditedSteps:
    """Shows every step to an `Audit`, and has it inspect every slot in each `every_steps`-th."""

    def __init__(
        self, assembly: Assembly, executor: DeviceExecutor, shape: ContentShape, every_steps: int
    ) -> None:
        config, policy = assembly.config, assembly.policy
        assert assembly.log is not None, "an audit follows the log of decisions"
        groups = assembly.pool.groups
        layers = executed_layers(shape, groups)
        setting = AuditSetting(
            policy=config.policy,
            num_slots=policy.num_slots // groups.block_token_slots,
            block_slots=policy.block_slots // groups.block_token_slots,
            max_model_len=assembly.pool.max_model_len,
            max_tokens=config.max_tokens,
            branch_outputs=assembly.requests.branch_outputs,
            watermark=(policy.default_watermark if config.watermark is None else config.watermark),
            keeps_kv=policy.keeps_kv,
            reuses_prefixes=policy.reuses_prefixes,
            reuses_answers=getattr(policy, "reuses_answers", False),
            whole_batch=getattr(policy, "whole_batch", False),
            groups=tuple(
                LayerGroup(
                    tuple(number for number, layer in enumerate(layers) if layer.group == group),
                    window or 0,
                    token_slots,
                )
                for group, (window, token_slots) in enumerate(
                    zip(groups.windows, groups.token_slots, strict=True)
                )
            ),
        )
        memory = executor.memory
        assert isinstance(memory, DecisionFollower), "nothing is kept: there is nothing to audit"
        self.audit = Audit(
            assembly.trace,
            assembly.log,
            setting,
            shape,
            memory.pool.layers,
            lambda: memory.host_layers,
        )
        self._engine, self._executor = assembly.engine, executor
        self._block_slots = setting.block_slots
        self._every_steps = every_steps

    def after_step(self, step: ExecutedStep) -> None:
        """See `Observer`."""
        work = [tuple(line) for line in self._executor.work_log[-1].tolist()]
        self.audit.follow(step.number, work)
        if step.number % self._every_steps:
            return
        num_blocks = -(-step.batch.context_lens // self._block_slots)
        tables = {
            table_key(key, group): table[:num].astype(np.int64)
            for group, of_group in enumerate(step.batch.tables)
            for key, table, num in zip(step.keys, of_group, num_blocks, strict=True)
        }
        self.audit.inspect(self._engine.parts(), self._engine.refused_row, tables)
