"""`holdfast torture`: run the user's tasks on a store of their own, kill their workers at every point, count effects.

plan.py      what is done to the workers, in which order
verdict.py   what the effects say about a task: repeated, lost, what to declare
lines.py     the effects that tasks mark, as lines of a file
fleet.py     real workers, armed with a point at which they die or freeze
torture.py   the rounds
"""
