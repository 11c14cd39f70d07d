"""What is closed at the end of a ``with`` statement."""

from typing import Self


class Closing:
    """A context manager that gives itself, and is closed at its end."""

    def close(self) -> None:
        """Let go of what it holds."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()
