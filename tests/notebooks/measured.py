"""Run a command; write its exit status, wall time and peak memory: `python measured.py REPORT COMMAND ...`.

The peak is that of the largest process among the command and the children it waited for. It is taken in a
process of its own, since a child counts its parent's memory before exec as its own, and a long pytest run has
had much.
"""

import json
import os
import subprocess
import sys
import time

report, *command = sys.argv[1:]
start = time.perf_counter()
process = subprocess.Popen(command)
_, status, usage = os.wait4(process.pid, 0)
seconds = time.perf_counter() - start
unit = 1 if sys.platform == "darwin" else 1024
with open(report, "w") as file:
    json.dump(
        {"code": os.waitstatus_to_exitcode(status), "seconds": seconds, "peak": usage.ru_maxrss * unit}, file
    )
