"""Train the small demo model without and with DeNS, and compare the errors on the test split.

    python examples/train_with_dens.py                                  molecules that ship with Denskit
    python examples/train_with_dens.py --data mine.extxyz --steps 5000  your own, with energies and forces

For a result worth quoting take the preset ``equiformer``, more steps and several seeds.
"""

from __future__ import annotations

import argparse

from denskit import evaluate, load_config, train


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--data", help="file of structures with energies and forces")
    arguments.add_argument("--steps", type=int, default=500)
    arguments.add_argument("--output", default="runs/example")
    given = arguments.parse_args()

    data = ["data=file", f"data.path={given.data}"] if given.data else []
    errors = {}
    for task in ("energy_forces", "dens"):
        output = f"{given.output}/{task}"
        config = load_config("demo", [*data, f"task={task}", f"training.max_steps={given.steps}", f"output={output}"])
        errors[task] = evaluate(train(config), split="test")

    print(f"{'on the test split':40} {'without DeNS':>14} {'with DeNS':>14}")
    for name, value in errors["energy_forces"].items():
        print(f"{name:40} {value:14.4g} {errors['dens'][name]:14.4g}")


if __name__ == "__main__":
    main()
