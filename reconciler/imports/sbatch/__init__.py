"""sbatch scripts: read into the neutral format sbatch/v1, from there into a Job; and a Job written as one.

`lines` finds the directives, `options` and `values` say what they mean, `parse` gathers them; `jobs` and `body` make
a Job of that; `write` goes the other way. Nothing here runs or expands a script.
"""
