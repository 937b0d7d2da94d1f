"""Where the pictures come from: rendered shapes, three photographs, CIFAR-10."""

from course_utils.images.pictures import Pictures

__all__ = ["Pictures"]
