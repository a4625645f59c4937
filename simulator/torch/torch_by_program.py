"""PyTorch on a simulated card that computes: its own operators by its own code for CPUs.

PyTorch's wheels have machine code and no PTX, so that a card cannot compute PyTorch's own kernels.
With this folder in PYTHONPATH, an operator of ATen that has a kernel for CUDA is done by the CPU
code of the same PyTorch, on the card's memory, which programs can touch in mode compute.  The card
counts it as a launch that was not computed.  Left to the card: products (cuBLAS), plain copies, and
all kernels that are not ATen's, such as Triton's.

Streams make no difference, because the card does all work when it is asked for; a captured graph
would lack these operators.

PyTorch calls ``install`` by the entry point ``torch.backends``.  SIMULATOR_PTX names the directory
that keeps the PTX of Triton's kernels (``ptxas``); the file ``cards`` must name the same one.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

PRODUCTS = {"mm", "bmm", "baddbmm", "_scaled_mm", "_int_mm"}
NO_KERNEL = {
    *("_local_scalar_dense", "resize_", "set_", "record_stream", "is_pinned", "_pin_memory"),
    *("pin_memory", "is_set_to", "_has_same_storage_numel", "copy_"),
}
UNTOUCHED = ("empty", "_efficientzero", "cudnn", "_cudnn", "miopen")  # beginnings of names
SIMULATOR = ctypes.CDLL("libsimulator.so")
KEPT: list[torch.library.Library] = []  # an override ends with its library


def install() -> None:
    """Take the place of ATen's kernels for CUDA, and keep the PTX of Triton's."""
    triton = importlib.util.find_spec("triton")
    if triton is not None and triton.origin is not None:
        own = Path(triton.origin).parent / "backends/nvidia/bin/ptxas-blackwell"
        os.environ.setdefault("SIMULATOR_PTXAS", str(own))
        os.environ["TRITON_PTXAS_BLACKWELL_PATH"] = str(Path(__file__).with_name("ptxas"))
    library = torch.library.Library("aten", "IMPL")
    KEPT.append(library)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # each override is one
        for operator in _operators():
            library.impl(operator, _by_cpu(operator), "CUDA", allow_override=True)
        library.impl(torch.ops.aten.copy_.default, _copied, "CUDA", allow_override=True)


def _operators() -> Iterator[Any]:
    for full in torch._C._dispatch_get_registrations_for_dispatch_key("CUDA"):
        space, _, rest = full.partition("::")
        name, _, overload = rest.partition(".")
        if space != "aten" or name in PRODUCTS | NO_KERNEL or name.startswith(UNTOUCHED):
            continue
        operator = getattr(getattr(torch.ops.aten, name), overload or "default")
        returns = operator._schema.returns
        if not any(each.alias_info and not each.alias_info.is_write for each in returns):  # a view
            yield operator


def _on_host(value: Any) -> Any:
    """The same memory as a tensor of the CPU; the CPU in place of a card."""
    if isinstance(value, list | tuple):
        return type(value)(map(_on_host, value))
    if isinstance(value, torch.device):
        return torch.device("cpu")
    if isinstance(value, torch.Generator):
        return None
    if not isinstance(value, torch.Tensor) or not value.is_cuda:
        return value
    storage = value.untyped_storage()
    if storage.nbytes() == 0:
        return torch.empty(value.size(), dtype=value.dtype)
    memory = (ctypes.c_char * storage.nbytes()).from_address(storage.data_ptr())
    whole = torch.frombuffer(memory, dtype=torch.uint8).untyped_storage()
    place = value.storage_offset(), value.size(), value.stride()
    return torch.empty(0, dtype=value.dtype).set_(whole, *place)


def _on_card(value: Any, device: torch.device) -> Any:
    """A result of the CPU in the card's memory."""
    if isinstance(value, list | tuple):
        return type(value)(_on_card(each, device) for each in value)
    if not isinstance(value, torch.Tensor):
        return value
    made = torch.empty_strided(value.size(), value.stride(), dtype=value.dtype, device=device)
    _on_host(made).copy_(value)
    return made


def _device_of(value: Any) -> torch.device | None:
    if isinstance(value, list | tuple):
        return next(filter(None, map(_device_of, value)), None)
    device = value.device if isinstance(value, torch.Tensor) else value
    return device if isinstance(device, torch.device) and device.type == "cuda" else None


def _by_cpu(operator: Any) -> Callable[..., Any]:
    schema = operator._schema
    name = f"{schema.name}.{schema.overload_name or 'default'}".encode()
    written = [each for each in schema.arguments if each.alias_info and each.alias_info.is_write]
    outputs = {each.name for each in written if each.kwarg_only}

    def call(*positional: Any, **named: Any) -> Any:
        SIMULATOR.simulator_done_by_program(name)
        pairs = zip((each.name for each in schema.arguments), positional, strict=False)
        given = {**dict(pairs), **named}
        device = _device_of([*given.values()]) or torch.device("cuda")
        # Tensors for results may get another size, which the card's memory cannot.
        own = {
            key: torch.empty(0, dtype=value.dtype)
            if key in outputs and isinstance(value, torch.Tensor)
            else _on_host(value)
            for key, value in given.items()
        }
        keywords = {each.name for each in schema.arguments if each.kwarg_only}
        found = operator(
            *(own[each.name] for each in schema.arguments if each.name in own.keys() - keywords),
            **{key: value for key, value in own.items() if key in keywords},
        )
        for key in outputs & own.keys():
            if isinstance(target := given[key], torch.Tensor):
                target.resize_(own[key].size())
                _on_host(target).copy_(own[key])
        if not schema.returns:
            return None
        of_arguments = iter([given[each.name] for each in written if each.name in given])
        results = found if len(schema.returns) > 1 else (found,)
        made = tuple(
            next(of_arguments) if returned.alias_info else _on_card(value, device)
            for returned, value in zip(schema.returns, results, strict=True)
        )
        return made if len(made) > 1 else made[0]

    return call


def _copied(target: Any, source: Any, non_blocking: bool = False) -> Any:
    if not isinstance(source, torch.Tensor):  # a number, which arrives without its tensor
        source = torch.tensor(source)
    plain = target.dtype == source.dtype and target.size() == source.size()
    if plain and target.is_contiguous() and source.is_contiguous():  # cudaMemcpyAsync
        keys = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)  # one function is for all
        return torch.ops.aten.copy_.default.redispatch(keys, target, source, non_blocking)
    SIMULATOR.simulator_done_by_program(b"aten::copy_.default")
    _on_host(target).copy_(_on_host(source))
    return target
