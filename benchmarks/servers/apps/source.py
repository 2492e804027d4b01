"""The model in its own library, as the services of this folder call it: rows of numbers or records → probabilities of the second class."""

import os
from pathlib import Path

FOLDER = Path(os.environ["MODEL_FOLDER"])

if os.environ["MODEL_KIND"] == "mixed":
    import joblib
    import pandas as pd

    model = joblib.load(FOLDER / "model.joblib")

    def probabilities(body):  # type: ignore[no-untyped-def]
        """The answer for {"records": [...]}."""
        return model.predict_proba(pd.DataFrame(body["records"]))[:, 1].tolist()
else:
    import lightgbm
    import numpy as np

    booster = lightgbm.Booster(model_file=str(FOLDER / "model.txt"))

    def probabilities(body):  # type: ignore[no-untyped-def]
        """The answer for {"rows": [...]}."""
        return booster.predict(np.array(body["rows"], np.float32), num_threads=1).tolist()
