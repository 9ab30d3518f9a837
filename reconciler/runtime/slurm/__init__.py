"""Bringing a Slurm cluster over, and watching one from beside: what the verbs do with what Slurm says."""
