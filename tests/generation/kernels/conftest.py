"""These tests run Triton's kernels in its interpreter, on the CPU.

Triton decides by TRITON_INTERPRET, when it is first imported, how its kernels are run, for good. So this folder is
collected only where it is set; `tests/generation/test_kernels.py` runs it so, in a process of its own.
"""

import os

import numpy as np

if os.environ.get("TRITON_INTERPRET") == "1":
    from triton import language as tl
    from triton.runtime import interpreter

    Builder = interpreter.InterpreterBuilder
    product, cast = Builder.create_dot, Builder.cast_impl

    def create_dot(self, a, b, *rest):
        """The interpreter keeps bfloat16 as its 16 bits, and multiplies these as whole numbers; so it is given the
        float32 of the same value."""
        return product(self, *(_widened(operand) for operand in (a, b)), *rest)

    def cast_impl(self, source, kind):
        """It also cuts off what does not fit into bfloat16, where a GPU rounds to the nearest."""
        kinds = source.dtype.scalar, kind.scalar
        if kinds == (tl.float32, tl.bfloat16):
            bits = np.ascontiguousarray(source.data).view(np.uint32)
            rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
            return interpreter.TensorHandle(rounded.astype(np.uint16), tl.bfloat16)
        return _widened(source) if kinds == (tl.bfloat16, tl.float32) else cast(self, source, kind)

    def _widened(operand):
        if operand.dtype.scalar != tl.bfloat16:
            return operand
        bits = operand.data.astype(np.uint32) << 16
        return interpreter.TensorHandle(bits.view(np.float32), tl.float32)

    Builder.create_dot, Builder.cast_impl = create_dot, cast_impl
else:
    collect_ignore_glob = ["test_*.py"]
