"""What is in a buffer: its episodes, and figures of its fields."""
