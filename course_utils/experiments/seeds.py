"""Seeds side by side: on a CPU each run has one thread, and as many go at once as there are cores."""

import torch
from joblib import Parallel, delayed

from course_utils import runtime
from course_utils.training import train


def side_by_side(function, tasks):
    """[function(task) for task in tasks]; the results depend neither on the number of cores nor on the order.

    A small network trains on one thread almost as fast as on two, so two runs at a time are done sooner, and
    with one thread each their weights come out the same on any number of cores. On a GPU they take turns.
    """
    if runtime.device().type == "cuda":
        return [function(task) for task in tasks]
    return Parallel(n_jobs=-1)(delayed(on_one_thread)(function, task) for task in tasks)


def on_one_thread(function, task):
    """function(task) with one torch thread; afterwards as many as before."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return function(task)
    finally:
        torch.set_num_threads(threads)


def trained(make, pictures, budget, **options):
    """training.train's finished run. Raises RuntimeError after an interruption: the next call goes on."""
    run = train(make, pictures, budget, **options)
    if not run.finished:
        raise RuntimeError("Interrupted. The same command goes on from the last whole epoch.")
    return run
