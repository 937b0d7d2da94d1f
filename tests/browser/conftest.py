"""Under `pytest -n`, all tests of one notebook go to one process, which runs its cells once."""

from xdist.scheduler import LoadScopeScheduling


class ByNotebook(LoadScopeScheduling):
    def _split_scope(self, nodeid):
        return nodeid.partition("[")[2] or nodeid


def pytest_xdist_make_scheduler(config, log):
    return ByNotebook(config, log)
