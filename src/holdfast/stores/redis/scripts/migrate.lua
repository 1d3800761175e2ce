#!lua
-- Make an empty store, unless there is one.
-- KEYS[1]: see lib.lua. ARGV[1]: a new epoch. ARGV[2]: the version of the schema. ARGV[3]: wall time, or ''.
-- Returns the version that was there before, 0 for none.

local meta = KEYS[1] .. 'meta'
local found = redis.call('HGET', meta, 'schema')
if found then return tonumber(found) end
redis.call('HSET', meta, 'epoch', ARGV[1], 'incarnation', 1, 'accepted_at', 0, 'removals', 0, 'schema', ARGV[2])
return 0
