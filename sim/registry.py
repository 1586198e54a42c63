"""Names of policies. A policy is one file in `policies/` and one line here; outside ones are `package.module:Class`."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Mapping
from types import MappingProxyType

from kvtwin.traces import UserError

from .engine_contract import EngineContract
from .names import did_you_mean
from .policies.policy import Policy

POLICIES: Mapping[str, str] = MappingProxyType(
    {
        "static": "kvtwin.sim.policies.static:StaticBatch",
        "static-iteration": "kvtwin.sim.policies.static:StaticIteration",
        "orca-max": "kvtwin.sim.policies.orca:OrcaMax",
        "orca-pow2": "kvtwin.sim.policies.orca:OrcaPow2",
        "orca-oracle": "kvtwin.sim.policies.orca:OrcaOracle",
        "contiguous": "kvtwin.sim.policies.contiguous:Contiguous",
        "paged": "kvtwin.sim.policies.paged:Paged",
        "vllm-v1": "kvtwin.sim.vllm_v1.policy:VllmV1",
        "vllm-v1-no-caching": "kvtwin.sim.vllm_v1.policy:VllmV1NoCaching",
        "vllm-v0": "kvtwin.sim.vllm_v0.policy:VllmV0",
        "vllm-v0-prefix-caching": "kvtwin.sim.vllm_v0.caching:VllmV0PrefixCaching",
        "slots": "kvtwin.sim.policies.slots:Slots",
        "no-cache": "kvtwin.sim.policies.no_cache:NoCache",
    }
)


def policy_names() -> list[str]:
    """Names of the built-in policies, from the simplest to the most refined."""
    return list(POLICIES)


def find_policy(name: str) -> type[Policy]:
    """The class of a built-in name or of `package.module:Class`. Raises UserError for an unknown one."""
    target = POLICIES.get(name, name)
    module_name, colon, class_name = target.partition(":")
    if not colon:
        raise UserError(
            f"policy {name!r} is unknown{did_you_mean(name, POLICIES)}; it must be one of {', '.join(POLICIES)}, "
            "or package.module:Class"
        )
    try:
        policy = getattr(importlib.import_module(module_name), class_name)
    except Exception as error:  # whatever the user's file does when it is loaded
        raise UserError(
            f"policy {name!r} cannot be loaded: {error}; is the folder of its file on PYTHONPATH?"
        ) from None
    if not (inspect.isclass(policy) and issubclass(policy, Policy)):
        raise UserError(
            f"policy {name!r} is not a subclass of kvtwin.sim.Policy; give the class itself"
        )
    if missing := sorted(policy.__abstractmethods__):
        raise UserError(f"policy {name!r} does not define {', '.join(missing)}; see docs/design.md")
    return policy


def find_engine(policy: type[Policy]) -> type[EngineContract]:
    """The engine that schedules what `policy` manages."""
    module_name, _, class_name = policy.engine.partition(":")
    engine: type[EngineContract] = getattr(importlib.import_module(module_name), class_name)
    return engine


def describe_policies() -> list[tuple[str, str, str]]:
    """(name, first line of the class's docstring, scheduling rule) of each built-in policy."""
    rows = []
    for name in POLICIES:
        policy = find_policy(name)
        rows.append((name, (inspect.getdoc(policy) or "").partition("\n")[0], policy.scheduling))
    return rows
