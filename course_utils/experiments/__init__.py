"""The experiments behind data/records, one module for each question.

`python -m course_utils.experiments NAME` runs one and writes its record; `make records` runs all. Each trains
with several seeds and reads the features out beside their controls. A seed's run keeps its checkpoint in
data/cache/runs: an interrupted experiment goes on where it was. COURSE_BUDGET chooses the size, and the
record is named after it.
"""
