"""What Stable-Baselines3 is given by a buffer with priorities."""

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    import torch


class PrioritizedSamples(NamedTuple):
    """SB3's samples, and what prioritized replay needs of them.

    Attributes
    ----------
    observations, actions, next_observations, dones, rewards, discounts
        As in SB3's samples; observations are a dict of tensors for a Dict space.
    weights : Tensor of float32, shape (batch, 1)
        Importance weights, the batch's largest 1.
    ids : ndarray of int64, shape (batch,)
        For `update_priorities`.
    """

    observations: Any
    actions: "torch.Tensor"
    next_observations: Any
    dones: "torch.Tensor"
    rewards: "torch.Tensor"
    discounts: "torch.Tensor"
    weights: "torch.Tensor"
    ids: np.ndarray
