"""`holdfast demo`: real workers, real kill -9, and a count at the end of what was lost.

tasks      the demo's app, as a user would write it; workers import it
processes  the worker groups: started, killed, frozen and stopped
observer   reads the store and tells what happened, in words
script     the acts, in order
book       what the demo knows by itself, and whether the store agrees with it
summary    the figures at the end
view       the live view of a terminal
pages      the pages of the demo's store
"""
