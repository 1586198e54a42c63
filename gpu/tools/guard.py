"""Memory guard for interpreted kernels: each access is checked and counted, and programs must not race.

The interpreter follows any pointer, and runs programs one after the other, so that wild reads
return something and races never show. Under the guard both end in an error of one line.
"""

from collections import Counter
from contextlib import ExitStack
from typing import Any

import numpy as np
import torch

from .interpreter import interpreter, replaced, unwrapped
from .races import LaunchLog
from .views import TensorView, nearest


class MemoryFault(Exception):
    """A kernel touched memory that is no element of its arguments: tensor, offset and program."""


class MemoryGuard:
    """Check and count every access of the kernels launched inside `with MemoryGuard(...)`.

    An active lane must lie on an element of a tensor argument of its own launch: not merely in its
    storage, so the gaps of a strided view are out of range. Misaligned accesses, two programs that
    write one element in a launch, and a program that reads what another writes in the same launch
    are faults as well. Raises MemoryFault.

    `tensors` gives names to arguments: `MemoryGuard(k_pool=k_pool)`. Other arguments go by
    `kernel.parameter`. `read_bytes` and `written_bytes` count the bytes of all active lanes per
    name; atomic operations count in both. `distinct_read_bytes` counts a byte once per load
    instruction and program, which is what lanes with equal addresses cost on a GPU.
    """

    def __init__(self, **tensors: torch.Tensor) -> None:
        self.read_bytes: Counter[str] = Counter()
        self.distinct_read_bytes: Counter[str] = Counter()
        self.written_bytes: Counter[str] = Counter()
        self._names = {_identity(tensor): name for name, tensor in tensors.items()}
        self._views: list[TensorView] = []
        self._kernel_name = ""
        self._log = LaunchLog()

    def __enter__(self) -> "MemoryGuard":
        self._module = interpreter()
        executor, builder = self._module.GridExecutor, self._module.InterpreterBuilder
        guard = self
        init_args, restore_args = executor._init_args_hst, executor._restore_args_dev
        load, store = builder.create_masked_load, builder.create_masked_store
        atomic_rmw, atomic_cas = builder.create_atomic_rmw, builder.create_atomic_cas

        def begin_launch(self: Any, args_dev: Any, kwargs: Any) -> Any:
            args_hst, kwargs_hst = init_args(self, args_dev, kwargs)
            arguments = dict(zip(self.arg_names, args_hst, strict=False)) | kwargs_hst
            guard._begin(self.fn.__name__, arguments)
            return args_hst, kwargs_hst

        def end_launch(self: Any, *args: Any) -> None:
            restore_args(self, *args)
            guard._end()

        def checked_load(self: Any, ptrs: Any, mask: Any, *rest: Any, **named: Any) -> Any:
            guard._access("load", ptrs, mask)
            return load(self, ptrs, mask, *rest, **named)

        def checked_store(self: Any, ptrs: Any, value: Any, mask: Any, *rest: Any) -> Any:
            guard._access("store", ptrs, mask)
            return store(self, ptrs, value, mask, *rest)

        def checked_rmw(self: Any, op: Any, ptr: Any, val: Any, mask: Any, *rest: Any) -> Any:
            guard._access("atomic", ptr, mask)
            return atomic_rmw(self, op, ptr, val, mask, *rest)

        def checked_cas(self: Any, ptr: Any, *rest: Any) -> Any:
            guard._access("atomic", ptr, None)
            return atomic_cas(self, ptr, *rest)

        with ExitStack() as patches:
            patches.enter_context(
                replaced(executor, _init_args_hst=begin_launch, _restore_args_dev=end_launch)
            )
            patches.enter_context(
                replaced(
                    builder,
                    create_masked_load=checked_load,
                    create_masked_store=checked_store,
                    create_atomic_rmw=checked_rmw,
                    create_atomic_cas=checked_cas,
                )
            )
            patches.enter_context(unwrapped(self._module, MemoryFault))
            self._patches = patches.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        self._patches.close()
        self._views = []

    def _begin(self, kernel_name: str, arguments: dict[str, Any]) -> None:
        self._kernel_name = kernel_name
        self._log = LaunchLog()
        self._views = [
            TensorView.of(
                self._names.get(_identity(argument), f"{kernel_name}.{parameter}"), argument
            )
            for parameter, argument in arguments.items()
            if isinstance(argument, torch.Tensor) and argument.numel() > 0
        ]

    def _end(self) -> None:
        race = self._log.first_race()
        if race is not None:
            raise MemoryFault(f"{self._kernel_name}: {race}")

    def _access(self, kind: str, ptrs: Any, mask: Any) -> None:
        num_bytes = max(1, ptrs.get_element_ty().primitive_bitwidth // 8)
        addresses = ptrs.data.view(np.int64)
        if mask is not None:
            addresses = addresses[np.broadcast_to(mask.data, addresses.shape)]
        addresses = addresses.ravel()
        program = self._module.interpreter_builder.grid_idx
        while addresses.size:
            view = next((v for v in self._views if v.holds(addresses[:1], num_bytes)[0]), None)
            if view is None:
                raise MemoryFault(
                    f"{self._kernel_name}: {kind} of {num_bytes} bytes in program {program}, {addresses.size} lanes, "
                    f"the first {nearest(self._views, int(addresses[0]), num_bytes)}"
                )
            inside = view.holds(addresses, num_bytes)
            self._count(kind, view, addresses[inside], num_bytes, program)
            addresses = addresses[~inside]

    def _count(
        self, kind: str, view: TensorView, addresses: Any, num_bytes: int, program: tuple[int, ...]
    ) -> None:
        if kind != "store":
            self.read_bytes[view.name] += addresses.size * num_bytes
            self.distinct_read_bytes[view.name] += np.unique(addresses).size * num_bytes
        if kind != "load":
            self.written_bytes[view.name] += addresses.size * num_bytes
        if kind != "atomic":
            fault = self._log.add(kind, view, addresses, num_bytes, program)
            if fault is not None:
                raise MemoryFault(f"{self._kernel_name}: {fault}")


def _identity(tensor: torch.Tensor) -> tuple[Any, ...]:
    """Return what makes two tensor objects the same elements: place, extents and strides."""
    return tensor.data_ptr(), tensor.dtype, tuple(tensor.shape), tensor.stride()
