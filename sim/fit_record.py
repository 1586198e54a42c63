"""What a fitted cost model was fitted to, and how well it holds: the table `fit` of a coefficients file."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, NoReturn

from .config import RunConfig


@dataclass(frozen=True)
class FitError:
    """Relative errors: 0.1 is 10 % of the measured duration."""

    mean: float
    p95: float


@dataclass(frozen=True)
class FitRecord:
    """`source`: the command. `device`, `backend`, `dtype`, `versions`, `date`: what measured, and when.

    `model`: the catalogue's name. `num_layers`, `num_heads`, `num_kv_heads`, `head_dim`: of the layers
    executed; `block_size`: token slots; None where a server was measured, which says none of them.
    `in_sample`: errors on the steps fitted to; `cross_validated`: on steps left out of the fit;
    `noise`: of repeats against their median (None: nothing was repeated).
    """

    source: str
    device: str
    backend: str
    dtype: str
    model: str
    num_layers: int | None
    num_heads: int | None
    num_kv_heads: int | None
    head_dim: int | None
    block_size: int | None
    date: str
    versions: Mapping[str, str]
    num_points: int
    in_sample: FitError
    cross_validated: FitError
    noise: FitError | None

    def fits_model(self, config: RunConfig) -> bool:
        """Whether `config` runs the model as it was measured: with its own weights, on one GPU."""
        unlike = config.tensor_parallel_size != 1 or config.quantization is not None
        return config.model == self.model and not unlike

    def notes(self, config: RunConfig) -> tuple[str, ...]:
        """What a reader of a run with `config` must know."""
        crossed = self.cross_validated
        noise = "" if self.noise is None else f"; noise of repeats {_percent(self.noise)}"
        notes = [
            f"step times fitted to {self.num_points:,} steps on {self.device} ({self.backend}, {self.dtype}, "
            f"{self.date}): error on steps left out of the fit {_percent(crossed)}{noise}"
        ]
        if config.model != self.model:
            notes.append(f"step times were fitted to {self.model}, and this is {config.model}")
        if config.quantization is not None:
            notes.append(
                f"step times were fitted to weights as shipped, and these are {config.quantization}"
            )
        if config.tensor_parallel_size != 1:
            notes.append(
                f"step times were fitted to one GPU, and these are {config.tensor_parallel_size}"
            )
        if self.block_size is not None and config.block_size != self.block_size:
            notes.append(
                f"step times were fitted to blocks of {self.block_size}, and these have {config.block_size} slots"
            )
        return tuple(notes)

    def to_dict(self) -> dict[str, Any]:
        """The table of the file, without what is None: TOML has no null."""
        return {name: value for name, value in asdict(self).items() if value is not None}

    @classmethod
    def from_raw(cls, raw: Any, fail: Callable[[str, Any, str], NoReturn]) -> "FitRecord":
        """The record that `to_dict` wrote. `fail(field, value, wanted)` raises the user's error."""
        if not isinstance(raw, Mapping):
            fail("fit", raw, "a table of named values")
        names = [field.name for field in fields(cls)]
        for key in raw:
            if key not in names:
                fail(f"fit.{key}", raw[key], f"left out; known are {', '.join(names)}")

        def text(name: str) -> str:
            value = raw.get(name)
            if not isinstance(value, str) or not value:
                fail(f"fit.{name}", value, "a text")
            return value

        def whole(name: str) -> int:
            value = raw.get(name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                fail(f"fit.{name}", value, "a whole number of at least 1")
            return value

        def optional(name: str) -> int | None:
            return whole(name) if name in raw else None

        def error(name: str) -> FitError:
            value = raw.get(name)
            if not isinstance(value, Mapping) or not (
                _is_share(value.get("mean")) and _is_share(value.get("p95"))
            ):
                fail(f"fit.{name}", value, "a table with mean and p95, numbers of at least 0")
            return FitError(float(value["mean"]), float(value["p95"]))

        versions = raw.get("versions")
        if not isinstance(versions, Mapping) or not all(
            isinstance(version, str) for version in versions.values()
        ):
            fail("fit.versions", versions, "a table of texts")
        return cls(
            **{name: text(name) for name in ("source", "device", "backend", "dtype", "model")},
            num_layers=optional("num_layers"),
            num_heads=optional("num_heads"),
            num_kv_heads=optional("num_kv_heads"),
            head_dim=optional("head_dim"),
            block_size=optional("block_size"),
            date=text("date"),
            versions=dict(versions),
            num_points=whole("num_points"),
            in_sample=error("in_sample"),
            cross_validated=error("cross_validated"),
            noise=error("noise") if "noise" in raw else None,
        )


def _is_share(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1e9


def _percent(error: FitError) -> str:
    return f"{100 * error.mean:.1f} % on average, {100 * error.p95:.1f} % at the 95th percentile"
