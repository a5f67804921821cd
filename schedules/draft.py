"""What a policy hands over before it is checked against caps of the hour."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from schedules.history import Floats
from schedules.outlook import Outlook
from schedules.schedule import Schedules


class Draft(NamedTuple):
    """Schedules of n targets and what is expected of them.

    value: (n,) what one more visit would save, worth: what the last one saves; NaN where a policy
           knows no such thing
    bound: (n,) index of terms.BOUNDS   price: of a request
    """

    schedules: Schedules
    outlook: Outlook
    value: Floats
    worth: Floats
    bound: NDArray[np.uint8]
    price: float
