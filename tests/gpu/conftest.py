"""These tests interpret their kernels, which triton decides when it is first imported."""

import os

os.environ["TRITON_INTERPRET"] = "1"
