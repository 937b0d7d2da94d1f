"""LAB 06: where right code ends, for the seeds of several students."""

import json
from dataclasses import asdict

from course_utils import records
from course_utils.exercises import lab06 as exercises
from course_utils.experiments.seeds import side_by_side
from course_utils.labs import lab06
from course_utils.labs.grading import student_seed


def one_student(number):
    """The protocols of the two runs of one student id, and the rows of the table that right code gives.

    One row more is the control: h of the encoder that both runs start from.
    """
    seed = student_seed(f"student-{number}")
    data = lab06.data(seed)
    runs = {
        name: lab06.train(
            exercises.TWO_VIEWS.reference, exercises.LOSS.reference, data.pictures, policy, seed
        )
        for name, policy in lab06.POLICIES.items()
    }
    table = lab06.reference_table({name: run.method for name, run in runs.items()}, data)
    table.loc["random encoder"] = lab06.reference_table({"start": lab06.start(seed)}, data).loc["start h"]
    results = [
        {"seed": seed, "row": row, "label": label, "accuracy": accuracy}
        for (row, label), accuracy in table.stack().items()
    ]
    return [{**run.protocol, "condition": name} for name, run in runs.items()], results


def lab06_ranges(numbers=range(6)):
    """The lab's table for several student ids, from which the grader takes the range of right code."""
    return record(side_by_side(one_student, numbers))


def record(parts):
    """The record of what one_student gave for each student."""
    protocol = records.merge(
        [one for protocols, _ in parts for one in protocols], varied=("condition", "data")
    )
    return records.Record(
        name=lab06.RECORD,
        question="Between which accuracies does right code end in LAB 06, whatever the student's seed?",
        protocol={
            **protocol,
            "policy": json.loads(json.dumps([asdict(policy) for policy in lab06.POLICIES.values()])),
            "readout": f"logistic regression on features standardised with the training part, fitted on "
            f"{lab06.FIT_ON} pictures, accuracy on {lab06.READ_ON - lab06.FIT_ON} others",
        },
        results=[row for _, results in parts for row in results],
    )
