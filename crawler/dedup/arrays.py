"""Types of arrays in sketches."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Values = npt.NDArray[np.uint32]
CodePoints = npt.NDArray[np.uint32]
Bytes = npt.NDArray[np.uint8]
Keys = npt.NDArray[np.int64]
