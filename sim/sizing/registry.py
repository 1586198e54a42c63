"""The accountings, by name."""

from kvtwin.traces import UserError

from ..names import did_you_mean
from .accounting import Accounting
from .engines.exact import Exact
from .engines.sglang import Sglang
from .engines.trtllm import Trtllm
from .engines.vllm import Vllm
from .engines.vllm_no_hybrid import VllmNoHybrid

_ACCOUNTINGS: dict[str, Accounting] = {
    accounting.name: accounting
    for accounting in (Vllm(), VllmNoHybrid(), Sglang(), Trtllm(), Exact())
}


def accounting_names() -> tuple[str, ...]:
    """Every accounting, the default first."""
    return tuple(_ACCOUNTINGS)


def find_accounting(name: str) -> Accounting:
    """The accounting called `name`. Raises UserError with the choices."""
    if name not in _ACCOUNTINGS:
        choices = ", ".join(_ACCOUNTINGS)
        hint = did_you_mean(name, _ACCOUNTINGS)
        raise UserError(f"--accounting is {name!r}{hint}; it must be one of {choices}")
    return _ACCOUNTINGS[name]
