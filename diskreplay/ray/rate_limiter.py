"""How many samples may be taken for each transition that is inserted: Reverb's rule and names."""

import math
from dataclasses import dataclass

from diskreplay.errors import InvalidInputError
from diskreplay.given_numbers import positive, whole
from diskreplay.store.numbers import MOST_ROWS


class _Limiter:
    """The rule. Where there is no ratio any error is allowed."""

    min_size_to_sample: int

    @property
    def _ratio(self) -> float:
        return 0.0

    @property
    def _most_error(self) -> float:
        return math.inf

    def __post_init__(self) -> None:
        name = "min_size_to_sample"
        object.__setattr__(self, name, whole(name, self.min_size_to_sample, most=MOST_ROWS))

    def _error(self, inserts: int, samples: int) -> float:
        return (inserts - self.min_size_to_sample) * self._ratio - samples

    def can_insert(self, inserts: int, samples: int, count: int) -> bool:
        """Whether more may be inserted.

        Parameters
        ----------
        inserts, samples : int
            How many there were so far.
        count : int
            How many more.
        """
        if inserts + count <= self.min_size_to_sample:
            return True
        return self._error(inserts + count, samples) <= self._most_error

    def can_sample(self, inserts: int, samples: int, count: int) -> bool:
        """Whether more may be sampled.

        Parameters
        ----------
        inserts, samples : int
            How many there were so far.
        count : int
            How many more.
        """
        if inserts < self.min_size_to_sample:
            return False
        return self._error(inserts, samples + count) >= -self._most_error

    def check_chunks(self, inserted: int, sampled: int) -> None:
        """Refuse calls of so many transitions and samples that could wait for each other; with
        `MinSize` none could.

        Parameters
        ----------
        inserted, sampled : int
            Of one call of each side.

        Raises
        ------
        InvalidInputError
        """
        needed = (inserted * self._ratio + sampled) / 2
        if needed > self._most_error:
            raise InvalidInputError(
                f"error_buffer={self._most_error:g} is too small for {inserted} inserts and "
                f"{sampled} samples at a time, which could wait for each other for ever: at least "
                f"{needed:g} expected"
            )

    def figures(self, inserts: int, samples: int) -> str:
        """How things stand, for a message.

        Parameters
        ----------
        inserts, samples : int
            How many there were so far.
        """
        most, error = self._most_error, ""
        if most < math.inf:
            error = (
                f": an error of {self._error(inserts, samples):,.0f} samples of {self._ratio:g} an "
                f"insert, {-most:,.0f} to {most:,.0f} allowed"
            )
        return (
            f"{inserts:,} transitions inserted, {samples:,} sampled{error}, sampling begins at "
            f"{self.min_size_to_sample:,}"
        )


@dataclass(frozen=True)
class MinSize(_Limiter):
    """Sampling waits until so many transitions were inserted; nothing else waits.

    Parameters
    ----------
    min_size_to_sample : int
    """

    min_size_to_sample: int


@dataclass(frozen=True)
class SampleToInsertRatio(_Limiter):
    """Samples and inserts keep a ratio, within an error: the faster side waits for the other.

    The *error* is ``inserts * samples_per_insert - samples``, counted from where sampling begins.
    Inserts that would make it larger than `error_buffer` wait, and so do samples that would make it
    smaller than ``-error_buffer``. The rule and the names are those of Cassirer et al., "Reverb: A
    Framework For Experience Replay", 2021.

    Parameters
    ----------
    samples_per_insert : float
    min_size_to_sample : int
        Sampling waits until so many transitions were inserted, and inserts do not wait before.
    error_buffer : float
        In samples.
    """

    samples_per_insert: float
    min_size_to_sample: int
    error_buffer: float

    def __post_init__(self) -> None:
        super().__post_init__()
        positive("samples_per_insert", self.samples_per_insert)
        positive("error_buffer", self.error_buffer)
        least = max(1.0, self.samples_per_insert)
        if not least <= self.error_buffer:
            raise InvalidInputError(
                f"error_buffer: at least {least:g} expected (the samples of one insert), found "
                f"{self.error_buffer!r}; with less, both sides would wait for each other"
            )

    # Kept as attributes they would lack where a pickle of before is read, and nothing would wait.

    @property
    def _ratio(self) -> float:
        return self.samples_per_insert

    @property
    def _most_error(self) -> float:
        return self.error_buffer

    def error(self, inserts: int, samples: int) -> float:
        """How many samples behind the ratio, counted from `min_size_to_sample`.

        Parameters
        ----------
        inserts, samples : int
            How many there were so far.
        """
        return self._error(inserts, samples)


RateLimiter = MinSize | SampleToInsertRatio
