"""The backend `python`: `model.py` with a class TritonPythonModel, as Triton's backend takes it."""
