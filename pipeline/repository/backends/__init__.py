"""Backends: what makes a graph of a model's folder and configuration, by ModelConfig.backend."""
