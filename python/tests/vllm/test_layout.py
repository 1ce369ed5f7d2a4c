"""Cutting KV cache tensors of any layout into blocks."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch
from fakes import FakeNamespace
from millpond.vllm.layout import KVLayout, LayoutError, block_runs
from millpond.vllm.mover import HostMover, StagedMover

BLOCKS = 6


def tensors() -> dict[str, torch.Tensor]:
    """One tensor per layout that attention backends use."""
    return {
        "block first": torch.empty(BLOCKS, 2, 16, 8),
        "key and value planes first": torch.empty(2, BLOCKS, 16, 2, 8),
        "heads before tokens in memory": torch.empty(BLOCKS, 2, 16, 8).permute(0, 2, 1, 3),
        "strided, a slice of a wider block": torch.empty(BLOCKS, 5, 16, 8)[:, 1:3],
        "kernel blocks smaller than blocks": torch.empty(BLOCKS * 4, 2, 4, 8),
        "latent attention": torch.empty(BLOCKS, 16, 576, dtype=torch.bfloat16),
    }


def fill(tensor: torch.Tensor) -> None:
    tensor.copy_(torch.arange(tensor.numel()).reshape(tensor.shape) % 251)


@pytest.mark.parametrize("name", list(tensors()))
@pytest.mark.parametrize("kind", ["host", "staged"])
def test_blocks_move_whole_and_touch_nothing_else(name: str, kind: str) -> None:
    tensor = tensors()[name]
    fill(tensor)
    before = tensor.clone()
    caches, groups = {"layer": tensor}, [["layer"]]
    mover: HostMover | StagedMover
    if kind == "host":
        mover = HostMover(KVLayout(caches, groups, BLOCKS))
    else:
        mover = StagedMover(caches, groups, BLOCKS, batch_blocks=4, staging_bytes=1 << 24)
    namespace = FakeNamespace()
    names = [b"a", b"b", b"c"]
    keys = {"keys": names, "leaders": names}
    saved = mover.save(namespace, 0, [4, 1, 2], None, keys, lambda: nullcontext(True))
    assert saved == ["stored"] * 3
    size = tensor.numel() * tensor.element_size() // BLOCKS
    assert mover.block_bytes(0) == size
    assert {len(value) for value in namespace.values.values()} == {size}

    tensor.zero_()
    assert mover.load(namespace, 0, [4, 1, 5], None, keys) == [size] * 3
    dim = tensor.shape.index(BLOCKS) if BLOCKS in tensor.shape else 0
    ratio = tensor.shape[dim] // BLOCKS
    got, want = tensor.movedim(dim, 0), before.movedim(dim, 0)

    def block(view: torch.Tensor, index: int) -> torch.Tensor:
        return view[index * ratio : (index + 1) * ratio]

    assert torch.equal(block(got, 4), block(want, 4))
    assert torch.equal(block(got, 1), block(want, 1))
    assert torch.equal(block(got, 5), block(want, 2))
    for other in (0, 2, 3):
        assert not block(got, other).any()


def test_a_miss_leaves_the_block_alone() -> None:
    tensor = torch.full((BLOCKS, 4), 7.0)
    for mover in (
        HostMover(KVLayout({"l": tensor}, [["l"]], BLOCKS)),
        StagedMover({"l": tensor}, [["l"]], BLOCKS, batch_blocks=4, staging_bytes=1 << 20),
    ):
        assert mover.load(FakeNamespace(), 0, [3], None, {"keys": [b"k"]}) == [-1]
        assert (tensor == 7.0).all()


def test_layers_that_touch_in_memory_move_as_one_segment() -> None:
    packed = torch.empty(BLOCKS, 3, 32)
    layers = {f"l{i}": packed[:, i] for i in range(3)}
    layout = KVLayout(layers, [list(layers)], BLOCKS)
    assert layout.group(0).segments(2) == [(packed[2].data_ptr(), 3 * 32 * 4)]


def test_layers_that_share_a_cache_are_stored_once() -> None:
    tensor = torch.empty(BLOCKS, 32)
    layout = KVLayout({"a": tensor, "b": tensor}, [["a", "b", "absent"]], BLOCKS)
    assert layout.group(0).block_bytes == 32 * 4


def test_the_digest_sees_type_shape_and_order_but_not_the_address() -> None:
    def digest(tensor: torch.Tensor) -> str:
        return KVLayout({"l": tensor}, [["l"]], BLOCKS).digest()

    plain = digest(torch.empty(BLOCKS, 2, 16, 8))
    assert plain == digest(torch.empty(BLOCKS, 2, 16, 8))
    assert plain != digest(torch.empty(BLOCKS, 2, 16, 8, dtype=torch.float16))
    assert plain != digest(torch.empty(BLOCKS, 16, 2, 8))
    assert plain != digest(torch.empty(BLOCKS, 16, 2, 8).permute(0, 2, 1, 3))


def test_a_tensor_without_blocks_is_refused_by_name() -> None:
    with pytest.raises(LayoutError, match="layer odd has shape"):
        block_runs("odd", torch.empty(7, 5), BLOCKS)


def test_staging_that_holds_no_batch_is_refused() -> None:
    with pytest.raises(LayoutError, match="raise staging_mib"):
        StagedMover(
            {"l": torch.empty(BLOCKS, 1024)}, [["l"]], BLOCKS, batch_blocks=4, staging_bytes=100
        )
