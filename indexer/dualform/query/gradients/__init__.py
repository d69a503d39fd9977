"""Dot products of gradients: of slots with those of an example's own loss, summed over layers."""
