from __future__ import annotations

import pytest
import torch

from making.deploy_models import small_vit
from vitrail.engines.turns import ROWS, MatrixProduct, ProductShape, has_product, shape_for


@pytest.mark.parametrize("precision", ["float32", "bfloat16", "int8"])
def test_every_kernel_multiplies_the_same(precision: str) -> None:
    if precision == "int8" and not torch.cpu._is_vnni_supported():
        pytest.skip("without VNNI int8 sums overflow 16 bits; the ceiling is a matter of speed")
    if not has_product(precision):  # type: ignore[arg-type]
        pytest.skip(f"this processor has no {precision}")
    product = MatrixProduct(ProductShape(5, 96, 7), precision)  # type: ignore[arg-type]

    results = [kernel().float() for kernel in product.kernels]  # type: ignore[attr-defined]

    generator = torch.Generator().manual_seed(0)
    x, weight = (torch.randn(rows, 96, generator=generator) for rows in (5, 7))
    tolerance = {"float32": 1e-5, "bfloat16": 0.02, "int8": 0.05}[precision]
    for result in results:
        assert (result - x @ weight.T).norm() < tolerance * (x @ weight.T).norm()


def test_kernels_take_turns() -> None:
    product, called = MatrixProduct(ProductShape(5, 96, 7), "float32"), []
    product.kernels = [lambda: called.append("one"), lambda: called.append("other")]

    answers = [product.run(()) for _ in range(3)]

    assert answers == [(), (), ()]
    assert called == ["one", "other", "one"]


def test_the_shape_is_that_of_the_models_largest_layer() -> None:
    shape = shape_for(small_vit().model)

    assert shape == (ROWS, 256, 288)  # 96 to 288, of at least 256 on each side
    assert shape.flops == 2 * ROWS * 256 * 288
