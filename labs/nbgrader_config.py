"""nbgrader's settings for the labs: run nbgrader in this folder. INSTRUCTORS.md says more."""

from nbconvert.preprocessors import CSSHTMLHeaderPreprocessor
from nbgrader.converters import GenerateAssignment
from nbgrader.preprocessors import ClearSolutions, GetGrades

from course_utils.labs.build import MessagesOnly, Stubs

c = get_config()  # noqa: F821

c.CourseDirectory.course_id = "two-views"

# A release keeps `raise NotImplementedError` where a function's solution was.
c.GenerateAssignment.preprocessors = [
    Stubs if step is ClearSolutions else step for step in GenerateAssignment.preprocessors.default()
]
c.ClearSolutions.text_stub = "Your answer."

# Training takes some ten seconds a condition; a slow machine and an endless loop both fit in here.
c.Execute.timeout = 600

# A submission is a notebook. Code beside it is not copied: it would be imported before the course's own.
c.CourseDirectory.ignore = [
    ".ipynb_checkpoints", "__pycache__", "*.py", "*.pyc", "*.pyd", "*.so", "*.pth", "*.zip", "*.egg",
    ".predictions.json*", "feedback",
]  # fmt: skip

# Feedback shows points and messages, neither hidden tests nor tracebacks into them.
c.GenerateFeedback.preprocessors = [GetGrades, MessagesOnly, CSSHTMLHeaderPreprocessor]

# `nbgrader zip_collect lab06` takes s1234567_lab06.ipynb from downloaded/lab06/archive/, packed or not.
c.FileNameCollectorPlugin.named_regexp = r".*?(?P<student_id>[^/_]+)_(?P<file_id>lab\d\d)\.ipynb"
