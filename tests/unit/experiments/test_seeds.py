"""Seeds in processes of their own give what they give here, one after the other."""

import joblib
import torch

from course_utils.experiments.seeds import on_one_thread, side_by_side


def threads_and_a_sum(seed):
    numbers = torch.rand(10_000, generator=torch.Generator().manual_seed(seed))
    return torch.get_num_threads(), numbers.sum().item()


def test_processes_and_this_process_agree():
    with joblib.parallel_config(backend="loky", n_jobs=2):
        apart = side_by_side(threads_and_a_sum, range(4))
    here = side_by_side(threads_and_a_sum, range(4))
    assert apart == here and [threads for threads, _ in here] == [1, 1, 1, 1]


def test_the_number_of_threads_is_given_back():
    before = torch.get_num_threads()
    on_one_thread(threads_and_a_sum, 0)
    assert torch.get_num_threads() == before
