"""What the labs need beside the exercises: a student's seed, hidden tests, and the tool that builds them."""
