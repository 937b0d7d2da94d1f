"""Where the pictures come from: rendered shapes and scenes, four photographs, CIFAR-10."""

from course_utils.images.pictures import Pictures

__all__ = ["Pictures"]
