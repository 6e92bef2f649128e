"""What is recorded of a job, and how it is kept. Standard library only."""
