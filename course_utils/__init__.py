"""Two Views: the small package that every notebook of the course imports."""
