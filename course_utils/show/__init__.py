"""What the notebooks show: tables, pictures with alt text, and explorers that move."""

from course_utils.show.figures import picture
from course_utils.show.tables import show_table
from course_utils.show.widgets import Explorer

__all__ = ["Explorer", "picture", "show_table"]
