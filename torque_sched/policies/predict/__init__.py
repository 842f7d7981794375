"""What a job will use, learned from jobs that ended before it.

One predictor learns one figure (busy share of its processors, memory, run time). `seed` is the paper's rule
to the letter; `chain` is the default.
"""
