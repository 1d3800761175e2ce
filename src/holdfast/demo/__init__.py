"""`holdfast demo`: real workers, real kill -9, and a count at the end of what was lost.

tasks    the demo's app, as a user would write it; workers import it
crew     the worker groups: started, killed, frozen and stopped as processes
lookout  reads the store and tells what happened, in words
stage    the acts, in order
book     what the demo knows by itself, and whether the store agrees with it
view     the live view of a terminal, plain lines for everything else
"""
