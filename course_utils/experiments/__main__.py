"""Run one experiment, or all of them, and write the records."""

import argparse

from course_utils import records
from course_utils.experiments import (
    augmentations,
    cifar,
    clip,
    heads,
    lab06,
    moco,
    temperature,
    transfer,
    without_negatives,
)

EXPERIMENTS = {
    function.__name__: function
    for function in (
        cifar.simclr_cifar,
        temperature.temperature_shapes,
        temperature.temperature_cifar,
        heads.heads,
        heads.head_kinds,
        heads.heads_cifar,
        moco.moco_staleness,
        moco.simclr_moco_shapes,
        moco.moco_cifar,
        clip.clip_pairs,
        clip.clip_more_pairs,
        clip.clip_scenes,
        lab06.lab06_ranges,
        without_negatives.without_negatives,
        transfer.transfer,
        augmentations.augmentations_cifar,
    )
}


def main(arguments=None):
    """Run the experiments that are named, or all, and write a record for each."""
    parser = argparse.ArgumentParser(prog="python -m course_utils.experiments", description=main.__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"any of {', '.join(EXPERIMENTS)}")
    parser.add_argument("--seeds", type=int, help="number of seeds, 0, 1, ..., if not the experiment's own")
    options = parser.parse_args(arguments)
    if unknown := set(options.names) - EXPERIMENTS.keys():
        parser.error(
            f"there is no experiment {', '.join(sorted(unknown))}; there are {', '.join(EXPERIMENTS)}"
        )
    for name in options.names or EXPERIMENTS:
        record = EXPERIMENTS[name](*[range(options.seeds)] if options.seeds else [])
        print(record.table.to_string(max_rows=60))
        print(records.save(record))


if __name__ == "__main__":
    main()
