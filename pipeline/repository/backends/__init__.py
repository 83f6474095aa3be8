"""Backends: make a graph from a model's folder and configuration, by ModelConfig.backend."""
