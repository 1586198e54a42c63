"""The format in which a checkpoint ships each matrix, from its `quantization_config`.

Layouts of the files as Hugging Face transformers 4.57 and compressed-tensors write them.
"""

import fnmatch
import re
from collections.abc import Callable, Iterable

from kvtwin.traces import UserError

from ..model import Matrix, WeightPart
from .fields import Fields
from .quantization import QUANTIZATIONS, Format, requantized

_MAX_PATTERN_CHARS = 400
# What may take Python's matcher longer than anyone waits: a repeated group, and many repetitions in
# a row (it tries all ways to share a name out among them). Files have been seen with three.
_REPEATED_GROUP = re.compile(r"\)[*+{]")
_REPETITION = re.compile(r"(?<!\\)[*+{]")
_MAX_REPETITIONS = 5


class Patterns:
    """Names of modules: runs of a dotted name's parts, globs, or `re:` and a regular expression.

    The plain ones are in one set: files list hundreds.
    """

    def __init__(self, patterns: Iterable[str]) -> None:
        self.plain: set[str] = set()
        self.regular: list[re.Pattern[str]] = []
        for pattern in patterns:
            if pattern.startswith("re:"):
                self.regular.append(re.compile(pattern[3:]))
                continue
            plain = pattern.replace("language_model.", "")
            if any(sign in plain for sign in "*?["):
                self.regular.append(re.compile(fnmatch.translate(plain)))
            else:
                self.plain.add(plain)

    def match(self, name: str) -> bool:
        parts = name.split(".")
        runs = (
            ".".join(parts[first:last])
            for first in range(len(parts))
            for last in range(first + 1, len(parts) + 1)
        )
        return any(run in self.plain for run in runs) or any(
            pattern.match(name) for pattern in self.regular
        )


class Scheme:
    """`format` for the modules that match `targets` (none given: all) and none of `ignored`.

    `head`: the output head may be among them.
    """

    def __init__(
        self,
        format: Format,
        ignored: Iterable[str] = (),
        targets: Iterable[str] = (),
        *,
        head: bool = False,
    ) -> None:
        self.format, self.head = format, head
        self.ignored = Patterns(ignored)
        self.targets = Patterns(targets) if targets else None

    def applies(self, layer: int | None, matrix: Matrix) -> bool:
        if layer is None and not self.head:
            return False
        name = matrix.module if layer is None else f"model.layers.{layer}.{matrix.module}"
        return not self.ignored.match(name) and (self.targets is None or self.targets.match(name))


def ship(
    weights: tuple[WeightPart, ...], quantization: Fields
) -> tuple[tuple[WeightPart, ...], str]:
    """16-bit `weights` as the `quantization_config` says, and a label.

    Raises UserError for methods whose bytes are not known here.
    """
    schemes = read_schemes(quantization)

    def format_of(layer: int | None, matrix: Matrix) -> Format | None:
        for scheme in schemes:
            if scheme.applies(layer, matrix):
                return scheme.format
        return None

    labels = dict.fromkeys(scheme.format.label for scheme in schemes)
    return requantized(weights, format_of), ", ".join(labels)


def quantization_method(fields: Fields) -> str:
    """Its `quant_method`, in lower case and with hyphens; that of ModelOpt's own files is unsaid."""
    method = fields.text("quant_method").lower().replace("_", "-")
    if not method and (fields.table("producer") or fields.has("quant_algo")):
        return "modelopt"
    return method


def read_schemes(fields: Fields) -> tuple[Scheme, ...]:
    """The schemes of a `quantization_config`, the first that applies to a matrix first."""
    method = quantization_method(fields)
    readers: dict[str, Callable[[Fields], tuple[Scheme, ...]]] = {
        "fp8": _fp8,
        "fbgemm-fp8": lambda f: (
            Scheme(Format("fp8, one scale an output", 8, 4, 0, 1), _ignored(f)),
        ),
        "awq": _awq,
        "gptq": _gptq,
        "gptqmodel": _gptq,
        "compressed-tensors": _compressed_tensors,
        "modelopt": _modelopt,
        "mxfp4": lambda f: (Scheme(QUANTIZATIONS["mxfp4"], _ignored(f)),),
        "bitsandbytes": _bitsandbytes,
    }
    if method not in readers:
        fields.refuse(
            "quant_method", f"must be one of {', '.join(readers)}: others' bytes are not known here"
        )
    return readers[method](fields)


def _ignored(fields: Fields) -> tuple[str, ...]:
    names = ("modules_to_not_convert", "ignored_layers", "ignore", "exclude_modules", "exclude")
    return tuple(_pattern(fields, name, entry) for name in names for entry in fields.array(name))


def _pattern(fields: Fields, name: str, entry: object) -> str:
    if not isinstance(entry, str) or len(entry) > _MAX_PATTERN_CHARS:
        fields.refuse(name, f"must hold names of at most {_MAX_PATTERN_CHARS} characters")
    if entry.startswith("re:"):
        if _REPEATED_GROUP.search(entry) or len(_REPETITION.findall(entry)) > _MAX_REPETITIONS:
            fields.refuse(
                name,
                f"must not hold {entry[:80]!r}: a repeated group, or more than {_MAX_REPETITIONS} "
                "repetitions (*, + or {), could take for ever to match; write the names out",
            )
        try:
            re.compile(entry[3:])
        except (re.error, OverflowError, RecursionError):
            fields.refuse(name, f"must not hold {entry[:40]!r}, which is no regular expression")
    return entry


def _fp8(fields: Fields) -> tuple[Scheme, ...]:
    if not fields.has("weight_block_size"):
        # One scale for the weights; one for the inputs unless they are scaled as they come.
        scales = 2 if fields.text("activation_scheme", "dynamic") == "static" else 1
        return (Scheme(Format("fp8, one scale a matrix", 8, 4 * scales), _ignored(fields)),)
    block = fields.array("weight_block_size")
    if len(block) != 2 or not all(type(side) is int and 0 < side < 2**16 for side in block):
        fields.refuse("weight_block_size", "must be two whole numbers above 0")
    rows, columns = block
    label = f"fp8, scales of {rows} x {columns} blocks"
    return (Scheme(Format(label, 8, 4, columns, rows), _ignored(fields)),)


def _awq(fields: Fields) -> tuple[Scheme, ...]:
    bits, group = _bits_and_group(fields)
    label = f"AWQ {bits}-bit, groups of {group or 'all inputs'}"
    return (Scheme(Format(label, bits, 2, group, 1, zero_bits=bits), _ignored(fields)),)


def _gptq(fields: Fields) -> tuple[Scheme, ...]:
    bits, group = _bits_and_group(fields)
    ignored = list(_ignored(fields))
    dynamic = fields.table("dynamic")
    for rule in dynamic.values if dynamic else ():
        if not rule.startswith("-:"):
            fields.refuse(
                "dynamic", "must only leave modules out (`-:`): mixed widths are not known here"
            )
        ignored.append(_pattern(fields, "dynamic", "re:" + rule[2:]))
    label = f"GPTQ {bits}-bit, groups of {group or 'all inputs'}"
    made = Format(label, bits, 2, group, 1, zero_bits=bits, index_bytes=4)
    return (Scheme(made, tuple(ignored), head=fields.flag("lm_head")),)


def _bits_and_group(fields: Fields) -> tuple[int, int]:
    """Bits of a weight, and inputs that share a scale (0: all)."""
    bits = fields.get("bits", fields.get("w_bit", 4))
    if bits not in (2, 3, 4, 8) or isinstance(bits, bool):
        fields.refuse("bits", "must be 2, 3, 4 or 8")
    name = "q_group_size" if fields.has("q_group_size") else "group_size"
    group = fields.whole(name, 128, least=-1)
    return int(bits), max(0, group)


def _bitsandbytes(fields: Fields) -> tuple[Scheme, ...]:
    skipped = tuple(
        _pattern(fields, "llm_int8_skip_modules", entry)
        for entry in fields.array("llm_int8_skip_modules")
    )
    if fields.flag("load_in_8bit"):
        return (Scheme(Format("bitsandbytes int8", 8, 4, 0, 1), skipped),)
    return (Scheme(QUANTIZATIONS["bitsandbytes"], skipped),)


def _modelopt(fields: Fields) -> tuple[Scheme, ...]:
    """`hf_quant_config.json`, or the same in a config.json."""
    inner = fields.table("quantization") or fields
    algorithm = inner.text("quant_algo").upper()
    formats = {
        "FP8": Format("fp8, one scale a matrix", 8, 8),  # and one for the inputs
        "NVFP4": QUANTIZATIONS["nvfp4"],
        "FP8_PB_WO": QUANTIZATIONS["fp8-block"],
    }
    if algorithm not in formats:
        inner.refuse(
            "quant_algo", f"must be one of {', '.join(formats)}: others are not known here"
        )
    return (Scheme(formats[algorithm], (*_ignored(inner), *_ignored(fields))),)


def _compressed_tensors(fields: Fields) -> tuple[Scheme, ...]:
    groups = fields.table("config_groups")
    if groups is None:
        fields.missing("config_groups")
    schemes = []
    for name in groups.values:
        group = groups.table(name)
        weights = group.table("weights") if group else None
        if group is None or weights is None:
            raise UserError(
                f"{groups.where}: {name} has no weights; give their num_bits and strategy"
            )
        targets = [_pattern(group, "targets", entry) for entry in group.array("targets")]
        by_name = () if "Linear" in targets else tuple(targets)
        schemes.append(Scheme(_packed(weights), _ignored(fields), by_name, head=True))
    return tuple(schemes)


def _packed(weights: Fields) -> Format:
    """The layout of one group's weights: int8 and fp8 as they are, 4 bits packed into int32."""
    bits = weights.whole("num_bits", most=8)
    kind, strategy = weights.text("type", "int"), weights.text("strategy", "tensor")
    group = weights.whole("group_size", 0, least=-1)
    zero_bits = 0 if weights.flag("symmetric", True) else bits
    if bits not in (4, 8):
        weights.refuse("num_bits", "must be 4 or 8")
    if kind == "float" and bits == 4:
        return QUANTIZATIONS["nvfp4"]
    spans = {
        "tensor": (0, 0),
        "channel": (0, 1),
        "group": (max(0, group), 1),
        "tensor_group": (max(0, group), 1),
        "block": (128, 128),
    }
    if strategy not in spans:
        weights.refuse("strategy", f"must be one of {', '.join(spans)}")
    inputs, outputs = spans[strategy]
    shape_bytes = 16 if kind == "int" and bits == 4 else 0  # two int64 beside packed weights
    name = f"{'fp' if kind == 'float' else 'int'}{bits}"
    label = f"{name}, scales by {strategy}" + (f" of {group}" if group > 0 else "")
    return Format(label, bits, 2, inputs, outputs, zero_bits=zero_bits, fixed_bytes=shape_bytes)
