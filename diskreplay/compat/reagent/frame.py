"""A buffer as a data frame, for ReAgent's timeline."""

from typing import TYPE_CHECKING, Any

import numpy as np

from diskreplay.compat.reagent.buffer import ReplayBuffer
from diskreplay.extensions import needed

if TYPE_CHECKING:
    import pandas

_DATE = "2019-01-01"


def replay_buffer_to_pre_timeline_df(
    is_discrete_action: bool, replay_buffer: ReplayBuffer
) -> "pandas.DataFrame":
    """Each valid row once, in ascending order of slots, in the columns that ReAgent uploads.

    Parameters
    ----------
    is_discrete_action : bool
        Then actions are written as text, and rows list all actions that occur.
    replay_buffer : ReplayBuffer
        With a stack size of 1, flat observations, and the extras ``mdp_id``, ``sequence_number``
        and ``log_prob``.

    Returns
    -------
    pandas.DataFrame
        ``ds, state_features, action, mdp_id, sequence_number, action_probability, reward,
        metrics`` and, for discrete actions, ``possible_actions_mask, possible_actions``.

    Raises
    ------
    RuntimeError
        There is no valid row.
    AttributeError
        An extra is missing.
    AssertionError
        A discrete action is not one number, or something has other axes.
    """
    with needed("a data frame needs pandas", "pandas"):
        import pandas
    if not replay_buffer.size:
        raise RuntimeError("There is no valid row to put into a data frame")
    batch: Any = replay_buffer.sample_all_valid_transitions()
    action = batch.action.numpy()
    reward = batch.reward.squeeze(1).tolist()
    frame = {
        "ds": [_DATE] * len(reward),
        "state_features": _sparse(batch.state.numpy()),
        "action": None,
        "mdp_id": [str(number) for number in batch.mdp_id.flatten().tolist()],
        "sequence_number": batch.sequence_number.squeeze(1).tolist(),
        "action_probability": np.exp(batch.log_prob.squeeze(1).numpy()).tolist(),
        "reward": reward,
        "metrics": [{"reward": value} for value in reward],
    }
    if is_discrete_action:
        if action.shape[1:] != (1,):
            raise AssertionError(f"one number an action expected, found shape {action.shape}")
        frame["action"] = [str(number) for number in action[:, 0].tolist()]
        every = [str(number) for number in np.unique(action).tolist()]
        open_ends = (~batch.terminal.squeeze(1)).tolist()
        frame["possible_actions_mask"] = [[1] * len(every) if more else [] for more in open_ends]
        frame["possible_actions"] = [list(every) if more else [] for more in open_ends]
    else:
        frame["action"] = _sparse(action)
    return pandas.DataFrame(frame)


def _sparse(rows: np.ndarray) -> list[dict[int, Any]]:
    if rows.ndim != 2:
        raise AssertionError(f"one axis of features a row expected, found shape {rows.shape}")
    return [dict(enumerate(row)) for row in rows.tolist()]
