"""Whether explanations name what a model decides by: the perturbation test over several trained models.

For each run: the areas under the deletion curves (lower is better) and insertion curves (higher is better)
of every method, with 95 % bootstrap intervals over images, and the paired differences to a random order and
to raw attention.

    vitrail train mnist5k --model swin_t --name swin --budget 5m --set model.patch_size=2 \\
        --set model.width=32 --set 'model.depths=[2,2,2]' --set 'model.num_heads=[2,4,8]' \\
        --set model.window_size=4
    vitrail train mnist5k --name vit --budget 5m
    python benchmarks/faithfulness.py mnist5k runs/vit runs/swin --images 100
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("data")
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--images", type=int, default=100)
    parser.add_argument("--methods", nargs="+")
    parser.add_argument("--fillings", nargs="+", default=["blur", "mean"], choices=["blur", "mean"])
    parser.add_argument("--split", default="test")
    parser.add_argument("--steps", type=int, default=16)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", "-o", type=Path, default=Path("faithfulness"), help="folder of pages")
    parser.add_argument(
        "--results", type=Path, help="append one line of JSON for each measurement to this file"
    )
    arguments = parser.parse_args()

    from vitrail.studies.faithfulness import faithfulness, faithfulness_table, write_faithfulness

    arguments.output.mkdir(parents=True, exist_ok=True)
    for run in arguments.runs:
        for filling in arguments.fillings:
            found = faithfulness(
                run,
                arguments.data,
                split=arguments.split,
                num_images=arguments.images,
                methods=arguments.methods,
                filling=filling,
                num_steps=arguments.steps,
                seed=arguments.seed,
            )
            rows, columns = found.grid
            print(f"{run.name}: {found.num_images} images, {rows} x {columns} patches, covered by {filling}")
            header, rows = faithfulness_table(found)
            for row in [header, *rows]:
                print("  " + "  ".join(f"{cell:26}" for cell in row).rstrip(), flush=True)
            page = arguments.output / f"{run.name}-{filling}.html"
            write_faithfulness(page, found, title=f"Faithfulness of explanations: {run.name}")
            if arguments.results is not None:
                line = {"run": run.name, "data": Path(arguments.data).name, **found.to_json()}
                with arguments.results.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()
