"""The backend `python`: `model.py` with a class TritonPythonModel, as in Triton's backend."""
