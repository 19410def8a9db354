"""ggml's matrix products for CPUs, which multiply with the blocks of a GGUF file as they are.

ggml is llama.cpp's tensor library. The package xllamacpp contains it with its public C interface, which is called here
(https://github.com/ggml-org/ggml/tree/master/include: ggml.h, ggml-cpu.h, ggml-backend.h). A product rounds its inputs
to eight bits with a scale for each 32 or 256 of them, as llama.cpp does; weights are not rounded.
"""

from __future__ import annotations

import ctypes
import importlib.util
import itertools
import logging
import threading
import weakref
from functools import cache
from pathlib import Path

import gguf
import torch
from torch import Tensor

logger = logging.getLogger("agent_server.generation")
FORMATS = frozenset(
    {
        "Q4_0",
        "Q4_1",
        "Q5_0",
        "Q5_1",
        "Q8_0",
        "Q2_K",
        "Q3_K",
        "Q4_K",
        "Q5_K",
        "Q6_K",
        "IQ4_NL",
        "IQ4_XS",
        "IQ1_S",
        "IQ1_M",
    }
    | {"IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "TQ1_0", "TQ2_0", "MXFP4"}
)
"""The formats of blocks that are computed with ggml."""
_Pointer = ctypes.c_void_p
_FLOAT32, _INT32 = gguf.GGMLQuantizationType.F32.value, gguf.GGMLQuantizationType.I32.value
_TENSORS_BYTES = 1 << 15
"""For the descriptions of the few tensors of one product and its graph."""
_NODES = 8
"""The most tensors in the graph of a product."""
_ALIGNMENT = 64
_ADDRESSES = 1 << 47
"""The number of addresses of a process on a 64-bit CPU: tensors are used where torch has them."""


class _InitParams(ctypes.Structure):
    _fields_ = (("mem_size", ctypes.c_size_t), ("mem_buffer", _Pointer), ("no_alloc", ctypes.c_bool))


_LogCallback = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, _Pointer)
_log = _LogCallback(lambda level, text, data: logger.debug("ggml: %s", text.decode(errors="replace").strip()))
"""ggml writes to the standard error stream otherwise."""
_SIGNATURES: dict[str, tuple[object, ...]] = {
    "ggml_init": (_Pointer, _InitParams),
    "ggml_free": (None, _Pointer),
    "ggml_reset": (None, _Pointer),
    "ggml_tensor_overhead": (ctypes.c_size_t,),
    "ggml_row_size": (ctypes.c_size_t, ctypes.c_int, ctypes.c_int64),
    "ggml_new_tensor_1d": (_Pointer, _Pointer, ctypes.c_int, ctypes.c_int64),
    "ggml_new_tensor_2d": (_Pointer, _Pointer, ctypes.c_int, ctypes.c_int64, ctypes.c_int64),
    "ggml_new_tensor_3d": (_Pointer, _Pointer, ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64),
    "ggml_mul_mat": (_Pointer, _Pointer, _Pointer, _Pointer),
    "ggml_mul_mat_id": (_Pointer, _Pointer, _Pointer, _Pointer, _Pointer),
    "ggml_get_rows": (_Pointer, _Pointer, _Pointer, _Pointer),
    "ggml_new_graph_custom": (_Pointer, _Pointer, ctypes.c_size_t, ctypes.c_bool),
    "ggml_build_forward_expand": (None, _Pointer, _Pointer),
    "ggml_cpu_has_avx2": (ctypes.c_int,),
    "ggml_log_set": (None, _LogCallback, _Pointer),
    "ggml_backend_cpu_init": (_Pointer,),
    "ggml_backend_cpu_set_n_threads": (None, _Pointer, ctypes.c_int),
    "ggml_backend_cpu_buffer_from_ptr": (_Pointer, _Pointer, ctypes.c_size_t),
    "ggml_backend_tensor_alloc": (ctypes.c_int, _Pointer, _Pointer, _Pointer),
    "ggml_backend_graph_compute": (ctypes.c_int, _Pointer, _Pointer),
    "ggml_backend_get_device": (_Pointer, _Pointer),
    "ggml_backend_dev_backend_reg": (_Pointer, _Pointer),
    "ggml_backend_dev_supports_op": (ctypes.c_bool, _Pointer, _Pointer),
    "ggml_backend_reg_get_proc_address": (_Pointer, _Pointer, ctypes.c_char_p),
    "ggml_backend_buft_name": (ctypes.c_char_p, _Pointer),
    "ggml_backend_buft_get_alloc_size": (ctypes.c_size_t, _Pointer, _Pointer),
    "ggml_backend_buft_alloc_buffer": (_Pointer, _Pointer, ctypes.c_size_t),
    "ggml_backend_buffer_get_base": (_Pointer, _Pointer),
    "ggml_backend_buffer_free": (None, _Pointer),
    "ggml_backend_tensor_set": (None, _Pointer, _Pointer, ctypes.c_size_t, ctypes.c_size_t),
}
"""Each function's result and parameters."""


@cache
def ggml() -> Ggml | None:
    """Return ggml, or None if the package does not bring it here, or for a CPU that this one is not."""
    spec = importlib.util.find_spec("xllamacpp")
    folders = [] if spec is None else spec.submodule_search_locations or []
    files = [file for folder in folders for file in Path(folder).glob("xllamacpp*.so")]
    try:
        library = Ggml(ctypes.CDLL(str(files[0]))) if files else None
    except (OSError, AttributeError) as error:  # it cannot be loaded, or has no public functions
        logger.debug("ggml cannot be used: %s", error)
        return None
    if library is None or (library.needs_avx2 and torch.backends.cpu.get_cpu_capability() == "DEFAULT"):
        return None
    return library


class Ggml:
    """ggml's CPU backend. One product is computed at a time, with as many threads as torch uses."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self.functions = library
        for name, (result, *parameters) in _SIGNATURES.items():
            function = getattr(library, name)
            function.restype, function.argtypes = result, parameters
        library.ggml_log_set(_log, None)
        self.needs_avx2 = bool(library.ggml_cpu_has_avx2())
        self._lock = threading.Lock()
        self._backend = library.ggml_backend_cpu_init()
        self._memory = library.ggml_backend_cpu_buffer_from_ptr(_ALIGNMENT, _ADDRESSES)
        self._context = library.ggml_init(_InitParams(_TENSORS_BYTES, None, True))
        self._device = library.ggml_backend_get_device(self._backend)
        self._interleaved = self._interleaved_memory()

    def _interleaved_memory(self) -> int | None:
        """Return the kind of memory in which ggml keeps matrices with the blocks of several rows side by side."""
        registry = self.functions.ggml_backend_dev_backend_reg(self._device)
        address = self.functions.ggml_backend_reg_get_proc_address(registry, b"ggml_backend_dev_get_extra_bufts")
        if not address:
            return None
        kinds = ctypes.CFUNCTYPE(ctypes.POINTER(_Pointer), _Pointer)(address)(self._device)
        listed = itertools.takewhile(bool, (kinds[number] for number in itertools.count()))
        return next((kind for kind in listed if self.functions.ggml_backend_buft_name(kind) == b"CPU_REPACK"), None)

    def place(self, tensor: int, data: Tensor) -> int:
        """Give a tensor of ggml the memory of a tensor of torch, which must outlive it."""
        self.functions.ggml_backend_tensor_alloc(self._memory, tensor, data.data_ptr())
        return tensor

    def interleave(self, tensor: int, data: Tensor, columns: int, experts: int) -> int | None:
        """Copy a matrix, or those of `experts`, to memory in which products of several rows are faster, for the caller
        to free. Return None, with the tensor unusable, if ggml has no such product for its format and size here."""
        if self._interleaved is None:
            return None
        functions = self.functions
        size = functions.ggml_backend_buft_get_alloc_size(self._interleaved, tensor)
        memory = functions.ggml_backend_buft_alloc_buffer(self._interleaved, size)
        functions.ggml_backend_tensor_alloc(memory, tensor, functions.ggml_backend_buffer_get_base(memory))
        with self._lock:
            functions.ggml_reset(self._context)
            rows = functions.ggml_new_tensor_3d(self._context, _FLOAT32, columns, 1, 1)
            if experts:
                chosen = functions.ggml_new_tensor_2d(self._context, _INT32, 1, 1)
                product = functions.ggml_mul_mat_id(self._context, tensor, rows, chosen)
            else:
                product = functions.ggml_mul_mat(self._context, tensor, rows)
            supported = functions.ggml_backend_dev_supports_op(self._device, product)
        if not supported:
            functions.ggml_backend_buffer_free(memory)
            return None
        functions.ggml_backend_tensor_set(tensor, data.data_ptr(), 0, data.numel())
        return int(memory)

    def multiply(self, matrix: int, inputs: Tensor, outputs: Tensor) -> None:
        """inputs: `[rows, in]`, outputs: `[rows, out]`, both contiguous float32."""
        with self._lock:
            self.functions.ggml_reset(self._context)
            rows = self.functions.ggml_new_tensor_2d(self._context, _FLOAT32, inputs.shape[1], inputs.shape[0])
            self.place(rows, inputs)
            self._compute(self.functions.ggml_mul_mat(self._context, matrix, rows), outputs)

    def multiply_chosen(self, matrices: int, inputs: Tensor, ids: Tensor, outputs: Tensor) -> None:
        """inputs: `[tokens, chosen or 1, in]`, ids: `[tokens, chosen]`, int32, outputs: `[tokens, chosen, out]`. All
        are contiguous, and the numbers float32."""
        with self._lock:
            self.functions.ggml_reset(self._context)
            tokens, each, columns = inputs.shape
            rows = self.functions.ggml_new_tensor_3d(self._context, _FLOAT32, columns, each, tokens)
            self.place(rows, inputs)
            chosen = self.functions.ggml_new_tensor_2d(self._context, _INT32, ids.shape[1], tokens)
            self.place(chosen, ids)
            self._compute(self.functions.ggml_mul_mat_id(self._context, matrices, rows, chosen), outputs)

    def unpack(self, matrix: int, ids: Tensor, outputs: Tensor) -> None:
        """Write the values of some rows. ids: `[rows]`, int32; outputs: `[rows, in]`, float32; both contiguous."""
        with self._lock:
            self.functions.ggml_reset(self._context)
            numbers = self.functions.ggml_new_tensor_1d(self._context, _INT32, len(ids))
            self.place(numbers, ids)
            self._compute(self.functions.ggml_get_rows(self._context, matrix, numbers), outputs)

    def _compute(self, result: int, outputs: Tensor) -> None:
        self.place(result, outputs)
        graph = self.functions.ggml_new_graph_custom(self._context, _NODES, False)
        self.functions.ggml_build_forward_expand(graph, result)
        self.functions.ggml_backend_cpu_set_n_threads(self._backend, torch.get_num_threads())
        if status := self.functions.ggml_backend_graph_compute(self._backend, graph):
            raise RuntimeError(f"ggml could not compute a product (status {status}).")


class _Blocks:
    """One or several matrices in the blocks of a GGUF file, whose bytes it keeps.

    copied: whether products use a copy in another order, so that the file's bytes are not read by them.
    """

    def __init__(
        self, library: Ggml, rows: Tensor, kind: str, columns: int, *, experts: int = 0, multiplied: bool = True
    ) -> None:
        self._library, self._rows = library, rows.contiguous()
        functions, number = library.functions, gguf.GGMLQuantizationType[kind].value
        if rows.shape[1] != functions.ggml_row_size(number, columns):
            raise ValueError(f"A row of {columns} numbers in {kind} has {rows.shape[1]} bytes.")
        size = 2 * functions.ggml_tensor_overhead() + _ALIGNMENT
        context = functions.ggml_init(_InitParams(size, None, True))
        weakref.finalize(self, functions.ggml_free, context)
        sizes = columns, len(rows) // (experts or 1), experts or 1
        self._tensor = library.place(functions.ggml_new_tensor_3d(context, number, *sizes), self._rows)
        self._factor = functions.ggml_new_tensor_3d(context, number, *sizes)
        memory = library.interleave(self._factor, self._rows, columns, experts) if multiplied else None
        self.copied = memory is not None
        if self.copied:
            weakref.finalize(self, functions.ggml_backend_buffer_free, memory)
        else:
            self._factor = self._tensor


class BlockMatrix(_Blocks):
    """A matrix in blocks. rows: the file's bytes, `[out, bytes]`."""

    def __init__(self, library: Ggml, rows: Tensor, kind: str, columns: int, *, multiplied: bool = True) -> None:
        super().__init__(library, rows, kind, columns, multiplied=multiplied)
        self.shape = (len(rows), columns)

    def multiply(self, inputs: Tensor) -> Tensor:
        """`[rows, in]` → `[rows, out]`, in float32."""
        inputs = inputs.float().contiguous()
        outputs = inputs.new_empty(len(inputs), self.shape[0])
        if len(inputs):
            self._library.multiply(self._factor, inputs, outputs)
        return outputs

    def values(self, ids: Tensor | None = None) -> Tensor:
        """Return rows of the matrix, or all of them: `[rows, in]` in float32."""
        ids = torch.arange(self.shape[0], dtype=torch.int32) if ids is None else ids.int().contiguous()
        outputs = torch.empty(len(ids), self.shape[1])
        if len(ids):
            self._library.unpack(self._tensor, ids, outputs)
        return outputs


class ExpertMatrices(_Blocks):
    """A matrix of each expert, in blocks. rows: the file's bytes, `[experts * out, bytes]`."""

    def __init__(self, library: Ggml, rows: Tensor, kind: str, columns: int, experts: int) -> None:
        super().__init__(library, rows, kind, columns, experts=experts)
        self.shape = (experts, len(rows) // experts, columns)

    def multiply(self, inputs: Tensor, ids: Tensor) -> Tensor:
        """Multiply by the matrices of the chosen experts: `[tokens, chosen or 1, in]` and `[tokens, chosen]` →
        `[tokens, chosen, out]`, in float32."""
        inputs, ids = inputs.float().contiguous(), ids.int().contiguous()
        outputs = inputs.new_empty(*ids.shape, self.shape[1])
        if len(inputs):
            self._library.multiply_chosen(self._factor, inputs, ids, outputs)
        return outputs
