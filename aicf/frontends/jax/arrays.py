"""JAX's arrays as aicf's feeds and back, by DLPack; which device a call runs on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from ...device.tensor import Tensor
from ...errors import DeviceError, FeedError


def is_key(dtype: Any) -> bool:
    """Whether an element type is that of random keys: lowered, they are u32."""
    return bool(jax.dtypes.issubdtype(dtype, jax.dtypes.prng_key))


def place_of(leaves: Sequence[Any], wanted: str | None) -> str:
    """The device of a call, in aicf's words: what was asked for, else where the arrays are, else JAX's default."""
    if wanted is not None:
        return wanted
    devices = {device for leaf in leaves if isinstance(leaf, jax.Array) for device in leaf.devices()}
    gpus = {device for device in devices if device.platform in ("gpu", "cuda")}
    if len(gpus) > 1:
        raise DeviceError(
            "the arguments lie on several GPUs", expected="one device", got=", ".join(sorted(map(str, gpus))),
            hint="jax.device_put(x, jax.devices()[0])",
        )  # fmt: skip
    chosen = next(iter(gpus or devices), None) or jax.devices()[0]
    return "cpu" if chosen.platform == "cpu" else f"cuda:{chosen.local_hardware_id or 0}"


def feed_of(leaf: Any, aval: Any, place: str, name: str) -> Any:
    """A leaf as a feed: an array of JAX as it is, zero-copy; numbers and other arrays in the type that JAX gives them."""
    if isinstance(leaf, jax.Array):
        if is_key(leaf.dtype):
            leaf = jax.random.key_data(leaf)
        devices = leaf.devices()
        if len(devices) > 1:
            raise FeedError(
                f"{name} is spread over {len(devices)} devices", expected="an array on one device", hint=f"jax.device_put({name}, jax.devices()[0])"
            )  # fmt: skip
        if (next(iter(devices)).platform == "cpu") != (place == "cpu"):
            leaf = np.asarray(leaf) if place != "cpu" else jax.device_put(leaf, jax.devices("cpu")[0])
        return leaf
    return np.asarray(leaf).astype(aval.dtype, copy=False)


def array_of(tensor: Tensor, like: Any) -> jax.Array:
    """A result as JAX's array of the type that JAX infers, zero-copy."""
    if 0 in tensor.shape:  # DLPack of nothing has no pointer
        array = jax.numpy.zeros(tensor.shape, tensor.dtype.numpy)
    else:
        array = jax.dlpack.from_dlpack(tensor)
    if is_key(like.dtype):
        return jax.random.wrap_key_data(array, impl=_impl(like.dtype))
    return _weak(array) if like.weak_type else array


@jax.jit
def _weak(x: jax.Array) -> jax.Array:
    """x of a weak type, which yields to those of what it meets. Only numbers of Python have one, and what is made like them."""
    number = {"i": 0, "f": 0.0, "c": 0j}.get(x.dtype.kind)
    if number is None or jax.numpy.asarray(number).dtype != x.dtype:  # JAX has no public way to such ones
        return x
    return jax.vmap(lambda v: jax.lax.full_like(number, v))(x.ravel()).reshape(x.shape)


def _impl(dtype: Any) -> str:
    """The generator of a type of keys, by its name."""
    return str(dtype._impl.name)
