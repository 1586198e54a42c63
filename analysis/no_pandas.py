"""Keep pyarrow from loading pandas where nobody wants data frames."""

import sys


class _Hidden:
    """An import finder that says pandas is not there."""

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> None:
        if name == "pandas":
            raise ImportError("pandas is not needed here")


def without_pandas() -> None:
    """Let pyarrow look for pandas in vain, once and for all in this process.

    pyarrow imports pandas, which takes half a second, at its first conversion from or to numpy, if it is installed.
    """
    import pyarrow as pa

    if "pandas" in sys.modules:
        return
    sys.meta_path.insert(0, _Hidden)
    try:
        pa.array([0])
    finally:
        sys.meta_path.remove(_Hidden)
